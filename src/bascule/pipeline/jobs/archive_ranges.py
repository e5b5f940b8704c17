"""Which offsets a batch of the archive's own query has, and a task that brings them from the log to Parquet without Spark in between.

Rows that pass through Spark's JVM become rows of its own and Arrow again, which costs six times what reading and writing them does.
Before it runs a batch, Spark notes where it ends, and where the one before ended; so the tasks can read these offsets themselves.
The source plans, limits and remembers as ever: a batch that comes again has the same note.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bascule.errors import CheckpointMismatch
from bascule.lake.files import WriteTask
from bascule.spark.advance import planned_ranges
from bascule.spark.offsets import Offsets, effective_start
from bascule.spark.options import SourceOptions
from bascule.spark.reading import ReadRange, read_range, tasks
from bascule.spark.table import TABLE

if TYPE_CHECKING:
    import pyarrow as pa

HEADER_LINES = 2
"""Of a note: its version, and what Spark says of the batch. A line for each source follows."""


def noted_ranges(
    checkpoint: Path, batch_id: int, options: SourceOptions, floors: Mapping[tuple[str, int], int]
) -> list[ReadRange] | None:
    """What the tasks of a batch read, without what lies below `floors`. None if the notes do not say it: of other queries, or gone."""
    end = _noted(checkpoint / "offsets" / str(batch_id))
    start = Offsets() if batch_id == 0 else _noted(checkpoint / "offsets" / str(batch_id - 1))
    if start is None or end is None:
        return None
    begin = effective_start(start, end)
    if end.streams.keys() - begin.streams.keys():
        return None
    found = tasks(options, planned_ranges(begin, end, {}), end, {})
    raised = [replace(one, start=max(one.start, floors.get((one.stream, one.partition), 0))) for one in found]
    return [one for one in raised if one.start < one.end]


def _noted(path: Path) -> Offsets | None:
    """The offsets of the one source that the archive's query has."""
    try:
        lines = path.read_text("utf-8").splitlines()[HEADER_LINES:]
        return Offsets.parse(json.loads(lines[0])) if len(lines) == 1 else None
    except (OSError, ValueError, CheckpointMismatch):
        return None


@dataclass(frozen=True, slots=True)
class RangesTask:
    """For mapInArrow on as many rows as there are ranges, the number of one in each. Pickled, so nothing is open in it."""

    write: WriteTask
    options: SourceOptions
    ranges: tuple[ReadRange, ...]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                yield from self.write(read_range(self.options, TABLE, None, self.ranges[number]))
