"""Finds the position in a segment from which to scan for an offset or a timestamp.

An entry holds the position, the first offset and the first timestamp of a batch. Not every batch has an entry, so the result of a
lookup is a position to start scanning from. Timestamps of a log never fall, so one table serves both lookups.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from bascule import limits


class SparseIndex:
    """One thread may add entries while others look up: `_count` grows after all columns have the new entry."""

    __slots__ = ("_count", "_interval", "_offsets", "_positions", "_timestamps", "next_position")

    def __init__(
        self, entries: Iterable[tuple[int, int, int]] = (), *, interval_bytes: int = limits.INDEX_INTERVAL_BYTES
    ) -> None:
        self._interval = interval_bytes
        self._count = 0
        self.next_position = 0
        """The first position at which a batch gets an entry of its own."""
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")
        for offset, position, timestamp in entries:
            self.add(offset, position, timestamp)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return iter(self.entries_from(0))

    def entries_from(self, start: int) -> list[tuple[int, int, int]]:
        """Return the entries from number `start` as (offset, position, timestamp)."""
        stop = self._count
        columns = (self._offsets[start:stop], self._positions[start:stop], self._timestamps[start:stop])
        return list(zip(*columns, strict=True))

    def add(self, offset: int, position: int, timestamp: int) -> None:
        assert position > self.last_position, "index entries rise"
        self._offsets.append(offset)
        self._positions.append(position)
        self._timestamps.append(timestamp)
        self._count += 1
        self.next_position = position + self._interval

    def add_spaced(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Add the entries that are at least an interval apart."""
        for offset, position, timestamp in entries:
            if position >= self.next_position:
                self.add(offset, position, timestamp)

    @property
    def last_position(self) -> int:
        """The position of the last entry, −1 if there is none."""
        return self._positions[self._count - 1] if self._count else -1

    def entry_for_offset(self, offset: int) -> tuple[int, int] | None:
        """Return (offset, position) of the last entry at or before `offset`: the start of a scan for it."""
        slot = bisect_right(self._offsets, offset, hi=self._count) - 1
        return (self._offsets[slot], self._positions[slot]) if slot >= 0 else None

    def offset_for_timestamp(self, timestamp: int) -> int:
        """Return the offset from which to scan for the first batch with a record at or after `timestamp`.

        It is that of the last entry *before* `timestamp`, because a batch may begin before it and end after it.
        """
        slot = bisect_left(self._timestamps, timestamp, hi=self._count) - 1
        return self._offsets[slot] if slot >= 0 else 0

    def entry_behind(self, position: int) -> int | None:
        """Return the position of the first entry after `position`, or None."""
        slot = bisect_right(self._positions, position, hi=self._count)
        return self._positions[slot] if slot < self._count else None

    def offset_before(self, position: int) -> tuple[int, int] | None:
        """Return (offset, position) of the last entry before `position`, or None."""
        slot = bisect_left(self._positions, position, hi=self._count) - 1
        return (self._offsets[slot], self._positions[slot]) if slot >= 0 else None

    def entry_before(self, position: int, bytes_back: int) -> int:
        """Return the start of a reverse read: the first entry within `bytes_back` before `position`, else the one before it."""
        slot = bisect_left(self._positions, position - bytes_back, hi=self._count)
        if slot < self._count and self._positions[slot] <= position:
            return self._positions[slot]
        return self._positions[slot - 1] if slot else 0

    def truncate(self, position: int) -> None:
        """Remove the entries at or after `position`."""
        slot = bisect_left(self._positions, position, hi=self._count)
        self._count = slot
        del self._offsets[slot:], self._positions[slot:], self._timestamps[slot:]
        self.next_position = self.last_position + self._interval if slot else 0
