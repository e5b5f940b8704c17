"""A batch read: the ranges are fixed when the query is planned, tasks read them.

There is no `pushFilters`. Spark keeps the plan that a reader makes with the filters of one query and uses it for every other query of
the same DataFrame: `orders.where("offset = 3").union(orders.where("offset = 7"))` lost a row, and `orders.count()` after a filter
counted the filtered rows. Options bound a read, and belong to one DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bascule.errors import (
    BasculeError,
    InvalidSchema,
    MalformedValue,
    OffsetBelowStart,
    StreamNotFound,
    StreamRecreated,
)
from bascule.lake.coverage import Coverage
from bascule.limits import SPARK_ARCHIVE_TASK_BYTES
from bascule.spark.options.declaration import BATCH
from bascule.spark.options.failures import coded, with_code
from bascule.spark.options.reading import SourceOptions
from bascule.spark.options.schema import MALFORMED, SCHEMA_ID, arrow_schema, check_schema
from bascule.spark.read import cluster
from bascule.spark.read.archive_reader import RangeReader
from bascule.spark.read.offsets import Offsets
from bascule.spark.read.plan import OffsetRange, PartitionKey, SplitLimits, gather, split
from bascule.spark.read.resolve import batch_ranges
from bascule.spark.read.state import PartitionState, Streams, average, file_ranges, lost, parts
from bascule.spark.values.decoding import ValueColumn, ValueReader, malformed_values
from bascule.spark.values.framing import schema_ids_of


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in executors. It is pickled in between, so it holds options alone."""

    def __init__(self, options: SourceOptions, schema: StructType, values: ValueReader | None = None) -> None:
        self._options = options
        self._schema = schema
        self._values = values

    @coded
    def partitions(self) -> list[ReadTask]:
        ranges, end, streams = batch_ranges(self._options, cluster.connect_with_history(self._options))
        return tasks(self._options, ranges, end, streams)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, self._schema, self._values, partition)


# ── tasks, of batch and of streaming reads ───────────────────────────────────────────────────────


@dataclass
class ReadRange:
    """Offsets of a partition, the last one not included."""

    stream: str
    stream_id: int | None
    partition: int
    start: int
    end: int
    archived: Coverage | None = None
    """What of it is read from the archive."""


@dataclass
class ReadTask(InputPartition):
    """What one task reads, in this order."""

    ranges: tuple[ReadRange, ...]


def tasks(
    options: SourceOptions, ranges: dict[PartitionKey, OffsetRange], end: Offsets, streams: Streams
) -> list[ReadTask]:
    """The ranges cut and gathered as the options ask for."""
    asked = options.parallelism
    limits = SplitLimits(
        partitions_min=asked.partitions_min,
        offsets_max=asked.records_max,
        bytes_max=asked.bytes_max,
        gathered_offsets_max=asked.gathered_offsets_max,
    )
    states = {key: _state(streams, key) for key in ranges}
    pieces = {
        (key, number): piece
        for key, each in ranges.items()
        for number, piece in enumerate(_pieces(options, each, states[key]))
    }
    return [
        ReadTask(tuple(_read_range(key, piece, end, states[key]) for (key, _), piece in task))
        for task in gather(split(pieces, limits), _gathering(options, limits))
    ]


def _gathering(options: SourceOptions, limits: SplitLimits) -> SplitLimits:
    """A batch read gathers at most so many bytes as a task reads from an archive. In streaming the trigger's limit bounds the bytes:
    an estimate would change until a batch is repeated, and an exactly-once sink identifies rows by their task."""
    if options.mode != BATCH:
        return limits
    return replace(limits, bytes_max=min(limits.bytes_max or SPARK_ARCHIVE_TASK_BYTES, SPARK_ARCHIVE_TASK_BYTES))


def _read_range(key: PartitionKey, piece: OffsetRange, end: Offsets, state: PartitionState | None) -> ReadRange:
    stream_id = end.streams[key.stream].id
    return ReadRange(key.stream, stream_id, key.partition, piece.start, piece.end, _archived(state, piece))


def _state(streams: Streams, key: PartitionKey) -> PartitionState | None:
    return streams[key.stream].partitions.get(key.partition) if key.stream in streams else None


def _pieces(options: SourceOptions, planned: OffsetRange, state: PartitionState | None) -> list[OffsetRange]:
    """A range, in batch cut at the borders of archived files. In streaming the limits of a trigger bound it; and a batch that is
    repeated must be cut as before, even if more is archived by now, because an exactly-once sink identifies rows by their task."""
    if state is None or state.archived is None or options.mode != BATCH:
        return [planned]
    found: list[OffsetRange] = []
    for part in parts(state, planned.start, planned.end):
        archived = state.archived.within(part.start, part.end) if part.is_archived else None
        if archived is None:
            found.append(OffsetRange(part.start, part.end, state.bytes_per_offset))
        else:
            found += [average(state, *each) for each in file_ranges(archived, SPARK_ARCHIVE_TASK_BYTES)]
    return found


def _archived(state: PartitionState | None, piece: OffsetRange) -> Coverage | None:
    return None if state is None or state.archived is None else state.archived.within(piece.start, piece.end)


def read_task(
    options: SourceOptions, schema: StructType, values: ValueReader | None, task: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The batches of a task. Spark makes one task without ranges when there are no tasks: it reads nothing."""
    for one in task.ranges if isinstance(task, ReadTask) else ():
        yield from read_range(options, schema, values, one)


def read_range(
    options: SourceOptions, schema: StructType, values: ValueReader | None, one: ReadRange
) -> Iterator[pa.RecordBatch]:
    """The batches of a range."""
    try:
        rows = SparkRows(schema, values)
        for batch in _read(options, rows.asked, one):
            yield rows.conform(batch, one)
    except BasculeError as error:
        raise with_code(error) from None


class SparkRows:
    """Turns the columns that a broker sends into the declared ones, which may differ in case, order, nullability and types."""

    def __init__(self, schema: StructType, values: ValueReader | None) -> None:
        self._declared = arrow_schema(schema)
        self._names = checked_columns(schema, values)
        asked = ["value" if name in (MALFORMED, SCHEMA_ID) else name for name in self._names]
        self._value: ValueColumn | None = None
        if values is not None and "value" in asked:
            self._value = ValueColumn(values, _struct(schema))
            self._is_permissive = values.is_permissive
            asked.append("offset")  # to name what cannot be decoded
        self.asked = tuple(dict.fromkeys(asked))

    def conform(self, batch: pa.RecordBatch, task: ReadRange) -> pa.RecordBatch:
        """The batch with the declared schema. Only decoded values are copied."""
        columns = dict(zip(self.asked, batch.columns, strict=True))
        if self._value is not None:
            values = columns["value"]
            columns["value"], reasons = self._value.decode(values)
            if reasons and not self._is_permissive:
                raise _malformed(task, columns["offset"], reasons)
            columns[MALFORMED] = malformed_values(values, reasons)
            if SCHEMA_ID in self._names:
                columns[SCHEMA_ID] = schema_ids_of(values)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self._declared)


def _malformed(task: ReadRange, offsets: pa.Array, reasons: dict[int, str]) -> MalformedValue:
    row = min(reasons)
    return MalformedValue(
        f"the value of `{task.stream}`/{task.partition} at offset {offsets[row].as_py()} cannot be decoded: {reasons[row]}",
        hint="set `valueMode` to `permissive` to get it in the column `malformedValue` instead",
    )


def checked_columns(schema: StructType, values: ValueReader | None) -> tuple[str, ...]:
    """The columns that a schema asks for. Raises InvalidSchema."""
    return check_schema(schema) if values is None else check_schema(schema, values.table_like(schema))


def _struct(schema: StructType) -> StructType:
    for field in schema:
        if field.name.lower() == "value" and isinstance(field.dataType, StructType):
            return field.dataType
    raise InvalidSchema("columns of a decoded value were asked for without `value`", hint="ask for `value` too")


def _read(options: SourceOptions, columns: tuple[str, ...], task: ReadRange) -> Iterator[pa.RecordBatch]:
    """The batches of a range; lost records are an error, or skipped."""
    if options.history.path is not None:
        reader = RangeReader(options.history.place, options, task.stream, task.stream_id, task.partition, columns)
        yield from reader.read(task.start, task.end, task.archived)
        return
    start = task.start
    while start < task.end:
        try:
            yield from cluster.connect(options.connection).read(
                task.stream, task.partition, start, task.end, stream_id=task.stream_id, columns=columns
            )
        except OffsetBelowStart as error:
            if not options.skips_lost:
                raise _lost(options, task, error.log_start_offset) from None
            start = max(start + 1, error.log_start_offset)
        except (StreamNotFound, StreamRecreated):
            if not options.skips_lost:
                raise
            return
        else:
            return


def _lost(options: SourceOptions, task: ReadRange, log_start_offset: int) -> BasculeError:
    try:
        found = cluster.connect(options.connection).streams([task.stream])
        retention: Mapping[str, int] = found[task.stream].retention
    except (BasculeError, KeyError):
        retention = {}
    return lost(task.stream, task.partition, task.start, log_start_offset, retention)
