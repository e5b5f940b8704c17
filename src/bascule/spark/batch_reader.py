"""A batch read: the ranges are fixed when the query is planned, tasks read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bascule.errors import InvalidOption
from bascule.spark import one_stream
from bascule.spark.advance import must_be_there, planned_ranges
from bascule.spark.failures import coded
from bascule.spark.filters import Bounds, bounds_of, narrow
from bascule.spark.options import SourceOptions
from bascule.spark.reading import ReadRange, read_range, tasks
from bascule.spark.resolve import ending_offsets, require, select, starting_offsets
from bascule.spark.values import ValueReader

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.spark.offsets import Offsets


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in executors; pickled in between, so it holds nothing but what was asked for."""

    def __init__(self, options: SourceOptions, schema: StructType, values: ValueReader | None = None) -> None:
        self._options = options
        self._schema = schema
        self._values = values
        self._bounds = Bounds()

    @coded
    def partitions(self) -> list[ReadRange]:
        connection = one_stream.connect(self._options)
        streams = require(self._options.streams, select(self._options.streams, connection))
        start = starting_offsets(self._options, streams, connection)
        end = ending_offsets(self._options, streams, connection)
        _check_order(start, end)
        ranges = narrow(planned_ranges(start, end, streams), self._bounds, connection)
        if not self._options.skips_lost:
            for key, each in ranges.items():
                if each.count > 0:
                    must_be_there(streams[key.stream], key.partition, each.start, each.end)
        return tasks(self._options, ranges, end, streams)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, self._values, partition)


class FilteringBatchReader(BatchReader):
    """The same for a session that pushes filters down. Spark refuses a reader that has this method in a session that does not."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """What the filters say of streams, partitions, offsets and times narrows the ranges; Spark still applies all of them."""
        self._bounds = bounds_of(filters)
        return filters


def _check_order(start: Offsets, end: Offsets) -> None:
    for name, stream in start.streams.items():
        for number, first in stream.next.items():
            last = end.streams[name].next[number]
            if first > last:
                raise InvalidOption(
                    f"`{name}`/{number} would be read from offset {first} to {last}",
                    hint="the starting options must be before the ending ones",
                )
