"""How far a trigger reads, and which task reads what. Pure: offsets, sizes and time come in, ranges come out.

A range [start, end) of a partition has a backlog of end − start offsets. Bytes are estimated: a partition's size on disk over the
span of its offsets. Compaction leaves gaps in both, so the estimate holds for gaps too. Each file of an archive has
its own weight, so a backlog may consist of pieces.

`admit` says how far each partition is read:
- a partition with a backlog advances by one offset at least, whatever the limits are, and never past its end;
- beside that, neither the offsets nor the bytes of all partitions together exceed their limit;
- half of the rest of a limit is shared evenly, so that a small partition is read in few triggers while a large one takes days;
  the other half is shared by backlog;
- a higher limit never gives a partition less.

`split` cuts ranges into pieces of at most what one task may read: the pieces cover exactly the ranges, in order, none of them empty.

`gather` puts small pieces together into tasks, because a task costs Spark some 100 ms however little it reads: every piece is in one
task, in the same order, and no task exceeds the limits of `split`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

_GRID: Final = 1 << 64
"""Shares are multiples of one over this. Exact fractions of a thousand partitions have a thousand denominators, and adding them up
takes seconds; on one grid it takes none. It is fine enough that the laws hold as if shares were exact."""


K = TypeVar("K", bound=tuple[Any, ...])


class PartitionKey(NamedTuple):
    """A partition of a stream."""

    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `start` to before `end`; `bytes_per_offset` is what one of them weighs on average."""

    start: int
    end: int
    bytes_per_offset: Fraction = Fraction(0)

    @property
    def count(self) -> int:
        return self.end - self.start

    @property
    def size_bytes(self) -> Fraction:
        return self.count * self.bytes_per_offset

    @property
    def head_bytes(self) -> Fraction:
        """What its first offset weighs."""
        return self.bytes_per_offset

    def count_within(self, size_bytes: Fraction) -> int:
        """How many of its first offsets weigh no more than that."""
        if not self.bytes_per_offset:
            return self.count
        return min(self.count, int(size_bytes / self.bytes_per_offset))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Ranges that follow each other, one at least and none of them empty: together the backlog of a partition."""

    ranges: tuple[OffsetRange, ...]

    def __post_init__(self) -> None:
        assert self.ranges and all(each.count > 0 for each in self.ranges)
        assert all(one.end == other.start for one, other in pairwise(self.ranges))

    @property
    def start(self) -> int:
        return self.ranges[0].start

    @property
    def end(self) -> int:
        return self.ranges[-1].end

    @property
    def count(self) -> int:
        return self.end - self.start

    @property
    def size_bytes(self) -> Fraction:
        return sum((each.size_bytes for each in self.ranges), Fraction(0))

    @property
    def head_bytes(self) -> Fraction:
        return self.ranges[0].bytes_per_offset

    def count_within(self, size_bytes: Fraction) -> int:
        count = 0
        for each in self.ranges:
            if each.size_bytes > size_bytes:
                return count + each.count_within(size_bytes)
            count += each.count
            size_bytes -= each.size_bytes
        return count


Backlog = OffsetRange | Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """What one trigger may read. None: no limit."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_max_ms: int = 0
    """How long fewer than `offsets_min` are waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLimits:
    """Into how many tasks, at least, and what one of them may read. None: no limit."""

    partitions_min: int | None = None
    offsets_max: int | None = None
    bytes_max: int | None = None
    gathered_offsets_max: int = 1
    """Offsets up to which a task reads several pieces."""


# ── how far ──────────────────────────────────────────────────────────────────────────────────────


def is_due(backlog: int, limits: TriggerLimits, waited_ms: int) -> bool:
    """Whether a trigger should read now, `waited_ms` after the last one that did, or wait for more to come."""
    if backlog <= 0:
        return False
    return limits.offsets_min is None or backlog >= limits.offsets_min or waited_ms >= limits.delay_max_ms


def admit(backlogs: Mapping[PartitionKey, Backlog], limits: TriggerLimits) -> dict[PartitionKey, int]:
    """The end of what is read of each partition: its own end, or as far as the limits let it go."""
    ends = {key: backlog.end for key, backlog in backlogs.items()}
    waiting = {key: backlog for key, backlog in backlogs.items() if backlog.count > 0}
    for counts in (_counts_by_offsets(waiting, limits.offsets_max), _counts_by_bytes(waiting, limits.bytes_max)):
        for key, count in counts.items():
            ends[key] = min(ends[key], waiting[key].start + max(1, count))
    return ends


def _counts_by_offsets(waiting: Mapping[PartitionKey, Backlog], most: int | None) -> dict[PartitionKey, int]:
    amounts = {key: _Amount(Fraction(1), Fraction(each.count)) for key, each in waiting.items()}
    return {key: int(share) for key, share in _shares(amounts, most).items()}


def _counts_by_bytes(waiting: Mapping[PartitionKey, Backlog], most: int | None) -> dict[PartitionKey, int]:
    amounts = {key: _Amount(each.head_bytes, each.size_bytes) for key, each in waiting.items()} if most else {}
    return {key: waiting[key].count_within(share) for key, share in _shares(amounts, most).items()}


class _Amount(NamedTuple):
    """What a partition's first offset takes of a limit, and all of its backlog."""

    head: Fraction
    whole: Fraction


def _shares(amounts: Mapping[PartitionKey, _Amount], most: int | None) -> dict[PartitionKey, Fraction]:
    """What each partition may take of a limit: what one offset takes, then the even half, then the half that goes by backlog.

    No entry for a partition that may take everything.
    """
    if most is None or sum((each.whole for each in amounts.values()), Fraction(0)) <= most:
        return {}
    budget = max(Fraction(0), most - sum((each.head for each in amounts.values()), Fraction(0)))
    alike = Fraction(int(budget * _GRID) // (2 * len(amounts)), _GRID)
    even = {key: min(each.whole - each.head, alike) for key, each in amounts.items()}
    rest = {key: each.whole - each.head - even[key] for key, each in amounts.items()}
    wanted = sum(rest.values(), Fraction(0))
    fraction = min(Fraction(1), (budget - sum(even.values(), Fraction(0))) / wanted) if wanted > 0 else Fraction(1)
    return {key: each.head + even[key] + fraction * rest[key] for key, each in amounts.items()}


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────


def split(ranges: Mapping[K, OffsetRange], limits: SplitLimits) -> list[tuple[K, OffsetRange]]:
    """The pieces that tasks read, in order. Empty ranges give none. Keys are whatever tells the ranges apart and in which order."""
    waiting = {key: ranges[key] for key in sorted(ranges) if ranges[key].count > 0}
    pieces = {key: -(-each.count // _piece_offsets_max(each, limits)) for key, each in waiting.items()}
    _add_pieces(waiting, pieces, limits.partitions_min or 0)
    return [(key, piece) for key, each in waiting.items() for piece in _cut(each, pieces[key])]


def _piece_offsets_max(backlog: OffsetRange, limits: SplitLimits) -> int:
    most = backlog.count
    if limits.offsets_max is not None:
        most = min(most, limits.offsets_max)
    if limits.bytes_max is not None and backlog.bytes_per_offset:
        most = min(most, int(limits.bytes_max / backlog.bytes_per_offset))
    return max(1, most)


def _add_pieces(ranges: Mapping[K, OffsetRange], pieces: dict[K, int], least: int) -> None:
    """Cut the largest pieces once more until there are enough, or until every piece is a single offset."""
    missing = least - sum(pieces.values())
    largest = [(Fraction(-each.count, pieces[key]), key) for key, each in ranges.items()]
    heapq.heapify(largest)
    while missing > 0 and largest and largest[0][0] < -1:
        _, key = largest[0]
        pieces[key] += 1
        heapq.heapreplace(largest, (Fraction(-ranges[key].count, pieces[key]), key))
        missing -= 1


def _cut(backlog: OffsetRange, pieces: int) -> list[OffsetRange]:
    bounds = [backlog.start + backlog.count * piece // pieces for piece in range(pieces + 1)]
    return [OffsetRange(start, end, backlog.bytes_per_offset) for start, end in pairwise(bounds)]


def gather(pieces: Sequence[tuple[K, OffsetRange]], limits: SplitLimits) -> list[list[tuple[K, OffsetRange]]]:
    """The pieces of each task, at least `partitions_min` tasks if there are as many pieces. Without a limit of bytes only offsets
    decide, so a repeated batch has the same tasks."""
    most = min(limits.gathered_offsets_max, limits.offsets_max or limits.gathered_offsets_max)
    found = _gathered(pieces, most, limits.bytes_max)
    while len(found) < min(limits.partitions_min or 0, len(pieces)):
        most //= 2
        found = _gathered(pieces, most, limits.bytes_max)
    return found


def _gathered(
    pieces: Sequence[tuple[K, OffsetRange]], offsets_max: int, bytes_max: int | None
) -> list[list[tuple[K, OffsetRange]]]:
    found: list[list[tuple[K, OffsetRange]]] = []
    offsets, size_bytes = 0, Fraction(0)
    for key, piece in pieces:
        offsets += piece.count
        size_bytes += piece.size_bytes if bytes_max is not None else 0
        if not found or offsets > offsets_max or (bytes_max is not None and size_bytes > bytes_max):
            found.append([])
            offsets, size_bytes = piece.count, piece.size_bytes
        found[-1].append((key, piece))
    return found
