"""The metrics of a running pipeline for Prometheus, on a port of the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bascule.errors import Unavailable
from bascule.pipeline.progress import BatchReport

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

ADDRESS: Final = "127.0.0.1"


class PipelineMetrics:
    """Counters that batches add to. They begin at 0 with the process, as Prometheus expects."""

    def __init__(self, pipeline: str, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge

        self._pipeline = pipeline
        self.port = 0

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"bascule_pipeline_{name}", text, ("pipeline", *labels), registry=registry)

        self._batches = counter("batches", "Batches that are done.")
        self._messages = counter("messages", "Messages that were read.")
        self._rows = counter("rows", "Rows that the steps left.")
        self._late = counter("late_rows", "Rows that came too late for a step that keeps state.")
        self._dead = counter("dead_letters", "Dead letters that were written.")
        self._broken = counter("broken_rows", "Rows that broke a rule.", "rule")
        self._in = counter("step_rows_in", "Rows that a step or sink was given.", "step")
        self._out = counter("step_rows_out", "Rows that a step left, or that a sink wrote.", "step")
        self._dropped = counter("step_rows_dropped", "Rows that a step left out, dead letters excepted.", "step")
        self._buried = counter("step_dead_letters", "Rows that a step handed to the dead letters.", "step")
        self._seconds = counter(
            "step_seconds", "Time of a sink, and of all steps of batches together (`steps`).", "step"
        )
        self._last = Gauge(
            "bascule_pipeline_last_batch_timestamp_seconds",
            "When the last batch was done.",
            ("pipeline",),
            registry=registry,
        )
        for each in (self._batches, self._messages, self._rows, self._late, self._dead):
            each.labels(pipeline)

    def batch(self, report: BatchReport) -> None:
        """Add a batch that is done."""
        name = self._pipeline
        for total, count in (
            (self._batches, 1),
            (self._messages, report.read),
            (self._rows, report.rows),
            (self._late, report.late),
            (self._dead, report.dead_letters),
        ):
            total.labels(name).inc(count)
        for rule, count in report.broken.items():
            self._broken.labels(name, rule).inc(count)
        for step, counts in report.steps.items():
            self._step(step, counts)
        self._last.labels(name).set_to_current_time()

    def late(self, rows: int) -> None:
        """Add late rows that Spark has counted."""
        self._late.labels(self._pipeline).inc(rows)

    def _step(self, step: str, counts: dict[str, float]) -> None:
        name = self._pipeline
        rows_in, rows_out, buried = (counts.get(key, 0) for key in ("in", "out", "dead_letters"))
        self._in.labels(name, step).inc(rows_in)
        self._out.labels(name, step).inc(rows_out)
        self._buried.labels(name, step).inc(buried)
        self._dropped.labels(name, step).inc(max(0, rows_in - rows_out - buried))
        if "seconds" in counts:
            self._seconds.labels(name, step).inc(counts["seconds"])


@contextmanager
def served_metrics(pipeline: str, port: int | None) -> Iterator[PipelineMetrics | None]:
    """Metrics that are served while the block runs; None without a port."""
    if port is None:
        yield None
        return
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    metrics = PipelineMetrics(pipeline, registry)
    try:
        server, thread = start_http_server(port, ADDRESS, registry)
    except OSError as error:
        raise Unavailable(
            f"metrics cannot be served at {ADDRESS}:{port}: {error.strerror}", hint="give another `--metrics-port`"
        ) from None
    metrics.port = server.server_port
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
