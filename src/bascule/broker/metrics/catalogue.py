"""Every metric there is: name, kind, meaning, labels. docs/reference/metrics.md is made from this; names do not change.

A metric that a broker cannot tell now is not on its page: cluster metrics without being controller, offsets of a log that is closed.
"""

from __future__ import annotations

from typing import Final

from bascule.broker.metrics.exposition import Metric

_PARTITION: Final = ("stream", "partition")
_REPLICA: Final = ("stream", "partition", "replica")
_CURSOR: Final = ("cursor", "stream", "partition", "group")
_LINK: Final = ("link",)


def _gauge(name: str, meaning: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, "gauge", meaning, labels)


def _counter(name: str, meaning: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, "counter", meaning, labels)


def _histogram(name: str, meaning: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, "histogram", meaning, labels)


SERVER: Final = (
    _gauge("bascule_build_info", "Always 1; the labels say what runs.", ("version", "python", "server")),
    _gauge("bascule_uptime_seconds", "Since the server was started."),
    _gauge("bascule_ready", "1 when /readyz says so."),
    _gauge("bascule_draining", "1 while the server hands over what it leads."),
    _counter("process_cpu_seconds_total", "CPU time of the process, all threads."),
    _gauge("process_resident_memory_bytes", "Memory that the process holds."),
    _gauge("process_open_fds", "Files and sockets that the process holds open."),
    _gauge("process_max_fds", "How many it may hold open."),
    _gauge("process_threads", "Threads of the process."),
    _gauge("process_start_time_seconds", "When the process was started, since the epoch."),
    _gauge("bascule_data_free_bytes", "Free for the server on the file system of its data directory."),
    _gauge("bascule_data_size_bytes", "Size of the file system of its data directory."),
    _gauge("bascule_log_open_files", "Log files that are held open."),
    _counter("bascule_log_sync_rounds_total", "Rounds of forcing written messages to the disk."),
    _histogram("bascule_log_sync_seconds", "How long it took to force one file of a log to the disk."),
)

PARTITIONS: Final = (
    _gauge("bascule_partitions", "Partitions that run here, by the part that this server has in them.", ("role",)),
    _gauge("bascule_partitions_idle", "Of those: nobody has used their log since the server was started; no offsets."),
    _gauge("bascule_partitions_under_replicated", "Led here, with a replica that is not in sync."),
    _gauge("bascule_partitions_below_min_insync", "Led here, with too few replicas in sync to acknowledge or commit."),
    _gauge("bascule_partitions_leader_silent", "Followed here, with no word of the leader for its time-out."),
    _gauge(
        "bascule_partitions_failing",
        "Partitions that this server could not bring to the state that the metadata wants; it retries. The log says why.",
    ),
    _gauge("bascule_partition_leader", "1 when this server leads the partition, 0 when it follows.", _PARTITION),
    _gauge("bascule_partition_leader_epoch", "The epoch of the leader.", _PARTITION),
    _gauge("bascule_partition_log_start_offset", "Where the log begins; below it messages were deleted.", _PARTITION),
    _gauge("bascule_partition_high_watermark", "The last offset that readers may see, -1 for none.", _PARTITION),
    _gauge("bascule_partition_log_end_offset", "The offset that the next message gets.", _PARTITION),
    _gauge("bascule_partition_size_bytes", "Bytes of the log on this server.", _PARTITION),
    _gauge("bascule_partition_records", "Messages in the log on this server.", _PARTITION),
    _gauge("bascule_partition_last_timestamp_seconds", "Time of the newest message, since the epoch.", _PARTITION),
    _gauge("bascule_partition_replicas", "Replicas that the partition is to have. Of the leader.", _PARTITION),
    _gauge("bascule_partition_in_sync_replicas", "Replicas in sync, the leader counted. Of the leader.", _PARTITION),
    _gauge("bascule_partition_subscribers", "Who reads the partition from this server through the API.", _PARTITION),
    _counter("bascule_partition_messages_received_total", "Messages that NATS brought. Of the leader.", _PARTITION),
    _counter(
        "bascule_partition_messages_refused_total", "Of those: too large, not at their offset, readonly.", _PARTITION
    ),
    _counter(
        "bascule_partition_messages_duplicate_total", "Of those: stored before, by their producers' word.", _PARTITION
    ),
    _counter("bascule_partition_messages_lost_total", "Of those: there was no memory for them.", _PARTITION),
    _counter("bascule_partition_messages_delivered_total", "Messages given to subscribers.", _PARTITION),
    _counter("bascule_partition_delivered_bytes_total", "The same in bytes, as they were sent.", _PARTITION),
    _gauge("bascule_replica_lag_offsets", "Messages that a follower lacks. Of the leader.", _REPLICA),
    _gauge("bascule_replica_silent_seconds", "Since a follower last asked for more. Of the leader.", _REPLICA),
    _gauge("bascule_replica_in_sync", "1 when the leader counts the follower as in sync.", _REPLICA),
)

CURSORS: Final = (
    _gauge("bascule_cursor_offset", "The last offset that was dealt with, -1 for none. Of the leader.", _CURSOR),
    _gauge("bascule_cursor_lag_offsets", "Messages that wait to be dealt with.", _CURSOR),
    _gauge("bascule_cursor_lag_bytes", "Bytes of the log from the first of them on.", _CURSOR),
    _gauge("bascule_cursor_lag_seconds", "Age of the oldest of them; 0 when none waits.", _CURSOR),
    _gauge("bascule_cursors_unknown_partitions", "Partitions of the cursors' stream that nobody could be asked for."),
    _gauge("bascule_groups", "Consumer groups that this server coordinates."),
    _gauge("bascule_group_members", "Members of a group that this server coordinates.", ("group",)),
)

FLOW: Final = (
    _counter("bascule_ingest_messages_total", "Messages appended to logs that this server leads."),
    _counter("bascule_ingest_bytes_total", "The same in bytes."),
    _counter("bascule_ingest_batches_total", "The same in batches: one append each."),
    _counter("bascule_ingest_failed_batches_total", "Batches that could not be stored."),
    _histogram(
        "bascule_ingest_ack_seconds",
        "From the first message of a batch being received to the acks of the batch being sent, by what the acks say.",
        ("policy",),
    ),
    _counter("bascule_ingest_pauses_total", "How often NATS was not read because the disk was too slow."),
    _gauge("bascule_ingest_buffered_bytes", "Received and not yet written."),
    _gauge("bascule_ingest_buffer_bytes_max", "Where reading NATS stops."),
    _counter("bascule_publish_messages_total", "Messages that clients published through the API of this server."),
    _gauge("bascule_publish_unanswered", "Of those: their acks are still to come."),
    _gauge("bascule_subscribers", "Subscriptions that are open."),
    _gauge("bascule_grpc_connections", "Clients that are connected."),
    _counter("bascule_grpc_connections_refused_total", "Clients that were one too many, or came during the stop."),
    _gauge("bascule_flight_calls", "Tables that are being read or written over Arrow Flight."),
    _counter(
        "bascule_flight_rows_total",
        "Rows read over Arrow Flight; of files that readers on this machine were given, offsets.",
    ),
    _counter("bascule_flight_bytes_total", "The same in bytes of Arrow batches, or of those files."),
    _gauge("bascule_http_connections", "Connections to this port."),
    _counter("bascule_http_responses_total", "Answers of this port.", ("status",)),
)

NATS: Final = (
    _gauge("bascule_nats_connected", "1 while the connection stands.", _LINK),
    _counter("bascule_nats_reconnects_total", "How often it had to be made again.", _LINK),
    _counter(
        "bascule_nats_errors_total", "What NATS complained of (slow consumer, permissions), and failed tries.", _LINK
    ),
    _counter(
        "bascule_nats_read_pauses_total", "How often reading was stopped: NATS then holds back, or cuts us off.", _LINK
    ),
    _counter("bascule_nats_messages_received_total", "Messages that NATS brought.", _LINK),
    _counter("bascule_nats_received_bytes_total", "The same in bytes of headers and payloads.", _LINK),
    _counter("bascule_nats_messages_unknown_total", "Of those: for subscriptions that are no more.", _LINK),
    _counter(
        "bascule_nats_messages_dropped_total", "Of those: nobody took them, or who should was too far behind.", _LINK
    ),
    _counter("bascule_nats_publishes_refused_total", "Publishes that failed because there was no connection.", _LINK),
    _counter("bascule_nats_discarded_bytes_total", "Written, and not sent when the connection was lost.", _LINK),
    _gauge("bascule_nats_unsent_bytes", "Written, and waiting for the socket.", _LINK),
)

CLUSTER: Final = (
    _gauge("bascule_raft_term", "The term of the metadata's Raft group."),
    _gauge("bascule_raft_commit_index", "The last entry that is committed, as this server knows."),
    _gauge("bascule_raft_applied_index", "The last entry that this server has applied."),
    _gauge("bascule_raft_last_index", "The last entry in this server's log."),
    _gauge("bascule_raft_members", "Members of the group.", ("kind",)),
    _gauge("bascule_controller_known", "1 when this server knows who is controller."),
    _gauge("bascule_controller", "1 on the server that is controller."),
    _gauge("bascule_controller_info", "Always 1; the label names the controller.", ("controller",)),
    _gauge("bascule_cluster_servers", "Servers of the cluster, by whether they answer. Of the controller.", ("state",)),
    _gauge("bascule_cluster_streams", "Streams. Of the controller."),
    _gauge("bascule_cluster_partitions", "Partitions of all streams. Of the controller."),
    _gauge("bascule_cluster_partitions_paused", "Of those: paused. Of the controller."),
    _gauge("bascule_cluster_partitions_leaderless", "Of those: their leader does not answer. Of the controller."),
    _gauge("bascule_cluster_partitions_under_replicated", "Of those: a replica is not in sync. Of the controller."),
    _gauge("bascule_cluster_partitions_moving", "Of those: on their way to other servers. Of the controller."),
)

SCRAPE: Final = (
    _gauge("bascule_scrape_cpu_seconds", "CPU time that the event loop spent on this page."),
    _gauge("bascule_scrape_turn_seconds_max", "The most of it that was spent in one go."),
    _gauge("bascule_scrape_left_out", "Partitions, cursors and groups beyond what one page holds.", ("kind",)),
)

METRICS: Final = (*SERVER, *PARTITIONS, *CURSORS, *FLOW, *NATS, *CLUSTER, *SCRAPE)
