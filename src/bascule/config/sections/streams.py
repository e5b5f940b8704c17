"""The defaults of a stream's settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bascule import limits
from bascule.config.values.duration import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import INT64_MAX, Boolean, Choice, Duration, Integer, Size

PAUSE_NS_MIN: Final = 100 * MILLISECOND_NS
"""Minimum idle time before a partition is paused: a shorter one would only cost CPU."""


class Sync(StrEnum):
    """When a message must be synced to disk."""

    ACK = "ack"
    INTERVAL = "interval"
    ALWAYS = "always"


class Compression(StrEnum):
    """The codec of stored batches."""

    NONE = "none"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDefaults:
    """Stream defaults"""

    retention_max_bytes: int = setting(
        "streams.retention.max.bytes",
        Size(),
        0,
        meaning="The size of one partition's log above which its oldest segments are deleted. 0: no limit.",
        consequence="Retention deletes whole segments and never the newest one: set `streams.segment.max.bytes` well below this size.",
    )
    retention_max_messages: int = setting(
        "streams.retention.max.messages",
        Integer(maximum=INT64_MAX),
        0,
        meaning="The number of messages of one partition above which its oldest segments are deleted. 0: no limit.",
    )
    retention_max_age_ns: int = setting(
        "streams.retention.max.age",
        Duration(),
        168 * HOUR_NS,
        meaning="The age of a segment's newest message above which the segment is deleted. 0: no limit.",
        consequence="A consumer that is down for longer misses messages.",
        advice="Set it longer than the longest consumer outage that must not lose messages.",
    )
    cleaner_interval_ns: int = setting(
        "streams.cleaner.interval",
        Duration(minimum_ns=MILLISECOND_NS, floor_ns=100 * MILLISECOND_NS),
        5 * MINUTE_NS,
        meaning="The interval at which retention and compaction check a partition. At least 100ms; a shorter one of a "
        "client is raised to that.",
        consequence="A partition may exceed its limits for this time.",
    )
    segment_max_bytes: int = setting(
        "streams.segment.max.bytes",
        Size(maximum=limits.SEGMENT_BYTES_MAX),
        limits.SEGMENT_BYTES_DEFAULT,
        meaning="The size at which a log starts a new segment file. 0 means the default.",
        consequence="Retention and compaction work on whole segments: smaller segments free space earlier and need more files.",
    )
    segment_max_age_ns: int | None = setting(
        "streams.segment.max.age",
        Duration(floor_ns=SECOND_NS),
        None,
        default_text="the stream's retention.max.age",
        example="24h",
        meaning="The age at which a log starts a new segment file. 0: never by age. Otherwise at least 1s; a shorter one of a "
        "client is raised to that.",
        consequence="A message can exceed `streams.retention.max.age` by up to this time, because the newest segment is never "
        "deleted.",
    )
    compact_enabled: bool = setting(
        "streams.compact.enabled",
        Boolean(),
        False,
        meaning="Keep only the newest message of each key.",
        consequence="Compaction removes older messages with the same key from all segments but the newest, and keeps messages "
        "without a key. A message without a value deletes its key.",
        advice="Enable it for streams of which only the latest value per key matters.",
    )
    compact_max_goroutines: int = setting(
        "streams.compact.max.goroutines",
        Integer(minimum=1),
        10,
        meaning="Accepted so that Liftbridge's files and clients work, without effect: compaction uses one thread.",
    )
    compact_min_lag_ns: int = setting(
        "streams.compact.min.lag",
        Duration(),
        0,
        meaning="The minimum time that a message stays after a newer message with its key has arrived.",
        consequence="A consumer that lags by less than this time sees every message.",
    )
    compact_tombstone_retention_ns: int = setting(
        "streams.compact.tombstone.retention",
        Duration(),
        24 * HOUR_NS,
        meaning="How long a tombstone (a message without a value, which deletes its key) stays in the log.",
        consequence="A consumer that is down for longer may miss the deletion of a key.",
    )
    auto_pause_time_ns: int = setting(
        "streams.auto.pause.time",
        Duration(floor_ns=PAUSE_NS_MIN),
        0,
        meaning="Pause a partition that has received no message for this time. 0: never. Otherwise at least 100ms; a shorter "
        "one of a client is raised to that.",
        consequence="The next message resumes it.",
    )
    auto_pause_disable_if_subscribers: bool = setting(
        "streams.auto.pause.disable.if.subscribers",
        Boolean(),
        False,
        meaning="Do not pause a partition that has subscribers.",
    )
    concurrency_control: bool = setting(
        "streams.concurrency.control",
        Boolean(),
        False,
        meaning="Refuse a message whose `expectedOffset` differs from the offset that it would get.",
        consequence="A publisher can detect that another message came before its own. Publishers that do not check must send −1.",
    )
    encryption: bool = setting(
        "streams.encryption",
        Boolean(),
        False,
        meaning="Encrypt messages on disk with AES-256-GCM.",
        consequence="Needs a master key: `encryption.key.file`, `encryption.key.command` or `BASCULE_ENCRYPTION_KEY`. If it is lost, "
        "the data is lost.",
        advice="Do not store the master key on the disk that it protects.",
    )
    compression: Compression = setting(
        "streams.compression",
        Choice(Compression),
        Compression.NONE,
        meaning="The compression of batches on disk.",
        consequence="`zstd` saves disk space and replication traffic, and costs CPU for each message written and read.",
    )
    sync: Sync = setting(
        "streams.sync",
        Choice(Sync),
        Sync.ACK,
        meaning="Which acks wait until a message is synced to disk. `ack`: acks of policy ALL wait until every in-sync replica has "
        "synced the message. `always`: every ack and every reader waits. `interval`: none waits.",
        consequence="Matters after a power failure or a kernel crash. The end of a process, `kill -9` included, loses no message "
        "with any of them.",
        advice="Keep `ack`. Set `interval` where a power failure may lose the last second of messages, `always` where LEADER acks "
        "must also survive one.",
    )
    sync_interval_ns: int = setting(
        "streams.sync.interval",
        Duration(minimum_ns=MILLISECOND_NS, floor_ns=5 * MILLISECOND_NS),
        limits.SYNC_INTERVAL_MS_DEFAULT * MILLISECOND_NS,
        meaning="The interval at which messages are synced to disk when no ack waits for a sync. At least 5ms; a shorter one of a "
        "client is raised to that.",
        consequence="With `interval`, a power failure may lose the messages of the last interval.",
    )
