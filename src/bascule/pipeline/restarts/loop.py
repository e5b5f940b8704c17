"""Runs a job until it ends by itself, restarting it as its policy says. The state of the restarts is a file for `status`:

{"restarts": 3, "failures": 1, "error": "[UNAVAILABLE] no broker answers", "at_ns": 1763…, "next_ns": 1763…}
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bascule.errors import BasculeError
from bascule.pipeline.restarts.policy import FailureCount, RestartPolicy


@dataclass(frozen=True, slots=True)
class Restart:
    """A failure, and when the job is started again."""

    restarts: int
    """Since the job was begun by its user, this one included."""
    failures: int
    """In a row."""
    error: str
    at_ns: int
    next_ns: int

    @property
    def pause_seconds(self) -> float:
        return (self.next_ns - self.at_ns) / 1e9


OnRestart = Callable[[Restart], None]


class RestartLoop:
    """`stop` ends a pause, and the job with it. `path` is the file of the state; None for a job that keeps none."""

    def __init__(
        self,
        policy: RestartPolicy,
        path: Path | None = None,
        on_restart: OnRestart = lambda _: None,
        stop: threading.Event | None = None,
    ) -> None:
        self._count = FailureCount(policy)
        self._path = path
        self._on_restart = on_restart
        self._stop = stop or threading.Event()
        self._has_progressed = False

    def progressed(self) -> None:
        """The job has written something: failures in a row are counted from now on."""
        if not self._has_progressed:
            self._has_progressed = True
            if self._count.in_a_row:
                self._write(self._state(0, "", 0.0))

    def run(self, job: Callable[[], None]) -> None:
        """Raises the error that restarts do not help against, or that came too often."""
        while True:
            self._has_progressed = False
            try:
                job()
                return
            except BasculeError as error:
                pause = self._count.add(error, has_progressed=self._has_progressed)
                if pause is None or self._stop.is_set():
                    raise
                restart = self._state(self._count.in_a_row, str(error.message), pause)
            self._write(restart)
            self._on_restart(restart)
            if self._stop.wait(pause):
                return

    def _state(self, failures: int, error: str, pause_seconds: float) -> Restart:
        now = time.time_ns()
        return Restart(self._count.restarts, failures, error, now, now + int(pause_seconds * 1e9))

    def _write(self, restart: Restart) -> None:
        """It is a report: without the folder, which with Spark Connect is on the server, there is none."""
        if self._path is None or not self._path.parent.is_dir():
            return
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            draft.write_text(json.dumps(asdict(restart)), "utf-8")
            draft.replace(self._path)


def read_restart(path: Path) -> Restart | None:
    """The last state of a job's restarts; None for a job that was never restarted."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return Restart(**found)
    except (OSError, ValueError, TypeError):
        return None
