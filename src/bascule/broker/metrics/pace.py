"""Work on the event loop in small turns."""

from __future__ import annotations

import asyncio
import time


class Pace:
    def __init__(self, turn_seconds: float) -> None:
        self._turn_seconds = turn_seconds
        self._began = time.perf_counter()
        self._spent = 0.0
        self.turn_seconds_max = 0.0
        """The longest turn so far."""

    def begin(self) -> None:
        """A turn begins: what was before was waiting."""
        self._began = time.perf_counter()

    @property
    def cpu_seconds(self) -> float:
        """Of all turns: the loop does nothing else meanwhile."""
        return self._spent + time.perf_counter() - self._began

    async def rest(self) -> None:
        """Let others have the loop, if this turn was long enough."""
        if time.perf_counter() - self._began >= self._turn_seconds:
            self.end()
            await asyncio.sleep(0)
            self.begin()

    def end(self) -> None:
        """The turn is over: something is waited for. `begin` comes behind it."""
        turn = time.perf_counter() - self._began
        self._spent += turn
        self.turn_seconds_max = max(self.turn_seconds_max, turn)
        self._began = time.perf_counter()
