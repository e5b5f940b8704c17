"""What is done with each batch of a pipeline: rules are counted, dead letters written, then the sinks, in the order of the file.

Spark Connect pickles this and runs it at the server, so that it holds the spec and nothing open: sinks are made and opened in the
process that writes.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import BasculeError, ExpectationBroken
from bascule.pipeline.checkpoint import PipelineCheckpoint
from bascule.pipeline.progress import BatchReport, PipelineProgress
from bascule.pipeline.sinks.archive import ArchiveBatches, archive_options
from bascule.pipeline.sinks.base import BatchSink, SinkBatch
from bascule.pipeline.sinks.console import ConsoleBatches
from bascule.pipeline.sinks.dead_letters import DeadLetterBatches
from bascule.pipeline.sinks.stream import sink_of
from bascule.pipeline.sinks.table import TableBatches
from bascule.pipeline.snapshots import snapshot_frames, take_snapshots
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import ArchiveSink, ConsoleSink, DeadLetters, LatestSink, Sink, StreamSink, TableSink
from bascule.pipeline.spec.steps import Otherwise
from bascule.pipeline.steps.batch_rows import BatchRows, plain_archive
from bascule.pipeline.steps.inputs import Input
from bascule.pipeline.steps.rows import MESSAGE, Broken, Rows, quoted
from bascule.pipeline.steps.windows import LATE_RULE
from bascule.spark.options.failures import with_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES_MAX: Final = 3

SinkMaker = Callable[[PipelineSpec, Sink, PipelineCheckpoint, str], BatchSink]


class BatchLimitReached(Exception):
    """Ends a query whose run was limited to batches that are done. No error of ours: it is not passed on."""


def make_sink(spec: PipelineSpec, sink: Sink, checkpoint: PipelineCheckpoint, checkpoint_id: str) -> BatchSink:
    match sink:
        case ArchiveSink():
            return ArchiveBatches(archive_options(spec, sink, checkpoint.spark_path))
        case LatestSink():
            from bascule.pipeline.sinks.latest import latest_sink

            return latest_sink(spec, sink, checkpoint.spark_path)
        case StreamSink():
            return sink_of(spec, sink, checkpoint_id)
        case TableSink():
            return TableBatches(sink.target, sink.path, checkpoint_id, sink.partition_by)
        case ConsoleSink():
            return ConsoleBatches(sink.rows_max)


# ── a batch ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class PipelineBatches:
    """The function that Spark calls for each batch."""

    spec: PipelineSpec
    on_batch: Callable[[BatchReport], None] | None = None
    """Called where the batch is written."""
    batches_max: int | None = None
    """Batches to do, after which the query ends at the next one."""
    counts_steps: bool = False
    """Whether the rows that each step leaves are counted, for metrics."""
    failure: BaseException | None = None
    """Why the query ended, if it ended here, in this process."""
    done: int = 0
    """Batches that were done in this process."""
    last: int = -1
    """The id of the last one."""
    make: SinkMaker = make_sink
    bury: Callable[[PipelineSpec, DeadLetters, str], DeadLetterBatches] = DeadLetterBatches
    """What writes dead letters. Tests of a pipeline keep rows and dead letters instead."""
    _opened: _Opened | None = field(default=None, repr=False)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        try:
            if self.is_done:
                raise BatchLimitReached(f"{self.done} batches are done")
            opened = self._opened or self.open(frame.sparkSession)
            report = opened.write(frame, batch_id)
            self.done, self.last = self.done + 1, batch_id
            if self.on_batch is not None:
                self.on_batch(report)
        except BasculeError as error:
            self.failure = error
            raise with_code(error) from None
        except BaseException as error:
            self.failure = error
            raise

    @property
    def is_done(self) -> bool:
        return self.batches_max is not None and self.done >= self.batches_max

    @property
    def tables(self) -> Mapping[str, str]:
        """The folders of the static tables of this run, once it is open."""
        return {} if self._opened is None else self._opened.tables

    def open(self, spark: SparkSession) -> _Opened:
        opened = _Opened(self)
        opened.open(spark)
        self._opened = opened
        return opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def add_late(self, batch_id: int, rows: int) -> None:
        """Count rows that a batch dropped because they came too late. Spark reports them after the batch, to the process that watches
        the query; with Spark Connect another process has opened the pipeline, and they are not counted."""
        if self._opened is not None:
            self._opened.add_late(batch_id, rows)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.spec, self.counts_steps

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.spec, self.counts_steps = state
        self.on_batch, self.batches_max, self.failure, self._opened = None, None, None, None
        self.done, self.last = 0, -1
        self.make, self.bury = make_sink, DeadLetterBatches


class _Opened:
    """Sinks that are open, and the progress so far."""

    def __init__(self, batches: PipelineBatches) -> None:
        self._spec = spec = batches.spec
        self._counts_steps = batches.counts_steps
        self._make, self._bury_with = batches.make, batches.bury
        self._checkpoint = PipelineCheckpoint.of(spec)
        self._held = ExitStack()
        self._sinks: list[tuple[Sink, BatchSink]] = []
        self._dead: DeadLetterBatches | None = None
        self._inputs: tuple[Input, ...] = ()
        self.tables: Mapping[str, str] = {}
        self._progress = PipelineProgress()
        self._counting = threading.Lock()
        """Batches are written in a thread of Spark's."""

    def open(self, spark: SparkSession) -> None:
        spec, checkpoint = self._spec, self._checkpoint
        with ExitStack() as held:
            checkpoint_id = checkpoint.begin(spec)
            checkpoint.hold()
            held.callback(checkpoint.release)
            self._inputs = Input.all_of(spec, spark)
            self.tables = take_snapshots(spark, spec, checkpoint)
            for declared in spec.sinks:
                sink = self._make(spec, declared, checkpoint, checkpoint_id)
                sink.open(spark)
                held.callback(sink.close)
                self._sinks.append((declared, sink))
            if spec.dlq is not None:
                self._dead = self._bury_with(spec, spec.dlq, checkpoint_id)
                self._dead.open(spark)
            self._progress = PipelineProgress.load(checkpoint.progress_path)
            self._held = held.pop_all()

    def close(self) -> None:
        self._held.close()

    def write(self, frame: DataFrame, batch_id: int) -> BatchReport:
        began = time.monotonic()
        report = self._archived(frame, batch_id) if plain_archive(self._spec) else self._write(frame, batch_id)
        report.seconds = round(time.monotonic() - began, 3)
        with self._counting:
            if self._progress.add(report):
                self._progress.late += report.late
                self._progress.save(self._checkpoint.progress_path)
        return report

    def add_late(self, batch_id: int, rows: int) -> None:
        with self._counting:
            if self._progress.add_late(batch_id, rows):
                self._progress.save(self._checkpoint.progress_path)

    def _archived(self, frame: DataFrame, batch_id: int) -> BatchReport:
        """No other sink needs the messages: they are not cached, and counted only when the batch is repeated."""
        ((_, sink),) = self._sinks
        count = sink.write(SinkBatch(batch_id, Rows(frame, has_message=False), 0, frame)) or frame.count()
        return BatchReport(batch_id, count, count, {sink.name: count})

    def _write(self, frame: DataFrame, batch_id: int) -> BatchReport:
        with ExitStack() as kept:
            watermark_ms = self._checkpoint.watermark_ms(batch_id - 1)
            tables = snapshot_frames(frame.sparkSession, self.tables)
            shared = BatchRows(self._spec, frame, self._inputs, tables, kept, watermark_ms)
            counts = shared.counts(with_steps=self._counts_steps)
            report = BatchReport(batch_id, counts.read, counts.rows, broken=counts.broken)
            self._must_hold(shared.broken, counts.broken)
            report.dead_letters = self._bury(shared.broken, counts.broken, batch_id)
            report.late = report.broken.pop(LATE_RULE, 0)
            report.steps = counts.steps
            for number, (declared, sink) in enumerate(self._sinks):
                began = time.monotonic()
                batch = SinkBatch(batch_id, shared.routed(declared), counts.sinks[number], shared.messages)
                report.sinks[sink.name] = sink.write(batch)
                seconds = round(time.monotonic() - began, 3)
                report.steps[sink.name] = {"in": batch.count, "out": report.sinks[sink.name], "seconds": seconds}
        return report

    def _must_hold(self, broken: tuple[Broken, ...], counts: dict[str, int]) -> None:
        for one in broken:
            if one.otherwise is Otherwise.FAIL and counts[one.rule]:
                raise ExpectationBroken(
                    f"`{one.rule}` is broken by {counts[one.rule]} rows, such as {_examples(one.rows)}",
                    hint="nothing of the batch was written; correct the rule or what publishes such rows, or set `otherwise`",
                )

    def _bury(self, broken: tuple[Broken, ...], counts: dict[str, int], batch_id: int) -> int:
        dead = [one for one in broken if one.otherwise is Otherwise.DEAD_LETTER and counts[one.rule]]
        if not dead or self._dead is None:
            return 0
        letters = functools.reduce(lambda left, right: left.unionByName(right), (one.letters() for one in dead))
        self._dead.write(letters, batch_id)
        return sum(counts[one.rule] for one in dead)


def _examples(rows: Rows) -> str:
    if rows.has_message:
        place = f"concat('`', {MESSAGE}.stream, '`/', {MESSAGE}.partition, ' at offset ', {MESSAGE}.offset)"
        found = rows.frame.selectExpr(f"{place} AS place").limit(EXAMPLES_MAX).collect()
    else:
        columns = ", ".join(quoted(name) for name in rows.columns)
        found = rows.frame.selectExpr(f"to_json(struct({columns})) AS place").limit(EXAMPLES_MAX).collect()
    return ", ".join(str(row["place"]) for row in found)
