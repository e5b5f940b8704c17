"""The progress of a pipeline: on a terminal a table that is kept up to date, else a line for each batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bascule.config.values.shown import iso_ns, plural, rate, size
from bascule.exits import styled
from bascule.pipeline.progress import BatchReport, PipelineProgress, late_of
from bascule.pipeline.restarts.loop import Restart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.live import Live
    from rich.table import Table

    from bascule.pipeline.metrics import PipelineMetrics
    from bascule.pipeline.spec.pipeline import PipelineSpec


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the command line runs a pipeline."""

    once: bool = False
    batches_max: int | None = None
    metrics_port: int | None = None


def run_displayed(spark: SparkSession, spec: PipelineSpec, options: RunOptions, warnings: list[str]) -> None:
    """Run a pipeline in a session of the command line or of spark-submit, and print its progress and a summary."""
    from bascule.pipeline.checks import look_with_spark, must_run
    from bascule.pipeline.metrics import served_metrics
    from bascule.pipeline.runs.schedule import run_on_schedule

    for warning in (*warnings, *must_run(look_with_spark(spec, spark))):
        styled(f"warning: {warning}", err=True, fg="yellow")
    with served_metrics(spec.name, options.metrics_port) as metrics:
        if spec.schedule is None or options.once:
            _run(spark, spec, options, metrics)
            return

        def waits(due: datetime) -> None:
            print(f"{spec.name}: the next run is at {due:%Y-%m-%d %H:%M} UTC", flush=True)

        run_on_schedule(spec.schedule, lambda: _run(spark, spec, replace(options, once=True), metrics), waits)


def _run(spark: SparkSession, spec: PipelineSpec, options: RunOptions, metrics: PipelineMetrics | None) -> None:
    from bascule.pipeline.runner import Pipeline, is_connect
    from bascule.pipeline.spec.sinks import ConsoleSink

    shows_rows = any(isinstance(sink, ConsoleSink) for sink in spec.sinks)
    with Display(spec.name, live=not shows_rows, is_remote=is_connect(spark), metrics=metrics) as display:
        pipeline = Pipeline(spark, spec, display.batch, display.warn, display.restart)
        pipeline.batches.batches_max = options.batches_max
        pipeline.batches.counts_steps = metrics is not None
        pipeline.run(once=options.once, on_progress=display.progress)
    print(display.summary(), flush=True)


def lag_of(document: Mapping[str, Any]) -> dict[str, float]:
    """The lag of a query over all its streams, from Spark's progress report: offsets, bytes and seconds."""
    lags: dict[str, float] = {"offsets": 0, "bytes": 0, "seconds": 0.0}
    for source in document.get("sources", ()):
        latest = source.get("latestOffset")
        if isinstance(latest, str):
            try:
                latest = json.loads(latest)
            except ValueError:
                continue
        for stream in (latest or {}).values() if isinstance(latest, dict) else ():
            lag = stream.get("lag", {}) if isinstance(stream, dict) else {}
            lags["offsets"] += lag.get("offsets", 0)
            lags["bytes"] += lag.get("bytes", 0)
            lags["seconds"] = max(lags["seconds"], lag.get("seconds", 0.0))
    return lags


def total(document: Mapping[str, Any], name: str) -> float:
    """A number of the progress report, summed over the sources: Spark Connect, unlike classic sessions, gives no sum."""
    return sum(float(source.get(name) or 0.0) for source in document.get("sources", ()))


def lag_text(lag: Mapping[str, float]) -> str:
    return f"{plural(int(lag['offsets']), 'message')}, {lag['seconds']:.1f} s, {size(lag['bytes'])}"


def _reported(document: Mapping[str, Any]) -> BatchReport:
    """The report of a batch that another process has written, from Spark's progress report."""
    seconds = float(document.get("batchDuration") or 0) / 1000
    return BatchReport(int(document["batchId"]), int(total(document, "numInputRows")), 0, seconds=seconds)


class Display:
    """Shows each batch that the pipeline reports, and the lag that Spark reports."""

    def __init__(
        self, name: str, *, live: bool, is_remote: bool = False, metrics: PipelineMetrics | None = None
    ) -> None:
        self._name = name
        self._metrics = metrics
        self._is_remote = is_remote
        """Whether another process writes the batches, so that only Spark's progress reports count them."""
        self._is_live = live and sys.stderr.isatty()
        self._live: Live | None = None
        self._began = monotonic()
        self._totals = PipelineProgress()
        self._rate = 0.0
        self._lag: dict[str, float] | None = None
        self._late = 0
        self._restart: Restart | None = None

    def __enter__(self) -> Self:
        if self._is_live:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(self._picture(), console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def batch(self, report: BatchReport) -> None:
        self._totals.add(report)
        self._late += report.late
        if self._metrics is not None:
            self._metrics.batch(report)
        if not self._is_live and report.read:
            print(self._line(report), flush=True)

    def progress(self, document: dict[str, Any]) -> None:
        self._lag = lag_of(document)
        self._rate = total(document, "processedRowsPerSecond")
        if self._is_remote and total(document, "numInputRows"):
            self.batch(_reported(document))
        late = late_of(document)
        self._late += late
        if self._metrics is not None:
            self._metrics.late(late)
        if late and not self._is_live:
            print(f"{plural(late, 'row')} dropped: later than the watermark", flush=True)
        if self._live is not None:
            self._live.update(self._picture())

    def restart(self, restart: Restart) -> None:
        """Show that the pipeline has failed and is started again."""
        self._restart = restart
        self.warn(f"restart {restart.restarts} in {restart.pause_seconds:.0f} s: {restart.error}")

    def warn(self, text: str) -> None:
        """Print a warning above the table that is kept up to date."""
        if self._live is None:
            styled(f"warning: {text}", err=True, fg="yellow")
            return
        from rich.text import Text

        self._live.console.print(Text(f"warning: {text}", style="yellow"))

    def _line(self, report: BatchReport) -> str:
        left = [] if self._is_remote else [f"{report.rows:,} left"]
        parts = [plural(report.read, "message"), *left, f"{report.seconds:.1f} s"]
        if report.dead_letters:
            parts.append(plural(report.dead_letters, "dead letter"))
        if report.late:
            parts.append(f"{plural(report.late, 'row')} too late")
        parts += [f"{name} broken by {plural(count, 'row')}" for name, count in report.broken.items() if count]
        return f"{iso_ns(self._totals.at_ns)[:19]}Z batch {report.id}: " + ", ".join(parts)

    def _picture(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for name, value in self._facts():
            grid.add_row(Text(name, style="bold"), Text(value))
        return grid

    def _facts(self) -> list[tuple[str, str]]:
        totals = self._totals
        facts = [
            (self._name, f"running for {monotonic() - self._began:.0f} s"),
            (
                "Batches",
                f"{totals.batches:,}" + (f", the last one {totals.last['seconds']:.1f} s" if totals.last else ""),
            ),
            ("Messages", f"{totals.read:,}, {rate(self._rate)}/s"),
            ("Behind", "…" if self._lag is None else lag_text(self._lag)),
        ]
        facts += [(f"→ {name}", plural(count, "row")) for name, count in totals.sinks.items()]
        if totals.dead_letters:
            facts.append(("Dead letters", f"{totals.dead_letters:,}"))
        facts += [(f"{name} broken", plural(count, "row")) for name, count in totals.broken.items() if count]
        if self._restart is not None:
            facts.append(("Restarts", f"{self._restart.restarts:,}, the last one after: {self._restart.error}"))
        if self._late:
            facts.append(("Too late", plural(self._late, "row")))
        return facts

    def summary(self) -> str:
        totals = self._totals
        parts = [f"{plural(totals.read, 'message')} in {plural(totals.batches, 'batch').replace('batchs', 'batches')}"]
        parts += [f"{name}: {plural(count, 'row')}" for name, count in totals.sinks.items()]
        if totals.dead_letters:
            parts.append(plural(totals.dead_letters, "dead letter"))
        if self._restart is not None:
            parts.append(plural(self._restart.restarts, "restart"))
        return f"{self._name}: " + "; ".join(parts) + "."
