"""Histograms of durations, with cumulative counts per upper bound as in Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SECONDS_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""From the duration of an append in memory to that of a disk that hangs."""


class Histogram:
    """A histogram of seconds. One thread at a time may observe; any thread may read."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS_BOUNDS) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds rise"
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[int]:
        """Return the number of values up to each bound; the last number counts all values."""
        total, found = 0, []
        for count in tuple(self._counts):
            total += count
            found.append(total)
        return found
