"""Decides when file access leaves the event loop for a thread: after a read or a write that had to wait for the disk."""

from __future__ import annotations

from typing import Final

READ_SECONDS_MAX: Final = 0.005
"""Duration of a read above which it counts as slow. A read from the page cache takes microseconds."""

READS_AFTER_SLOW: Final = 64
"""Number of reads on a thread after a slow one: 16 MiB, most of which the kernel has read ahead by then."""

WRITE_SECONDS_MAX: Final = 0.02
"""Duration of a write above which it counts as slow. A write to the page cache takes microseconds unless the disk cannot keep up."""

SECONDS_AFTER_SLOW_WRITE: Final = 5.0
"""Time after a slow write during which a thread does all writing."""


class SlowReads:
    """The reads of one reader of a log. A cold file stays cold, so several reads after a slow one go to a thread."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    @property
    def expected(self) -> bool:
        """Whether the next read should run on a thread."""
        return self._left > 0

    def note(self, seconds: float) -> None:
        """Record the duration of a read, on whichever thread it ran."""
        self._left = READS_AFTER_SLOW if seconds > READ_SECONDS_MAX else max(0, self._left - 1)


class SlowWrites:
    """The writes that the event loop does itself. Times are those of the caller's monotonic clock."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = 0.0
        """Writes before this time should run on a thread."""

    def expected(self, now: float) -> bool:
        """Whether the next write should run on a thread."""
        return now < self.until

    def note(self, seconds: float, now: float) -> None:
        """Record the duration of a write that ended at `now`."""
        if seconds > WRITE_SECONDS_MAX:
            self.until = now + SECONDS_AFTER_SLOW_WRITE
