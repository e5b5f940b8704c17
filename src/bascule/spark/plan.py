"""How far a trigger reads, and which task reads what. Pure: offsets, sizes and time come in, ranges come out.

A range [start, end) of a partition has a backlog of end − start offsets. Bytes are estimated: a partition's size on disk over the
span of its offsets. Compaction leaves gaps in both, so the estimate holds for gaps too.

`admit` says how far each partition is read:
- a partition with a backlog advances by one offset at least, whatever the limits are, and never past its end;
- beside that, neither the offsets nor the bytes of all partitions together exceed their limit;
- half of what a limit leaves is for everybody alike, so that a small partition is read in few triggers while a large one takes days;
  the other half is shared by backlog;
- a higher limit never gives a partition less.

`split` cuts ranges into what one task reads: the pieces cover exactly the ranges, in order, none of them empty.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

_GRID: Final = 1 << 64
"""Shares are multiples of one over this. Exact fractions of a thousand partitions have a thousand denominators, and adding them up
takes seconds; on one grid it takes none. It is fine enough that the laws hold as if shares were exact."""


class PartitionKey(NamedTuple):
    """A partition of a stream."""

    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class Range:
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


# ── how far ──────────────────────────────────────────────────────────────────────────────────────


def is_due(backlog: int, limits: TriggerLimits, waited_ms: int) -> bool:
    """Whether a trigger should read now, `waited_ms` after the last one that did, or wait for more to come."""
    if backlog <= 0:
        return False
    return limits.offsets_min is None or backlog >= limits.offsets_min or waited_ms >= limits.delay_max_ms


def admit(backlogs: Mapping[PartitionKey, Range], limits: TriggerLimits) -> dict[PartitionKey, int]:
    """The end of what is read of each partition: its own end, or as far as the limits let it go."""
    ends = {key: backlog.end for key, backlog in backlogs.items()}
    waiting = {key: backlog for key, backlog in backlogs.items() if backlog.count > 0}
    if _fits(waiting.values(), limits):
        return ends
    return ends | _shares(waiting, limits)


def _fits(backlogs: Iterable[Range], limits: TriggerLimits) -> bool:
    ranges = list(backlogs)
    return (limits.offsets_max is None or sum(each.count for each in ranges) <= limits.offsets_max) and (
        limits.bytes_max is None or sum(each.size_bytes for each in ranges) <= limits.bytes_max
    )


def _shares(waiting: Mapping[PartitionKey, Range], limits: TriggerLimits) -> dict[PartitionKey, int]:
    """One offset for each partition, then the even half, then the half that goes by backlog. Rounded down at the end."""
    budgets = _Budgets.left_after_one_each(list(waiting.values()), limits)
    even = {key: min(Fraction(each.count - 1), budgets.even_offsets(each)) for key, each in waiting.items()}
    rest = {key: each.count - 1 - even[key] for key, each in waiting.items()}
    fraction = min(
        Fraction(1),
        _ratio(budgets.offsets, even.values(), rest.values()),
        _ratio(budgets.bytes, _weighed(waiting, even), _weighed(waiting, rest)),
    )
    return {key: each.start + 1 + int(even[key] + fraction * rest[key]) for key, each in waiting.items()}


@dataclass(frozen=True, slots=True)
class _Budgets:
    """What the limits leave when every partition has got one offset."""

    offsets: int | None
    bytes: Fraction | None
    partitions: int

    @classmethod
    def left_after_one_each(cls, waiting: list[Range], limits: TriggerLimits) -> _Budgets:
        spent_bytes = sum((each.bytes_per_offset for each in waiting), Fraction(0))
        return cls(
            None if limits.offsets_max is None else max(0, limits.offsets_max - len(waiting)),
            None if limits.bytes_max is None else max(Fraction(0), limits.bytes_max - spent_bytes),
            len(waiting),
        )

    def even_offsets(self, backlog: Range) -> Fraction:
        """This partition's part of the half that is for everybody alike."""
        shares = [Fraction(backlog.count)]
        if self.offsets is not None:
            shares.append(Fraction(self.offsets, 2 * self.partitions))
        if self.bytes is not None and backlog.bytes_per_offset:
            shares.append(self.bytes / (2 * self.partitions * backlog.bytes_per_offset))
        return Fraction(int(min(shares) * _GRID), _GRID)


def _ratio(budget: Fraction | int | None, spent: Iterable[Fraction], wanted: Iterable[Fraction]) -> Fraction:
    """Which fraction of what is wanted the rest of a budget is enough for."""
    total = sum(wanted, Fraction(0))
    if budget is None or total <= 0:
        return Fraction(1)
    return (budget - sum(spent, Fraction(0))) / total


def _weighed(waiting: Mapping[PartitionKey, Range], offsets: Mapping[PartitionKey, Fraction]) -> list[Fraction]:
    return [count * waiting[key].bytes_per_offset for key, count in offsets.items()]


# ── who reads what ───────────────────────────────────────────────────────────────────────────────


def split(ranges: Mapping[PartitionKey, Range], limits: SplitLimits) -> list[tuple[PartitionKey, Range]]:
    """The pieces that tasks read, in order. Empty ranges give none."""
    waiting = {key: ranges[key] for key in sorted(ranges) if ranges[key].count > 0}
    pieces = {key: -(-each.count // _piece_offsets_max(each, limits)) for key, each in waiting.items()}
    _add_pieces(waiting, pieces, limits.partitions_min or 0)
    return [(key, piece) for key, each in waiting.items() for piece in _cut(each, pieces[key])]


def _piece_offsets_max(backlog: Range, limits: SplitLimits) -> int:
    most = backlog.count
    if limits.offsets_max is not None:
        most = min(most, limits.offsets_max)
    if limits.bytes_max is not None and backlog.bytes_per_offset:
        most = min(most, int(limits.bytes_max / backlog.bytes_per_offset))
    return max(1, most)


def _add_pieces(ranges: Mapping[PartitionKey, Range], pieces: dict[PartitionKey, int], least: int) -> None:
    """Cut the largest pieces once more until there are enough, or until every piece is a single offset."""
    missing = least - sum(pieces.values())
    largest = [(Fraction(-each.count, pieces[key]), key) for key, each in ranges.items()]
    heapq.heapify(largest)
    while missing > 0 and largest and largest[0][0] < -1:
        _, key = largest[0]
        pieces[key] += 1
        heapq.heapreplace(largest, (Fraction(-ranges[key].count, pieces[key]), key))
        missing -= 1


def _cut(backlog: Range, pieces: int) -> list[Range]:
    bounds = [backlog.start + backlog.count * piece // pieces for piece in range(pieces + 1)]
    return [Range(start, end, backlog.bytes_per_offset) for start, end in pairwise(bounds)]
