"""Several pipelines in one Spark: each in a thread and a session of its own, with its own restarts, state and end.

A pipeline that fails ends alone. Spark gives each one an equal share of its tasks (`spark.scheduler.mode` is `FAIR`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.config.values.shown import plural
from bascule.errors import BasculeError, InvalidConfig, PipelineFailed, StateError
from bascule.pipeline.checks import look_around, must_run
from bascule.pipeline.progress import BatchReport
from bascule.pipeline.restarts.loop import Restart
from bascule.pipeline.restarts.policy import is_temporary
from bascule.pipeline.runner import Pipeline
from bascule.pipeline.spec.pipeline import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {"spark.scheduler.mode": "FAIR"}
"""What the Spark of a host is started with."""
STOP_SECONDS_MAX: Final = 60.0
"""How long `stop` waits for the end of a pipeline."""

Say = Callable[[str], None]


class HostedState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED: Final = frozenset({HostedState.FINISHED, HostedState.STOPPED, HostedState.FAILED})


@dataclass(slots=True)
class HostedPipeline:
    """One pipeline of a host."""

    spec: PipelineSpec
    file: Path
    once: bool
    state: HostedState = HostedState.STARTING
    batches: int = 0
    messages: int = 0
    restarts: int = 0
    failure: BasculeError | None = None
    """Its last one; of a pipeline that runs again it is passed."""
    began: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.spec.name,
            "file": str(self.file),
            "state": str(self.state),
            "once": self.once,
            "batches": self.batches,
            "messages": self.messages,
            "restarts": self.restarts,
            "error": None if self.failure is None else self.failure.message,
        }


class PipelineHost:
    """`load` reads a file. `say` gets a line for each change of a pipeline's state."""

    def __init__(self, spark: SparkSession, load: Callable[[Path], PipelineSpec], say: Say = lambda _: None) -> None:
        self._spark = spark
        self._load = load
        self._say = say
        self._lock = threading.Lock()
        self._pipelines: dict[str, HostedPipeline] = {}
        """By name, each the last one of it that was started."""

    def start(self, file: Path, *, once: bool = False) -> HostedPipeline:
        """Start the pipeline of a file. Raises StateError if one of its name is running, InvalidConfig for a file that is wrong."""
        spec = self._load(file)
        session = self._session(spec)
        hosted = HostedPipeline(spec, file, once)
        with self._lock:
            before = self._pipelines.get(spec.name)
            if before is not None and not before.ended.is_set():
                raise StateError(
                    f"pipeline `{spec.name}` is running in this host, from {before.file}", hint="stop it first"
                )
            self._pipelines[spec.name] = hosted
        threading.Thread(target=self._run, args=(hosted, session), name=f"pipeline {spec.name}", daemon=True).start()
        return hosted

    def stop(self, name: str) -> HostedPipeline:
        """Stop a pipeline and wait for its end. A batch that is being written then is written again by its next run."""
        with self._lock:
            hosted = self._pipelines.get(name)
            names = ", ".join(f"`{each}`" for each in sorted(self._pipelines)) or "none"
        if hosted is None:
            raise StateError(f"this host has no pipeline `{name}`", hint=f"there are {names}")
        hosted.stop.set()
        if not hosted.ended.wait(STOP_SECONDS_MAX):
            raise StateError(f"pipeline `{name}` is still stopping", hint="look again with `bascule pipeline hosted`")
        return hosted

    def close(self) -> None:
        """Stop all pipelines."""
        with self._lock:
            running = [one for one in self._pipelines.values() if not one.ended.is_set()]
        for one in running:
            one.stop.set()
        for one in running:
            one.ended.wait(STOP_SECONDS_MAX)

    def status(self) -> list[dict[str, Any]]:
        with self._lock:
            return [one.document() for _, one in sorted(self._pipelines.items())]

    # ── one pipeline ─────────────────────────────────────────────────────────────────────────────

    def _session(self, spec: PipelineSpec) -> SparkSession:
        """A session with the settings of the pipeline, which the sessions of others do not have."""
        session = self._spark.newSession()
        for name, value in self._spark.sparkContext.getConf().getAll():
            if name.startswith("spark.sql.") and session.conf.isModifiable(name):
                session.conf.set(name, value)
        for name, value in spec.spark.items():
            if not session.conf.isModifiable(name):
                raise InvalidConfig(
                    f"`spark.{name}` of pipeline `{spec.name}` can only be set when Spark starts, and the host has started it",
                    hint=f"remove it from the file, and start the host with `--conf {name}={value}`",
                )
            session.conf.set(name, value)
        return session

    def _run(self, hosted: HostedPipeline, session: SparkSession) -> None:
        hosted_state = HostedState.FAILED
        try:
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", hosted.spec.name)
            self._look(hosted)
            pipeline = Pipeline(
                session,
                hosted.spec,
                lambda report: self._batch(hosted, report),
                lambda text: self._say(f"{hosted.spec.name}: warning: {text}"),
                lambda restart: self._restarted(hosted, restart),
                hosted.stop,
            )
            pipeline.run(once=hosted.once, on_progress=lambda _: self._reported(hosted))
            hosted_state = HostedState.STOPPED if hosted.stop.is_set() else HostedState.FINISHED
            hosted.failure = None
        except BasculeError as error:
            hosted.failure = error
        except Exception as error:  # of one pipeline: the others go on
            hosted.failure = PipelineFailed(f"{type(error).__name__}: {error}")
        finally:
            hosted.state = hosted_state
            said = f": {hosted.failure.message}" if hosted.failure is not None else ""
            counts = f"{plural(hosted.messages, 'message')} in {time.monotonic() - hosted.began:.1f} s"
            self._say(f"{hosted.spec.name}: {hosted_state}, {counts}{said}")
            hosted.ended.set()

    def _look(self, hosted: HostedPipeline) -> None:
        """The checks before a start. What may pass is left to the restarts of the pipeline."""
        try:
            must_run(look_around(hosted.spec))
        except BasculeError as error:
            if not is_temporary(error):
                raise

    def _batch(self, hosted: HostedPipeline, report: BatchReport) -> None:
        hosted.batches += 1
        hosted.messages += report.read

    def _reported(self, hosted: HostedPipeline) -> None:
        """Spark reports on a query that runs, with or without a batch."""
        hosted.failure = None
        if hosted.state is not HostedState.RUNNING:
            hosted.state = HostedState.RUNNING
            self._say(f"{hosted.spec.name}: {hosted.state}")

    def _restarted(self, hosted: HostedPipeline, restart: Restart) -> None:
        hosted.restarts = restart.restarts
        hosted.state = HostedState.RESTARTING
        hosted.failure = PipelineFailed(restart.error)
        self._say(f"{hosted.spec.name}: restart {restart.restarts} in {restart.pause_seconds:.0f} s: {restart.error}")
