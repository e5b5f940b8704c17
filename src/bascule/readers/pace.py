"""Splits long work on the event loop into short turns."""

from __future__ import annotations

import asyncio
import time

from bascule import limits


class Pace:
    """The first turn begins with the object. Call `end` before an await that is not part of the work, and `begin` after it."""

    def __init__(self, turn_seconds: float = limits.TURN_SECONDS) -> None:
        self._turn_seconds = turn_seconds
        self.cpu_seconds = 0.0
        """CPU time of all completed turns."""
        self.turn_seconds_max = 0.0
        """CPU time of the longest turn; time in which other processes ran is not counted."""
        self.begin()

    def begin(self) -> None:
        self._began = time.perf_counter()
        self._cpu_began = time.thread_time()

    def end(self) -> None:
        turn = time.thread_time() - self._cpu_began
        self.cpu_seconds += turn
        self.turn_seconds_max = max(self.turn_seconds_max, turn)

    async def rest(self) -> None:
        """Give way to other tasks of the event loop if this turn has lasted `turn_seconds`."""
        if time.perf_counter() - self._began >= self._turn_seconds:
            self.end()
            await asyncio.sleep(0)
            self.begin()
