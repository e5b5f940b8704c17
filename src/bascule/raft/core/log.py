"""The entries a node holds in memory: everything behind the compacted prefix, which is remembered by its last index and term."""

from __future__ import annotations

from collections.abc import Iterable

from bascule.raft.core.model.entries import Entry


class EntryLog:
    __slots__ = ("_entries", "offset", "offset_term")

    def __init__(self, offset: int = 0, offset_term: int = 0, entries: Iterable[Entry] = ()) -> None:
        self.offset = offset
        """Index of the last entry that is compacted away."""

        self.offset_term = offset_term
        self._entries: list[Entry] = []
        for entry in entries:
            self.append(entry)

    @property
    def last_index(self) -> int:
        return self.offset + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.offset_term

    def term(self, index: int) -> int | None:
        """None when the entry is compacted away or not there."""
        if index == self.offset:
            return self.offset_term
        position = index - self.offset - 1
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def entry(self, index: int) -> Entry:
        assert self.offset < index <= self.last_index
        return self._entries[index - self.offset - 1]

    def slice(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries of [first, last]."""
        assert first > self.offset and last <= self.last_index
        return tuple(self._entries[first - self.offset - 1 : last - self.offset])

    def slice_bytes(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` on, as many as fit; one at least, when there is one."""
        start = stop = first - self.offset - 1
        assert start >= 0
        room = bytes_max
        while stop < len(self._entries):
            room -= self._entries[stop].size_bytes
            if room < 0 and stop > start:
                break
            stop += 1
        return tuple(self._entries[start:stop])

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, f"entry {entry.index} behind {self.last_index}: a hole"
        assert entry.term >= self.last_term, f"term {entry.term} behind {self.last_term}: terms never fall"
        self._entries.append(entry)

    def truncate_from(self, index: int) -> None:
        assert index > self.offset
        del self._entries[index - self.offset - 1 :]

    def compact_to(self, index: int) -> None:
        term = self.term(index)
        assert term is not None
        del self._entries[: index - self.offset]
        self.offset, self.offset_term = index, term

    def last_index_below(self, index: int, term: int) -> int:
        """The largest index ≤ `index` whose term is ≤ `term`: where two logs can still agree. Skips a conflicting term at once."""
        index = min(index, self.last_index)
        while index > self.offset and self._entries[index - self.offset - 1].term > term:
            index -= 1
        return index
