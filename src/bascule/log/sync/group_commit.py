"""Group commit: one thread syncs all logs that need it, in rounds.

Requests that arrive during a round are served together by the next one, so throughput does not depend on the duration of a sync.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol

from bascule import limits
from bascule.errors import BasculeError


class Syncable(Protocol):
    def sync(self) -> None:
        """Sync the records to disk. A log keeps a failure for its own callers."""

    def write_checkpoint(self) -> None: ...


class _PendingSync:
    """Logs with the same interval, which are synced together."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.logs: set[Syncable] = set()


class Syncer:
    """Syncs a log in the next round after `request`, and within an interval after `note_dirty`."""

    def __init__(self, interval_ms: int = limits.SYNC_INTERVAL_MS_DEFAULT) -> None:
        self._interval = interval_ms / 1000
        self._condition = threading.Condition()
        self._dirty: dict[float, _PendingSync] = {}
        """Logs with unsynced records, by their interval."""
        self._urgent: set[Syncable] = set()
        self._checkpoints: dict[Syncable, float] = {}
        self._busy: Syncable | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.rounds = 0
        """Number of rounds so far; one round can serve many requests."""

    def note_dirty(self, log: Syncable, interval_ns: int = 0) -> None:
        """Sync the log within this interval, or the interval of the constructor for 0."""
        interval = interval_ns / 1e9 or self._interval
        now = time.monotonic()
        with self._condition:
            self._dirty.setdefault(interval, _PendingSync(now + interval)).logs.add(log)
            self._checkpoints.setdefault(log, now + limits.CHECKPOINT_INTERVAL_MS / 1000)
            self._ensure_thread()
            self._condition.notify_all()  # an idle thread waits without a timeout

    def request(self, log: Syncable) -> None:
        """Sync the log in the next round."""
        with self._condition:
            self._urgent.add(log)
            self._ensure_thread()
            self._condition.notify_all()

    def forget(self, log: Syncable) -> None:
        """Forget a log that is being closed. Returns when no round uses it any more."""
        with self._condition:
            self._take_out({log})
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
        while True:
            with self._condition:
                while not self._stopping and not self._urgent and (seconds := self._seconds_to_next()) != 0:
                    # Without dirty logs the thread waits without a timeout: an idle process uses no CPU.
                    self._condition.wait(seconds)
                if self._stopping:
                    return
                due, checkpoints = self._take_due()
            self._round(due, checkpoints)

    def _seconds_to_next(self) -> float | None:
        """Return the time until the next sync or checkpoint; None if there is none."""
        times = [waiting.due for waiting in self._dirty.values()]
        times += itertools.islice(self._checkpoints.values(), 1)  # in the order of their times
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _take_due(self) -> tuple[set[Syncable], list[Syncable]]:
        """Return the logs to sync now, and the logs whose checkpoints are due."""
        now = time.monotonic()
        due, self._urgent = self._urgent, set()
        for waiting in self._dirty.values():
            if waiting.due <= now:
                due |= waiting.logs
        self._take_out(due)
        return due, list(itertools.takewhile(lambda log: self._checkpoints[log] <= now, self._checkpoints))

    def _take_out(self, logs: set[Syncable]) -> None:
        for interval, waiting in list(self._dirty.items()):
            waiting.logs -= logs
            if not waiting.logs:
                del self._dirty[interval]

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
            pass  # the log keeps the failure for callers that append or wait
        finally:
            with self._condition:
                self._busy = None
                self._condition.notify_all()
