"""A batch read: the ranges are fixed when the query is planned, tasks read them.

There is no `pushFilters`. What a reader plans with the filters of one query, Spark keeps for its DataFrame and uses for every other
query of it: `orders.where("offset = 3").union(orders.where("offset = 7"))` lost a row, and `orders.count()` after a filter counted what
that filter had left. Options bound a read, and belong to one DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bascule.errors import InvalidOption
from bascule.spark.options.failures import coded
from bascule.spark.options.reading import SourceOptions
from bascule.spark.read import one_stream
from bascule.spark.read.advance import must_be_there, planned_ranges
from bascule.spark.read.resolve import ending_offsets, require, select, starting_offsets
from bascule.spark.read.task import ReadRange, read_range, tasks
from bascule.spark.values.decoding import ValueReader

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.spark.read.offsets import Offsets


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in executors; pickled in between, so it holds nothing but what was asked for."""

    def __init__(self, options: SourceOptions, schema: StructType, values: ValueReader | None = None) -> None:
        self._options = options
        self._schema = schema
        self._values = values

    @coded
    def partitions(self) -> list[ReadRange]:
        connection = one_stream.connect(self._options)
        streams = require(self._options.streams, select(self._options.streams, connection))
        start = starting_offsets(self._options, streams, connection)
        end = ending_offsets(self._options, streams, connection)
        _check_order(start, end)
        ranges = planned_ranges(start, end, streams)
        if not self._options.skips_lost:
            for key, each in ranges.items():
                if each.count > 0:
                    must_be_there(streams[key.stream], key.partition, each.start, each.end)
        return tasks(self._options, ranges, end, streams)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, self._values, partition)


def _check_order(start: Offsets, end: Offsets) -> None:
    for name, stream in start.streams.items():
        for number, first in stream.next.items():
            last = end.streams[name].next[number]
            if first > last:
                raise InvalidOption(
                    f"`{name}`/{number} would be read from offset {first} to {last}",
                    hint="the starting options must be before the ending ones",
                )
