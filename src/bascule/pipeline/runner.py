"""Runs a pipeline: one streaming query, from its start until it is stopped, has failed, or has read what there was."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from bascule.config.values.duration import MILLISECOND_NS, format_duration
from bascule.errors import BasculeError, InvalidConfig, InvalidOption
from bascule.pipeline.batches import BatchLimitReached, PipelineBatches
from bascule.pipeline.checkpoint import PipelineCheckpoint
from bascule.pipeline.progress import BatchReport, late_of
from bascule.pipeline.restarts.loop import OnRestart, RestartLoop
from bascule.pipeline.snapshots import snapshot_frames
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sources import SourceSpec
from bascule.pipeline.spec.steps import Dedup, Join, keeps_state, split_at_state
from bascule.pipeline.steps.batch_rows import counts_late_rows, planned
from bascule.pipeline.steps.inputs import Input
from bascule.spark.errors.failures import from_spark
from bascule.spark.errors.full_disk import with_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Any = 0.5  # whose type Spark gives as int

EMPTY_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Spark follows up with a batch of no rows when a watermark has moved, for operators that have rows to give then. `dedup` has none: it
forgets keys as well with the next rows."""

NESTED_PRUNING: Final = "spark.sql.optimizer.nestedSchemaPruning.enabled"
"""With it Spark 4.3 loses fields of structs between a join of streams and the window after it: INTERNAL_ERROR_ATTRIBUTE_NOT_FOUND."""

OnProgress = Callable[[dict[str, Any]], None]

_log: Final = logging.getLogger(__name__)


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


class Pipeline:
    """Holds the checkpoint's lock between `open` and `close`. With Spark Connect the server opens and holds it."""

    def __init__(
        self,
        spark: SparkSession,
        spec: PipelineSpec,
        on_batch: Callable[[BatchReport], None] | None = None,
        warn: Callable[[str], None] = _log.warning,
        on_restart: OnRestart = lambda _: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Setting `stop` ends the pipeline; a batch that is being written then is written again by its next run."""
        self._stop = stop or threading.Event()
        self._spark = spark
        self._warn = warn
        self._has_warned = False
        self._noted = -1
        """The last batch that Spark has reported on, which it does when it has noted that the batch is done."""
        self.spec = spec
        self.checkpoint = PipelineCheckpoint.of(spec)
        self.batches = PipelineBatches(spec, on_batch)
        self._restarts = RestartLoop(spec.restart.policy, self.checkpoint.restarts_path, on_restart, self._stop)

    def open(self) -> None:
        if not is_connect(self._spark):
            self.batches.open(self._spark)

    def close(self) -> None:
        self.batches.close()

    def start(self, *, once: bool = False) -> StreamingQuery:
        """Begin; with `once` it ends when everything is written that was there at the start."""
        spec = self.spec
        if is_connect(self._spark):
            self._must_fit_connect()
        tables = snapshot_frames(self._spark, self.batches.tables)
        frame = planned(spec, self._read, Input.all_of(spec, self._spark), tables)
        writer = (
            frame.writeStream.queryName(f"pipeline {spec.name}")
            .option("checkpointLocation", self.checkpoint.spark_path)
            .foreachBatch(self.batches)
        )
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{spec.trigger_ns // MILLISECOND_NS} milliseconds")
        off = [
            name
            for name, is_off in (
                (EMPTY_BATCHES, self._forgets_silently),
                (NESTED_PRUNING, spec.stream_join is not None),
            )
            if is_off
        ]
        with _without(self._spark, off):
            return writer.start()

    def _must_fit_connect(self) -> None:
        """What needs the checkpoint, or the batches, in this process."""
        planned_steps, _ = split_at_state(self.spec.steps)
        if any(isinstance(step, Join) and step.table is not None for step in planned_steps):
            raise InvalidConfig(
                f"`join` of a table in `{self.spec.name}` stands before {self.spec.state_words}, which Spark Connect cannot run",
                hint="put it behind them, or use another `--master`",
            )
        if self.batches.batches_max is not None:
            raise InvalidOption("`--max-batches` is not for Spark Connect", hint="use another `--master`")

    def _read(self, source: SourceSpec) -> DataFrame:
        return self._spark.readStream.format("bascule").options(**self.spec.source_options(source)).load()

    @property
    def _forgets_silently(self) -> bool:
        """Whether no step has rows to give when only time has passed."""
        return all(isinstance(step, Dedup) for step in self.spec.steps if keeps_state(step))

    def run(self, *, once: bool = False, on_progress: OnProgress = lambda _: None) -> None:
        """Run it to its end, with restarts. Raises the error that ended it, as ours."""
        self._restarts.run(lambda: self._attempt(once, on_progress))

    def _attempt(self, once: bool, on_progress: OnProgress) -> None:
        """Open, start, wait, close."""
        self.batches.failure = None
        try:
            self.open()
            wait(self.start(once=once), lambda document: self._reported(document, on_progress), self._is_done)
        except BasculeError:
            raise
        except Exception as error:
            if not isinstance(self.batches.failure, BatchLimitReached):
                raise self._cause(error) from None
        finally:
            self.close()

    def _is_done(self) -> bool:
        """Whether it was stopped, or the batches are done that the run is limited to, and Spark has noted the last one."""
        return self._stop.is_set() or (self.batches.is_done and self._noted >= self.batches.last)

    def _reported(self, document: dict[str, Any], on_progress: OnProgress) -> None:
        self._noted = int(document["batchId"])
        if any(one.get("numInputRows") for one in document["sources"]):
            self._restarts.progressed()
        if counts_late_rows(self.spec):  # batches have counted them
            document = {**document, "stateOperators": []}
        late = late_of(document)
        if late:
            self.batches.add_late(int(document["batchId"]), late)
            if not self._has_warned:
                self._has_warned = True
                self._warn(self._late_text(late))
        on_progress(document)

    def _late_text(self, rows: int) -> str:
        dedup = next((step for step in self.spec.steps if isinstance(step, Dedup)), None)
        bound = "`source.time.watermark`" if dedup is None else f"`within` ({format_duration(dedup.within_ns)})"
        return (
            f"{self.spec.state_words} of `{self.spec.name}` has dropped {rows} rows that were older than the newest one by more than "
            f"{bound}, duplicates or not; `bascule pipeline status` counts them"
        )

    def _cause(self, error: Exception) -> BasculeError:
        return with_folder(from_spark(self.batches.failure or error), self.checkpoint.spark_path)


@contextlib.contextmanager
def _without(spark: SparkSession, names: list[str]) -> Iterator[None]:
    """Turn settings off that are on by default. A query keeps the settings that it was started with."""
    before = {name: spark.conf.get(name, "true") or "true" for name in names}
    try:
        for name in names:
            spark.conf.set(name, "false")
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def wait(query: StreamingQuery, on_progress: OnProgress, is_done: Callable[[], bool] = lambda: False) -> None:
    """Hand on its reports until it ends or is done. Raises what Spark raises. The query is over afterwards, in any case."""
    reports = Reports(query)
    try:
        while True:
            is_over = query.awaitTermination(POLL_SECONDS)
            for document in reports.new():
                on_progress(document)
            if is_over or is_done():
                return
    finally:
        _stop(query)


class Reports:
    """Spark's reports on a query, each once, as long as Spark has them: it keeps the last hundred."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen: tuple[int, str] | None = None
        self._batch = -1
        """The last one whose report was seen. A query that is idle reports on the batch to come: that does not count."""

    def new(self) -> list[dict[str, Any]]:
        found = self._query.lastProgress
        if found is None:
            return []
        last: dict[str, Any] = json.loads(found.json)
        if _key(last) == self._seen:
            return []
        reports = [*self._missed(last), last]
        self._seen = _key(last)
        self._batch = (
            last["batchId"] if any(one.get("numInputRows") for one in last["sources"]) else last["batchId"] - 1
        )
        return reports

    def _missed(self, last: dict[str, Any]) -> list[dict[str, Any]]:
        """Batches can be faster than we look. Seldom, and all reports together take Spark a while."""
        if last["batchId"] <= self._batch + 1:
            return []
        reports = [json.loads(one.json) for one in self._query.recentProgress]
        keys = [_key(one) for one in reports]
        begin = keys.index(self._seen) + 1 if self._seen in keys else 0
        end = keys.index(_key(last)) if _key(last) in keys else len(reports)
        return reports[begin:end]


def _key(document: Mapping[str, Any]) -> tuple[int, str]:
    return document["batchId"], document["timestamp"]


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception:  # whatever it has to say, it is over
        time.sleep(0)


def run_pipeline(spark: SparkSession, spec: PipelineSpec, *, once: bool = False, **callbacks: Any) -> None:
    on_progress = callbacks.pop("on_progress", lambda _: None)
    Pipeline(spark, spec, **callbacks).run(once=once, on_progress=on_progress)
