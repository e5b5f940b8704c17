"""`format("bascule")`: what Spark looks up, builds, pickles and asks for readers. Holds the options and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from bascule.spark.options.declaration import BATCH, STREAMING
from bascule.spark.options.failures import coded
from bascule.spark.options.reading import SourceOptions, source_options, value_options
from bascule.spark.options.schema import TABLE
from bascule.spark.orphans import end_with_parent
from bascule.spark.read.batch_reader import BatchReader, SparkRows
from bascule.spark.read.stream_reader import StreamReader
from bascule.spark.values.decoding import ValueReader
from bascule.spark.write.sink import BatchWriter, StreamWriter, batch_writer, stream_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "bascule"

# Methods have the names that Spark calls.
# ruff: noqa: N802


class BasculeSource(DataSource):
    """Streams as tables, to read and to write in batch and streaming."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @coded
    def schema(self) -> StructType | str:
        options = value_options(self.options)
        return TABLE if options.format is None else ValueReader.of(options).table()

    @coded
    def reader(self, schema: StructType) -> BatchReader:
        options = source_options(self.options, BATCH)
        return BatchReader(options, schema, _values(options, schema))

    @coded
    def streamReader(self, schema: StructType) -> StreamReader:
        end_with_parent()
        options = source_options(self.options, STREAMING)
        return StreamReader(options, schema, _values(options, schema))

    @coded
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return batch_writer(self.options, schema, overwrite)

    @coded
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return stream_writer(self.options, schema, overwrite)


def _values(options: SourceOptions, schema: StructType) -> ValueReader | None:
    """How values are decoded; None if they stay bytes. Raises InvalidSchema, here in the driver, for a schema that does not fit."""
    values = None if options.value.format is None else ValueReader.of(options.value)
    SparkRows(schema, values)
    return values


def register(spark: SparkSession) -> None:
    """Make `format("bascule")` known to a session that does not find it by itself.

    Sessions whose driver has the package installed find it without this call.
    """
    data_source: Any = spark.dataSource
    data_source.register(BasculeSource)
