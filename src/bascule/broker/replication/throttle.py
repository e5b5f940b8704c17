"""How much this server sends to replicas that catch up. Those in sync are never held up."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throttle:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rate = 0
        self._debt = 0.0
        self._at = clock()

    @property
    def bytes_per_second(self) -> int:
        return self._rate

    def set_rate(self, bytes_per_second: int) -> None:
        """0: no bound."""
        self._settle()
        self._rate = bytes_per_second
        if not bytes_per_second:
            self._debt = 0.0

    def spend(self, size: int) -> None:
        if self._rate:
            self._settle()
            self._debt += size

    def delay_seconds(self) -> float:
        """Until something may be sent again. An answer is never cut for it: what was sent too much is waited for afterwards."""
        if not self._rate:
            return 0.0
        self._settle()
        return self._debt / self._rate

    def _settle(self) -> None:
        now = self._clock()
        self._debt = max(0.0, self._debt - (now - self._at) * self._rate)
        self._at = now
