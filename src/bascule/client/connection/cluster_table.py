"""The messages of `bascule.Cluster` and `bascule.Streams` (proto/extensions.proto), in the notation of wire.py."""

from __future__ import annotations

from typing import Final

CLUSTER_TABLE: Final = {
    "StatusRequest": "",
    "StatusResponse": (
        "1 controller string, 2 members *Member, 3 reassignments *Reassignment, 4 waiting *Move, "
        "5 troubles *PartitionTrouble, 6 throttle_bytes_per_second int64, 7 leaders_waiting int32, "
        "8 reassignments_left_out int32, 9 troubles_left_out int32"
    ),
    "Member": (
        "1 id string, 2 host string, 3 port int32, 4 is_controller bool, 5 is_voter bool, 6 answers bool, 7 state int32, "
        "8 version string, 9 uptime_ms int64, 10 replicas int32, 11 leaders int32, 12 groups int32, "
        "13 data_free_bytes int64, 14 data_size_bytes int64, 15 disk_full bool"
    ),
    "Reassignment": (
        "1 stream string, 2 partition int32, 3 leader string, 4 from *string, 5 to *string, 6 log_start_offset int64, "
        "7 log_end_offset int64, 8 high_watermark int64, 9 replicas *ReplicaProgress, 10 stalled string"
    ),
    "ReplicaProgress": (
        "1 server string, 2 log_end_offset int64, 3 lag_messages int64, 4 in_sync bool, 5 seen_ms_ago int64"
    ),
    "PartitionTrouble": (
        "1 stream string, 2 partition int32, 3 leader string, 4 leader_answers bool, 5 replicas *string, "
        "6 in_sync_replicas *string, 7 paused bool"
    ),
    "ListPoliciesRequest": "",
    "ListPoliciesResponse": "1 lines *string, 2 admins *string",
    "GrantPoliciesRequest": "1 lines *string",
    "RevokePoliciesRequest": "1 lines *string",
    "ChangePoliciesResponse": "1 unchanged *string",
    "KeysRequest": "1 count bool",
    "RotateKeysRequest": "1 step int32",
    "KeysResponse": "1 servers *ServerKeys",
    "ServerKeys": (
        "1 server string, 2 error string, 3 source string, 4 current string, 5 known *string, 6 offered *string, "
        "7 phase string, 8 bytes_done int64, 9 bytes_total int64, 10 is_counted bool, 11 uses *KeyUse, 12 former int64, "
        "13 rewrapped int64, 14 closed int32, 15 failures *string"
    ),
    "KeyUse": "1 id string, 2 batches int64",
    "Move": "1 stream string, 2 partition int32, 3 from *string, 4 to *string",
    "LeaderMove": "1 stream string, 2 partition int32, 3 from string, 4 to string",
    "ServerLoad": (
        "1 server string, 2 replicas_before int32, 3 replicas_after int32, 4 leaders_before int32, 5 leaders_after int32"
    ),
    "MovesResponse": "1 moves *Move, 2 leaders *LeaderMove, 3 load *ServerLoad",
    "AddServersRequest": "1 servers *string, 2 dry_run bool",
    "RebalanceRequest": "1 streams *string, 2 leaders_only bool, 3 dry_run bool",
    "ReassignRequest": (
        "1 stream string, 2 partitions *int32, 3 replicas *string, 4 replication_factor int32, 5 dry_run bool"
    ),
    "CancelReassignmentRequest": "1 stream string, 2 partitions *int32",
    "SetThrottleRequest": "1 bytes_per_second int64",
    "SetThrottleResponse": "",
    "DrainRequest": "1 server string, 2 mode int32",
    "DrainResponse": "1 kept *KeptLeadership",
    "KeptLeadership": "1 stream string, 2 partition int32, 3 reason string",
    "RemoveServerRequest": "1 server string, 2 dry_run bool, 3 force bool",
    "RemoveServerResponse": (
        "1 removed bool, 2 replicas_left int32, 3 moves *Move, 4 blocked *Blocked, 5 state string"
    ),
    "Blocked": "1 stream string, 2 partition int32, 3 reason string, 4 replicas *string",
    "ElectUncleanRequest": "1 stream string, 2 partition int32, 3 replica string, 4 confirm bool",
    "ElectUncleanResponse": (
        "1 elected bool, 2 logs *ReplicaLog, 3 silent *string, 4 lost_from_offset int64, 5 lost_to_offset int64, "
        "6 lost_messages int64, 7 lost_committed_messages int64"
    ),
    "ReplicaLog": (
        "1 server string, 2 log_start_offset int64, 3 log_end_offset int64, 4 high_watermark int64, "
        "5 epochs *LeaderEpoch, 6 in_sync bool"
    ),
    "LeaderEpoch": "1 epoch int64, 2 start_offset int64",
    "CountsRequest": "1 names *string",
    "CountsResponse": "1 servers *ServerCounts",
    "ServerCounts": "1 server string, 2 error string, 3 counts *Count, 4 left_out int32",
    "Count": "1 name string, 2 labels *LabelsEntry, 3 value double",
    "LabelsEntry": "1 key string, 2 value string",
    "SettingsEntry": "1 key string, 2 value string",
    "DescribeStreamRequest": "1 name string",
    "DescribeStreamResponse": (
        "1 name string, 2 subject string, 3 group string, 4 creation_timestamp int64, 5 settings *SettingsEntry, "
        "6 partitions *PartitionDescription"
    ),
    "PartitionDescription": (
        "1 partition int32, 2 leader string, 3 replicas *string, 4 in_sync_replicas *string, 5 paused bool, 6 readonly bool, "
        "7 error string, 8 log_start_offset int64, 9 high_watermark int64, 10 log_end_offset int64, 11 size_bytes int64, "
        "12 messages int64, 13 first_timestamp int64, 14 last_timestamp int64"
    ),
    "SetStreamSettingsRequest": (
        "1 name string, 2 retention_max_bytes SettingNumber, 3 retention_max_messages SettingNumber, "
        "4 retention_max_age_ms SettingNumber, 5 cleaner_interval_ms SettingNumber, 6 segment_max_bytes SettingNumber, "
        "7 segment_max_age_ms SettingNumber, 8 compact_min_lag_ms SettingNumber, "
        "9 compact_tombstone_retention_ms SettingNumber, 10 auto_pause_time_ms SettingNumber, "
        "11 auto_pause_disable_if_subscribers SettingFlag, 12 sync_interval_ms SettingNumber"
    ),
    "SettingNumber": "1 value int64",
    "SettingFlag": "1 value bool",
    "SetStreamSettingsResponse": "",
}
