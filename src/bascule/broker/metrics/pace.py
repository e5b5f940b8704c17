"""Work on the event loop in small turns."""

from __future__ import annotations

import asyncio
import time

from bascule import limits


class Pace:
    """Begins with a turn; whoever waits for something else says `end` before it and `begin` behind it."""

    def __init__(self, turn_seconds: float = limits.METRICS_TURN_SECONDS) -> None:
        self._turn_seconds = turn_seconds
        self.cpu_seconds = 0.0
        """Of all turns that are over."""
        self.turn_seconds_max = 0.0
        """Of the longest one. CPU time as well: what the system gave to others says nothing of us."""
        self.begin()

    def begin(self) -> None:
        self._began = time.perf_counter()
        self._cpu_began = time.thread_time()

    def end(self) -> None:
        turn = time.thread_time() - self._cpu_began
        self.cpu_seconds += turn
        self.turn_seconds_max = max(self.turn_seconds_max, turn)

    async def rest(self) -> None:
        """Let others have the loop, if this turn was long enough."""
        if time.perf_counter() - self._began >= self._turn_seconds:
            self.end()
            await asyncio.sleep(0)
            self.begin()
