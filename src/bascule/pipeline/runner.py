"""Runs a pipeline: one streaming query, from its start until it is stopped, has failed, or has read what there was."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from bascule.config.duration import MILLISECOND_NS
from bascule.errors import BasculeError
from bascule.pipeline.batches import PipelineBatches, planned
from bascule.pipeline.checkpoint import Checkpoint
from bascule.pipeline.failures import from_spark
from bascule.pipeline.progress import BatchReport
from bascule.pipeline.spec import PipelineSpec
from bascule.pipeline.steps.decode import Decoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Any = 0.5  # whose type Spark gives as int

EMPTY_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"

OnProgress = Callable[[dict[str, Any]], None]


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


class Pipeline:
    """Between `open` and `close` nobody else runs it. With Spark Connect it is the server that opens and holds it."""

    def __init__(
        self, spark: SparkSession, spec: PipelineSpec, on_batch: Callable[[BatchReport], None] | None = None
    ) -> None:
        self._spark = spark
        self.spec = spec
        self.checkpoint = Checkpoint.of(spec)
        self.batches = PipelineBatches(spec, on_batch)

    def open(self) -> None:
        if not is_connect(self._spark):
            self.batches.open(self._spark)

    def close(self) -> None:
        self.batches.close()

    def start(self, *, once: bool = False) -> StreamingQuery:
        """Begin; with `once` it ends when everything is written that was there at the start."""
        spec = self.spec
        messages = self._spark.readStream.format("bascule").options(**spec.source_options()).load()
        frame = planned(spec, messages, Decoding.of(spec, self._spark))
        writer = (
            frame.writeStream.queryName(f"pipeline {spec.name}")
            .option("checkpointLocation", self.checkpoint.spark_path)
            .foreachBatch(self.batches)
        )
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{spec.trigger_ns // MILLISECOND_NS} milliseconds")
        with _without_empty_batches(self._spark):
            return writer.start()

    def run(self, *, once: bool = False, on_progress: OnProgress = lambda _: None) -> None:
        """Open, start, wait, close. Raises the error that ended it, as ours."""
        try:
            self.open()
            wait(self.start(once=once), on_progress)
        except BasculeError:
            raise
        except Exception as error:
            raise self._cause(error) from None
        finally:
            self.close()

    def _cause(self, error: Exception) -> BasculeError:
        return from_spark(self.batches.failure or error)


@contextlib.contextmanager
def _without_empty_batches(spark: SparkSession) -> Iterator[None]:
    """Spark follows up with a batch of no rows when a watermark has moved, for operators that have something to say then. `dedup` has
    not: it forgets keys as well with the next rows. A query keeps the settings that it was started with."""
    before = spark.conf.get(EMPTY_BATCHES, "true")
    spark.conf.set(EMPTY_BATCHES, "false")
    try:
        yield
    finally:
        spark.conf.set(EMPTY_BATCHES, before or "true")


def wait(query: StreamingQuery, on_progress: OnProgress) -> None:
    """Until it ends, telling of its reports. Raises what Spark raises; however it comes to that, the query is over then."""
    seen = None
    try:
        while True:
            is_over = query.awaitTermination(POLL_SECONDS)
            seen = _tell(query, seen, on_progress)
            if is_over:
                return
    finally:
        _stop(query)


def _tell(query: StreamingQuery, seen: object, on_progress: OnProgress) -> object:
    found = query.lastProgress
    if found is None:
        return seen
    document: dict[str, Any] = json.loads(found.json)
    key = document.get("batchId"), document.get("timestamp")
    if key != seen:
        on_progress(document)
    return key


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception:  # whatever it has to say, it is over
        time.sleep(0)


def run_pipeline(spark: SparkSession, spec: PipelineSpec, *, once: bool = False, **callbacks: Any) -> None:
    on_progress = callbacks.pop("on_progress", lambda _: None)
    Pipeline(spark, spec, **callbacks).run(once=once, on_progress=on_progress)
