"""The options of one partition log. `bascule.config` has the settings of servers and streams that they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from bascule import limits
from bascule.errors import InvalidConfig
from bascule.log.core.compaction import CompactionLimits
from bascule.log.core.retention import RetentionLimits

DAY_NS = 24 * 3600 * 1_000_000_000


class SyncPolicy(StrEnum):
    """When data is synced to disk, and which acks wait for it."""

    ACK = "ack"
    """ALL acks wait for the sync, LEADER acks do not."""
    INTERVAL = "interval"
    """No ack waits; the log is synced every `sync_interval_ns`."""
    ALWAYS = "always"
    """LEADER acks, commits and readers wait too."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    segment_bytes_max: int = limits.SEGMENT_BYTES_DEFAULT
    segment_age_max_ns: int = 0
    retention_age_max_ns: int = 0
    retention_records_max: int = 0
    retention_bytes_max: int = 0
    compact: bool = False
    compact_min_lag_ns: int = 0
    compact_tombstone_retention_ns: int = DAY_NS
    compact_memory_bytes: int = limits.COMPACTION_MEMORY_BYTES
    sync: SyncPolicy = SyncPolicy.ACK
    sync_interval_ns: int = 0
    """0: the interval of the store."""

    compression: str = "none"
    encryption: bool = False

    def with_limits_of(self, other: LogOptions) -> LogOptions:
        """The limits of segments, retention and compaction and the sync interval of `other`. The rest stays: the files of a log, its
        replicas or its readers depend on it."""
        kept = ("compact", "compact_memory_bytes", "sync", "compression", "encryption")
        return replace(other, **{name: getattr(self, name) for name in kept})

    def __post_init__(self) -> None:
        self._check_range("segment_bytes_max", 1, limits.SEGMENT_BYTES_MAX)
        for name in (
            "segment_age_max_ns",
            "retention_age_max_ns",
            "retention_records_max",
            "retention_bytes_max",
            "compact_min_lag_ns",
            "compact_tombstone_retention_ns",
            "sync_interval_ns",
        ):
            self._check_range(name, 0, (1 << 63) - 1)
        self._check_range("compact_memory_bytes", 4096, 1 << 40)
        if self.sync not in tuple(SyncPolicy):
            raise InvalidConfig(f"sync is {self.sync!r}", hint="use one of: ack, interval, always")
        object.__setattr__(self, "sync", SyncPolicy(self.sync))  # accepts the name of a policy
        if self.compression not in ("none", "zstd"):
            raise InvalidConfig(f"compression is {self.compression!r}", hint="use one of: none, zstd")

    def _check_range(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or not low <= value <= high:
            raise InvalidConfig(f"{name} is {value!r}", hint=f"use a whole number from {low} to {high}")

    @property
    def retention(self) -> RetentionLimits:
        return RetentionLimits(self.retention_age_max_ns, self.retention_records_max, self.retention_bytes_max)

    @property
    def compaction(self) -> CompactionLimits:
        return CompactionLimits(self.compact_min_lag_ns, self.compact_tombstone_retention_ns, self.segment_bytes_max)
