"""Decides whether a compaction run is due, and which segments it merges.

A run first reads the newest offset of each key in the *dirty* part of the log, then rewrites all sealed segments up to there without
older records of these keys. Afterwards the log below `cleaned_to` holds each key at most once; the next run reads only later keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bascule.log.core.retention import SegmentFacts


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    min_lag_ns: int
    """Minimum age of a record that is removed."""

    tombstone_retention_ns: int
    """Time that a tombstone is kept, so that consumers see it."""

    segment_bytes_max: int


@dataclass(frozen=True, slots=True)
class Horizon:
    """The bounds that decide whether a record is kept."""

    end_offset: int
    """Records at or after it are kept: they are not committed, or their keys were not read."""

    keep_since: int
    tombstones_before: int


FOREVER: Final = (1 << 63) - 1


def horizon(learned_to: int, limits: CompactionLimits, now_ns: int) -> Horizon:
    return Horizon(
        end_offset=learned_to,
        keep_since=now_ns - limits.min_lag_ns if limits.min_lag_ns > 0 else FOREVER,
        tombstones_before=now_ns - limits.tombstone_retention_ns,
    )


def is_due(segments: Sequence[SegmentFacts], cleaned_to: int, tombstones_due_ns: int | None, now_ns: int) -> bool:
    """Return whether a run could remove records: a sealed segment is dirty, or a tombstone has expired."""
    if len(segments) < 2:
        return False
    if segments[-1].base_offset > cleaned_to:
        return True
    return tombstones_due_ns is not None and tombstones_due_ns <= now_ns


def group_segments(segments: Sequence[SegmentFacts], segment_bytes_max: int) -> list[tuple[int, int]]:
    """Return ranges `[first, stop)` of adjacent sealed segments; each range fits one segment and becomes one file."""
    groups: list[tuple[int, int]] = []
    first, total = 0, 0
    for index, segment in enumerate(segments):
        if index > first and total + segment.bytes > segment_bytes_max:
            groups.append((first, index))
            first, total = index, 0
        total += segment.bytes
    if first < len(segments):
        groups.append((first, len(segments)))
    return groups
