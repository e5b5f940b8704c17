"""Archive and log as one stream: which offsets of a partition come from where. Pure.

An archive has the offsets `start` to before `end`, except those that were lost before they could be archived; a log has those from its
start to its end. Both may have an offset, and then it is the same row.

- What the archive has is read from the archive: that is work which brokers do not have.
- What it does not have is read from the log: behind its end, and before its start if it was begun late.
- What neither has is missing. `missing` names it, `resume` says where reading can go on behind it.

    log      ................[log start ═══════════════════ end)
    archive  [start ══════════════════ end)
    read     [archive ───────────────────)[log ────────────)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from bascule.lake.coverage import Coverage
from bascule.spark.read.plan import Backlog, Pieces, Range
from bascule.spark.read.state import PartitionState, weight

FILES_WEIGHED_MAX: Final = 64
"""Files that have a weight of their own in a backlog; those behind them have one together. A trigger seldom reads so many."""


class Part(NamedTuple):
    """Offsets that come from one place."""

    start: int
    end: int
    is_archived: bool


def joined(state: PartitionState, coverage: Coverage | None) -> PartitionState:
    """A partition with what the archive has of it.

    The archive got it from below the high watermark, so that it may be read even if a new leader has not learned that watermark yet.
    """
    if coverage is None:
        return replace(state, archived=None)
    end = max(state.end_offset, min(coverage.end, state.log_end_offset))
    return clipped(replace(state, end_offset=end), coverage)


def clipped(state: PartitionState, coverage: Coverage | None) -> PartitionState:
    """The same without moving its end: what was archived behind it is for later."""
    return replace(state, archived=None if coverage is None else coverage.within(coverage.start, state.end_offset))


def parts(state: PartitionState, start: int, end: int) -> list[Part]:
    """Where the offsets of a range come from, in order. What is missing is in none of them."""
    found: list[Part] = []
    position = start
    for first, following in [] if state.archived is None else state.archived.held(start, end):
        found.append(Part(max(position, state.log_start_offset), first, is_archived=False))
        found.append(Part(first, following, is_archived=True))
        position = following
    found.append(Part(max(position, state.log_start_offset), end, is_archived=False))
    return [part for part in found if part.start < part.end]


def missing(state: PartitionState, start: int, end: int) -> tuple[int, int] | None:
    """The first offsets of a range that nobody has; None if there are none."""
    position = start
    for part in parts(state, start, end):
        if part.start > position:
            return position, part.start
        position = part.end
    return (position, end) if position < end else None


def resume(state: PartitionState, position: int) -> int:
    """The next offset, from a position on, that somebody has or will have."""
    if position >= state.log_start_offset:
        return position
    held = [] if state.archived is None else state.archived.held(position, state.log_start_offset)
    return held[0][0] if held else state.log_start_offset


# ── what it weighs ───────────────────────────────────────────────────────────────────────────────


def weighed(state: PartitionState, start: int, end: int) -> Backlog:
    """A range with what its offsets weigh: in the log on average, in the archive by file; what is missing weighs nothing."""
    if state.archived is None or start >= end:
        return Range(start, max(start, end), state.bytes_per_offset)
    found: list[Range] = []
    for each in _weighed_parts(state, start, end):
        position = found[-1].end if found else start
        if position < each.start:
            found.append(Range(position, each.start))
        found.append(each)
    position = found[-1].end if found else start
    if position < end:
        found.append(Range(position, end))
    return found[0] if len(found) == 1 else Pieces(tuple(found))


def _weighed_parts(state: PartitionState, start: int, end: int) -> Iterator[Range]:
    for part in parts(state, start, end):
        if part.is_archived:
            assert state.archived is not None
            yield from _weighed_files(state.archived, part.start, part.end)
        else:
            yield Range(part.start, part.end, state.bytes_per_offset)


def _weighed_files(archived: Coverage, start: int, end: int) -> Iterator[Range]:
    files = archived.files_in(start, end)
    position = start
    for one in files[:FILES_WEIGHED_MAX]:
        first, following = max(position, one.first_offset), min(end, one.last_offset + 1)
        if first < following:
            yield Range(first, following, weight(one.bytes, one.last_offset + 1 - one.first_offset))
            position = following
    if len(files) > FILES_WEIGHED_MAX:
        yield Range(position, end, weight(archived.bytes_in(position, end), end - position))


def average(state: PartitionState, start: int, end: int) -> Range:
    """A range with one weight for all of it."""
    if state.archived is None:
        return Range(start, end, state.bytes_per_offset)
    archived = sum(
        state.archived.bytes_in(part.start, part.end) for part in parts(state, start, end) if part.is_archived
    )
    logged = sum(part.end - part.start for part in parts(state, start, end) if not part.is_archived)
    return Range(start, end, weight(archived + int(logged * state.bytes_per_offset), end - start))


# ── who reads it ─────────────────────────────────────────────────────────────────────────────────


def file_ranges(archived: Coverage, bytes_max: int) -> list[tuple[int, int]]:
    """An archived range cut at the borders of files: as many files together as `bytes_max` allows, one at least."""
    cuts: list[int] = []
    size = 0
    for one in archived.files:
        size += one.bytes
        if size > bytes_max and one.first_offset > max([archived.start, *cuts[-1:]]):
            cuts.append(one.first_offset)
            size = one.bytes
    bounds = [archived.start, *cuts, archived.end]
    return list(pairwise(bounds))
