"""Which offsets a batch of the archive's own query has, and a task that brings them from the log to Parquet without Spark in between.

Rows that pass through Spark's JVM become rows of its own and Arrow again, which costs six times what reading and writing them does.
Before it runs a batch, Spark notes where it ends, and where the one before ended; so the tasks can read these offsets themselves.
The source plans, limits and remembers as ever: a batch that comes again has the same note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bascule.errors import BasculeError, CheckpointMismatch, OffsetBelowStart, StreamNotFound, StreamRecreated
from bascule.flight.schema import COLUMNS
from bascule.lake.facts import DELETED, REMOVED, Lost
from bascule.lake.files import UNKNOWN_ID, WriteTask, stats
from bascule.spark.options.failures import with_code
from bascule.spark.options.reading import SourceOptions
from bascule.spark.options.schema import TABLE
from bascule.spark.read import cluster
from bascule.spark.read.batch_reader import ReadRange, read_range, tasks
from bascule.spark.read.offsets import Offsets, effective_start
from bascule.spark.read.resolve import planned_ranges

if TYPE_CHECKING:
    import pyarrow as pa

HEADER_LINES = 2
"""Of a note: its version, and what Spark says of the batch. A line for each source follows."""


# ── Spark's notes ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Planned:
    """What a batch has of a partition, `start` to before `end`."""

    start: int
    end: int
    is_beginning: bool
    """No batch before it ended at its start: the query, or the stream, began there."""


Plan = Mapping[tuple[str, int], Planned]


def noted_plan(checkpoint: Path, batch_id: int) -> Plan:
    """What a batch has of each partition, by stream and number. Nothing if the notes do not say it: of other queries, or gone."""
    span = _noted_span(checkpoint, batch_id)
    if span is None:
        return {}
    begin, end = span
    try:
        ranges = planned_ranges(begin, end, {})
    except CheckpointMismatch:
        return {}  # the task that reads these offsets raises it
    return {
        (key.stream, key.partition): Planned(one.start, one.end, end.streams[key.stream].began is not None)
        for key, one in ranges.items()
    }


def noted_ranges(
    checkpoint: Path, batch_id: int, options: SourceOptions, floors: Mapping[tuple[str, int], int]
) -> list[ReadRange] | None:
    """What the tasks of a batch read, without what lies below `floors`. None if the notes do not say it: of other queries, or gone."""
    span = _noted_span(checkpoint, batch_id)
    if span is None:
        return None
    begin, end = span
    found = [one for task in tasks(options, planned_ranges(begin, end, {}), end, {}) for one in task.ranges]
    raised = [replace(one, start=max(one.start, floors.get((one.stream, one.partition), 0))) for one in found]
    return [one for one in raised if one.start < one.end]


def _noted_span(checkpoint: Path, batch_id: int) -> tuple[Offsets, Offsets] | None:
    end = _noted(checkpoint / "offsets" / str(batch_id))
    start = Offsets() if batch_id == 0 else _noted(checkpoint / "offsets" / str(batch_id - 1))
    if start is None or end is None:
        return None
    begin = effective_start(start, end)
    return None if end.streams.keys() - begin.streams.keys() else (begin, end)


def _noted(path: Path) -> Offsets | None:
    """The offsets of the one source that the query has; a plan that reads it twice has the same ones twice."""
    try:
        lines = set(path.read_text("utf-8").splitlines()[HEADER_LINES:])
        return Offsets.parse(json.loads(lines.pop())) if len(lines) == 1 else None
    except (OSError, ValueError, CheckpointMismatch):
        return None


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RowsTask:
    """For mapInArrow on messages. Pickled, so nothing is open in it."""

    write: WriteTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.write(batches)
        except BasculeError as error:
            raise with_code(error) from None


@dataclass(frozen=True, slots=True)
class RangesTask:
    """For mapInArrow on as many rows as there are ranges, the number of one in each. Pickled, so nothing is open in it."""

    write: WriteTask
    options: SourceOptions
    ranges: tuple[ReadRange, ...]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in numbers:
                for number in batch["id"].to_pylist():
                    yield from self._archive(self.ranges[number])
        except BasculeError as error:
            raise with_code(error) from None

    def _archive(self, one: ReadRange) -> Iterator[pa.RecordBatch]:
        lost: list[Lost] = []

        def note(start: int, end: int, reason: str) -> None:
            lost.append(Lost(one.stream, UNKNOWN_ID, one.partition, start, end, reason, at_ns=0))

        if self.options.skips_lost and self.options.history.path is None:
            rows = read_noting(self.options, one, note)
        else:
            rows = read_range(self.options, TABLE, None, one)
        written = list(self.write.write(rows))
        yield from stats(written, lost)


def read_noting(
    options: SourceOptions, one: ReadRange, note: Callable[[int, int, str], None]
) -> Iterator[pa.RecordBatch]:
    """The batches of a range that are left. `note` gets the offsets that are gone, and why: this is known only now."""
    position = one.start
    while position < one.end:
        try:
            for batch in cluster.connect(options.connection).read(
                one.stream, one.partition, position, one.end, stream_id=one.stream_id, columns=COLUMNS
            ):
                if batch.num_rows:
                    position = batch["offset"][-1].as_py() + 1
                    yield batch
            return
        except OffsetBelowStart as error:
            following = min(one.end, max(position + 1, error.log_start_offset))
            note(position, following, REMOVED)
            position = following
        except (StreamNotFound, StreamRecreated):
            note(position, one.end, DELETED)
            return
