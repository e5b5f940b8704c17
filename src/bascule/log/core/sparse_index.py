"""Where in a segment an offset or a time is to be looked for.

An entry stands for the batch that begins at `position`: its first offset and first timestamp. Entries are sparse, so an answer
is a place to start scanning from, never the batch itself. Both columns rise together, because a log's timestamps never go
backwards: one table answers both questions.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class SparseIndex:
    """One thread adds while others look up: an entry counts once `_count` says so, after all its columns are there."""

    __slots__ = ("_count", "_offsets", "_positions", "_timestamps")

    def __init__(self, entries: Iterable[tuple[int, int, int]] = ()) -> None:
        self._count = 0
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
        """Entries number `start` and later, as (offset, position, timestamp)."""
        stop = self._count
        columns = (self._offsets[start:stop], self._positions[start:stop], self._timestamps[start:stop])
        return list(zip(*columns, strict=True))

    def add(self, offset: int, position: int, timestamp: int) -> None:
        assert position > self.last_position, "index entries rise"
        self._offsets.append(offset)
        self._positions.append(position)
        self._timestamps.append(timestamp)
        self._count += 1

    def add_spaced(self, entries: Iterable[tuple[int, int, int]], interval: int) -> None:
        """Add those of the entries that are far enough apart."""
        for offset, position, timestamp in entries:
            if self.wants(position, interval):
                self.add(offset, position, timestamp)

    @property
    def last_position(self) -> int:
        """Position of the last entry, −1 when there is none."""
        return self._positions[self._count - 1] if self._count else -1

    def wants(self, position: int, interval: int) -> bool:
        """Whether a batch at `position` is far enough behind the last entry to get its own."""
        return not self._count or position - self.last_position >= interval

    def entry_for_offset(self, offset: int) -> tuple[int, int] | None:
        """(offset, position) of the last entry at or before `offset`: where to start looking for the batch that holds it."""
        slot = bisect_right(self._offsets, offset, hi=self._count) - 1
        return (self._offsets[slot], self._positions[slot]) if slot >= 0 else None

    def offset_for_timestamp(self, timestamp: int) -> int:
        """The offset to start looking from for the first batch that reaches `timestamp`.

        Of the last entry that begins *before* it: the batch wanted may begin earlier than `timestamp` and end behind it.
        """
        slot = bisect_left(self._timestamps, timestamp, hi=self._count) - 1
        return self._offsets[slot] if slot >= 0 else 0

    def entry_behind(self, position: int) -> int | None:
        """Position of the first entry behind `position`."""
        slot = bisect_right(self._positions, position, hi=self._count)
        return self._positions[slot] if slot < self._count else None

    def offset_before(self, position: int) -> tuple[int, int] | None:
        """(offset, position) of the last entry in front of `position`."""
        slot = bisect_left(self._positions, position, hi=self._count) - 1
        return (self._offsets[slot], self._positions[slot]) if slot >= 0 else None

    def entry_before(self, position: int, bytes_back: int) -> int:
        """Where a reverse read begins: the first entry within `bytes_back` in front of `position`, else the last one before that."""
        slot = bisect_left(self._positions, position - bytes_back, hi=self._count)
        if slot < self._count and self._positions[slot] <= position:
            return self._positions[slot]
        return self._positions[slot - 1] if slot else 0

    def truncate(self, position: int) -> None:
        """Forget the entries at or behind `position`."""
        slot = bisect_left(self._positions, position, hi=self._count)
        self._count = slot
        del self._offsets[slot:], self._positions[slot:], self._timestamps[slot:]
