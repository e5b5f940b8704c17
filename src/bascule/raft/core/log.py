"""The entries in memory: all entries after the compacted prefix, of which only the last index and term are kept."""

from __future__ import annotations

from collections.abc import Iterable

from bascule.raft.core.model.entries import Entry


class EntryLog:
    __slots__ = ("_entries", "offset", "offset_term")

    def __init__(self, offset: int = 0, offset_term: int = 0, entries: Iterable[Entry] = ()) -> None:
        self.offset = offset
        """Index of the last entry of the compacted prefix."""

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
        """Return the term of an entry, or None if it is compacted or beyond the end."""
        return self.held_term(index) if self.offset <= index <= self.last_index else None

    def held_term(self, index: int) -> int:
        """Return the term of an index from `offset` to `last_index`."""
        assert self.offset <= index <= self.last_index, f"index {index} is not in the log"
        return self._entries[index - self.offset - 1].term if index > self.offset else self.offset_term

    def entry(self, index: int) -> Entry:
        assert self.offset < index <= self.last_index
        return self._entries[index - self.offset - 1]

    def slice(self, first: int, last: int) -> tuple[Entry, ...]:
        """Return the entries from `first` to `last`, both included."""
        assert first > self.offset and last <= self.last_index
        return tuple(self._entries[first - self.offset - 1 : last - self.offset])

    def slice_bytes(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """Return the entries from `first` that fit into `bytes_max`, but at least one if there is one."""
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
        assert entry.index == self.last_index + 1, f"entry {entry.index} does not follow {self.last_index}"
        assert entry.term >= self.last_term, f"term {entry.term} is below {self.last_term}"
        self._entries.append(entry)

    def truncate_from(self, index: int) -> None:
        assert index > self.offset
        del self._entries[index - self.offset - 1 :]

    def compact_to(self, index: int) -> None:
        term = self.held_term(index)
        del self._entries[: index - self.offset]
        self.offset, self.offset_term = index, term

    def last_index_below(self, index: int, term: int) -> int:
        """Return the largest index ≤ `index` whose term is ≤ `term`: the last entry at which two logs can still agree."""
        index = min(index, self.last_index)
        while index > self.offset and self._entries[index - self.offset - 1].term > term:
            index -= 1
        return index
