"""Group commit: one thread that forces written data to the platter, for all logs that wait for it at once.

While one round of syncs runs, requests for the next one gather; so throughput does not depend on how long a sync takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from bascule import limits
from bascule.errors import BasculeError


class Syncable(Protocol):
    def sync(self) -> None:
        """Force what is written to the platter. A log that cannot says so to its own callers."""

    def write_checkpoint(self) -> None: ...


class Syncer:
    """Syncs a log soon after `request`, and at the latest an interval after `note_dirty`."""

    def __init__(self, interval_ms: int = limits.SYNC_INTERVAL_MS_DEFAULT) -> None:
        self._interval = interval_ms / 1000
        self._condition = threading.Condition()
        self._dirty: set[Syncable] = set()
        self._urgent: set[Syncable] = set()
        self._checkpoints: dict[Syncable, float] = {}
        self._busy: Syncable | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.rounds = 0
        """Rounds made so far: with many requests at once there are fewer rounds than requests."""

    def note_dirty(self, log: Syncable) -> None:
        """Something was written: sync it with the next interval."""
        with self._condition:
            self._dirty.add(log)
            self._checkpoints.setdefault(log, time.monotonic() + limits.CHECKPOINT_INTERVAL_MS / 1000)
            self._ensure_thread()
            self._condition.notify_all()  # an idle thread waits without end

    def request(self, log: Syncable) -> None:
        """Somebody waits: sync it as soon as the round under way is over."""
        with self._condition:
            self._urgent.add(log)
            self._ensure_thread()
            self._condition.notify_all()

    def forget(self, log: Syncable) -> None:
        """The log is being closed. Returns when no round touches it any more."""
        with self._condition:
            self._dirty.discard(log)
            self._urgent.discard(log)
            self._checkpoints.pop(log, None)
            while self._busy is log and threading.current_thread() is not self._thread:
                self._condition.wait()

    def close(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _ensure_thread(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._run, name="bascule-sync", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        next_tick = time.monotonic() + self._interval
        while True:
            with self._condition:
                while not self._stopping and not self._urgent and time.monotonic() < next_tick:
                    # With nothing dirty there is nothing to wake up for: an idle process uses no CPU.
                    idle = not (self._dirty or self._checkpoints)
                    self._condition.wait(None if idle else max(0.0, next_tick - time.monotonic()))
                    if idle:
                        next_tick = time.monotonic() + self._interval
                if self._stopping:
                    return
                now = time.monotonic()
                due, self._urgent = self._urgent, set()
                if now >= next_tick:
                    due |= self._dirty
                    next_tick = now + self._interval
                self._dirty -= due
                checkpoints = [log for log, when in self._checkpoints.items() if when <= now]
            self._round(due, checkpoints)

    def _round(self, due: set[Syncable], checkpoints: list[Syncable]) -> None:
        self.rounds += 1
        for log in due:
            self._work_on(log, log.sync)
        for log in checkpoints:
            with self._condition:
                self._checkpoints.pop(log, None)
            self._work_on(log, log.write_checkpoint)

    def _work_on(self, log: Syncable, action: Callable[[], None]) -> None:
        with self._condition:
            self._busy = log
        try:
            action()
        except BasculeError:
            pass  # the log has taken note and tells whoever appends or waits
        finally:
            with self._condition:
                self._busy = None
                self._condition.notify_all()
