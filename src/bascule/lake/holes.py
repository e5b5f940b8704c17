"""Arithmetic of ranges of offsets, each `start` to before `end`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def joined(ranges: Iterable[Span]) -> list[Span]:
    """The same offsets in as few ranges as possible, in order."""
    found: list[Span] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def without(start: int, end: int, holes: Iterable[Span]) -> list[Span]:
    """What is left of a range when `holes` are taken out, in order."""
    found: list[Span] = []
    for first, following in joined(holes):
        if start < min(first, end):
            found.append((start, min(first, end)))
        start = max(start, following)
    if start < end:
        found.append((start, end))
    return found


def within(start: int, end: int, ranges: Iterable[Span]) -> list[Span]:
    """What of `ranges` lies in a range, in order."""
    return joined((max(start, first), min(end, following)) for first, following in ranges)


def count(ranges: Iterable[Span]) -> int:
    return sum(end - start for start, end in ranges)


def named(start: int, end: int) -> str:
    """For people: `offset 7`, `offsets 7 to 9`."""
    return f"offset {start}" if end - start == 1 else f"offsets {start} to {end - 1}"
