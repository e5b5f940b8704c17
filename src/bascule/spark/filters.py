"""Filters that make a batch read smaller: on stream, partition, offset and timestamp.

They only narrow ranges, and Spark applies every filter again to the rows. A filter that is not understood costs nothing but rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from bascule.spark.cluster import Cluster
from bascule.spark.plan import PartitionKey, Range

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What rows have to be in, as far as filters say. None: no bound."""

    streams: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int | None = None
    """The first offset that is out."""

    timestamp_min_ns: int | None = None
    timestamp_end_ns: int | None = None


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """All filters hold, so each may narrow what the others leave."""
    bounds = Bounds()
    for each in filters:
        column: tuple[str, ...] = getattr(each, "attribute", ())
        narrowed = _COLUMNS.get(column[0].lower()) if len(column) == 1 else None
        if narrowed is not None:
            bounds = narrowed(bounds, each)
    return bounds


def narrow(ranges: dict[PartitionKey, Range], bounds: Bounds, cluster: Cluster) -> dict[PartitionKey, Range]:
    """The parts of the ranges that are within the bounds."""
    chosen = {
        key: Range(max(each.start, bounds.offset_min), _least(each.end, bounds.offset_end), each.bytes_per_offset)
        for key, each in ranges.items()
        if (bounds.streams is None or key.stream in bounds.streams)
        and (bounds.partitions is None or key.partition in bounds.partitions)
    }
    first = _offsets_at(chosen, bounds.timestamp_min_ns, cluster)
    last = _offsets_at(chosen, bounds.timestamp_end_ns, cluster)
    narrowed = {}
    for key, each in chosen.items():
        # Where a time has no record behind it, nothing is as young: all of the range is before it.
        start = each.start if first is None else max(each.start, first.get(key, each.end))
        end = each.end if last is None else min(each.end, last.get(key, each.end))
        narrowed[key] = Range(start, max(start, end), each.bytes_per_offset)
    return narrowed


def _least(one: int, other: int | None) -> int:
    return one if other is None else min(one, other)


def _offsets_at(
    ranges: dict[PartitionKey, Range], timestamp_ns: int | None, cluster: Cluster
) -> dict[PartitionKey, int] | None:
    """The first offset of each partition that is not older than the time; no entry for a partition without one."""
    if timestamp_ns is None or not ranges:
        return None
    asked: dict[str, dict[int, int]] = {}
    for key in ranges:
        asked.setdefault(key.stream, {})[key.partition] = timestamp_ns
    found = cluster.offsets_at(asked)
    return {key: offset for key in ranges if (offset := found.get(key.stream, {}).get(key.partition)) is not None}


# ── what single filters say ──────────────────────────────────────────────────────────────────────


def _equals(each: Filter) -> frozenset[Any] | None:
    """The values of which the column must have one."""
    if isinstance(each, EqualTo | EqualNullSafe):
        return frozenset([each.value])
    if isinstance(each, In):
        return frozenset(each.value)
    return None


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return other if one is None else one if other is None else one & other


def _stream(bounds: Bounds, each: Filter) -> Bounds:
    return replace(bounds, streams=_both(bounds.streams, _equals(each)))


def _partition(bounds: Bounds, each: Filter) -> Bounds:
    return replace(bounds, partitions=_both(bounds.partitions, _equals(each)))


def _offset(bounds: Bounds, each: Filter) -> Bounds:
    first, end = _span(each, int, lambda value: value)
    return replace(
        bounds,
        offset_min=bounds.offset_min if first is None else max(bounds.offset_min, first),
        offset_end=bounds.offset_end if end is None else _least(end, bounds.offset_end),
    )


def _timestamp(bounds: Bounds, each: Filter) -> Bounds:
    # A column has microseconds, a record nanoseconds that were rounded down.
    first, end = _span(each, datetime, _microseconds)
    return replace(
        bounds,
        timestamp_min_ns=bounds.timestamp_min_ns
        if first is None
        else max(bounds.timestamp_min_ns or 0, first * 1_000, 0),
        timestamp_end_ns=bounds.timestamp_end_ns
        if end is None
        else max(0, _least(end * 1_000, bounds.timestamp_end_ns)),
    )


def _span(each: Filter, kind: type[Any], whole: Callable[[Any], int]) -> tuple[int | None, int | None]:
    """The first value that is in, and the first that is out."""
    value = getattr(each, "value", None)
    if not isinstance(value, kind) or isinstance(value, bool):
        return None, None
    match each:
        case EqualTo() | EqualNullSafe():
            return whole(value), whole(value) + 1
        case GreaterThan():
            return whole(value) + 1, None
        case GreaterThanOrEqual():
            return whole(value), None
        case LessThan():
            return None, whole(value)
        case LessThanOrEqual():
            return None, whole(value) + 1
    return None, None


def _microseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


_COLUMNS: Final[dict[str, Callable[[Bounds, Filter], Bounds]]] = {
    "stream": _stream,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
}
