"""What a task does: read one range of one partition, from the leader, as Arrow batches that Spark takes as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bascule.errors import BasculeError, OffsetBelowStart, StreamNotFound, StreamRecreated
from bascule.spark import cluster
from bascule.spark.advance import lost
from bascule.spark.failures import with_code
from bascule.spark.offsets import Offsets
from bascule.spark.options import SourceOptions
from bascule.spark.plan import PartitionKey, Range, SplitLimits, split
from bascule.spark.table import arrow_schema, check_schema, conform


@dataclass
class ReadRange(InputPartition):
    """The offsets of a partition that one task reads, the last one not included."""

    stream: str
    stream_id: int | None
    partition: int
    start: int
    end: int


def tasks(options: SourceOptions, ranges: dict[PartitionKey, Range], end: Offsets) -> list[ReadRange]:
    """The ranges cut as the options ask for."""
    asked = options.parallelism
    limits = SplitLimits(partitions_min=asked.partitions_min, offsets_max=asked.records_max, bytes_max=asked.bytes_max)
    return [
        ReadRange(key.stream, end.streams[key.stream].id, key.partition, piece.start, piece.end)
        for key, piece in split(ranges, limits)
    ]


def read_range(options: SourceOptions, schema: StructType, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """The batches of a task. Spark makes a task without a range when there are none at all: it reads nothing."""
    if not isinstance(task, ReadRange):
        return
    declared, columns = arrow_schema(schema), check_schema(schema)
    try:
        for batch in _read(options, columns, task):
            yield conform(batch, declared)
    except BasculeError as error:
        raise with_code(error) from None


def _read(options: SourceOptions, columns: tuple[str, ...], task: ReadRange) -> Iterator[pa.RecordBatch]:
    """From the start, or from what is left of the range if lost records are to be skipped."""
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
        retention = found[task.stream].retention
    except (BasculeError, KeyError):
        retention = ""
    return lost(task.stream, task.partition, task.start, log_start_offset, retention)
