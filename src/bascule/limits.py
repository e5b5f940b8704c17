"""Every bound in Bascule, with its unit and its reason.

A limit that operators may want to change is a configuration key; the limits here are the same in every installation.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# ── records ──────────────────────────────────────────────────────────────────────────────────────

RECORD_KEY_BYTES_MAX: Final = 1 * MIB
"""Size of a key: the default of `clustering.replication.max.bytes`, so that only clusters with larger messages refuse one that fits."""

RECORD_VALUE_BYTES_MAX: Final = 64 * MIB
"""Size of a value: nats-server's upper bound for `max_payload`, so no larger value can arrive."""

RECORD_HEADERS_MAX: Final = 4096
"""Headers of one record; bounds the work that one small message can cause. A message with more is refused with TOO_LARGE."""

RECORD_HEADERS_BYTES_MAX: Final = 1 * MIB
"""All header names and values of one record in their stored form, which includes their lengths."""

RECORD_SUBJECT_BYTES_MAX: Final = 4 * KIB
"""Size of a subject and of a reply subject: nats-server's default `max_control_line`."""

BATCH_BYTES_MAX: Final = 128 * MIB
"""Size of one batch, which is read, checked and sent as a whole. Twice the largest value, so every valid record fits."""

BATCH_RECORDS_MAX: Final = 1_000_000
"""Records of one batch; keeps offset deltas small and the decoding of one batch short."""

# ── segments ─────────────────────────────────────────────────────────────────────────────────────

SEGMENT_BYTES_MAX: Final = 2 * GIB
"""Size of a segment: positions in an index have 32 bits, and the last batch may exceed the configured size."""

SEGMENT_BYTES_DEFAULT: Final = 256 * MIB

INDEX_INTERVAL_BYTES: Final = 16 * KIB
"""Log bytes per index entry: a lookup reads at most this much to find its batch, and an index has 0.15 % of the size of its log."""

SCAN_CHUNK_BYTES: Final = 4 * MIB
"""Size of one read of recovery, verification and cleaning, which bounds their memory."""

READ_BYTES_DEFAULT: Final = 1 * MIB

# ── idempotent producers ─────────────────────────────────────────────────────────────────────────

PRODUCERS_PER_PARTITION_MAX: Final = 4096
"""Idempotent producers in the table of one partition, about 200 bytes each. Beyond it, the partition forgets the
one whose last message is oldest."""

PRODUCER_ID_BYTES_MAX: Final = 64
"""Size of a producer id, which is kept in the table of each partition and stored with every message."""

PRODUCERS_UNREAD_BYTES_MAX: Final = 4 * MIB
"""Batches of idempotent producers in the log and not yet in its producer table: a new leader reads them in milliseconds."""

PRODUCERS_UNSAVED_BYTES_MAX: Final = 64 * MIB
"""Batches of idempotent producers after the snapshot of the producer table: recovery reads them again after a crash."""

PRODUCERS_FILE_LOG_BYTES_MIN: Final = 16 * MIB
"""Smallest log without idempotent producers that gets a snapshot of its producer table: a smaller one is read as fast."""

# ── process-wide ─────────────────────────────────────────────────────────────────────────────────

OPEN_FILES_MAX: Final = 512
"""Open log files of the process; beyond it the least recently used one is closed. Half of the usual `ulimit -n`."""

HANDLES_MAX: Final = 1_048_576
"""File handles that the process asks for at start, if its hard limit allows them."""

HANDLES_RESERVED: Final = 896
"""File handles that connections of clients leave free: for OPEN_FILES_MAX log files, HTTP_CONNECTIONS_MAX and 128 others."""

SYNC_INTERVAL_MS_DEFAULT: Final = 1_000
"""Time between two syncs of a stream that does not wait for syncs: a power failure loses at most the data of this interval."""

CHECKPOINT_INTERVAL_MS: Final = 5_000
"""Age of a checkpoint while data is written: recovery reads at most the data of this interval again."""

COMPACTION_MEMORY_BYTES: Final = 128 * MIB
"""Key map of one compaction run: 4 million keys of 32 bytes. More keys need more runs, not more memory."""

REWRAP_BYTES_PER_SECOND: Final = 64 * MIB
"""Bytes of encrypted logs that a rotation of the master key, or a count of its use, reads in a second. Other work goes first."""

MASTER_KEYS_BYTES_MAX: Final = 64 * KIB
"""Size of a key file, and of the output of a key command."""

MASTER_KEYS_COMMAND_SECONDS: Final = 30.0
"""Time for a key command; then its keys cannot be used."""

ENCRYPTION_BATCHES_PER_KEY_MAX: Final = 1 << 31
"""Batches encrypted with one data key; then a new key is generated. Half of the 2^32 messages that are safe for
AES-GCM with random 96-bit nonces."""

# ── configuration ────────────────────────────────────────────────────────────────────────────────

CONFIG_FILE_BYTES_MAX: Final = 1 * MIB
"""Size of a configuration file, which is read whole. A larger file was probably given by mistake."""

CONFIG_NODES_MAX: Final = 10_000
"""Values of one configuration file after its aliases are expanded: a few lines of nested aliases can expand to billions."""

NAME_CHARACTERS_MAX: Final = 128
"""Length of a server id and of a namespace: each is a directory name and one token of every internal subject."""

HOST_NAME_CHARACTERS_MAX: Final = 253
"""Length of a host name: the maximum in DNS."""

STREAM_NAME_BYTES_MAX: Final = 200
"""Length of a stream's name. It is also a folder's name, and common file systems allow 255 bytes."""

SUBJECT_BYTES_MAX: Final = 1_900
"""Length of a subject that a client names. A line of the NATS protocol has at most 4 KiB and up to two subjects."""

ID_BYTES_MAX: Final = 256
"""Length of the id of a cursor, a consumer group or a consumer. Ids are labels of metrics and words in log messages."""

GROUP_MEMBERS_MAX: Final = 4_096
"""Members of one consumer group. Each join assigns the partitions of its streams anew, on every server."""

METADATA_NAMES_MAX: Final = 10_000
"""Streams and groups that one FetchMetadata may name. One that names no streams gets all of them."""

METADATA_ANSWER_BYTES_MAX: Final = 64 * MIB
"""Size of the answer to FetchMetadata, about 100 bytes for each partition; a larger one is refused with RESOURCE_EXHAUSTED."""

STREAM_PARTITIONS_MAX: Final = 10_000
"""Partitions of one stream: the number that a single broker is designed for."""

# ── raft ─────────────────────────────────────────────────────────────────────────────────────────

RAFT_PROPOSAL_BYTES_MAX: Final = 256 * KIB
"""Size of one proposal. A message with one proposal and its names stays below nats-server's default `max_payload` of 1 MiB."""

RAFT_APPEND_BYTES_MAX: Final = 256 * KIB
"""Entries of one AppendEntries message; a follower that lags gets several messages in sequence."""

RAFT_APPENDS_INFLIGHT_MAX: Final = 32
"""Unanswered AppendEntries messages to one follower: at most 8 MiB are in flight to a server that does not answer."""

RAFT_SNAPSHOT_CHUNK_BYTES: Final = 256 * KIB
"""Size of one chunk of a snapshot; a leader sends one chunk at a time."""

RAFT_SNAPSHOT_BYTES_MAX: Final = 256 * MIB
"""Size of a snapshot, which is in memory while it is sent or received. The metadata of 10,000 partitions takes a few MiB."""

RAFT_UNCOMMITTED_BYTES_MAX: Final = 16 * MIB
"""Uncommitted entries of a leader; then it refuses proposals. Bounds the memory of a leader that has lost its followers."""

RAFT_READS_PENDING_MAX: Final = 4096
"""Reads that wait for a quorum; more are refused at once."""

RAFT_SESSIONS_MAX: Final = 1024
"""Sessions whose requests are remembered; beyond it the least recently used one expires. A server opens one each time it starts."""

RAFT_SESSION_WINDOW: Final = 128
"""Sequence numbers of one session that may be outstanding, and whose results are kept for retries."""

RAFT_SESSION_RESULT_BYTES_MAX: Final = 4 * KIB
"""Size of a result that is kept for retries: a code and a sentence."""

RAFT_MEMBERS_MAX: Final = 1024
"""Voters and learners of one group. A membership is one entry, and part of every chunk of a snapshot."""

RAFT_NUMBER_MAX: Final = (1 << 63) - 1
"""Terms, indexes and request numbers in messages of other servers; a message with a larger one is refused."""

RAFT_TERM_JUMP_MAX: Final = 1 << 32
"""Terms by which a message may exceed the receiver's own; with more it is refused. Each election raises the term by one, so that a
server that was away for a century of elections still returns, and no single message uses the terms up."""

RAFT_INBOX_MAX: Final = 65_536
"""Events that wait for the Raft node; messages beyond it are dropped, which Raft tolerates."""

RAFT_SEGMENT_BYTES: Final = 16 * MIB
"""Approximate size of one file of the Raft log. A file is deleted whole once a snapshot covers it."""

# ── replication ──────────────────────────────────────────────────────────────────────────────────

REPLICATION_MESSAGE_BYTES_MAX: Final = 1 * MIB
"""Size of one NATS message between brokers, unless `max_payload` of the NATS server is smaller. Larger messages gain nothing and
delay the messages after them."""

REPLICATION_ANSWER_BYTES_MAX: Final = BATCH_BYTES_MAX + 8 * MIB
"""Batches of one answer to a follower: the largest possible batch, or a few MiB of small ones. An answer is sent in pieces."""

REPLICATION_HALF_ANSWERS_BYTES_MAX: Final = 2 * REPLICATION_ANSWER_BYTES_MAX
"""Incomplete answers of all leaders; beyond it the follower drops the oldest one and requests it again."""

REPLICATION_OUTPUT_BYTES_MAX: Final = 16 * MIB
"""Data for other brokers that NATS has not taken yet. Beyond it, the broker stops reading logs for followers."""

# ── ingest ───────────────────────────────────────────────────────────────────────────────────────

INGEST_BUFFER_BYTES_MAX: Final = 256 * MIB
"""Messages received and not yet written. Beyond it the broker stops reading from NATS; nats-server then slows publishers down or
closes the connection."""

INGEST_BATCH_BYTES_MAX: Final = 240 * KIB
"""Size at which a batch is closed: subscriptions hold whole batches in memory. A larger message gets a batch of its own. Slightly less
than a power of two, by which the memory of a batch grows."""

INGEST_GATHER_BYTES: Final = 256 * KIB
"""Size at which a partition's batch is written at once under load; a smaller batch waits for more messages."""

INGEST_GATHER_SECONDS: Final = 0.005
"""Minimum time to gather a batch under load when no message in it wants an ack. Subscribers see such messages later by this time."""

INGEST_GATHER_SECONDS_MAX: Final = 0.02
"""Maximum time to gather a batch, with many partitions at once."""

INGEST_GATHER_CROWD: Final = 32
"""Waiting partitions that extend the time to gather by another INGEST_GATHER_SECONDS."""

INGEST_ACK_GATHER_SECONDS: Final = 0.0025
"""Time to gather messages that want an ack, at a high rate for more than INGEST_ACK_CROWD partitions; again and again while messages
arrive. A batch costs about 25 µs, however small it is, and at such a rate publishers have thousands of messages in flight."""

INGEST_ACK_GATHER_SECONDS_MAX: Final = 0.015
"""Maximum time to gather them."""

INGEST_ACK_GATHER_RECORDS: Final = 48
"""Messages per partition at which they are written without further delay."""

INGEST_ACK_CROWD: Final = 16
"""With at most this many partitions that hold messages with acks, those are written at once."""

INGEST_JUDGED_BATCHES_MAX: Final = 1_000
"""Batches with refusals that wait until the metadata group confirms the leader. The messages of further batches get UNKNOWN."""

INGEST_POOL_BYTES_MAX: Final = 64 * MIB
"""Memory of written batches that is kept for the next ones."""

INGEST_INLINE_BYTES: Final = 1 * MIB
"""Bytes received in one rate window up to which the event loop writes itself. If the disk then hangs for seconds, the data that
accumulates in nats-server stays far below its `max_pending`."""

INGEST_RATE_WINDOW_SECONDS: Final = 0.1
"""Length of the window over which INGEST_INLINE_BYTES is counted."""

# ── control plane ────────────────────────────────────────────────────────────────────────────────

AUTHORIZATIONS_REMEMBERED_MAX: Final = 65_536
"""Cached decisions of the policy, on subjects and on other resources: casbin needs the time of a hundred messages for one decision."""

POLICY_LINE_BYTES_MAX: Final = 1 * KIB
"""Size of one stored line of a policy; a longer one is refused. Never changes: all servers apply it to the replicated state."""

POLICY_CHANGE_LINES_MAX: Final = 64
"""Lines of one change of the policy: the op, in JSON, is smaller than RAFT_PROPOSAL_BYTES_MAX. Never changes either."""

TOKEN_CHARACTERS_MAX: Final = 8192
"""A longer bearer token is refused unread. A JWT with many claims has about 2000."""

TOKENS_REMEMBERED_MAX: Final = 16_384
"""Cached verifications of tokens, good and bad: scrypt needs about 60 ms for one. The oldest is dropped at the limit."""

TOKEN_VERIFICATIONS_WAITING_MAX: Final = 256
"""Tokens that wait for their verification at the same time; the next one is refused with UNAVAILABLE."""

TOKEN_FAILURES_MAX: Final = 10
"""Failed attempts in a row that one address has; after these its unknown tokens are refused unverified."""

TOKEN_FAILURE_SECONDS: Final = 6.0
"""Time after which an address gets one of its failed attempts back."""

TOKEN_ADDRESSES_MAX: Final = 4096
"""Addresses whose failed attempts are counted; the oldest is dropped at the limit."""

TOKEN_EXPIRY_CHECK_SECONDS: Final = 15.0
"""Interval at which calls in progress are judged again: a subscription goes on at most for this time after its token has expired."""

TOKENS_IN_FILE_MAX: Final = 100_000
"""Lines of a token file; a longer file is refused."""

AUDIT_QUEUE_RECORDS_MAX: Final = 4096
"""Audit records that wait to be written, a few MiB. Beyond it records are dropped, and a record says how many."""

AUDIT_RECORD_BYTES_MAX: Final = 32 * KIB
"""Size of an audit record: its texts at their longest, of characters whose escapes take 12 bytes each. Messages have to be as large."""

USER_NAME_BYTES_MAX: Final = 256
"""Bytes of the name of a user or a role, as of every other id."""

USER_ROLES_MAX: Final = 64
"""Roles of one user that a token may name; a token with more is refused."""

JWKS_BYTES_MAX: Final = 1 * MIB
"""Size of a set of keys; a larger one is refused."""

JWKS_FETCH_SECONDS: Final = 10.0
"""Timeout of one fetch of a set of keys."""

JWKS_COOLDOWN_SECONDS: Final = 30.0
"""Minimum time between two fetches that unknown key ids cause: a forged key id must not cause one per call."""

CURSORS_REMEMBERED_MAX: Final = 262_144
"""Cursors of one partition in memory, about 80 MiB. Others are looked up in the log."""

ACTIVITY_EVENTS_MAX: Final = 16_384
"""Activity events that wait to be published; beyond it the oldest are lost. They are part of every metadata snapshot."""

STATUS_REQUESTS_INFLIGHT_MAX: Final = 64
"""Concurrent status requests for partitions after a stream was created."""

# ── the connection to NATS ───────────────────────────────────────────────────────────────────────

NATS_MESSAGE_BYTES_MAX: Final = 65 * MIB
"""Size of one NATS message: the largest value with key and headers. Independent of the server's `max_payload`, because messages also
arrive through routes from other servers."""

NATS_PAYLOAD_OVERHEAD_BYTES: Final = 1 * MIB
"""Envelope, key and headers around a message of `clustering.replication.max.bytes` or around a replication response."""

NATS_LINE_BYTES_MAX: Final = 64 * KIB
"""Length of a protocol line. A line with a payload has at most 4 KiB; the INFO line of a large cluster lists all its servers."""

NATS_SERVERS_MAX: Final = 256
"""NATS servers that are remembered because another server announced them."""

NATS_CONNECT_ATTEMPTS: Final = 5
"""Attempts over all NATS servers when a broker starts; then it exits. After the first connection it retries forever."""

NATS_CONNECT_SECONDS_MAX: Final = 2.0
"""Timeout from the first packet until the login is confirmed, TLS included."""

NATS_RECONNECT_WAIT_SECONDS: Final = 0.25
"""Pause between two rounds over the servers, plus a random part of the same length, so that brokers do not reconnect all at once."""

NATS_REFUSED_WAIT_SECONDS_MAX: Final = 8.0
"""Maximum pause while servers refuse the login; it doubles with each attempt."""

NATS_PING_SECONDS: Final = 20.0
"""Idle time after which the broker sends PING."""

NATS_PINGS_OUTSTANDING_MAX: Final = 2
"""Unanswered PINGs after which the connection counts as dead."""

NATS_WRITE_BYTES_MAX: Final = 256 * KIB
"""Bytes handed to the transport at once when the socket is full or uses TLS; the rest waits in the counted output buffer."""

BUS_MESSAGES_WAITING_MAX: Final = 65_536
"""Messages of one control-plane subject that wait for their handler; more are dropped, as NATS does."""

EMBEDDED_NATS_READY_SECONDS_MAX: Final = 10.0
"""Time for the embedded nats-server to start; then the start fails."""

# ── subscriptions and publishing ─────────────────────────────────────────────────────────────────

SUBSCRIPTION_READ_BYTES: Final = 256 * KIB
"""Size of one read of a subscription: a few thousand small messages."""

SUBSCRIPTIONS_HELD_BYTES_MAX: Final = 64 * MIB
"""Messages of all subscriptions that are read and not yet sent. Beyond it, subscriptions whose clients take no data drop what they
have read, and read it again later."""

PUBLISH_OUTPUT_BYTES_MAX: Final = 16 * MIB
"""Messages published through the API that NATS has not taken yet. Beyond it, publishing clients get no more window."""

PUBLISH_UNREAD_ACKS_BYTES_MAX: Final = 1 * MIB
"""Acks that a client has not read. Beyond it, that client gets no more window."""

PUBLISH_ARRIVAL_SECONDS: Final = 5.0
"""Time that a subscription waits for messages that clients of this server published before it and that NATS has not returned yet."""

PUBLISH_HALF_CLOSE_SECONDS: Final = 5.0
"""Time that a call stays open for outstanding acks after the client has sent its last message."""

# ── the server ───────────────────────────────────────────────────────────────────────────────────

LISTEN_BACKLOG: Final = 1024
"""Connections that wait to be accepted: all clients of a cluster may reconnect at once."""

START_CATCH_UP_SECONDS: Final = 10.0
"""Time that a start waits for a quorum before it serves clients without partitions."""

STOP_GRACE_SECONDS: Final = 2.0
"""Time that open calls may take to end when the server stops."""

# ── gRPC and HTTP/2 ──────────────────────────────────────────────────────────────────────────────

GRPC_MESSAGE_BYTES_DEFAULT: Final = 4 * MIB
"""Size of a message from a client: the default of gRPC servers."""

GRPC_MESSAGE_BYTES_MAX: Final = 16 * MIB
"""Largest configurable message size. A message is assembled in memory before it is parsed."""

GRPC_ASSEMBLY_BYTES_MAX: Final = 64 * MIB
"""Incomplete messages of all calls of one connection together."""

GRPC_MEMORY_BYTES_MAX: Final = 192 * MIB
"""Memory of all connections together: requests that are assembled or answered, responses that wait to be sent. Above half of it, calls
buffer little; beyond it, the calls that hold most end with RESOURCE_EXHAUSTED."""

GRPC_CONNECTION_MEMORY_BYTES_MAX: Final = 96 * MIB
"""The same for one connection. Above three quarters of it, new calls are refused with RESOURCE_EXHAUSTED."""

GRPC_CONNECTIONS_MAX: Final = 10_000
"""Connections of one server by default, less if the process may open fewer files. For one more, the server closes the connection that
has been without calls longest; without such a connection, it closes the new one."""

GRPC_CONNECTIONS_PER_ADDRESS_MAX: Final = 2_000
"""Connections from one address by default; a proxy in front of many clients counts as one. The same rule holds for one more."""

GRPC_IDLE_SECONDS: Final = 1_800.0
"""Time without calls after which the server ends a connection with GOAWAY; clients connect again for their next call."""

GRPC_CALLS_PER_TURN_MAX: Final = 64
"""Unary calls that begin in one turn of the event loop. Fewer begin while turns take longer than GRPC_CALLS_TURN_SECONDS, but at least
one; connections take turns."""

GRPC_CALLS_TURN_SECONDS: Final = 0.005
"""Time of a turn of the event loop above which fewer unary calls begin in the next turn."""

GRPC_REFLECTIONS_WAITING_MAX: Final = 128
"""Unanswered requests of one reflection call, whose client does not read the responses; one more ends it with RESOURCE_EXHAUSTED."""

GRPC_RECEIVE_BUFFER_BYTES: Final = 256 * KIB
"""Size of one read. All connections share one buffer, so that idle ones need no memory; it fits into a core's cache."""

GRPC_PREFACE_SECONDS: Final = 10.0
"""Time until a new connection has sent the HTTP/2 preface, TLS included."""

GRPC_DEADLINE_SWEEP_SECONDS: Final = 0.1
"""Interval at which the server looks for expired deadlines. Clients enforce their own deadlines; the server only frees resources."""

GRPC_TCP_KEEPALIVE_SECONDS: Final = 60
"""Idle time before the kernel sends TCP keepalive probes; four unanswered probes 15 s apart end the connection."""

HTTP2_STREAMS_MAX: Final = 10_000
"""Concurrent calls of one connection, for example thousands of subscriptions. More are refused, and clients retry them."""

HTTP2_STREAM_WINDOW_BYTES: Final = 1 * MIB
"""Flow-control window of one call: the data that the server holds at most for a call it does not read."""

HTTP2_CONNECTION_WINDOW_BYTES: Final = 4 * MIB
"""Flow-control window of one connection. The server returns it as it reads, independent of the calls."""

HTTP2_HEADER_LIST_BYTES_MAX: Final = 16 * KIB
"""Decoded headers of one call, as in other gRPC servers. The server announces it, and answers RESOURCE_EXHAUSTED beyond it."""

HTTP2_HEADER_BLOCK_BYTES_MAX: Final = 64 * KIB
"""Encoded headers of one call. Beyond it the server closes the connection (CONTINUATION flood)."""

HTTP2_CONTINUATIONS_MAX: Final = 16
"""CONTINUATION frames of one header block: empty ones would never reach the bound on bytes."""

HTTP2_OUTPUT_BYTES_MAX: Final = 512 * KIB
"""Frames of one connection that wait for its socket. Above it the server adds no DATA; above twice the size it stops reading."""

HTTP2_OUTGOING_BYTES_MAX: Final = 16 * MIB
"""Messages of all calls of one connection that wait for flow control; one call may hold 16 to 256 KiB."""

HTTP2_TURN_SECONDS: Final = 0.010
"""Time for the frames of one read, and for one flush, before other connections have their turn. Only frames that make much work of
few bytes take as long: headers, compressed messages, changes of many windows."""

HTTP2_RESETS_BURST: Final = 1_000
"""Cancelled or reset calls of one client at once, as in other HTTP/2 servers (rapid reset)."""

HTTP2_RESETS_PER_SECOND: Final = 500
"""Cancelled or reset calls per second beyond the burst: some clients read a message or two and cancel."""

HTTP2_PINGS_BURST: Final = 100
"""PINGs while the server sends no data. PINGs that answer data, with which clients measure bandwidth, are not counted."""

HTTP2_PINGS_PER_SECOND: Final = 10
"""PINGs per second beyond the burst."""

HTTP2_SETTINGS_BURST: Final = 100
"""SETTINGS frames at once. A frame that changes the windows of calls counts once more for each 1,000 open calls."""

HTTP2_SETTINGS_PER_SECOND: Final = 10
"""SETTINGS frames per second beyond the burst."""

HTTP2_IDLE_FRAMES_BURST: Final = 10_000
"""Frames without effect: empty DATA, PRIORITY, unknown types, resets of closed calls."""

HTTP2_IDLE_FRAMES_PER_SECOND: Final = 1_000
"""Frames without effect per second beyond the burst."""

# ── the client's connections ─────────────────────────────────────────────────────────────────────

CHANNEL_CONNECT_SECONDS: Final = 5.0
"""Time that a client waits for a server's first HTTP/2 frame, TLS included."""

CHANNEL_STREAM_WINDOW_BYTES: Final = 4 * MIB
"""Flow-control window of one call: the data that a subscription with a slow reader holds at most."""

CHANNEL_CONNECTION_WINDOW_BYTES: Final = 16 * MIB
"""Flow-control window of one connection. The client returns it as it reads, so that a slow reader does not delay other calls."""

CHANNEL_MESSAGE_BYTES_MAX: Final = 64 * MIB
"""Size of a response: at least the largest message that a server can store."""

CHANNEL_ASSEMBLY_BYTES_MAX: Final = 128 * MIB
"""Incomplete responses of all calls of one connection together."""

CHANNEL_FRAME_BYTES_MAX: Final = 64 * KIB
"""Size of one frame from a server: splits fewer messages than 16 KiB, and no call delays the others for long."""

CHANNEL_RECEIVE_BUFFER_BYTES: Final = 256 * KIB
"""Size of one read, and so of one batch of messages; it fits into a core's cache."""

CHANNEL_STREAMS_MAX: Final = 100_000
"""Concurrent calls of one connection, if the server allows that many; more wait in a queue."""

CHANNEL_KEEPALIVE_SECONDS: Final = 310.0
"""Idle time with open calls after which the client sends PING. Go servers close connections that send more than one per 5 minutes;
CHANNEL_TCP_KEEPALIVE_SECONDS detects machines that are down earlier."""

CHANNEL_KEEPALIVE_TIMEOUT_SECONDS: Final = 20.0
"""Time for the answer to such a PING; then the client closes the connection."""

CHANNEL_PING_SECONDS: Final = 5.0
"""The same interval for servers that announce that they accept frequent PINGs: a hung server is detected after twice this time."""

CHANNEL_TCP_KEEPALIVE_SECONDS: Final = 20
"""Idle time before the kernel sends TCP keepalive probes; four unanswered probes 5 s apart end the connection."""

# ── replication ──────────────────────────────────────────────────────────────────────────────────

REPLICATION_READ_BYTES: Final = 1 * MIB - 1 * KIB
"""Size of one answer to a follower, at least one batch. With its header it just fits into one NATS message of 1 MiB."""

REPLICATION_INLINE_BYTES: Final = 256 * KIB
"""Largest write of a follower on the event loop: a thread costs more than a write of this size to the page cache."""

REPLICATION_NOTICE_SECONDS: Final = 0.002
"""Time that a leader waits before it sends a follower only a new high watermark: the next batch may carry it."""

REPLICATION_THREADS: Final = 2
"""Threads for large writes, truncation, and reads of cold files in replication."""

HAND_OVERS_AT_ONCE_MAX: Final = 32
"""Leaderships that a stopping server transfers at the same time: enough to stop within seconds, while the other partitions go on."""

# ── operating a cluster ──────────────────────────────────────────────────────────────────────────

REASSIGNMENTS_INFLIGHT_MAX: Final = 8
"""Partitions of the whole cluster that move at the same time: each move ends soon and can be cancelled soon."""

STATUS_PARTITIONS_MAX: Final = 1_000
"""Partitions in one answer about the cluster, which has to fit into a NATS message."""

# ── Spark ────────────────────────────────────────────────────────────────────────────────────────

SPARK_TRIGGER_BYTES_DEFAULT: Final = 256 * MIB
"""Size of one micro-batch by default: the first one from the earliest offset must not read the whole stream."""

SPARK_TASKS_MAX: Final = 100_000
"""Tasks of one read. Spark's driver keeps all of them in memory."""

SPARK_ARCHIVE_TASK_BYTES: Final = 128 * MIB
"""Archive files that one task of a batch read decodes: the task size of Spark's own Parquet reader."""

SPARK_IDLE_POLL_MS: Final = 50
"""Interval at which an idle query asks the brokers for new offsets. Spark itself asks every 10 ms."""

# ── tables over Arrow Flight ─────────────────────────────────────────────────────────────────────

FLIGHT_BATCH_ROWS: Final = 32_768
"""Rows of a record batch by default: large enough that the cost per batch does not matter."""

FLIGHT_BATCH_ROWS_MAX: Final = 1_000_000
"""Largest number of rows that a reader may request for one batch."""

FLIGHT_BATCH_BYTES: Final = 4 * MIB
"""Size of a record batch by default; the row that reaches it is included."""

FLIGHT_BATCH_BYTES_MAX: Final = 256 * MIB
"""Largest size that a reader may request for one batch. With one more record it stays far below the 2 GiB of Arrow's offsets."""

FLIGHT_READ_BYTES: Final = 1 * MIB
"""Size of one read from the log for a Flight reader."""

FLIGHT_CALLS_MAX: Final = 128
"""Concurrent Flight reads, lists and lookups of offsets, each with a thread and some memory. More are refused and can be retried."""

FLIGHT_REQUEST_BYTES_MAX: Final = 64 * KIB
"""Size of a ticket, a descriptor or the body of an action, in JSON."""

FLIGHT_UNFINISHED_BYTES_MAX: Final = 1 * MIB
"""Bytes of unfinished requests on one Flight connection with TLS or beyond loopback; a client that sends more is disconnected."""

FLIGHT_DESCRIBING_MAX: Final = 1
"""Flight threads that describe streams at the same time. Each such thread delays the event loop by Python's switch interval of 5 ms."""

NAME_PATTERN_CHARACTERS_MAX: Final = 256
"""Characters of a pattern of stream names in ListFlights: a match of one name takes at most this many steps per character."""

FLIGHT_CALL_SECONDS: Final = 10.0
"""Time that a Flight call waits for the event loop, to look up servers or to resume a paused partition."""

FLIGHT_STOP_SECONDS: Final = 1.0
"""Time that Flight readers get when the server stops; the connections of the others end with the process."""

FLIGHT_LOCAL_FILES: Final = 16
"""Log files that a reader on the same machine gets at once, some GiB. Their disk space is not free until the reader closes them."""

FLIGHT_LOCAL_SECONDS: Final = 1.0
"""Time that such a reader and the server wait for each other; then the reader falls back to record batches."""

# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────

HTTP_HEAD_BYTES_MAX: Final = 16 * KIB
"""Size of an incomplete request line with headers; the server refuses a larger one with 414 or 431. Browsers send one or two KiB."""

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
"""Partitions with series of their own in one scrape, about 20 series each."""

METRICS_CURSORS_MAX: Final = 5_000
"""Cursors with series of their own, 4 series each."""

METRICS_CURSORS_BYTES_MAX: Final = 512 * KIB
"""Names of cursors in one answer between servers, which has to fit into a NATS message."""

METRICS_OPENING_SECONDS_MAX: Final = 2.0
"""Time that one scrape spends on opening logs that have cursors; the next scrapes open the others."""

METRICS_GROUPS_MAX: Final = 1_000
"""Consumer groups with series of their own."""

TURN_SECONDS: Final = 0.003
"""Time that a scrape or a request for metadata works before it yields to the event loop."""
