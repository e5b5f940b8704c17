"""The settings of a stream as its partitions use them, from the values that were stored when it was created.

Older metadata may lack a setting, and newer metadata may have a value that this version does not know: such a setting gets its default,
because a partition that does not start because of a setting would be worse.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from bascule.config.sections.cluster import ClusterConfig
from bascule.config.stream import INTERVALS, StreamConfig, resolve
from bascule.config.values.duration import MILLISECOND_NS, format_duration
from bascule.errors import InvalidConfig
from bascule.log import LogOptions
from bascule.metadata.core.model.activity import ACTIVITY_STREAM
from bascule.metadata.core.model.ops import ConfigValue
from bascule.metadata.core.model.streams import Stream
from bascule.names import AUDIT_STREAM

CURSORS_STREAM: Final = "__cursors"
RESERVED_STREAMS: Final = frozenset({ACTIVITY_STREAM, AUDIT_STREAM, CURSORS_STREAM})
"""Internal streams: clients can read them, but not create or delete them."""

_DEFAULTS: Final = resolve(ClusterConfig())

_LOG_OPTIONS: Final = {
    "segment_bytes_max": "segment_max_bytes",
    "segment_age_max_ns": "segment_max_age_ns",
    "retention_age_max_ns": "retention_max_age_ns",
    "retention_records_max": "retention_max_messages",
    "retention_bytes_max": "retention_max_bytes",
    "compact": "compact_enabled",
    "compact_min_lag_ns": "compact_min_lag_ns",
    "compact_tombstone_retention_ns": "compact_tombstone_retention_ns",
    "sync": "sync",
    "sync_interval_ns": "sync_interval_ns",
    "compression": "compression",
    "encryption": "encryption",
}
"""Setting of the log → name under which it is stored."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    log_options: LogOptions
    cleaner_interval_ms: int
    auto_pause_time_ns: int
    """0 for never."""

    auto_pause_disable_if_subscribers: bool
    concurrency_control: bool
    min_insync_replicas: int


def stored_config(config: StreamConfig) -> dict[str, ConfigValue]:
    """The settings as the metadata stores them: by name, as a number, a boolean or a string."""
    stored: dict[str, ConfigValue] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        stored[item.name] = str(value) if isinstance(value, str) else value
    return stored


def settings_of(stream: Stream, cluster: ClusterConfig | None = None) -> StreamSettings:
    """The settings of a stream. With `cluster`, the pause time of `__cursors` comes from its present configuration."""
    values = _values(stream)
    auto_pause_time_ns = values["auto_pause_time_ns"]
    if cluster is not None and stream.name == CURSORS_STREAM:
        auto_pause_time_ns = cluster.cursors.stream_auto_pause_time_ns
    return StreamSettings(
        log_options=_log_options(values),
        cleaner_interval_ms=max(1, values["cleaner_interval_ns"] // MILLISECOND_NS),
        auto_pause_time_ns=auto_pause_time_ns,
        auto_pause_disable_if_subscribers=values["auto_pause_disable_if_subscribers"],
        concurrency_control=values["concurrency_control"],
        min_insync_replicas=values["min_insync_replicas"],
    )


def effective_config(stream: Stream, cluster: ClusterConfig) -> StreamConfig:
    """The settings that the stream's partitions use, by the names that they are stored under."""
    values = _values(stream)
    settings = settings_of(stream, cluster)
    values |= {stored: getattr(settings.log_options, ours) for ours, stored in _LOG_OPTIONS.items()}
    return StreamConfig(**{**values, "auto_pause_time_ns": settings.auto_pause_time_ns})


def interval_warnings(stream: Stream) -> list[str]:
    """One text for each stored interval that is too short: an older version allowed it, and it is not used."""
    return [
        f"its {name.removesuffix('_ns').replace('_', ' ')} of {format_duration(stored)} is too short, {format_duration(used)} is used; "
        "create the stream anew to change it"
        for name, (stored, used) in _short_intervals(stream).items()
    ]


def _short_intervals(stream: Stream) -> dict[str, tuple[int, int]]:
    """The stored interval and the one that is used, in nanoseconds, by name."""
    found = {name: (_stored(stream, name), kind) for name, kind in INTERVALS.items()}
    return {name: (value, kind.raised(value)) for name, (value, kind) in found.items() if kind.raised(value) != value}


def _values(stream: Stream) -> dict[str, Any]:
    found = {item.name: _stored(stream, item.name) for item in fields(StreamConfig)}
    return found | {name: used for name, (_, used) in _short_intervals(stream).items()}


def _stored(stream: Stream, name: str) -> Any:
    default = getattr(_DEFAULTS, name)
    value = stream.config.get(name, default)
    if isinstance(default, bool):
        fits = isinstance(value, bool)
    elif isinstance(default, int):
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    else:
        fits = isinstance(value, str)
    return value if fits else default


def _log_options(values: dict[str, Any]) -> LogOptions:
    found = {ours: values[stored] for ours, stored in _LOG_OPTIONS.items()}
    try:
        return LogOptions(**found)
    except InvalidConfig:
        return LogOptions(**{name: value for name, value in found.items() if _fits(name, value)})


def _fits(name: str, value: Any) -> bool:
    try:
        LogOptions(**{name: value})
    except InvalidConfig:
        return False
    return True
