"""From where a query stands to what it has still to read: what may have happened to a stream meanwhile is found here. Pure.

A stream may be gone, or be another one of the same name; its oldest records may have been removed, and not be in an archive either.
With `skips_lost` that is what the user expects, else it is an error that names what is missing. A high watermark below what was read
already is neither: a new leader may learn it a moment later. A log that ends before it is another log.
"""

from __future__ import annotations

from collections.abc import Mapping

from bascule.errors import CheckpointMismatch, DataLost, StreamDeleted, StreamRecreated
from bascule.lake.coverage import Coverage
from bascule.lake.holes import count
from bascule.spark.read.history import average, missing, resume, weighed
from bascule.spark.read.offsets import Offsets, StreamOffsets
from bascule.spark.read.plan import Backlog, PartitionKey, Range
from bascule.spark.read.state import Streams, StreamState

HINT_SKIP = "to go on without them set `onDataLoss` to `skip`"


def backlogs(start: Offsets, streams: Streams, *, skips_lost: bool) -> dict[PartitionKey, Backlog]:
    """What is there to read of every partition. Streams that the query did not know are read from their oldest record."""
    if not skips_lost:
        for name, before in start.streams.items():
            check_identity(name, before, streams)
    return {
        PartitionKey(name, number): _backlog(stream, number, start.streams.get(name), skips_lost)
        for name, stream in streams.items()
        for number in stream.partitions
    }


def check_identity(name: str, before: StreamOffsets, streams: Streams) -> None:
    """Raises StreamDeleted or StreamRecreated when the stream is not the one that was read."""
    if name not in streams:
        raise StreamDeleted(
            f"stream `{name}`, which this query reads, is gone: it was deleted, or the options leave it out now",
            hint=f"what of it was not read yet is lost; {HINT_SKIP}, or start anew with another checkpoint",
        )
    if before.id is not None and before.id != streams[name].id:
        raise StreamRecreated(
            f"stream `{name}` was deleted and created again: this query has read the one with id {before.id}, "
            f"now there is one with id {streams[name].id}",
            hint="to read the new one from its beginning set `onDataLoss` to `skip`, or start anew with another checkpoint",
        )


def _backlog(stream: StreamState, number: int, before: StreamOffsets | None, skips_lost: bool) -> Backlog:
    state = stream.partitions[number]
    is_new = before is None or before.id not in (None, stream.id)
    position = state.first_offset if before is None or is_new else before.next.get(number, 0)
    if position > state.log_end_offset and stream.is_live:
        raise CheckpointMismatch(
            f"this query has read `{stream.name}`/{number} up to offset {position}, but the log ends at {state.log_end_offset}",
            hint="records were lost in the cluster, or the log was restored from an older copy: start anew with another checkpoint",
        )
    if skips_lost:
        position = resume(state, position)
    else:
        must_be_there(stream, number, position, state.end_offset)
    return weighed(state, position, max(position, state.end_offset))


def must_be_there(stream: StreamState, number: int, start: int, end: int) -> None:
    """Raises DataLost when offsets of a range are neither in the log nor in the archive. A position below both is lost in any case."""
    state = stream.partitions[number]
    gone = missing(state, start, max(end, min(start + 1, state.log_start_offset)))
    if gone is None:
        return
    if stream.archive:
        raise lost_everywhere(stream, number, gone)
    raise lost(stream.name, number, start, state.log_start_offset, stream.retention)


def lost(stream: str, partition: int, wanted: int, log_start_offset: int, retention: str = "") -> DataLost:
    """The error for offsets that are not there any more."""
    return DataLost(
        f"`{stream}`/{partition} was to be read from offset {wanted}, but its log starts at {log_start_offset}: "
        f"{_gone(log_start_offset - wanted)}{_kept(retention)}",
        hint=f"let the stream keep more, or read it more often; {HINT_SKIP}",
    )


def lost_everywhere(stream: StreamState, number: int, gone: tuple[int, int]) -> DataLost:
    """The error for offsets that are not in the archive either."""
    state = stream.partitions[number]
    first, end = gone
    named = f"offset {first} is" if end - first == 1 else f"offsets {first} to {end - 1} are"
    return DataLost(
        f"`{stream.name}`/{number}: {named} neither in its log, which starts at {state.log_start_offset}, nor in the archive "
        f"{stream.archive}, which has {held(state.archived)}: {_gone(end - first)}{_kept(stream.retention)}",
        hint=f"let the stream keep more, or archive it more often; {HINT_SKIP}",
    )


def held(archived: Coverage | None) -> str:
    """What an archive has of a partition, in words."""
    if archived is None:
        return "nothing of it"
    lost = count(archived.lost)
    without = f" without {lost} that were gone before they were archived" if lost else ""
    return f"offsets {archived.start} to {archived.end - 1}{without}"


def _gone(count: int) -> str:
    return f"{count} offset{'s are' if count != 1 else ' is'} gone"


def _kept(retention: str) -> str:
    return f"; the stream keeps {retention}" if retention else ""


def positions(streams: Streams, ends: Mapping[PartitionKey, int]) -> Offsets:
    """Offsets of all partitions with the identity of their streams."""
    return Offsets(
        {
            name: StreamOffsets(stream.id, {number: ends[PartitionKey(name, number)] for number in stream.partitions})
            for name, stream in streams.items()
        }
    )


def planned_ranges(start: Offsets, end: Offsets, streams: Streams) -> dict[PartitionKey, Range]:
    """What lies between two offsets. Raises CheckpointMismatch where the end is before the start: it would be read by nobody."""
    ranges = {}
    for name, stream in end.streams.items():
        before = start.streams.get(name)
        for number, last in stream.next.items():
            first = before.next.get(number, 0) if before is not None else 0
            if first > last:
                raise CheckpointMismatch(
                    f"a batch of `{name}`/{number} would begin at offset {first} and end at {last}",
                    hint="the checkpoint does not fit this query: start anew with another one, from the offsets that you need",
                )
            state = streams[name].partitions.get(number) if name in streams else None
            ranges[PartitionKey(name, number)] = Range(first, last) if state is None else average(state, first, last)
    return ranges
