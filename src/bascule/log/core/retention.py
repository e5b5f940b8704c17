"""Decides which segments retention deletes: whole segments, oldest first, never the active one and never an uncommitted record.

A limit of 0 means no limit. The remaining segments are within all limits, unless they are not committed yet or the active segment
alone exceeds one. Every in-sync replica has all committed records, so no replica deletes a record that an electable replica still has
to fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The properties of a segment that retention and compaction use."""

    base_offset: int
    bytes: int
    records: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    age_max_ns: int = 0
    records_max: int = 0
    bytes_max: int = 0


def plan_retention(
    segments: Sequence[SegmentFacts], limits: RetentionLimits, now_ns: int, committed_end_offset: int
) -> int:
    """Return the number of oldest segments to delete. The last one in the list is the active one; records at or after
    `committed_end_offset` are not committed."""
    if len(segments) < 2 or limits == RetentionLimits():
        return 0
    count = max(
        _expired(segments, limits.age_max_ns, now_ns),
        _over(segments, limits.records_max, lambda segment: segment.records),
        _over(segments, limits.bytes_max, lambda segment: segment.bytes),
    )
    # A segment without records has no age; it is deleted with the segments before it.
    while count < len(segments) - 1 and segments[count].records == 0:
        count += 1
    # A segment ends where the next one begins.
    while count and segments[count].base_offset > committed_end_offset:
        count -= 1
    return count


def _expired(segments: Sequence[SegmentFacts], age_max_ns: int, now_ns: int) -> int:
    if age_max_ns <= 0:
        return 0
    for index, segment in enumerate(segments[:-1]):
        if segment.records and segment.last_timestamp >= now_ns - age_max_ns:
            return index
    return len(segments) - 1


def _over(segments: Sequence[SegmentFacts], limit: int, measure: Callable[[SegmentFacts], int]) -> int:
    if limit <= 0:
        return 0
    total = measure(segments[-1])
    for index in range(len(segments) - 2, -1, -1):
        total += measure(segments[index])
        if total > limit:
            return index + 1
    return 0
