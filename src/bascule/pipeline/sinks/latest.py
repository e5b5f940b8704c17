"""The latest row of each key, by the latest job's own code. Which message a row is of is added to it if a step left that out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.errors import InvalidSchema
from bascule.lake.latest.merge import ORDER
from bascule.pipeline.jobs.latest import LatestOptions, LatestTable
from bascule.pipeline.sinks.base import BatchSink, SinkBatch
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import LatestSink
from bascule.pipeline.steps.rows import HIDDEN, MESSAGE, Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def latest_sink(spec: PipelineSpec, sink: LatestSink, checkpoint: str) -> LatestBatches:
    connection = spec.connection_options()
    options = LatestOptions(
        path=sink.path,
        streams=spec.streams,
        pattern=spec.source.pattern,
        subject=spec.source.subject,
        servers=connection.pop("servers"),
        key=sink.key,
        deleted=sink.deleted,
        source=connection,
        checkpoint=checkpoint,
    )
    return LatestBatches(options)


class LatestBatches(BatchSink):
    def __init__(self, options: LatestOptions) -> None:
        super().__init__(f"latest {options.path}")
        self._options = options
        self._table: LatestTable | None = None

    def open(self, spark: SparkSession) -> None:
        table = LatestTable(spark, self._options)
        table.open()
        self._table = table

    def write(self, batch: SinkBatch) -> int:
        assert self._table is not None  # PipelineBatches opens its sinks before the first batch
        if not batch.count:
            return 0
        self._table.write(placed(batch.rows), batch.id)
        return batch.count

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None


def placed(rows: Rows) -> DataFrame:
    """Rows that say which message they are."""
    missing = [name for name in ORDER if name not in rows.columns]
    if missing and not rows.has_message:
        raise InvalidSchema(
            f"the rows of a latest table have no column `{missing[0]}`, which tells the newest of a key",
            hint=f"have the `sql` step keep {', '.join(f'`{name}`' for name in ORDER)}",
        )
    return rows.frame.selectExpr("*", *(f"{MESSAGE}.{name} AS {name}" for name in missing)).drop(*HIDDEN)
