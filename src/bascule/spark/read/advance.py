"""What a streaming query has still to read, and whether the streams are still those that it has read. Pure.

A stream may be deleted, or deleted and created again; retention may have removed its oldest records before they were read or archived.
With `skips_lost` the query continues without them, else an error names what is missing. A high watermark below the query's position is
no loss: a new leader may learn the watermark a moment later. A log that ends below the position is another log.
"""

from __future__ import annotations

from bascule.errors import CheckpointMismatch, StreamDeleted, StreamRecreated
from bascule.spark.read.offsets import Offsets, StreamOffsets
from bascule.spark.read.plan import Backlog, PartitionKey
from bascule.spark.read.state import HINT_SKIP, Streams, StreamState, must_be_there, resume, weighed


def backlogs(start: Offsets, streams: Streams, *, skips_lost: bool) -> dict[PartitionKey, Backlog]:
    """The offsets of every partition that were not read yet. A stream that is new to the query is read from its oldest record."""
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
            hint=f"records of it that were not read yet are lost; {HINT_SKIP}, or start again with another checkpoint",
        )
    if before.id is not None and before.id != streams[name].id:
        raise StreamRecreated(
            f"stream `{name}` was deleted and created again: this query has read the one with id {before.id}, "
            f"now there is one with id {streams[name].id}",
            hint="to read the new one from its start set `onDataLoss` to `skip`, or start again with another checkpoint",
        )


def _backlog(stream: StreamState, number: int, before: StreamOffsets | None, skips_lost: bool) -> Backlog:
    state = stream.partitions[number]
    is_new = before is None or before.id not in (None, stream.id)
    position = state.first_offset if before is None or is_new else before.next.get(number, 0)
    if position > state.log_end_offset and stream.is_live:
        raise CheckpointMismatch(
            f"this query has read `{stream.name}`/{number} up to offset {position}, but the log ends at {state.log_end_offset}",
            hint="the cluster lost records, or the log was restored from an older copy: start again with another checkpoint",
        )
    if skips_lost:
        position = resume(state, position)
    else:
        must_be_there(stream, number, position, state.end_offset)
    return weighed(state, position, max(position, state.end_offset))
