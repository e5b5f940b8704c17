from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeStreamRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeStreamResponse(_message.Message):
    __slots__ = ("name", "subject", "group", "creation_timestamp", "settings", "partitions")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CREATION_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    group: str
    creation_timestamp: int
    settings: _containers.ScalarMap[str, str]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., group: _Optional[str] = ..., creation_timestamp: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ..., partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ...) -> None: ...

class PartitionDescription(_message.Message):
    __slots__ = ("partition", "leader", "replicas", "in_sync_replicas", "paused", "readonly", "error", "log_start_offset", "high_watermark", "log_end_offset", "size_bytes", "messages", "first_timestamp", "last_timestamp")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    READONLY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    in_sync_replicas: _containers.RepeatedScalarFieldContainer[str]
    paused: bool
    readonly: bool
    error: str
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    messages: int
    first_timestamp: int
    last_timestamp: int
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ..., in_sync_replicas: _Optional[_Iterable[str]] = ..., paused: _Optional[bool] = ..., readonly: _Optional[bool] = ..., error: _Optional[str] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., messages: _Optional[int] = ..., first_timestamp: _Optional[int] = ..., last_timestamp: _Optional[int] = ...) -> None: ...

class SetStreamSettingsRequest(_message.Message):
    __slots__ = ("name", "retention_max_bytes", "retention_max_messages", "retention_max_age_ms", "cleaner_interval_ms", "segment_max_bytes", "segment_max_age_ms", "compact_min_lag_ms", "compact_tombstone_retention_ms", "auto_pause_time_ms", "auto_pause_disable_if_subscribers", "sync_interval_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    CLEANER_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACT_MIN_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACT_TOMBSTONE_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    AUTO_PAUSE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    AUTO_PAUSE_DISABLE_IF_SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    SYNC_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    retention_max_bytes: SettingNumber
    retention_max_messages: SettingNumber
    retention_max_age_ms: SettingNumber
    cleaner_interval_ms: SettingNumber
    segment_max_bytes: SettingNumber
    segment_max_age_ms: SettingNumber
    compact_min_lag_ms: SettingNumber
    compact_tombstone_retention_ms: SettingNumber
    auto_pause_time_ms: SettingNumber
    auto_pause_disable_if_subscribers: SettingFlag
    sync_interval_ms: SettingNumber
    def __init__(self, name: _Optional[str] = ..., retention_max_bytes: _Optional[_Union[SettingNumber, _Mapping]] = ..., retention_max_messages: _Optional[_Union[SettingNumber, _Mapping]] = ..., retention_max_age_ms: _Optional[_Union[SettingNumber, _Mapping]] = ..., cleaner_interval_ms: _Optional[_Union[SettingNumber, _Mapping]] = ..., segment_max_bytes: _Optional[_Union[SettingNumber, _Mapping]] = ..., segment_max_age_ms: _Optional[_Union[SettingNumber, _Mapping]] = ..., compact_min_lag_ms: _Optional[_Union[SettingNumber, _Mapping]] = ..., compact_tombstone_retention_ms: _Optional[_Union[SettingNumber, _Mapping]] = ..., auto_pause_time_ms: _Optional[_Union[SettingNumber, _Mapping]] = ..., auto_pause_disable_if_subscribers: _Optional[_Union[SettingFlag, _Mapping]] = ..., sync_interval_ms: _Optional[_Union[SettingNumber, _Mapping]] = ...) -> None: ...

class SettingNumber(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class SettingFlag(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bool
    def __init__(self, value: _Optional[bool] = ...) -> None: ...

class SetStreamSettingsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("lines", "admins")
    LINES_FIELD_NUMBER: _ClassVar[int]
    ADMINS_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    admins: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., admins: _Optional[_Iterable[str]] = ...) -> None: ...

class GrantPoliciesRequest(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lines: _Optional[_Iterable[str]] = ...) -> None: ...

class RevokePoliciesRequest(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lines: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangePoliciesResponse(_message.Message):
    __slots__ = ("unchanged",)
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    unchanged: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unchanged: _Optional[_Iterable[str]] = ...) -> None: ...

class KeysRequest(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: bool
    def __init__(self, count: _Optional[bool] = ...) -> None: ...

class RotateKeysRequest(_message.Message):
    __slots__ = ("step",)
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LOAD: _ClassVar[RotateKeysRequest.Step]
        SWITCH: _ClassVar[RotateKeysRequest.Step]
    LOAD: RotateKeysRequest.Step
    SWITCH: RotateKeysRequest.Step
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: RotateKeysRequest.Step
    def __init__(self, step: _Optional[_Union[RotateKeysRequest.Step, str]] = ...) -> None: ...

class KeysResponse(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[ServerKeys]
    def __init__(self, servers: _Optional[_Iterable[_Union[ServerKeys, _Mapping]]] = ...) -> None: ...

class ServerKeys(_message.Message):
    __slots__ = ("server", "error", "source", "current", "known", "offered", "phase", "bytes_done", "bytes_total", "is_counted", "uses", "former", "rewrapped", "closed", "failures")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    IS_COUNTED_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    REWRAPPED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    server: str
    error: str
    source: str
    current: str
    known: _containers.RepeatedScalarFieldContainer[str]
    offered: _containers.RepeatedScalarFieldContainer[str]
    phase: str
    bytes_done: int
    bytes_total: int
    is_counted: bool
    uses: _containers.RepeatedCompositeFieldContainer[KeyUse]
    former: int
    rewrapped: int
    closed: int
    failures: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, server: _Optional[str] = ..., error: _Optional[str] = ..., source: _Optional[str] = ..., current: _Optional[str] = ..., known: _Optional[_Iterable[str]] = ..., offered: _Optional[_Iterable[str]] = ..., phase: _Optional[str] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., is_counted: _Optional[bool] = ..., uses: _Optional[_Iterable[_Union[KeyUse, _Mapping]]] = ..., former: _Optional[int] = ..., rewrapped: _Optional[int] = ..., closed: _Optional[int] = ..., failures: _Optional[_Iterable[str]] = ...) -> None: ...

class KeyUse(_message.Message):
    __slots__ = ("id", "batches")
    ID_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    id: str
    batches: int
    def __init__(self, id: _Optional[str] = ..., batches: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("controller", "members", "reassignments", "waiting", "troubles", "throttle_bytes_per_second", "leaders_waiting", "reassignments_left_out", "troubles_left_out")
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LEADERS_WAITING_FIELD_NUMBER: _ClassVar[int]
    REASSIGNMENTS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    controller: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    reassignments: _containers.RepeatedCompositeFieldContainer[Reassignment]
    waiting: _containers.RepeatedCompositeFieldContainer[Move]
    troubles: _containers.RepeatedCompositeFieldContainer[PartitionTrouble]
    throttle_bytes_per_second: int
    leaders_waiting: int
    reassignments_left_out: int
    troubles_left_out: int
    def __init__(self, controller: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., reassignments: _Optional[_Iterable[_Union[Reassignment, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., troubles: _Optional[_Iterable[_Union[PartitionTrouble, _Mapping]]] = ..., throttle_bytes_per_second: _Optional[int] = ..., leaders_waiting: _Optional[int] = ..., reassignments_left_out: _Optional[int] = ..., troubles_left_out: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "host", "port", "is_controller", "is_voter", "answers", "state", "version", "uptime_ms", "replicas", "leaders", "groups", "data_free_bytes", "data_size_bytes", "disk_full")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTIVE: _ClassVar[Member.State]
        LEAVING: _ClassVar[Member.State]
        DRAINING: _ClassVar[Member.State]
    ACTIVE: Member.State
    LEAVING: Member.State
    DRAINING: Member.State
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    IS_CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    IS_VOTER_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DATA_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    port: int
    is_controller: bool
    is_voter: bool
    answers: bool
    state: Member.State
    version: str
    uptime_ms: int
    replicas: int
    leaders: int
    groups: int
    data_free_bytes: int
    data_size_bytes: int
    disk_full: bool
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., is_controller: _Optional[bool] = ..., is_voter: _Optional[bool] = ..., answers: _Optional[bool] = ..., state: _Optional[_Union[Member.State, str]] = ..., version: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., replicas: _Optional[int] = ..., leaders: _Optional[int] = ..., groups: _Optional[int] = ..., data_free_bytes: _Optional[int] = ..., data_size_bytes: _Optional[int] = ..., disk_full: _Optional[bool] = ...) -> None: ...

class Reassignment(_message.Message):
    __slots__ = ("stream", "partition", "leader", "to", "log_start_offset", "log_end_offset", "high_watermark", "replicas", "stalled")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    leader: str
    to: _containers.RepeatedScalarFieldContainer[str]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaProgress]
    stalled: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaProgress, _Mapping]]] = ..., stalled: _Optional[str] = ..., **kwargs) -> None: ...

class ReplicaProgress(_message.Message):
    __slots__ = ("server", "log_end_offset", "lag_messages", "in_sync", "seen_ms_ago")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    SEEN_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    server: str
    log_end_offset: int
    lag_messages: int
    in_sync: bool
    seen_ms_ago: int
    def __init__(self, server: _Optional[str] = ..., log_end_offset: _Optional[int] = ..., lag_messages: _Optional[int] = ..., in_sync: _Optional[bool] = ..., seen_ms_ago: _Optional[int] = ...) -> None: ...

class PartitionTrouble(_message.Message):
    __slots__ = ("stream", "partition", "leader", "leader_answers", "replicas", "in_sync_replicas", "paused")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    leader: str
    leader_answers: bool
    replicas: _containers.RepeatedScalarFieldContainer[str]
    in_sync_replicas: _containers.RepeatedScalarFieldContainer[str]
    paused: bool
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., leader: _Optional[str] = ..., leader_answers: _Optional[bool] = ..., replicas: _Optional[_Iterable[str]] = ..., in_sync_replicas: _Optional[_Iterable[str]] = ..., paused: _Optional[bool] = ...) -> None: ...

class CountsRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class CountsResponse(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[ServerCounts]
    def __init__(self, servers: _Optional[_Iterable[_Union[ServerCounts, _Mapping]]] = ...) -> None: ...

class ServerCounts(_message.Message):
    __slots__ = ("server", "error", "counts", "left_out")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    server: str
    error: str
    counts: _containers.RepeatedCompositeFieldContainer[Count]
    left_out: int
    def __init__(self, server: _Optional[str] = ..., error: _Optional[str] = ..., counts: _Optional[_Iterable[_Union[Count, _Mapping]]] = ..., left_out: _Optional[int] = ...) -> None: ...

class Count(_message.Message):
    __slots__ = ("name", "labels", "value")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.ScalarMap[str, str]
    value: float
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., value: _Optional[float] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("stream", "partition", "to")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    to: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., to: _Optional[_Iterable[str]] = ..., **kwargs) -> None: ...

class LeaderMove(_message.Message):
    __slots__ = ("stream", "partition", "to")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    to: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., to: _Optional[str] = ..., **kwargs) -> None: ...

class ServerLoad(_message.Message):
    __slots__ = ("server", "replicas_before", "replicas_after", "leaders_before", "leaders_after")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_AFTER_FIELD_NUMBER: _ClassVar[int]
    LEADERS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    LEADERS_AFTER_FIELD_NUMBER: _ClassVar[int]
    server: str
    replicas_before: int
    replicas_after: int
    leaders_before: int
    leaders_after: int
    def __init__(self, server: _Optional[str] = ..., replicas_before: _Optional[int] = ..., replicas_after: _Optional[int] = ..., leaders_before: _Optional[int] = ..., leaders_after: _Optional[int] = ...) -> None: ...

class MovesResponse(_message.Message):
    __slots__ = ("moves", "leaders", "load")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    leaders: _containers.RepeatedCompositeFieldContainer[LeaderMove]
    load: _containers.RepeatedCompositeFieldContainer[ServerLoad]
    def __init__(self, moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., leaders: _Optional[_Iterable[_Union[LeaderMove, _Mapping]]] = ..., load: _Optional[_Iterable[_Union[ServerLoad, _Mapping]]] = ...) -> None: ...

class AddServersRequest(_message.Message):
    __slots__ = ("servers", "dry_run")
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    def __init__(self, servers: _Optional[_Iterable[str]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RebalanceRequest(_message.Message):
    __slots__ = ("streams", "leaders_only", "dry_run")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedScalarFieldContainer[str]
    leaders_only: bool
    dry_run: bool
    def __init__(self, streams: _Optional[_Iterable[str]] = ..., leaders_only: _Optional[bool] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ReassignRequest(_message.Message):
    __slots__ = ("stream", "partitions", "replicas", "replication_factor", "dry_run")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    replicas: _containers.RepeatedScalarFieldContainer[str]
    replication_factor: int
    dry_run: bool
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., replicas: _Optional[_Iterable[str]] = ..., replication_factor: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CancelReassignmentRequest(_message.Message):
    __slots__ = ("stream", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class SetThrottleRequest(_message.Message):
    __slots__ = ("bytes_per_second",)
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    def __init__(self, bytes_per_second: _Optional[int] = ...) -> None: ...

class SetThrottleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("server", "mode")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STOP: _ClassVar[DrainRequest.Mode]
        KEEP_RUNNING: _ClassVar[DrainRequest.Mode]
        UNDO: _ClassVar[DrainRequest.Mode]
    STOP: DrainRequest.Mode
    KEEP_RUNNING: DrainRequest.Mode
    UNDO: DrainRequest.Mode
    SERVER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    server: str
    mode: DrainRequest.Mode
    def __init__(self, server: _Optional[str] = ..., mode: _Optional[_Union[DrainRequest.Mode, str]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("kept",)
    KEPT_FIELD_NUMBER: _ClassVar[int]
    kept: _containers.RepeatedCompositeFieldContainer[KeptLeadership]
    def __init__(self, kept: _Optional[_Iterable[_Union[KeptLeadership, _Mapping]]] = ...) -> None: ...

class KeptLeadership(_message.Message):
    __slots__ = ("stream", "partition", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    reason: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RemoveServerRequest(_message.Message):
    __slots__ = ("server", "dry_run", "force")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    server: str
    dry_run: bool
    force: bool
    def __init__(self, server: _Optional[str] = ..., dry_run: _Optional[bool] = ..., force: _Optional[bool] = ...) -> None: ...

class RemoveServerResponse(_message.Message):
    __slots__ = ("removed", "replicas_left", "moves", "blocked", "state")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_LEFT_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    replicas_left: int
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    blocked: _containers.RepeatedCompositeFieldContainer[Blocked]
    state: str
    def __init__(self, removed: _Optional[bool] = ..., replicas_left: _Optional[int] = ..., moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., blocked: _Optional[_Iterable[_Union[Blocked, _Mapping]]] = ..., state: _Optional[str] = ...) -> None: ...

class Blocked(_message.Message):
    __slots__ = ("stream", "partition", "reason", "replicas")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    reason: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., reason: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ...) -> None: ...

class ElectUncleanRequest(_message.Message):
    __slots__ = ("stream", "partition", "replica", "confirm")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    replica: str
    confirm: bool
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., replica: _Optional[str] = ..., confirm: _Optional[bool] = ...) -> None: ...

class ElectUncleanResponse(_message.Message):
    __slots__ = ("elected", "logs", "silent", "lost_from_offset", "lost_to_offset", "lost_messages", "lost_committed_messages")
    ELECTED_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    LOST_FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOST_TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOST_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOST_COMMITTED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    elected: bool
    logs: _containers.RepeatedCompositeFieldContainer[ReplicaLog]
    silent: _containers.RepeatedScalarFieldContainer[str]
    lost_from_offset: int
    lost_to_offset: int
    lost_messages: int
    lost_committed_messages: int
    def __init__(self, elected: _Optional[bool] = ..., logs: _Optional[_Iterable[_Union[ReplicaLog, _Mapping]]] = ..., silent: _Optional[_Iterable[str]] = ..., lost_from_offset: _Optional[int] = ..., lost_to_offset: _Optional[int] = ..., lost_messages: _Optional[int] = ..., lost_committed_messages: _Optional[int] = ...) -> None: ...

class ReplicaLog(_message.Message):
    __slots__ = ("server", "log_start_offset", "log_end_offset", "high_watermark", "epochs", "in_sync")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    server: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    epochs: _containers.RepeatedCompositeFieldContainer[LeaderEpoch]
    in_sync: bool
    def __init__(self, server: _Optional[str] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., epochs: _Optional[_Iterable[_Union[LeaderEpoch, _Mapping]]] = ..., in_sync: _Optional[bool] = ...) -> None: ...

class LeaderEpoch(_message.Message):
    __slots__ = ("epoch", "start_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_offset: int
    def __init__(self, epoch: _Optional[int] = ..., start_offset: _Optional[int] = ...) -> None: ...

class ForwardedCall(_message.Message):
    __slots__ = ("method", "request", "timeout_ms")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    method: str
    request: bytes
    timeout_ms: int
    def __init__(self, method: _Optional[str] = ..., request: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ForwardedAnswer(_message.Message):
    __slots__ = ("code", "text", "response")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    code: int
    text: str
    response: bytes
    def __init__(self, code: _Optional[int] = ..., text: _Optional[str] = ..., response: _Optional[bytes] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("version", "uptime_ms", "draining", "partitions", "waiting", "leaders_waiting", "left_out", "data_free_bytes", "data_size_bytes", "disk_full")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LEADERS_WAITING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    DATA_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    version: str
    uptime_ms: int
    draining: bool
    partitions: _containers.RepeatedCompositeFieldContainer[Reassignment]
    waiting: _containers.RepeatedCompositeFieldContainer[Move]
    leaders_waiting: int
    left_out: int
    data_free_bytes: int
    data_size_bytes: int
    disk_full: bool
    def __init__(self, version: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., draining: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[Reassignment, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., leaders_waiting: _Optional[int] = ..., left_out: _Optional[int] = ..., data_free_bytes: _Optional[int] = ..., data_size_bytes: _Optional[int] = ..., disk_full: _Optional[bool] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("stream", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class LogsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ...) -> None: ...

class HandOverRequest(_message.Message):
    __slots__ = ("stream", "partition", "successor")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    successor: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., successor: _Optional[str] = ...) -> None: ...

class HandOverResponse(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: str
    def __init__(self, leader: _Optional[str] = ...) -> None: ...

class ReplicaLogRequest(_message.Message):
    __slots__ = ("stream", "partition")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class MembershipRequest(_message.Message):
    __slots__ = ("server",)
    SERVER_FIELD_NUMBER: _ClassVar[int]
    server: str
    def __init__(self, server: _Optional[str] = ...) -> None: ...

class MembershipResponse(_message.Message):
    __slots__ = ("is_member",)
    IS_MEMBER_FIELD_NUMBER: _ClassVar[int]
    is_member: bool
    def __init__(self, is_member: _Optional[bool] = ...) -> None: ...

class CursorsRequest(_message.Message):
    __slots__ = ("cursors_partition", "server")
    CURSORS_PARTITION_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    cursors_partition: int
    server: str
    def __init__(self, cursors_partition: _Optional[int] = ..., server: _Optional[str] = ...) -> None: ...

class CursorsResponse(_message.Message):
    __slots__ = ("partitions", "left_out")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionCursors]
    left_out: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionCursors, _Mapping]]] = ..., left_out: _Optional[int] = ...) -> None: ...

class PartitionCursors(_message.Message):
    __slots__ = ("stream", "partition", "cursors", "offsets")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    cursors: _containers.RepeatedScalarFieldContainer[str]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., cursors: _Optional[_Iterable[str]] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...
