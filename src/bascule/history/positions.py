"""Positions of the client as the ones that archive and log are read by. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from bascule.client.consume.positions import EARLIEST, OFFSET, TIMESTAMP, Range
from bascule.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimestamp,
    Earliest,
    Latest,
    Position,
)
from bascule.spark.options.reading import EndOptions, SourceOptions, StartingOptions, StreamOptions, TimestampStrategy

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

TablePosition = int | datetime | Mapping[int, int] | None


def start_of(wanted: Range, stream: str, partition: int) -> Position | None:
    """The start of a subscription; None for one that needs no history, because it is at the end of the log."""
    if wanted.start_position == EARLIEST:
        return Earliest()
    if wanted.start_position == TIMESTAMP:
        return AtTimestamp(wanted.start)
    return AtOffsets({stream: {partition: wanted.start}}) if wanted.start_position == OFFSET else None


def batch_options(
    options: SourceOptions, stream: str, numbers: list[int], start: TablePosition, end: TablePosition
) -> SourceOptions:
    """The options of a read between two positions of `read_table`."""
    chosen = StreamOptions(assign={stream: tuple(numbers)})
    first = _position(stream, numbers, start, EARLIEST_OFFSET) or Earliest()
    last = _position(stream, numbers, end, LATEST_OFFSET) or Latest()
    return replace(
        options,
        streams=chosen,
        start=StartingOptions(starting_offsets=first, strategy=TimestampStrategy.LATEST),
        end=EndOptions(ending_offsets=last),
    )


def _position(stream: str, numbers: list[int], given: TablePosition, otherwise: int) -> Position | None:
    if given is None:
        return None
    if isinstance(given, datetime):
        aware = given if given.tzinfo is not None else given.astimezone()
        return AtTimestamp(max(0, (aware - _EPOCH) // timedelta(microseconds=1)) * 1_000)
    offsets = given if isinstance(given, Mapping) else dict.fromkeys(numbers, given)
    return AtOffsets({stream: {number: offsets.get(number, otherwise) for number in numbers}})
