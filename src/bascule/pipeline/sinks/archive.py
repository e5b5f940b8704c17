"""The archive of a pipeline: its messages as they were read, by the archive job's own code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions
from bascule.pipeline.sinks.base import BatchSink, SinkBatch
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import ArchiveSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.lake.facts import Commit


def archive_options(spec: PipelineSpec, sink: ArchiveSink, checkpoint: str) -> ArchiveOptions:
    """`checkpoint` is Spark's own: there the archive finds which streams a batch was read from."""
    connection = spec.connection_options()
    source = spec.source
    if source.on_data_loss is not None and source.history is None:
        connection["onDataLoss"] = source.on_data_loss  # then the archive says what it has lost, and goes on
    return ArchiveOptions(
        path=sink.path,
        streams=spec.streams,
        pattern=spec.source.pattern,
        subject=spec.source.subject,
        servers=connection.pop("servers"),
        file_bytes=sink.file_bytes,
        source=connection,
        storage=dict(sink.storage or {}),
        checkpoint=checkpoint,
        cursor=f"pipeline:{spec.name}",
    )


class ArchiveBatches(BatchSink):
    wants_messages = True

    def __init__(self, options: ArchiveOptions) -> None:
        super().__init__(f"archive {options.path}")
        self._options = options
        self._job: ArchiveJob | None = None
        self._rows = 0

    def open(self, spark: SparkSession) -> None:
        job = ArchiveJob(spark, self._options, self._note)
        job.open()
        self._job = job

    def write(self, batch: SinkBatch) -> int:
        assert self._job is not None  # PipelineBatches opens its sinks before the first batch
        assert batch.messages is not None  # `needs_messages` is true for a pipeline with an archive
        self._rows = 0
        self._job.write(batch.messages, batch.id)
        return self._rows

    def _note(self, commit: Commit) -> None:
        if commit.kind == "append":  # a compaction brings files, and no messages
            self._rows += sum(one.rows for one in commit.added)

    def close(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None
