"""The first offset of every leader epoch, as in Kafka.

An epoch ends, exclusively, where the next one starts. A follower asks its leader for the end of its last epoch and truncates its log
to it, which removes the records that only a deposed leader wrote. Compaction does not change the starts: they hold for offsets whose
records are removed, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

FORMAT_VERSION = 0


@dataclass(frozen=True, slots=True)
class EpochEntry:
    epoch: int
    start_offset: int


class EpochCache:
    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochCache) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EpochCache({[(entry.epoch, entry.start_offset) for entry in self._entries]})"

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The highest epoch, 0 if there is none: epochs are indexes of the metadata log and begin at 1."""
        return self._entries[-1].epoch if self._entries else 0

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`. Only forward: an epoch that is not higher than all known ones changes nothing.

        Epochs that turn out to hold nothing (they begin at or behind this one's start) are dropped.
        """
        if epoch <= self.latest_epoch:
            return False
        while self._entries and self._entries[-1].start_offset >= start_offset:
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))
        return True

    def end_offset(self, epoch: int, log_end_offset: int) -> int:
        """Return the exclusive end of `epoch`: the start of the first higher epoch, or the end of the log."""
        slot = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        return self._entries[slot].start_offset if slot < len(self._entries) else log_end_offset

    def at_most(self, epoch: int) -> int:
        """Return the largest epoch that is not above `epoch`, 0 if there is none."""
        slot = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        return self._entries[slot - 1].epoch if slot else 0

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of `offset`; 0 if the offset is before the first entry."""
        slot = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[slot - 1].epoch if slot else 0

    def clear_latest(self, offset: int) -> bool:
        """Remove the epochs that begin at or after `offset`, where the log was truncated. Return whether there were any."""
        kept = [entry for entry in self._entries if entry.start_offset < offset]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def clear_earliest(self, offset: int) -> bool:
        """Remove the epochs that end at or before `offset`, the new start of the log; the next epoch then begins there."""
        slot = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset) - 1
        if slot < 0:
            return False
        rebased = EpochEntry(self._entries[slot].epoch, offset)
        if slot == 0 and self._entries[0] == rebased:
            return False
        self._entries[: slot + 1] = [rebased]
        return True


def format_epochs(cache: EpochCache) -> str:
    lines = [str(FORMAT_VERSION), str(len(cache.entries))]
    lines += [f"{entry.epoch} {entry.start_offset}" for entry in cache.entries]
    return "\n".join(lines) + "\n"


def parse_epochs(text: str) -> EpochCache:
    """Parse the text of `format_epochs`. Raises ValueError, which names the line."""
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != str(FORMAT_VERSION):
        raise ValueError(f"line 1: version {lines[0] if lines else ''!r} is not {FORMAT_VERSION}")
    if not lines[1].isascii() or not lines[1].isdigit() or int(lines[1]) != len(lines) - 2:
        raise ValueError(f"line 2: {lines[1]!r} is not the number of entries, {len(lines) - 2}")
    cache = EpochCache()
    for number, line in enumerate(lines[2:], start=3):
        fields = line.split(" ")
        if len(fields) != 2 or not all(field.isascii() and field.isdigit() for field in fields):
            raise ValueError(f"line {number}: {line!r} is not `epoch start_offset`")
        epoch, start_offset = int(fields[0]), int(fields[1])
        last = cache.entries[-1] if cache.entries else EpochEntry(0, -1)
        if epoch <= last.epoch or start_offset <= last.start_offset:
            raise ValueError(f"line {number}: {line!r} does not rise above {last.epoch} {last.start_offset}")
        cache.assign(epoch, start_offset)
    return cache
