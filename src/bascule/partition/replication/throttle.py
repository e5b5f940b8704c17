"""Limits the data that this server sends to replicas that catch up. In-sync replicas are never delayed."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throttle:
    def __init__(self, bytes_per_second: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """`bytes_per_second` is read each time, because the cluster can change it; 0 for no limit."""
        self._rate = bytes_per_second
        self._clock = clock
        self._debt = 0.0
        self._at = clock()

    def spend(self, size: int) -> None:
        self._settle()
        self._debt += size

    def delay_seconds(self) -> float:
        """Seconds until more may be sent. Answers are not split: data above the rate is waited for afterwards."""
        self._settle()
        return self._debt / self._rate() if self._debt else 0.0

    def _settle(self) -> None:
        now, rate = self._clock(), self._rate()
        self._debt = max(0.0, self._debt - (now - self._at) * rate) if rate else 0.0
        self._at = now
