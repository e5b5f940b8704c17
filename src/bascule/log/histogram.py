"""How often something took how long: counts by upper bound, as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left

from bascule import limits


class Histogram:
    """Of seconds. For one thread at a time; whoever looks may do so at any time."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...] = limits.METRICS_SECONDS_BOUNDS) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds rise"
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[int]:
        """How many took no longer than each bound, and, last, how many there were."""
        total, found = 0, []
        for count in tuple(self._counts):
            total += count
            found.append(total)
        return found
