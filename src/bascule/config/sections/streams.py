"""What a stream gets when its creator does not say otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bascule import limits
from bascule.config.values.duration import HOUR_NS, MILLISECOND_NS, MINUTE_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import INT64_MAX, Boolean, Choice, Duration, Integer, Size


class Sync(StrEnum):
    """When a message has to be on the platter."""

    ACK = "ack"
    INTERVAL = "interval"
    ALWAYS = "always"


class Compression(StrEnum):
    """How batches are stored."""

    NONE = "none"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDefaults:
    """Stream defaults"""

    retention_max_bytes: int = setting(
        "streams.retention.max.bytes",
        Size(),
        0,
        meaning="How large the log of one partition may grow before its oldest segments are deleted. 0: no limit.",
        consequence="Whole segments are deleted, and never the newest: keep `streams.segment.max.bytes` well below it.",
    )
    retention_max_messages: int = setting(
        "streams.retention.max.messages",
        Integer(maximum=INT64_MAX),
        0,
        meaning="How many messages one partition keeps before its oldest segments are deleted. 0: no limit.",
    )
    retention_max_age_ns: int = setting(
        "streams.retention.max.age",
        Duration(),
        168 * HOUR_NS,
        meaning="How old a segment's newest message may get before the segment is deleted. 0: no limit.",
        consequence="A consumer that is away for longer misses messages.",
        advice="Set it longer than the longest outage of a consumer that you want to survive.",
    )
    cleaner_interval_ns: int = setting(
        "streams.cleaner.interval",
        Duration(minimum_ns=MILLISECOND_NS),
        5 * MINUTE_NS,
        meaning="How often retention and compaction look at a partition.",
        consequence="Limits may be exceeded for so long.",
    )
    segment_max_bytes: int = setting(
        "streams.segment.max.bytes",
        Size(maximum=limits.SEGMENT_BYTES_MAX),
        limits.SEGMENT_BYTES_DEFAULT,
        meaning="The size at which a log starts a new segment file. 0 means the default.",
        consequence="Retention and compaction work on whole segments: smaller ones free space earlier and need more files.",
    )
    segment_max_age_ns: int | None = setting(
        "streams.segment.max.age",
        Duration(),
        None,
        default_text="the stream's retention.max.age",
        example="24h",
        meaning="The age at which a log starts a new segment file. 0: never by age; below 1s it is raised to 1s.",
        consequence="A message can outlive `streams.retention.max.age` by up to this much, since the newest segment is "
        "never deleted.",
    )
    compact_enabled: bool = setting(
        "streams.compact.enabled",
        Boolean(),
        False,
        meaning="Keep only the newest message of each key.",
        consequence="Older ones with the same key disappear from all but the newest segment; messages without a key stay; a "
        "key whose newest message has no value is deleted.",
        advice="For streams that hold the state of something, not its history.",
    )
    compact_max_goroutines: int = setting(
        "streams.compact.max.goroutines",
        Integer(minimum=1),
        10,
        meaning="Accepted so that Liftbridge's files and clients work. One run of compaction is one pass of compiled code; "
        "it needs no workers.",
    )
    compact_min_lag_ns: int = setting(
        "streams.compact.min.lag",
        Duration(),
        0,
        meaning="How long a message stays after a newer one with its key has come.",
        consequence="A consumer that is behind by less sees every message.",
    )
    compact_tombstone_retention_ns: int = setting(
        "streams.compact.tombstone.retention",
        Duration(),
        24 * HOUR_NS,
        meaning="How long a message without a value, which deletes its key, stays itself.",
        consequence="A consumer that is away for longer may never learn that the key was deleted.",
    )
    auto_pause_time_ns: int = setting(
        "streams.auto.pause.time",
        Duration(),
        0,
        meaning="Pause a partition that has received nothing for so long. 0: never.",
        consequence="The next message resumes it.",
    )
    auto_pause_disable_if_subscribers: bool = setting(
        "streams.auto.pause.disable.if.subscribers",
        Boolean(),
        False,
        meaning="Do not pause a partition while somebody is subscribed to it.",
    )
    concurrency_control: bool = setting(
        "streams.concurrency.control",
        Boolean(),
        False,
        meaning="Refuse a message whose `expectedOffset` is not the offset it would get.",
        consequence="Publishers can make sure that nobody published in between; the others must send −1.",
    )
    encryption: bool = setting(
        "streams.encryption",
        Boolean(),
        False,
        meaning="Encrypt messages on disk with AES-256-GCM.",
        consequence="Needs the master key in `BASCULE_ENCRYPTION_KEY`. Without it the data cannot be read by anybody.",
        advice="Keep the master key somewhere else than on the machine whose disk it protects.",
    )
    compression: Compression = setting(
        "streams.compression",
        Choice(Compression),
        Compression.NONE,
        meaning="How the batches of a log are compressed.",
        consequence="`zstd` saves disk and replication traffic and costs CPU for each message written and read.",
    )
    sync: Sync = setting(
        "streams.sync",
        Choice(Sync),
        Sync.ACK,
        meaning="What waits until a message is safe from a power failure. `ack`: an ack of policy ALL waits until every "
        "in-sync replica has it on the platter. `always`: every ack and every reader waits. `interval`: nothing waits.",
        consequence="The end of a process, kill -9 included, loses nothing under any of them; this is about power and kernels.",
        advice="`ack` unless you can afford to lose the last second of a stream, or cannot afford LEADER acks that may be lost.",
    )
    sync_interval_ns: int = setting(
        "streams.sync.interval",
        Duration(minimum_ns=MILLISECOND_NS),
        limits.SYNC_INTERVAL_MS_DEFAULT * MILLISECOND_NS,
        meaning="How often messages that nothing waits for are brought to the platter.",
        consequence="A power failure may take the last interval's messages from a stream that waits for nothing.",
    )
