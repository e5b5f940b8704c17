"""Every bound in Bascule, with its unit and its reason.

A limit that a user may want to move is a configuration key; what stands here holds for every installation.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# ── records ──────────────────────────────────────────────────────────────────────────────────────

RECORD_KEY_BYTES_MAX: Final = 64 * KIB
"""A key is hashed on every compaction and shown in every tool; a larger one is a value in disguise."""

RECORD_VALUE_BYTES_MAX: Final = 64 * MIB
"""nats-server's own ceiling for `max_payload`: nothing larger can arrive."""

RECORD_HEADERS_MAX: Final = 1024
"""Headers of one record; bounds the work a single small message can cause."""

RECORD_HEADERS_BYTES_MAX: Final = 1 * MIB
"""All header names and values of one record together, as they are stored: with their lengths."""

RECORD_SUBJECT_BYTES_MAX: Final = 4 * KIB
"""nats-server's `max_control_line` default: subject and reply of a message fit one line."""

BATCH_BYTES_MAX: Final = 128 * MIB
"""One batch is read, checked and sent as a whole. Twice the largest value, so every legal record fits."""

BATCH_RECORDS_MAX: Final = 1_000_000
"""Records of one batch; keeps offset deltas and the decoding of one batch small."""

# ── segments ─────────────────────────────────────────────────────────────────────────────────────

SEGMENT_BYTES_MAX: Final = 2 * GIB
"""Positions in an index are 32 bits; one batch may overshoot the configured size."""

SEGMENT_BYTES_DEFAULT: Final = 256 * MIB

INDEX_INTERVAL_BYTES: Final = 16 * KIB
"""One index entry per so many log bytes: a lookup reads at most this much to find its batch, an index is 0.15 % of its log."""

SCAN_CHUNK_BYTES: Final = 4 * MIB
"""Recovery, verification and cleaning read the log in pieces of this size, whatever its segments hold."""

READ_BYTES_DEFAULT: Final = 1 * MIB

# ── idempotent producers ─────────────────────────────────────────────────────────────────────────

PRODUCERS_PER_PARTITION_MAX: Final = 4096
"""Idempotent producers that a partition remembers, some 200 bytes each; the one that stored longest ago is forgotten first."""

PRODUCER_ID_BYTES_MAX: Final = 64
"""An id is kept for every partition it publishes to, and stored with every message."""

PRODUCERS_UNREAD_BYTES_MAX: Final = 4 * MIB
"""Batches of idempotent producers that a log has and its table lacks: a few milliseconds of reading for a new leader."""

PRODUCERS_UNSAVED_BYTES_MAX: Final = 64 * MIB
"""Batches of idempotent producers that are not in the snapshot beside the log: read again after a crash."""

PRODUCERS_FILE_LOG_BYTES_MIN: Final = 16 * MIB
"""A smaller log without idempotent producers gets no snapshot: it is as quickly read."""

# ── process-wide ─────────────────────────────────────────────────────────────────────────────────

OPEN_FILES_MAX: Final = 512
"""Log files held open at once; the least recently used is closed first. Half of the usual `ulimit -n`."""

SYNC_INTERVAL_MS_DEFAULT: Final = 1_000
"""How much unsynced data a power failure may take from a stream that waits for nothing."""

CHECKPOINT_INTERVAL_MS: Final = 5_000
"""How old a checkpoint may get while data is written: recovery re-reads at most this much."""

COMPACTION_MEMORY_BYTES: Final = 128 * MIB
"""Key map of one compaction run; 4 million keys at 32 bytes each. More keys take more runs, never more memory."""

ENCRYPTION_BATCHES_PER_KEY_MAX: Final = 1 << 31
"""AES-GCM with random 96-bit nonces is safe for 2^32 messages a key; a new data key is drawn at half of that."""

# ── configuration ────────────────────────────────────────────────────────────────────────────────

CONFIG_FILE_BYTES_MAX: Final = 1 * MIB
"""A configuration file is read whole; anything larger is some other file given by mistake."""

CONFIG_NODES_MAX: Final = 10_000
"""Values of one configuration file, aliases followed: a few lines of nested aliases can stand for billions of them."""

NAME_CHARACTERS_MAX: Final = 128
"""A server id or a namespace is a directory name and one token of every internal subject."""

HOST_NAME_CHARACTERS_MAX: Final = 253
"""The longest name DNS can carry."""

STREAM_NAME_BYTES_MAX: Final = 200
"""A stream's name is a folder's name, and the usual file system takes 255 bytes."""

STREAM_PARTITIONS_MAX: Final = 10_000
"""Partitions of one stream; what one broker is built to hold when it is alone."""

# ── raft ─────────────────────────────────────────────────────────────────────────────────────────

RAFT_PROPOSAL_BYTES_MAX: Final = 256 * KIB
"""One proposal. With one in an append and all names around it, a message stays below nats-server's `max_payload` default of 1 MiB."""

RAFT_APPEND_BYTES_MAX: Final = 256 * KIB
"""Entries of one append; a follower that is behind gets several of them, one after the other."""

RAFT_APPENDS_INFLIGHT_MAX: Final = 32
"""Unanswered appends to one follower: 8 MiB at most wait for a server that has stopped reading."""

RAFT_SNAPSHOT_CHUNK_BYTES: Final = 256 * KIB
"""A snapshot travels in pieces of this size, one at a time."""

RAFT_SNAPSHOT_BYTES_MAX: Final = 256 * MIB
"""A snapshot is held in memory while it is sent or received; metadata of 10,000 partitions takes a few MiB."""

RAFT_UNCOMMITTED_BYTES_MAX: Final = 16 * MIB
"""What a leader takes without being able to commit it; a leader cut off from its followers must not grow without bound."""

RAFT_READS_PENDING_MAX: Final = 4096
"""Reads that wait for a quorum's word; more are refused at once instead of late."""

RAFT_SESSIONS_MAX: Final = 1024
"""Sessions whose requests are remembered, the longest unused one goes first. A server opens one each time it starts."""

RAFT_SESSION_WINDOW: Final = 128
"""Sequence numbers of one session that may be outstanding, and whose results are kept for a retry."""

RAFT_SESSION_RESULT_BYTES_MAX: Final = 4 * KIB
"""A result that is kept for a retry: a code and a sentence."""

RAFT_MEMBERS_MAX: Final = 1024
"""Voters and learners; a membership is one entry and goes around with every chunk of a snapshot."""

RAFT_SEGMENT_BYTES: Final = 16 * MIB
"""The durable log is cut into files of about this size, which are dropped whole once a snapshot covers them."""

# ── replication ──────────────────────────────────────────────────────────────────────────────────

REPLICATION_MESSAGE_BYTES_MAX: Final = 1 * MIB
"""One NATS message between brokers, or `max_payload` of the NATS server if that is less. Its default; larger ones gain nothing and
hold up what stands behind them."""

REPLICATION_ANSWER_BYTES_MAX: Final = BATCH_BYTES_MAX + 8 * MIB
"""Batches of one answer to a follower: the largest batch there can be, or a few MiB of small ones. It travels in pieces."""

REPLICATION_HALF_ANSWERS_BYTES_MAX: Final = 2 * REPLICATION_ANSWER_BYTES_MAX
"""Answers of which pieces are missing, over all leaders; beyond it the oldest is given up and asked for again."""

REPLICATION_OUTPUT_BYTES_MAX: Final = 16 * MIB
"""Said to other brokers and not yet taken by NATS. Beyond it logs are not read for followers."""

# ── ingest ───────────────────────────────────────────────────────────────────────────────────────

INGEST_BUFFER_BYTES_MAX: Final = 256 * MIB
"""Received and not yet written. Beyond it NATS is not read, and nats-server holds back publishers or cuts us off."""

INGEST_BATCH_BYTES_MAX: Final = 240 * KIB
"""A batch that has grown this large is closed: it is read, checked and sent as a whole, and a subscription holds whole batches. Less
than a power of two, which its memory grows by. A single larger message makes its own."""

INGEST_GATHER_BYTES: Final = 256 * KIB
"""While much arrives, a partition that has collected this is written to at once; with less it waits for more."""

INGEST_GATHER_SECONDS: Final = 0.005
"""For so long at least, but nobody who wants an ack waits. Subscribers see such messages that much later."""

INGEST_GATHER_SECONDS_MAX: Final = 0.02
"""The same with very many partitions at once."""

INGEST_GATHER_CROWD: Final = 32
"""With each so many partitions that wait together, they wait as long again."""

INGEST_POOL_BYTES_MAX: Final = 64 * MIB
"""Memory of batches that were written, kept for the next ones."""

INGEST_INLINE_BYTES: Final = 1 * MIB
"""As long as no more than this arrives within a window, the event loop writes itself: a disk that hangs for seconds then costs
latency, and what piles up in nats-server meanwhile stays far below its `max_pending`."""

INGEST_RATE_WINDOW_SECONDS: Final = 0.1

INGEST_SLOW_WRITE_SECONDS: Final = 0.02
"""A write to the page cache takes microseconds; one that takes this long has met a disk that cannot follow."""

INGEST_SLOW_PENALTY_SECONDS: Final = 5.0
"""For so long after a slow write the thread does all writing."""

# ── control plane ────────────────────────────────────────────────────────────────────────────────

AUTHORIZATIONS_REMEMBERED_MAX: Final = 65_536
"""Decisions of the policy that are kept: asking casbin takes as long as a hundred messages do."""

CURSORS_REMEMBERED_MAX: Final = 262_144
"""Cursors of one partition that are kept in memory, about 64 MiB. One that is not is looked for in the log."""

ACTIVITY_EVENTS_MAX: Final = 16_384
"""Events that wait to be published. They are part of every snapshot; when the stream takes none for so long, the oldest are lost."""

STATUS_REQUESTS_INFLIGHT_MAX: Final = 64
"""Questions about partitions that are asked at the same time after a stream was created."""

# ── the connection to NATS ───────────────────────────────────────────────────────────────────────

NATS_MESSAGE_BYTES_MAX: Final = 65 * MIB
"""The largest value with all that may go around it. Not the server's own `max_payload`: messages come over routes from others too."""

NATS_PAYLOAD_OVERHEAD_BYTES: Final = 1 * MIB
"""What may go around a message of `clustering.replication.max.bytes`, or around a replication response: envelope, key, headers."""

NATS_LINE_BYTES_MAX: Final = 64 * KIB
"""A line before its payload has 4 KiB at most; the INFO of a large cluster lists all its servers."""

NATS_SERVERS_MAX: Final = 256
"""Servers that are remembered because a server named them."""

NATS_CONNECT_ATTEMPTS: Final = 5
"""Times that all servers are tried when a broker starts, before it gives up. Later it never gives up."""

NATS_CONNECT_SECONDS_MAX: Final = 2.0
"""From the first packet until the login is confirmed, TLS included."""

NATS_RECONNECT_WAIT_SECONDS: Final = 0.25
"""Between two rounds over the servers, and a random part of as much again, so that not all brokers come back at once."""

NATS_REFUSED_WAIT_SECONDS_MAX: Final = 8.0
"""The wait doubles up to this while servers refuse our login: a wrong password stays wrong."""

NATS_PING_SECONDS: Final = 20.0
"""A connection that brought nothing for so long is asked whether it lives."""

NATS_PINGS_OUTSTANDING_MAX: Final = 2
"""Unanswered questions after which a connection is taken for dead."""

NATS_WRITE_BYTES_MAX: Final = 256 * KIB
"""Handed to the transport at once when the socket is full or speaks TLS; the rest waits in the output buffer, where it is counted."""

BUS_MESSAGES_WAITING_MAX: Final = 65_536
"""Messages of one subject of the control plane whose handler is behind; what comes then is dropped, as NATS itself would."""

EMBEDDED_NATS_READY_SECONDS_MAX: Final = 10.0
"""A nats-server that is not up by then does not come up."""

# ── subscriptions and publishing ─────────────────────────────────────────────────────────────────

SUBSCRIPTION_READ_BYTES: Final = 256 * KIB
"""What one subscription reads at a time: a few thousand small messages."""

SUBSCRIPTIONS_HELD_BYTES_MAX: Final = 64 * MIB
"""Read for subscribers and not sent yet, over all of them. Beyond it, who cannot take more gives back what was read for it."""

SUBSCRIPTION_SLOW_READ_SECONDS: Final = 0.005
"""A read from the page cache takes microseconds; one that takes this long waited for a disk."""

SUBSCRIPTION_SLOW_READS: Final = 64
"""After a slow read so many are done on a thread: 16 MiB, of which the disk has read ahead a good part by then."""

PUBLISH_OUTPUT_BYTES_MAX: Final = 16 * MIB
"""Published through the API and not yet taken by NATS. Beyond it publishing clients get no more window."""

PUBLISH_UNREAD_ACKS_BYTES_MAX: Final = 1 * MIB
"""Acks that a client does not read. Beyond it that client gets no more window."""

PUBLISH_ARRIVAL_SECONDS: Final = 5.0
"""How long a subscription waits for messages that this server's clients published before it and NATS has not brought back yet."""

PUBLISH_HALF_CLOSE_SECONDS: Final = 5.0
"""How long a client that has sent its last message is kept for acks that are on their way."""

# ── the server ───────────────────────────────────────────────────────────────────────────────────

LISTEN_BACKLOG: Final = 1024
"""Connections that wait to be accepted: a cluster's worth of clients that all come back at once."""

START_CATCH_UP_SECONDS: Final = 10.0
"""How long a start waits for a quorum before clients are served without partitions."""

STOP_GRACE_SECONDS: Final = 2.0
"""How long calls that will end by themselves may take while the server stops."""

# ── gRPC and HTTP/2 ──────────────────────────────────────────────────────────────────────────────

GRPC_MESSAGE_BYTES_DEFAULT: Final = 4 * MIB
"""The largest message a client may send: what gRPC servers take by default."""

GRPC_MESSAGE_BYTES_MAX: Final = 16 * MIB
"""The largest that can be configured; a message is put together in memory before anybody sees it."""

GRPC_ASSEMBLY_BYTES_MAX: Final = 64 * MIB
"""Unfinished messages of all calls of one connection together: many calls must not each hold a nearly complete large one."""

GRPC_CONNECTIONS_MAX: Final = 10_000
"""Connections of one server; one more is closed at once."""

GRPC_RECEIVE_BUFFER_BYTES: Final = 256 * KIB
"""What one read may bring. One buffer serves all connections, so that an idle one costs nothing; it fits a core's own cache."""

GRPC_PREFACE_SECONDS: Final = 10.0
"""How long a new connection may take to say that it speaks HTTP/2, TLS included."""

GRPC_DEADLINE_SWEEP_SECONDS: Final = 0.1
"""How late a call's deadline may be noticed; clients watch their own deadlines, the server only cleans up."""

GRPC_TCP_KEEPALIVE_SECONDS: Final = 60
"""After so much silence the kernel asks whether the other machine is there; four unanswered questions 15 s apart end the connection."""

HTTP2_STREAMS_MAX: Final = 10_000
"""Calls at the same time on one connection; one client may hold thousands of subscriptions. More are refused, which clients repeat."""

HTTP2_STREAM_WINDOW_BYTES: Final = 1 * MIB
"""What a client may send on one call before it hears from us; a call that is withheld holds at most this much."""

HTTP2_CONNECTION_WINDOW_BYTES: Final = 4 * MIB
"""The same for all calls of one connection; given back as it is read, whatever the calls do with it."""

HTTP2_HEADER_LIST_BYTES_MAX: Final = 16 * KIB
"""Headers of one call, decoded; the hard limit of other gRPC servers. Clients are told, and get RESOURCE_EXHAUSTED beyond it."""

HTTP2_HEADER_BLOCK_BYTES_MAX: Final = 64 * KIB
"""Headers of one call as they are sent, collected before they can be decoded; beyond it the connection ends (CONTINUATION flood)."""

HTTP2_CONTINUATIONS_MAX: Final = 16
"""Frames of one header block after the first; empty ones would never reach the bound on bytes."""

HTTP2_OUTPUT_BYTES_MAX: Final = 512 * KIB
"""Frames of one connection that wait for its socket. Nothing more is cut above it; above twice as much nothing more is read either."""

HTTP2_OUTGOING_BYTES_MAX: Final = 16 * MIB
"""Messages of all calls of one connection that wait for its windows; a call's share is between 16 and 256 KiB."""

HTTP2_RESETS_BURST: Final = 1_000
"""Calls that a client may cancel, or make us reset, at once (rapid reset). As in other HTTP/2 servers."""

HTTP2_RESETS_PER_SECOND: Final = 500
"""And how many more with every second; a client that reads a message or two and cancels may be in a hurry."""

HTTP2_PINGS_BURST: Final = 100
"""PINGs without an answer of ours in between; clients that measure the line send one for what they receive, which is not counted."""

HTTP2_PINGS_PER_SECOND: Final = 10
"""And how many more with every second."""

HTTP2_SETTINGS_BURST: Final = 100
"""SETTINGS frames at once; each may move the windows of all calls."""

HTTP2_SETTINGS_PER_SECOND: Final = 10
"""And how many more with every second."""

HTTP2_IDLE_FRAMES_BURST: Final = 10_000
"""Frames that do nothing: empty DATA, PRIORITY, unknown types, resets of closed calls."""

HTTP2_IDLE_FRAMES_PER_SECOND: Final = 1_000
"""And how many more with every second."""

# ── the client's connections ─────────────────────────────────────────────────────────────────────

CHANNEL_CONNECT_SECONDS: Final = 5.0
"""How long a client waits until a server has answered in HTTP/2, TLS included."""

CHANNEL_STREAM_WINDOW_BYTES: Final = 4 * MIB
"""What a server may send on one call before it hears from us; a subscription whose reader is slow holds at most about this much."""

CHANNEL_CONNECTION_WINDOW_BYTES: Final = 16 * MIB
"""The same for all calls of one connection; given back as it is read, so that a slow reader does not hold up others."""

CHANNEL_MESSAGE_BYTES_MAX: Final = 64 * MIB
"""The largest answer a client takes: more than any server of ours can store, so that it is never the reader who fails."""

CHANNEL_ASSEMBLY_BYTES_MAX: Final = 128 * MIB
"""Unfinished answers of all calls of one connection together."""

CHANNEL_FRAME_BYTES_MAX: Final = 64 * KIB
"""The largest frame that servers may send us: fewer messages are cut in two than with 16 KiB, and no call holds up others for long."""

CHANNEL_RECEIVE_BUFFER_BYTES: Final = 256 * KIB
"""What one read may bring, and so the most that one batch of messages can hold; it fits a core's own cache."""

CHANNEL_STREAMS_MAX: Final = 100_000
"""Calls at the same time on one connection, if the server takes as many; more wait for their turn."""

CHANNEL_KEEPALIVE_SECONDS: Final = 310.0
"""After so much silence while calls are open a PING asks whether the server is there. Servers in Go end connections that ask more than
every 5 minutes; machines that vanish are noticed sooner, by CHANNEL_TCP_KEEPALIVE_SECONDS."""

CHANNEL_KEEPALIVE_TIMEOUT_SECONDS: Final = 20.0
"""How long the answer to such a PING may take before the connection is given up."""

CHANNEL_PING_SECONDS: Final = 5.0
"""The same for servers that say that they answer PINGs however often they come: one that hangs is noticed after twice as long."""

CHANNEL_TCP_KEEPALIVE_SECONDS: Final = 20
"""After so much silence the kernel asks whether the other machine is there; four unanswered questions 5 s apart end the connection."""

# ── replication ──────────────────────────────────────────────────────────────────────────────────

REPLICATION_READ_BYTES: Final = 1 * MIB - 1 * KIB
"""What a follower gets in one answer, one batch at least. With its head it just fits one message of 1 MiB, and need not be cut."""

REPLICATION_INLINE_BYTES: Final = 256 * KIB
"""So much a follower writes on the event loop: a thread costs more than a write of this size to the page cache."""

REPLICATION_NOTICE_SECONDS: Final = 0.002
"""How long a leader waits before it tells a follower of nothing but a new high watermark: the next batch may tell it first."""

REPLICATION_THREADS: Final = 2
"""Threads that write what followers get in large pieces, truncate, and read cold files for followers. As many as a disk is worth."""

HAND_OVERS_AT_ONCE_MAX: Final = 32
"""Leaderships that a server gives away at the same time: enough to stop within seconds, few enough that the rest goes on."""

# ── operating a cluster ──────────────────────────────────────────────────────────────────────────

REASSIGNMENTS_INFLIGHT_MAX: Final = 8
"""Partitions that move at the same time, in the whole cluster: few enough that each is over soon, and can be cancelled soon."""

STATUS_PARTITIONS_MAX: Final = 1_000
"""Partitions listed in one answer about the cluster: it has to fit a message of NATS, and a screen."""

# ── Spark ────────────────────────────────────────────────────────────────────────────────────────

SPARK_TRIGGER_BYTES_DEFAULT: Final = 256 * MIB
"""What one micro-batch reads unless told otherwise: the first one from the earliest offset must not be the whole stream."""

SPARK_TASKS_MAX: Final = 100_000
"""Tasks that a read may ask for. Spark's driver keeps each of them in memory."""

SPARK_ARCHIVE_TASK_BYTES: Final = 128 * MIB
"""What one task of a batch read takes of an archive, in whole files: seconds of decoding, and what Spark gives a task of its own
Parquet reads."""

SPARK_IDLE_POLL_MS: Final = 50
"""How long a query without news waits before brokers are asked again. Spark asks every 10 ms, and a batch takes hundreds."""

# ── tables over Arrow Flight ─────────────────────────────────────────────────────────────────────

FLIGHT_BATCH_ROWS: Final = 32_768
"""Rows of a record batch unless the reader asks for another number: what a batch costs by itself no longer counts."""

FLIGHT_BATCH_ROWS_MAX: Final = 1_000_000
"""The most rows that a reader may ask for in one batch."""

FLIGHT_BATCH_BYTES: Final = 4 * MIB
"""Bytes of a record batch unless the reader asks for another number; the row that reaches it is whole."""

FLIGHT_BATCH_BYTES_MAX: Final = 256 * MIB
"""The most bytes that a reader may ask for in one batch. With one record more it stays far below the 2 GiB of Arrow's offsets."""

FLIGHT_READ_BYTES: Final = 1 * MIB
"""What is read from the log at once for such a reader."""

FLIGHT_CALLS_MAX: Final = 128
"""Reads and writes of tables at the same time; each has a thread and a few batches in memory. More are told to come back."""

FLIGHT_REQUEST_BYTES_MAX: Final = 64 * KIB
"""A ticket, a descriptor or the body of an action, in JSON."""

FLIGHT_PUT_WINDOW: Final = 4_096
"""Messages of one table on their way into a stream whose acks are still to come."""

FLIGHT_PUT_WINDOW_BYTES: Final = 16 * MIB
"""The same in bytes; one message may be larger."""

FLIGHT_CALL_SECONDS: Final = 10.0
"""How long a call may wait for the event loop: to learn where servers are, or to have a paused partition resumed."""

FLIGHT_STOP_SECONDS: Final = 1.0
"""How long readers may take to notice that the server stops, before their connections are cut."""

FLIGHT_LOCAL_FILES: Final = 16
"""Files of a log that a reader on the same machine gets at once: some GiB, and their space is not free before it has closed them."""

FLIGHT_LOCAL_SECONDS: Final = 1.0
"""How long such a reader and the server wait for each other's word. After that the reader asks for record batches, as others do."""

# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────

HTTP_HEAD_BYTES_MAX: Final = 16 * KIB
"""Size of an incomplete request line with headers; the server refuses a larger one with 414 or 431. A browser sends one or two KiB."""

HTTP_CONNECTIONS_MAX: Final = 256
"""Open connections: monitoring, probes, a few people. For one more, the server closes the one that has been silent longest."""

HTTP_REQUEST_SECONDS: Final = 10.0
"""Maximum time for the TLS handshake, then until the first byte of a request, then until its last byte."""

HTTP_IDLE_SECONDS: Final = 120.0
"""Maximum time that a connection may wait for its next request: longer than a monitoring system's scrape interval."""

HTTP_ANSWER_SECONDS: Final = 20.0
"""Maximum time to compute a response; then the server answers 503."""

HTTP_WRITE_SECONDS: Final = 30.0
"""Maximum time until the kernel has taken a response; then the server closes the connection."""

# ── monitoring ───────────────────────────────────────────────────────────────────────────────────

METRICS_PARTITIONS_MAX: Final = 5_000
"""Partitions that get series of their own in one scrape, about 20 each: a monitoring system has to keep them all."""

METRICS_CURSORS_MAX: Final = 5_000
"""Cursors with series of their own, 4 each."""

METRICS_CURSORS_BYTES_MAX: Final = 512 * KIB
"""Names of cursors in one answer between servers: it has to fit a message of NATS."""

METRICS_OPENING_SECONDS_MAX: Final = 2.0
"""How long one scrape may spend on opening logs that have cursors; the rest is opened by the next ones."""

METRICS_GROUPS_MAX: Final = 1_000
"""Consumer groups with series of their own."""

METRICS_TURN_SECONDS: Final = 0.003
"""So long a scrape works before the event loop serves others."""
