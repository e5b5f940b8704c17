"""Writing: `df.write.format("bascule")`, `df.writeStream.format("bascule")`.

A task publishes its rows and returns when they are stored, so there is nothing left to do at the commit of a batch, and nothing
that an abort could take back: rows of a batch that failed stay, and come again when it is run again. `delivery=exactly-once` makes
brokers drop those; see `sink_task`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bascule.errors import InvalidOption
from bascule.spark.options.declaration import BATCH, STREAMING
from bascule.spark.options.failures import coded
from bascule.spark.options.writing import SinkOptions, sink_options
from bascule.spark.write.columns import check_columns

if TYPE_CHECKING:
    import pyarrow as pa

# Methods and arguments have the names that Spark calls.
# ruff: noqa: N803


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @coded
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from bascule.spark.write.task import write_task

        return write_task(self.options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @coded
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from bascule.spark.write.task import write_task

        return write_task(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is stored already; called again when a batch is replayed."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What is stored stays."""


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For `DataSource.writer`."""
    return BatchWriter(_checked(given, schema, overwrite, BATCH))


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`."""
    return StreamWriter(_checked(given, schema, overwrite, STREAMING))


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool, mode: str) -> SinkOptions:
    if overwrite:
        wrong, right = ('mode("overwrite")', 'mode("append")') if mode == BATCH else ("complete", "append or update")
        raise InvalidOption(f"streams are appended to, but the output mode is {wrong}", hint=f"it must be {right}")
    options = sink_options(given, mode)
    check_columns(schema, options)
    return options
