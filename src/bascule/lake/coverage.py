"""The offsets that an archive has of each partition, for readers that continue with the log after it.

An archive is written in the order of offsets, so it has one range of each partition: from the first offset of its first file to the
next offset to be archived. Offsets between two files were never there: compaction of the log leaves such holes. Other holes are losses:
records that retention removed before they were archived, by a job with `onDataLoss=skip`. Commits name them.

Files come and go while an archive is read: a compaction of the archive replaces many files by few with the same rows. So a plan holds
offsets; a file that is gone when it is opened has a successor in a later commit.
"""

from __future__ import annotations

import socket
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from bascule.errors import ArchiveUnreachable
from bascule.lake import holes
from bascule.lake.archive import Archive
from bascule.lake.facts import ArchiveState, DataFile
from bascule.lake.holes import Span

Partitions = Mapping[int, "Coverage"]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Offsets `start` to before `end` of one partition, and the files in which they are, in order; without those that are lost."""

    start: int
    end: int
    files: tuple[DataFile, ...] = ()
    lost: tuple[Span, ...] = ()

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end and not any(start <= offset < end for start, end in self.lost)

    def within(self, start: int, end: int) -> Coverage | None:
        """What is here of a range; None if it lies elsewhere."""
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return None
        return Coverage(first, last, self.files_in(first, last), tuple(holes.within(first, last, self.lost)))

    def held(self, start: int, end: int) -> list[Span]:
        """The offsets of a range that are here, in order."""
        return holes.without(max(start, self.start), min(end, self.end), self.lost)

    def files_in(self, start: int, end: int) -> tuple[DataFile, ...]:
        """The files that have offsets of a range."""
        first = bisect_left(self.files, start, key=lambda one: one.last_offset)
        return self.files[first : bisect_left(self.files, end, lo=first, key=lambda one: one.first_offset)]

    def bytes_in(self, start: int, end: int) -> int:
        """What a range weighs on disk: of files that are not wholly in it, their part by offsets, rounded up."""
        return sum(_part_bytes(one, start, end) for one in self.files_in(start, end))

    def from_date(self, date: str) -> tuple[DataFile, ...]:
        """The files of that day and later ones. Timestamps of a partition never fall, so dates do not either."""
        return self.files[bisect_left(self.files, date, key=lambda one: one.date) :]


def _part_bytes(one: DataFile, start: int, end: int) -> int:
    span = one.last_offset + 1 - one.first_offset
    part = min(end, one.last_offset + 1) - max(start, one.first_offset)
    return -(-one.bytes * part // span)


def coverage_of(state: ArchiveState) -> dict[str, dict[int, dict[int, Coverage]]]:
    """By stream, stream id and partition."""
    found: dict[str, dict[int, dict[int, Coverage]]] = {}
    by_partition = groupby(state.in_order(), key=lambda one: (one.stream, one.stream_id, one.partition))
    for (stream, stream_id, partition), group in by_partition:
        files = tuple(_without_overlaps(group))
        key = stream, stream_id, partition
        start, end = files[0].first_offset, max(files[-1].last_offset + 1, state.next_offsets.get(key, 0))
        lost = holes.within(start, end, ((one.start, one.end) for one in state.lost.get(key, ())))
        found.setdefault(stream, {}).setdefault(stream_id, {})[partition] = Coverage(start, end, files, tuple(lost))
    return found


def _without_overlaps(files: Iterator[DataFile]) -> Iterator[DataFile]:
    """A file whose offsets are all in files before it, as only a damaged archive has it, would break the order that readers rely on."""
    end = -1
    for one in files:
        if one.last_offset > end:
            end = one.last_offset
            yield one


class ArchiveFollower:
    """An archive as it is now, again and again: a look reads one or two small files unless something is new."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._state: ArchiveState | None = None
        self._coverage: dict[str, dict[int, dict[int, Coverage]]] = {}

    @property
    def version(self) -> object:
        """Another one after each look that found something new."""
        return None if self._state is None else (self._state.number, self._state.tip)

    def look(self) -> None:
        """Take in what was committed since. Raises ArchiveDamaged, and ArchiveUnreachable if there is no archive."""
        before = self.version
        try:
            self._state = self.archive.state() if self._state is None else self.archive.refresh(self._state)
        except ArchiveUnreachable as error:
            raise ArchiveUnreachable(
                f"there is no archive in {self.archive.place} on {socket.gethostname()}: {error.message}",
                hint="it must be a path that `bascule pipeline archive` writes, the same on all machines that read it",
            ) from None
        if self.version != before:
            self._coverage = coverage_of(self._state)

    def stream(self, name: str) -> Mapping[int, Partitions]:
        """By stream id: what was seen of a stream. More than one id has an archive of a stream that was created again."""
        return self._coverage.get(name, {})

    @property
    def streams(self) -> frozenset[str]:
        """Names of the streams that it has something of."""
        return frozenset(self._coverage)
