"""The settings of one stream: the server's defaults, overridden by the request that creates the stream.

They are resolved once, when the stream is created, and stored with it. All replicas therefore have the same settings, even if the
configuration files of their servers differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from bascule import limits
from bascule.config.sections.cluster import ClusterConfig
from bascule.config.sections.server import KEYS
from bascule.config.sections.streams import Compression, StreamDefaults, Sync
from bascule.config.values.duration import MILLISECOND_NS
from bascule.config.values.key import Key, key_of
from bascule.config.values.kinds import Duration, Unfit
from bascule.errors import InvalidConfig

INTERVALS: Final = {
    item.name: key.kind
    for item in fields(StreamDefaults)
    if (key := key_of(item)) is not None and isinstance(key.kind, Duration) and key.kind.floor_ns
}
"""Settings with a floor: below it they would only create more files, or cost CPU for nothing."""


CHANGEABLE: Final = frozenset(
    {
        "retention_max_bytes",
        "retention_max_messages",
        "retention_max_age_ns",
        "cleaner_interval_ns",
        "segment_max_bytes",
        "segment_max_age_ns",
        "compact_min_lag_ns",
        "compact_tombstone_retention_ns",
        "auto_pause_time_ns",
        "auto_pause_disable_if_subscribers",
        "sync_interval_ns",
    }
)
"""Settings that an existing stream can change. The others are part of its files, of promises to publishers or of replication."""

WITHOUT_EFFECT: Final = frozenset({"compact_max_goroutines"})
"""Settings that are accepted for compatibility with Liftbridge and have no effect."""


def _override(wire_name: str, key_name: str) -> Any:
    return field(default=None, metadata={"wire_name": wire_name, "key": KEYS[key_name]})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOverrides:
    """The settings of a request that creates a stream. None means the default; 0 and False are values.

    Durations are milliseconds here, as in the request; they are nanoseconds everywhere else.
    """

    retention_max_bytes: int | None = _override("retentionMaxBytes", "streams.retention.max.bytes")
    retention_max_messages: int | None = _override("retentionMaxMessages", "streams.retention.max.messages")
    retention_max_age_ms: int | None = _override("retentionMaxAge", "streams.retention.max.age")
    cleaner_interval_ms: int | None = _override("cleanerInterval", "streams.cleaner.interval")
    segment_max_bytes: int | None = _override("segmentMaxBytes", "streams.segment.max.bytes")
    segment_max_age_ms: int | None = _override("segmentMaxAge", "streams.segment.max.age")
    compact_enabled: bool | None = _override("compactEnabled", "streams.compact.enabled")
    compact_max_goroutines: int | None = _override("compactMaxGoroutines", "streams.compact.max.goroutines")
    compact_min_lag_ms: int | None = _override("compactMinLag", "streams.compact.min.lag")
    compact_tombstone_retention_ms: int | None = _override(
        "compactTombstoneRetention", "streams.compact.tombstone.retention"
    )
    auto_pause_time_ms: int | None = _override("autoPauseTime", "streams.auto.pause.time")
    auto_pause_disable_if_subscribers: bool | None = _override(
        "autoPauseDisableIfSubscribers", "streams.auto.pause.disable.if.subscribers"
    )
    concurrency_control: bool | None = _override("optimisticConcurrencyControl", "streams.concurrency.control")
    encryption: bool | None = _override("encryption", "streams.encryption")
    compression: str | None = _override("compression", "streams.compression")
    sync: str | None = _override("sync", "streams.sync")
    sync_interval_ms: int | None = _override("syncInterval", "streams.sync.interval")
    min_insync_replicas: int | None = _override("minIsr", "clustering.min.insync.replicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """The effective settings of a stream."""

    retention_max_bytes: int
    retention_max_messages: int
    retention_max_age_ns: int
    cleaner_interval_ns: int
    segment_max_bytes: int
    segment_max_age_ns: int
    compact_enabled: bool
    compact_max_goroutines: int
    compact_min_lag_ns: int
    compact_tombstone_retention_ns: int
    auto_pause_time_ns: int
    auto_pause_disable_if_subscribers: bool
    concurrency_control: bool
    encryption: bool
    compression: Compression
    sync: Sync
    sync_interval_ns: int
    min_insync_replicas: int


def resolve(cluster: ClusterConfig, overrides: StreamOverrides | None = None) -> StreamConfig:
    """Return the settings of a new stream. Raises InvalidConfig, which names the field of an invalid override."""
    values: dict[str, Any] = {item.name: getattr(cluster.streams, item.name) for item in fields(cluster.streams)}
    values["min_insync_replicas"] = cluster.replication.min_insync_replicas
    values |= _checked(overrides or StreamOverrides())
    if values["segment_max_age_ns"] is None:
        values["segment_max_age_ns"] = values["retention_max_age_ns"]
    for name, kind in INTERVALS.items():
        values[name] = kind.raised(values[name])
    if values["segment_max_bytes"] == 0:
        values["segment_max_bytes"] = limits.SEGMENT_BYTES_DEFAULT
    return StreamConfig(**values)


def changed_values(overrides: StreamOverrides, before: StreamConfig) -> dict[str, int | bool]:
    """The settings to store for an existing stream. Raises InvalidConfig, which names the field of an invalid override.

    The age of segments follows the age of retention as long as they are equal, as they are unless the creator chose otherwise.
    """
    values = _checked(overrides)
    assert values.keys() <= CHANGEABLE, values
    is_derived = before.segment_max_age_ns == before.retention_max_age_ns
    if is_derived and "retention_max_age_ns" in values and "segment_max_age_ns" not in values:
        values["segment_max_age_ns"] = values["retention_max_age_ns"]
    for name, kind in INTERVALS.items():
        if name in values:
            values[name] = kind.raised(values[name])
    if values.get("segment_max_bytes") == 0:
        values["segment_max_bytes"] = limits.SEGMENT_BYTES_DEFAULT
    return values


def wire_values(config: StreamConfig) -> dict[str, int | bool | str]:
    """The settings by their names in the API and in its units; a part of a millisecond counts as a whole one."""
    found = {}
    for item in fields(StreamOverrides):
        name, scale = _in_config(item.name)
        if name not in WITHOUT_EFFECT:
            value = getattr(config, name)
            found[item.metadata["wire_name"]] = -(-value // scale) if scale > 1 else value
    return found


def _checked(overrides: StreamOverrides) -> dict[str, Any]:
    """Return the overrides that were given, with the names and units of StreamConfig."""
    given = {}
    for item in fields(overrides):
        value = getattr(overrides, item.name)
        if value is not None:
            name, scale = _in_config(item.name)
            given[name] = _check(item.metadata["key"], item.metadata["wire_name"], value, scale)
    return given


def _in_config(name: str) -> tuple[str, int]:
    """The name that StreamConfig has for an override, and its units in one unit of the override."""
    stem = name.removesuffix("_ms")
    return (name, 1) if stem == name else (f"{stem}_ns", MILLISECOND_NS)


def _check(key: Key, wire_name: str, value: Any, scale: int) -> Any:
    try:
        return key.kind.check(value if scale == 1 else value * scale)
    except Unfit as unfit:
        shown = f"`{value[:40]}`" if isinstance(value, str) else f"{value}{'' if scale == 1 else 'ms'}"
        raise InvalidConfig(f"`{wire_name}` is {shown}", hint=f"it must be {unfit}") from None
