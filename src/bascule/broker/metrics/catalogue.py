"""All metrics: name, kind, meaning, labels. docs/reference/metrics.md is generated from this file; names do not change.

A page leaves out the metrics that a broker does not have: those of the cluster unless it is controller, offsets of a closed log.
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
    _gauge(
        "bascule_build_info",
        "Always 1; the labels are the versions and the server id.",
        ("version", "python", "server"),
    ),
    _gauge(
        "bascule_unsafe_setting",
        "1 for each setting that leaves the server open: `no_tls`, `no_authentication`, `plaintext_tokens`.",
        ("setting",),
    ),
    _gauge("bascule_uptime_seconds", "Time since the server was started."),
    _gauge("bascule_ready", "1 when /readyz answers 200."),
    _counter("bascule_audit_records_total", "Audit records written to the file; absent without `security.audit.file`."),
    _counter(
        "bascule_audit_records_lost_total",
        "Audit records dropped because the file could not be written quickly enough, or at all.",
    ),
    _counter(
        "bascule_audit_stream_records_total",
        "Audit records published to `__audit`; absent without `security.audit.stream.enabled`.",
    ),
    _counter(
        "bascule_audit_stream_records_lost_total",
        "Audit records dropped because `__audit` could not be written quickly enough, or at all.",
    ),
    _gauge("bascule_draining", "1 while the server hands its leaderships over."),
    _counter("process_cpu_seconds_total", "CPU time of all threads of the process."),
    _gauge("process_resident_memory_bytes", "Resident memory of the process."),
    _gauge("process_open_fds", "Open files and sockets of the process."),
    _gauge("process_max_fds", "Maximum number of open files and sockets of the process."),
    _gauge("process_threads", "Threads of the process."),
    _gauge("process_start_time_seconds", "Start time of the process, in seconds since the epoch."),
    _gauge("bascule_data_free_bytes", "Free space on the file system of the data directory."),
    _gauge("bascule_data_size_bytes", "Size of the file system of the data directory."),
    _gauge(
        "bascule_disk_full",
        "1 while partitions on this server refuse messages, because only the reserve of the disk is left.",
    ),
    _gauge("bascule_log_open_files", "Open log files."),
    _counter("bascule_log_sync_rounds_total", "Rounds of syncing written messages to disk."),
    _histogram("bascule_log_sync_seconds", "Time to sync one log file to disk."),
)

PARTITIONS: Final = (
    _gauge("bascule_partitions", "Partitions that run on this server, by its role in them.", ("role",)),
    _gauge(
        "bascule_partitions_idle",
        "Partitions on this server whose log has not been used since the start; they have no offsets here.",
    ),
    _gauge("bascule_partitions_under_replicated", "Partitions led by this server with a replica that is not in sync."),
    _gauge(
        "bascule_partitions_below_min_insync",
        "Partitions led by this server with too few in-sync replicas to acknowledge or commit.",
    ),
    _gauge(
        "bascule_partitions_leader_silent",
        "Partitions followed by this server whose leader has not answered within its timeout.",
    ),
    _gauge(
        "bascule_partitions_failing",
        "Partitions that this server could not bring to the state that the metadata wants; it retries. The log says why.",
    ),
    _gauge("bascule_partition_leader", "1 when this server leads the partition, 0 when it follows.", _PARTITION),
    _gauge("bascule_partition_leader_epoch", "Leader epoch of the partition.", _PARTITION),
    _gauge("bascule_partition_log_start_offset", "First offset of the log; older messages were deleted.", _PARTITION),
    _gauge("bascule_partition_high_watermark", "Last offset that subscribers can read, -1 for none.", _PARTITION),
    _gauge("bascule_partition_log_end_offset", "Offset of the next message.", _PARTITION),
    _gauge("bascule_partition_size_bytes", "Size of the log on this server.", _PARTITION),
    _gauge("bascule_partition_records", "Messages in the log on this server.", _PARTITION),
    _gauge(
        "bascule_partition_last_timestamp_seconds",
        "Timestamp of the newest message, in seconds since the epoch.",
        _PARTITION,
    ),
    _gauge("bascule_partition_replicas", "Number of replicas of the partition. Leader only.", _PARTITION),
    _gauge(
        "bascule_partition_in_sync_replicas",
        "Number of in-sync replicas, including the leader. Leader only.",
        _PARTITION,
    ),
    _gauge("bascule_partition_subscribers", "Subscriptions to the partition on this server.", _PARTITION),
    _counter("bascule_partition_messages_received_total", "Messages received from NATS. Leader only.", _PARTITION),
    _counter(
        "bascule_partition_messages_refused_total",
        "Received messages that were refused: too large, at another offset than expected, or readonly.",
        _PARTITION,
    ),
    _counter(
        "bascule_partition_messages_duplicate_total",
        "Received messages that were already stored, by producer id and sequence.",
        _PARTITION,
    ),
    _counter(
        "bascule_partition_messages_lost_total", "Received messages that were dropped for lack of memory.", _PARTITION
    ),
    _counter("bascule_partition_messages_delivered_total", "Messages sent to subscribers.", _PARTITION),
    _counter("bascule_partition_delivered_bytes_total", "Bytes sent to subscribers.", _PARTITION),
    _gauge("bascule_replica_lag_offsets", "Messages that a follower has not fetched yet. Leader only.", _REPLICA),
    _gauge("bascule_replica_silent_seconds", "Time since the last fetch request of a follower. Leader only.", _REPLICA),
    _gauge("bascule_replica_in_sync", "1 when the follower is in sync. Leader only.", _REPLICA),
)

CURSORS: Final = (
    _gauge(
        "bascule_cursor_offset",
        "Last processed offset; -1: none, or a partition that the group has never read. Leader only.",
        _CURSOR,
    ),
    _gauge("bascule_cursor_lag_offsets", "Messages that the reader has not processed.", _CURSOR),
    _gauge("bascule_cursor_lag_bytes", "Bytes of the log that the reader has not processed.", _CURSOR),
    _gauge(
        "bascule_cursor_lag_seconds",
        "Age of the oldest message that the reader has not processed; 0 when there is none.",
        _CURSOR,
    ),
    _gauge(
        "bascule_cursors_unknown_partitions",
        "Partitions of `__cursors` whose leader did not answer; their cursors are missing here.",
    ),
    _gauge("bascule_groups", "Consumer groups that this server coordinates."),
    _gauge("bascule_group_members", "Members of a group that this server coordinates.", ("group",)),
)

FLOW: Final = (
    _counter("bascule_ingest_messages_total", "Messages appended to logs that this server leads."),
    _counter("bascule_ingest_bytes_total", "Bytes appended to logs that this server leads."),
    _counter("bascule_ingest_batches_total", "Batches appended to logs that this server leads."),
    _counter("bascule_ingest_failed_batches_total", "Batches that could not be stored."),
    _histogram(
        "bascule_ingest_ack_seconds",
        "Time from the first received message of a batch to the acks of the batch, by ack policy.",
        ("policy",),
    ),
    _counter("bascule_ingest_pauses_total", "Pauses of reading from NATS because the disk was too slow."),
    _gauge("bascule_ingest_buffered_bytes", "Bytes received from NATS and not yet written."),
    _gauge("bascule_ingest_buffer_bytes_max", "Buffered bytes at which reading from NATS pauses."),
    _counter("bascule_publish_messages_total", "Messages that clients published through the API of this server."),
    _gauge("bascule_publish_unanswered", "Messages published through the API of this server whose acks are pending."),
    _gauge("bascule_subscribers", "Open subscriptions."),
    _gauge("bascule_grpc_connections", "Open gRPC connections."),
    _counter(
        "bascule_grpc_connections_refused_total", "gRPC connections refused at the maximum number, or during a stop."
    ),
    _counter(
        "bascule_grpc_connections_idle_closed_total",
        "gRPC connections closed after a long time without calls, or without calls to make room for new ones.",
    ),
    _gauge("bascule_grpc_memory_bytes", "Memory for requests and responses of all gRPC connections."),
    _gauge("bascule_grpc_memory_bytes_max", "Memory at which the calls that hold most end with RESOURCE_EXHAUSTED."),
    _gauge("bascule_flight_calls", "Running reads and writes of Arrow Flight."),
    _counter(
        "bascule_flight_rows_total",
        "Rows read through Arrow Flight; for files read directly on this machine, offsets.",
    ),
    _counter("bascule_flight_bytes_total", "Bytes of Arrow batches, or of such files, read through Arrow Flight."),
    _gauge("bascule_http_connections", "Open connections to the HTTP port."),
    _counter("bascule_http_responses_total", "Responses of the HTTP port.", ("status",)),
)

NATS: Final = (
    _gauge("bascule_nats_connected", "1 while the connection to NATS is up.", _LINK),
    _counter("bascule_nats_reconnects_total", "Reconnects to NATS.", _LINK),
    _counter(
        "bascule_nats_errors_total",
        "Errors from NATS, such as slow consumer or permissions, and failed connection attempts.",
        _LINK,
    ),
    _counter(
        "bascule_nats_read_pauses_total", "Pauses of reading; NATS then buffers, or disconnects this server.", _LINK
    ),
    _counter("bascule_nats_messages_received_total", "Messages received from NATS.", _LINK),
    _counter("bascule_nats_received_bytes_total", "Bytes of headers and payloads received from NATS.", _LINK),
    _counter("bascule_nats_messages_unknown_total", "Received messages for subscriptions that have ended.", _LINK),
    _counter(
        "bascule_nats_messages_dropped_total",
        "Received messages that were dropped: no subscriber, or its queue was full.",
        _LINK,
    ),
    _counter("bascule_nats_publishes_refused_total", "Publishes that failed because NATS was not connected.", _LINK),
    _counter(
        "bascule_nats_discarded_bytes_total", "Bytes that were discarded unsent when the connection was lost.", _LINK
    ),
    _gauge("bascule_nats_unsent_bytes", "Bytes that wait to be sent.", _LINK),
    _gauge(
        "bascule_security_unauthenticated_control_plane",
        "1 when this server has no cluster secret, so that any client of NATS can send it internal messages.",
    ),
    _counter(
        "bascule_seal_messages_refused_total",
        "Internal messages that were ignored: `unsealed`, `forged` (wrong MAC), `replayed`, or `unproven`, which is normal for a "
        "moment when a server starts.",
        ("link", "reason"),
    ),
    _counter(
        "bascule_raft_messages_refused_total",
        "Raft messages that were ignored: malformed, of another cluster, or such that no member can have sent them.",
    ),
)

CLUSTER: Final = (
    _gauge("bascule_raft_term", "Term of the metadata's Raft group."),
    _gauge("bascule_raft_commit_index", "Index of the last committed entry that this server knows."),
    _gauge("bascule_raft_applied_index", "Index of the last entry that this server has applied."),
    _gauge("bascule_raft_last_index", "Index of the last entry in this server's log."),
    _gauge("bascule_raft_members", "Members of the metadata's Raft group.", ("kind",)),
    _gauge("bascule_controller_known", "1 when this server knows the controller."),
    _gauge("bascule_controller", "1 on the controller."),
    _gauge("bascule_controller_info", "Always 1; the label names the controller.", ("controller",)),
    _gauge("bascule_cluster_servers", "Servers of the cluster, by whether they answer. Controller only.", ("state",)),
    _gauge("bascule_cluster_streams", "Streams of the cluster. Controller only."),
    _gauge("bascule_cluster_policies", "Lines of the policy that the cluster stores. Controller only."),
    _gauge("bascule_cluster_partitions", "Partitions of all streams. Controller only."),
    _gauge("bascule_cluster_partitions_paused", "Paused partitions. Controller only."),
    _gauge("bascule_cluster_partitions_leaderless", "Partitions whose leader does not answer. Controller only."),
    _gauge(
        "bascule_cluster_partitions_under_replicated", "Partitions with a replica that is not in sync. Controller only."
    ),
    _gauge("bascule_cluster_partitions_moving", "Partitions that move to other servers. Controller only."),
)

SCRAPE: Final = (
    _gauge("bascule_scrape_cpu_seconds", "CPU time that the event loop spent on this page."),
    _gauge("bascule_scrape_turn_seconds_max", "Longest CPU time of one turn of the event loop for this page."),
    _gauge("bascule_scrape_left_out", "Partitions, cursors and groups that did not fit on the page.", ("kind",)),
)

METRICS: Final = (*SERVER, *PARTITIONS, *CURSORS, *FLOW, *NATS, *CLUSTER, *SCRAPE)
