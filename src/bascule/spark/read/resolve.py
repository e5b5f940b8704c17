"""From options to streams and offsets: which streams a read is of, where it begins and where a batch read ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from bascule.errors import CheckpointMismatch, InvalidOption, OffsetOutOfRange, StreamNotFound, TimestampOutOfRange
from bascule.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OTHERS,
    AtCursor,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    ByPartition,
    Earliest,
    Position,
)
from bascule.spark.options.reading import SourceOptions, StreamOptions, TimestampStrategy
from bascule.spark.read.cluster import Cluster
from bascule.spark.read.offsets import Offsets, StreamOffsets
from bascule.spark.read.plan import OffsetRange, PartitionKey
from bascule.spark.read.state import PartitionState, Streams, StreamState, average, must_be_there, resume

INTERNAL_PREFIX = "__"
"""Prefix of the brokers' internal streams. A pattern does not match them; they are read by name only."""


# ── which ────────────────────────────────────────────────────────────────────────────────────────


def select(options: StreamOptions, cluster: Cluster) -> Streams:
    """The streams that the options select, as they are now. A named stream that does not exist is left out: see `require`."""
    names = wanted_names(options)
    if names is None:
        covers = _pattern(options)
        there = cluster.subjects().items()
        names = tuple(name for name, subject in there if not name.startswith(INTERNAL_PREFIX) and covers(name, subject))
    found = cluster.streams(names)
    if options.assign is None:
        return found
    return {name: _assigned(found[name], numbers) for name, numbers in options.assign.items() if name in found}


def require(options: StreamOptions, streams: Streams) -> Streams:
    """The same streams. Raises StreamNotFound if a named one does not exist."""
    missing = [name for name in wanted_names(options) or () if name not in streams]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        raise StreamNotFound(f"there is no stream {listed}", hint="`bascule stream list` shows what there is")
    return streams


def wanted_names(options: StreamOptions) -> tuple[str, ...] | None:
    """The names in the options; None for a pattern."""
    if options.subscribe is not None:
        return options.subscribe
    if options.assign is not None:
        return tuple(options.assign)
    single = options.stream or options.path
    return None if single is None else (single,)


def _assigned(stream: StreamState, numbers: tuple[int, ...]) -> StreamState:
    missing = [number for number in numbers if number not in stream.partitions]
    if missing:
        last = max(stream.partitions, default=0)
        raise StreamNotFound(
            f"stream `{stream.name}` has no partition {missing[0]}",
            hint=f"option `assign`: its partitions are 0 to {last}",
        )
    return stream.only(numbers)


def _pattern(options: StreamOptions) -> Callable[[str, str], bool]:
    """Whether a stream is meant, by its name and its subject."""
    if options.subscribe_pattern is not None:
        names = re.compile(options.subscribe_pattern)
        return lambda name, _: names.fullmatch(name) is not None
    tokens = (options.subject_pattern or "").split(".")
    return lambda _, subject: covers_subject(tokens, subject.split("."))


def covers_subject(pattern: list[str], subject: list[str]) -> bool:
    """Whether a NATS pattern covers all that a subject, which may be a pattern itself, stands for."""
    for position, token in enumerate(pattern):
        if token == ">":
            return len(subject) > position
        if position >= len(subject) or subject[position] == ">":
            return False
        if token not in ("*", subject[position]):
            return False
    return len(pattern) == len(subject)


# ── where from, where to ─────────────────────────────────────────────────────────────────────────


def starting_offsets(options: SourceOptions, streams: Streams, cluster: Cluster) -> Offsets:
    """Where a query without a checkpoint begins."""
    return positions(streams, _checked_starts(options, streams, dict(_starts(options, streams, cluster))))


def ending_offsets(options: SourceOptions, streams: Streams, cluster: Cluster) -> Offsets:
    """Where a batch read ends, exclusively."""
    ends = dict(_places("endingOffsets", options.ending, streams, cluster, lambda state: state.end_offset))
    for (name, number), offset in ends.items():
        end_offset = streams[name].partitions[number].end_offset
        if offset > end_offset:
            raise OffsetOutOfRange(
                f"option `endingOffsets` is {offset} for `{name}`/{number}, which ends at {end_offset}",
                hint="it must be an offset that was written already, or -1 for the latest",
            )
    return positions(streams, ends)


def bounded(options: SourceOptions, streams: Streams, cluster: Cluster) -> Streams:
    """Streams that end where a streaming read ends."""
    until = options.until.until_timestamp
    if until is None:
        return streams
    ends = dict(_places("untilTimestamp", until, streams, cluster, lambda state: state.end_offset))
    return {name: replace(stream, partitions=_cut(name, stream, ends)) for name, stream in streams.items()}


def _cut(name: str, stream: StreamState, ends: Mapping[PartitionKey, int]) -> dict[int, PartitionState]:
    return {
        number: replace(state, end_offset=min(state.end_offset, ends[PartitionKey(name, number)]))
        for number, state in stream.partitions.items()
    }


def _starts(options: SourceOptions, streams: Streams, cluster: Cluster) -> Iterator[tuple[PartitionKey, int]]:
    is_error = options.start.strategy is TimestampStrategy.ERROR
    return _places("startingOffsets", options.starting, streams, cluster, _refuse_missing if is_error else _end_of)


def _checked_starts(
    options: SourceOptions, streams: Streams, starts: dict[PartitionKey, int]
) -> dict[PartitionKey, int]:
    for key, offset in starts.items():
        stream = streams[key.stream]
        state = stream.partitions[key.partition]
        if offset > state.end_offset:
            raise OffsetOutOfRange(
                f"option `startingOffsets` is {offset} for `{key.stream}`/{key.partition}, which ends at {state.end_offset}",
                hint="it must be an offset from the start of the log to its end; -2 is the earliest, -1 the latest",
            )
        if options.skips_lost:
            starts[key] = resume(state, offset)
        else:
            must_be_there(stream, key.partition, offset, offset)
    return starts


def _end_of(state: PartitionState) -> int:
    return state.end_offset


def _refuse_missing(state: PartitionState) -> int:
    del state
    raise TimestampOutOfRange(
        "a partition has no record at or after the starting timestamp",
        hint="set `startingOffsetsByTimestampStrategy` to `latest` to start after its newest record",
    )


def _places(
    option: str, position: Position, streams: Streams, cluster: Cluster, without: Callable[[PartitionState], int]
) -> Iterator[tuple[PartitionKey, int]]:
    """The offset of each partition; `without` gives it where no record is at or after a timestamp."""
    given = _numbers(option, position, streams, cluster)
    for name, stream in streams.items():
        for number, state in stream.partitions.items():
            key = PartitionKey(name, number)
            yield key, _place(position, state, given.get(name, {}).get(number), without)


def _place(
    position: Position,
    state: PartitionState,
    given: int | None,
    without: Callable[[PartitionState], int],
) -> int:
    match position:
        case AtOffsets():
            offset = LATEST_OFFSET if given is None else given
            return {EARLIEST_OFFSET: state.first_offset, LATEST_OFFSET: state.end_offset}.get(offset, offset)
        case AtCursor():
            # A negative cursor is a position before the first message.
            return state.first_offset if given is None else max(0, given + 1)
        case AtTimestamp() | AtTimestamps():
            return without(state) if given is None else min(given, state.end_offset)
        case Earliest():
            return state.first_offset
        case _:
            return state.end_offset


def _numbers(
    option: str, position: Position, streams: Streams, cluster: Cluster
) -> Mapping[str, Mapping[int, int | None]]:
    """The number of each partition that the options give, or that brokers are asked for."""
    match position:
        case AtOffsets(offsets):
            return _complete(option, offsets, streams)
        case AtCursor(cursor):
            return {
                name: {number: cluster.fetch_cursor(cursor, name, number) for number in stream.partitions}
                for name, stream in streams.items()
            }
        case AtTimestamp(moment_ns):
            return cluster.offsets_at(
                {name: dict.fromkeys(stream.partitions, moment_ns) for name, stream in streams.items()}
            )
        case AtTimestamps(timestamps_ns):
            return cluster.offsets_at(_complete(f"{option}ByTimestamp", timestamps_ns, streams))
    return {}


def _complete(option: str, given: ByPartition, streams: Streams) -> ByPartition:
    """The given numbers. As with Kafka's connector, the JSON names every partition that is read, and no other; or `*` for the rest."""
    if OTHERS in given:
        rest = given[OTHERS].get(0, EARLIEST_OFFSET)
        return {
            name: {number: given.get(name, {}).get(number, rest) for number in stream.partitions}
            for name, stream in streams.items()
        }
    wanted = {PartitionKey(name, number) for name, stream in streams.items() for number in stream.partitions}
    named = {PartitionKey(name, number) for name, numbers in given.items() for number in numbers}
    for key in sorted(named ^ wanted):
        what = "leaves out" if key in wanted else "names"
        raise InvalidOption(
            f"option `{option}` {what} `{key.stream}`/{key.partition}"
            + ("" if key in wanted else ", which is not read"),
            hint="it must name every partition of the streams that are read, and no others; -2 is the earliest, -1 the latest",
        )
    return given


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────


def positions(streams: Streams, ends: Mapping[PartitionKey, int]) -> Offsets:
    """An offset for each partition, with the identity of the streams."""
    return Offsets(
        {
            name: StreamOffsets(stream.id, {number: ends[PartitionKey(name, number)] for number in stream.partitions})
            for name, stream in streams.items()
        }
    )


def planned_ranges(start: Offsets, end: Offsets, streams: Streams) -> dict[PartitionKey, OffsetRange]:
    """The ranges between two positions. Raises CheckpointMismatch where the end is before the start: no task would read that."""
    ranges = {}
    for name, stream in end.streams.items():
        before = start.streams.get(name)
        for number, last in stream.next.items():
            first = before.next.get(number, 0) if before is not None else 0
            if first > last:
                raise CheckpointMismatch(
                    f"a batch of `{name}`/{number} would begin at offset {first} and end at {last}",
                    hint="the checkpoint is not of this query: start with another one, from the offsets that you need",
                )
            state = streams[name].partitions.get(number) if name in streams else None
            ranges[PartitionKey(name, number)] = (
                OffsetRange(first, last) if state is None else average(state, first, last)
            )
    return ranges


def batch_ranges(
    options: SourceOptions, connection: Cluster
) -> tuple[dict[PartitionKey, OffsetRange], Offsets, Streams]:
    """The range of each partition that a batch read is of, all of it there unless lost records are skipped; its end; its streams."""
    streams = require(options.streams, select(options.streams, connection))
    start = starting_offsets(options, streams, connection)
    end = ending_offsets(options, streams, connection)
    _check_order(start, end)
    ranges = planned_ranges(start, end, streams)
    if not options.skips_lost:
        for key, each in ranges.items():
            if each.count > 0:
                must_be_there(streams[key.stream], key.partition, each.start, each.end)
    return ranges, end, streams


def _check_order(start: Offsets, end: Offsets) -> None:
    for name, stream in start.streams.items():
        for number, first in stream.next.items():
            last = end.streams[name].next[number]
            if first > last:
                raise InvalidOption(
                    f"`{name}`/{number} would be read from offset {first} to {last}",
                    hint="the starting options must be before the ending ones",
                )
