"""What a compaction run does: whether there is anything to do, and which segments become one.

A run first learns the newest offset of each key in the *dirty* part of the log, then pours every sealed segment up to there through
the sieve. Behind it the log below `cleaned_to` holds each key at most once, so the next run only has to learn what came since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bascule.log.core.retention import SegmentFacts


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    min_lag_ns: int
    """A record younger than this stays, whatever came after it."""

    tombstone_retention_ns: int
    """How long a tombstone is kept for consumers to see it."""

    segment_bytes_max: int


@dataclass(frozen=True, slots=True)
class Horizon:
    """The lines that decide about a record."""

    end_offset: int
    """Records at or behind it are kept: not committed, or not learned."""

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
    """Whether a run could remove anything: something sealed is dirty, or a tombstone has served its time."""
    if len(segments) < 2:
        return False
    if segments[-1].base_offset > cleaned_to:
        return True
    return tombstones_due_ns is not None and tombstones_due_ns <= now_ns


def group_segments(segments: Sequence[SegmentFacts], segment_bytes_max: int) -> list[tuple[int, int]]:
    """Runs `[first, stop)` of neighbouring sealed segments whose content fits one segment: each becomes one file."""
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
