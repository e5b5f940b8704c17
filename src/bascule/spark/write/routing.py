"""Where the rows of an Arrow batch go: to streams and their partitions, in the order they came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bascule.client.arrow.columns import MessageColumns, Producer
from bascule.client.arrow.message_columns import Numbers, key_partitions, message_columns
from bascule.client.arrow.partitions import RoundRobinRows, automatic_partitions, by_partition, integers
from bascule.errors import InvalidRecord
from bascule.spark.options.writing import Partitioner, SinkOptions


@dataclass(frozen=True, slots=True)
class Group:
    """Rows for one partition of a stream, or for one subject."""

    rows: pa.RecordBatch
    stream: str
    """"" for rows that go to a subject."""
    partition: int
    subject: str | None

    @property
    def columns(self) -> MessageColumns:
        """The rows as they are published."""
        return message_columns(self.rows)

    def numbered(self, producer: Producer) -> MessageColumns:
        return replace(self.columns, producer=producer)


class Router:
    """Of one task. `count_partitions` is asked once for each stream; round robin begins at `turn`, which has to be the same
    when the task runs again."""

    def __init__(self, options: SinkOptions, count_partitions: Callable[[str], int], turn: int) -> None:
        self._options = options
        self._count = count_partitions
        self._turns = RoundRobinRows(turn)
        self._counts: dict[str, int] = {}

    def split(self, batch: pa.RecordBatch) -> Iterator[Group]:
        """The groups of a batch; rows keep their order within each."""
        for stream, subject, rows in self._by_target(batch):
            if subject is not None:
                yield Group(rows, "", 0, subject)
            elif stream is not None:
                yield from self._by_partition(stream, rows)

    # ── streams and subjects ─────────────────────────────────────────────────────────────────────

    def _by_target(self, batch: pa.RecordBatch) -> Iterator[tuple[str | None, str | None, pa.RecordBatch]]:
        """The option says it for all rows; else the column `stream` of each, and `subject` where that is null."""
        if not batch.num_rows:
            return
        if self._options.stream is not None or self._options.target.subject is not None:
            yield self._options.stream, self._options.target.subject, batch
            return
        rest = batch
        if "stream" in batch.schema.names:
            for name, rows in _by_name(batch, "stream"):
                if name is not None:
                    yield name, None, rows
            rest = batch.filter(pc.is_null(batch.column("stream")))
        if not rest.num_rows:
            return
        if "subject" not in batch.schema.names or rest.column("subject").null_count:
            raise InvalidRecord(
                "a row says neither in column `stream` nor in column `subject` where it goes",
                hint="fill the column, or set option `stream`",
            )
        for name, rows in _by_name(rest, "subject"):
            yield None, name, rows

    # ── partitions ───────────────────────────────────────────────────────────────────────────────

    def _by_partition(self, stream: str, rows: pa.RecordBatch) -> Iterator[Group]:
        if stream not in self._counts:
            self._counts[stream] = self._count(stream)
        chosen = self._partitions(stream, rows)
        low, high = int(chosen.min()), int(chosen.max())
        if low < 0 or high >= self._counts[stream]:
            raise InvalidRecord(
                f"a row is for partition {low if low < 0 else high} of `{stream}`, which has {self._counts[stream]}",
                hint="correct the column `partition`, or set `partitioner` to `key` or `round-robin`",
            )
        for partition, group, _places in by_partition(rows, chosen):
            yield Group(group, stream, partition, None)

    def _partitions(self, stream: str, rows: pa.RecordBatch) -> Numbers:
        target, count = self._options.target, self._counts[stream]
        if target.partition is not None:
            return np.full(rows.num_rows, target.partition, np.int64)
        match target.partitioner:
            case Partitioner.ROUND_ROBIN:
                return self._turns.take(stream, rows.num_rows, count)
            case Partitioner.KEY:
                return key_partitions(rows.column("key"), count)
            case Partitioner.EXPLICIT:
                column = rows.column("partition")
                if column.null_count:
                    raise InvalidRecord(
                        "a row has no partition, but option `partitioner` is `explicit`",
                        hint="fill the column `partition`, or set `partitioner=auto`",
                    )
                return integers(column)
            case _:
                return automatic_partitions(stream, rows, count, self._turns)


def _by_name(batch: pa.RecordBatch, column: str) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Rows by the text in a column, in the order that texts first appear in."""
    names = batch.column(column).unique().to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    for name in names:
        if name is not None:
            yield name, batch.filter(pc.fill_null(pc.equal(batch.column(column), name), False))
