"""What is done with each batch of a pipeline: rules are counted, dead letters written, then the sinks, in the order of the file.

Spark Connect pickles this and runs it at the server, so that it holds the spec and nothing open: sinks are made and opened in the
process that writes.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
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
from bascule.pipeline.spec.pipeline import PipelineSpec, ValueMode
from bascule.pipeline.spec.sinks import ArchiveSink, ConsoleSink, LatestSink, Sink, StreamSink, TableSink
from bascule.pipeline.spec.steps import Expect, Otherwise, Sql
from bascule.pipeline.steps.apply import Broken, Sifted, apply, read, sift, split_at_dedup
from bascule.pipeline.steps.decode import Decoding
from bascule.pipeline.steps.rows import MESSAGE, Rows
from bascule.spark.options.failures import with_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW: Final = "_raw"
ROW: Final = "_row"
"""A batch that holds both, messages as they were read and rows that `dedup` left, has these two columns."""

EXAMPLES_MAX: Final = 3


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


# ── the plan of the stream ───────────────────────────────────────────────────────────────────────


def needs_messages(spec: PipelineSpec) -> bool:
    """Whether a batch has to hold what `dedup` and the steps before it drop."""
    before, _, _ = split_at_dedup(spec.steps)
    rejects = spec.source.value.format is not None and spec.value_mode is ValueMode.DEAD_LETTER
    return (
        rejects
        or any(isinstance(sink, ArchiveSink) for sink in spec.sinks)
        or any(isinstance(step, Expect) for step in before)
    )


def planned(spec: PipelineSpec, messages: DataFrame, decoding: Decoding | None) -> DataFrame:
    """What the batches of the query hold: messages, unless `dedup` has to see all of the stream."""
    before, dedup, _ = split_at_dedup(spec.steps)
    if dedup is None:
        return messages
    rows = apply((*before, dedup), sift(spec, read(messages, decoding), decoding).rows).rows
    if not needs_messages(spec):
        return rows.frame
    both = messages.selectExpr(f"struct(*) AS {RAW}")
    return both.unionByName(rows.frame.selectExpr(f"struct(*) AS {ROW}"), allowMissingColumns=True)


# ── a batch ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class PipelineBatches:
    """The function that Spark calls for each batch."""

    spec: PipelineSpec
    on_batch: Callable[[BatchReport], None] | None = None
    """Called where the batch is written."""
    failure: BaseException | None = None
    """Why the query ended, if it ended here, in this process."""
    _opened: _Opened | None = field(default=None, repr=False)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        try:
            opened = self._opened or self.open(frame.sparkSession)
            report = opened.write(frame, batch_id)
            if self.on_batch is not None:
                self.on_batch(report)
        except BasculeError as error:
            self.failure = error
            raise with_code(error) from None
        except BaseException as error:
            self.failure = error
            raise

    def open(self, spark: SparkSession) -> _Opened:
        opened = _Opened(self.spec)
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
        return (self.spec,)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.spec, self.on_batch, self.failure, self._opened = state[0], None, None, None


class _Opened:
    """Sinks that are open, and the progress so far."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._spec = spec
        self._checkpoint = PipelineCheckpoint.of(spec)
        self._held = ExitStack()
        self._sinks: list[BatchSink] = []
        self._dead: DeadLetterBatches | None = None
        self._decoding: Decoding | None = None
        self._progress = PipelineProgress()
        self._counting = threading.Lock()
        """Batches are written in a thread of Spark's."""

    def open(self, spark: SparkSession) -> None:
        spec, checkpoint = self._spec, self._checkpoint
        with ExitStack() as held:
            checkpoint_id = checkpoint.begin(spec)
            checkpoint.hold()
            held.callback(checkpoint.release)
            self._decoding = Decoding.of(spec, spark)
            for sink in (make_sink(spec, one, checkpoint, checkpoint_id) for one in spec.sinks):
                sink.open(spark)
                held.callback(sink.close)
                self._sinks.append(sink)
            if spec.dlq is not None:
                self._dead = DeadLetterBatches(spec, spec.dlq, checkpoint_id)
                self._dead.open(spark)
            self._progress = PipelineProgress.load(checkpoint.progress_path)
            self._held = held.pop_all()

    def close(self) -> None:
        self._held.close()

    def write(self, frame: DataFrame, batch_id: int) -> BatchReport:
        began = time.monotonic()
        report = self._archive_alone(frame, batch_id) if self._is_archive_alone else self._write(frame, batch_id)
        report.seconds = round(time.monotonic() - began, 3)
        with self._counting:
            if self._progress.add(report):
                self._progress.save(self._checkpoint.progress_path)
        return report

    def add_late(self, batch_id: int, rows: int) -> None:
        with self._counting:
            if self._progress.add_late(batch_id, rows):
                self._progress.save(self._checkpoint.progress_path)

    @property
    def _is_archive_alone(self) -> bool:
        spec = self._spec
        is_plain = not spec.steps and spec.source.value.format is None
        return is_plain and len(self._sinks) == 1 and isinstance(self._sinks[0], ArchiveBatches)

    def _archive_alone(self, frame: DataFrame, batch_id: int) -> BatchReport:
        """No other sink needs the messages: they are not cached, and counted only when the batch is repeated."""
        (sink,) = self._sinks
        count = sink.write(SinkBatch(batch_id, Rows(frame, has_message=False), 0, frame)) or frame.count()
        return BatchReport(batch_id, count, count, {sink.name: count})

    def _write(self, frame: DataFrame, batch_id: int) -> BatchReport:
        with ExitStack() as kept:
            shared = _Shared(self._spec, frame, self._decoding, kept)
            counts = shared.counts()
            report = BatchReport(batch_id, counts.pop("read"), counts.pop("rows"), broken=counts)
            self._must_hold(shared.broken, counts)
            report.dead_letters = self._bury(shared.broken, counts, batch_id)
            batch = SinkBatch(batch_id, shared.rows, report.rows, shared.messages)
            for sink in self._sinks:
                report.sinks[sink.name] = sink.write(batch)
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


class _Shared:
    """A batch as the sinks get it. What several of them need is computed once and kept until all are done."""

    def __init__(self, spec: PipelineSpec, frame: DataFrame, decoding: Decoding | None, kept: ExitStack) -> None:
        before, dedup, after = split_at_dedup(spec.steps)
        self._kept = kept
        self.broken: tuple[Broken, ...] = ()
        if dedup is None:
            base = self._keep(read(frame, decoding).frame if decoding is not None else frame)
            decoded = Rows(base) if decoding is not None else read(base, None)
            self.messages: DataFrame | None = base if decoding is None else _as_read(base)
            outcome = sift(spec, decoded, decoding)
            self.broken = outcome.broken
            rows = outcome.rows
        elif not needs_messages(spec):
            self.messages, rows = None, Rows(self._keep(frame))
        else:
            base = self._keep(frame)
            self.messages = base.where(f"{RAW} IS NOT NULL").selectExpr(f"{RAW}.*")
            sifted = sift(spec, read(self.messages, decoding), decoding)
            self.broken = (*sifted.broken, *apply(before, sifted.rows).broken)
            rows = Rows(base.where(f"{ROW} IS NOT NULL").selectExpr(f"{ROW}.*"))
        outcome = apply(after, rows)
        self.broken = (*self.broken, *outcome.broken)
        self.rows = self._keep_rows(outcome, any(isinstance(step, Sql) for step in after))
        self._read = self.messages if self.messages is not None else rows.frame

    def _keep(self, frame: DataFrame) -> DataFrame:
        found = frame.persist()
        self._kept.callback(found.unpersist)
        return found

    def _keep_rows(self, outcome: Sifted, is_queried: bool) -> Rows:
        """A query is run once: all sinks get the same rows."""
        return Rows(self._keep(outcome.rows.frame), outcome.rows.has_message) if is_queried else outcome.rows

    def counts(self) -> dict[str, int]:
        """Of messages, rows, and rows that broke each rule: in one go."""
        counted = {
            "read": self._read,
            "rows": self.rows.frame,
            **{f"rule {one.rule}": one.rows.frame for one in self.broken},
        }
        labels = list(counted)
        frames = [frame.selectExpr(f"{number} AS what") for number, frame in enumerate(counted.values())]
        union = functools.reduce(lambda left, right: left.union(right), frames)
        found = {row["what"]: row["count"] for row in union.groupBy("what").count().collect()}
        return {label.removeprefix("rule "): int(found.get(number, 0)) for number, label in enumerate(labels)}


def _as_read(frame: DataFrame) -> DataFrame:
    """Messages from rows whose values were decoded."""
    return frame.selectExpr(f"{MESSAGE}.*")


def _examples(rows: Rows) -> str:
    if rows.has_message:
        place = f"concat('`', {MESSAGE}.stream, '`/', {MESSAGE}.partition, ' at offset ', {MESSAGE}.offset)"
        found = rows.frame.selectExpr(f"{place} AS place").limit(EXAMPLES_MAX).collect()
    else:
        found = rows.frame.selectExpr("to_json(struct(*)) AS place").limit(EXAMPLES_MAX).collect()
    return ", ".join(str(row["place"]) for row in found)
