"""Small files become large ones: a job that commits every ten seconds leaves 8,640 files a day and partition, most of them tiny.

Neighbours are merged: files of one partition and one day with no other file between them. Each merge is written aside, read back and
compared with the rows it was made of, and these with their own checksums: damage is not copied in silence. Then one commit puts the
new file in the place of the old ones. A crash before the commit leaves a file that no commit names, a crash after it leaves replaced
files. Replaced files are kept for a while, because a reader may have planned with them a moment ago.

Which files: as in a game of 2048. Going from the oldest to the newest, a file is merged with the ones before it as long as these are
not at least twice as large, and the result is not larger than a file should be. So sizes at least halve from file to file, few files
are small, and a message is copied about as often as its file can double.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from bascule.errors import ArchiveDamaged
from bascule.lake.archive import Archive
from bascule.lake.delta.log import VERIFY_HINT
from bascule.lake.delta.place import LakePlace
from bascule.lake.digest import Digest
from bascule.lake.facts import ArchiveState, Commit, DataFile
from bascule.lake.files import FILE_BYTES_DEFAULT, FileWriter, read_file

if TYPE_CHECKING:
    import pyarrow as pa

ROUND_BYTES: Final = 256 << 20
"""About so much is merged for one commit."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Files that become one."""

    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files)


def plan_merges(files: Iterable[DataFile], target_bytes: int = FILE_BYTES_DEFAULT) -> list[Merge]:
    """What to merge so that files get about as large as `target_bytes`. Pure; nothing when all is well."""
    in_order = sorted(files, key=lambda one: (one.stream, one.stream_id, one.partition, one.first_offset))
    neighbours = groupby(in_order, key=lambda one: (one.stream, one.stream_id, one.partition, one.date))
    return [merge for _, group in neighbours for merge in _plan_group(group, target_bytes)]


def _plan_group(files: Iterable[DataFile], target_bytes: int) -> Iterator[Merge]:
    """Of neighbours."""
    stack: list[tuple[int, list[DataFile]]] = []
    for one in files:
        size, group = one.bytes, [one]
        while stack and stack[-1][0] < 2 * size and stack[-1][0] + size <= target_bytes:
            size_before, before = stack.pop()
            size, group = size_before + size, before + group
        stack.append((size, group))
    for _, group in stack:
        if len(group) > 1:
            yield Merge(tuple(group))


class Compaction:
    """Merges files of an archive. Only while writing alone."""

    def __init__(
        self,
        archive: Archive,
        *,
        target_bytes: int = FILE_BYTES_DEFAULT,
        compression: str = "zstd",
        query: str = "compact",
    ) -> None:
        self._archive = archive
        self._target_bytes = target_bytes
        self._compression = compression
        self._query = query

    def round(self, state: ArchiveState, bytes_max: int = ROUND_BYTES) -> Commit | None:
        """Merge about `bytes_max` at most, commit it and apply it to the state. None when there is nothing to do."""
        merges = _within(plan_merges(state.files.values(), self._target_bytes), bytes_max)
        if not merges:
            return None
        added = tuple(self.merge(one) for one in merges)
        removed = tuple(file.path for one in merges for file in one.files)
        commit = Commit(state.number + 1, "compact", time.time_ns(), self._query, -1, added, removed)
        commit = self._archive.commit(commit, state)
        state.apply(commit)
        return commit

    def merge(self, merge: Merge) -> DataFile:
        """The new file, which is no part of the archive yet. Raises ArchiveDamaged when a file is not what was written."""
        place, writer = self._archive.place, None
        try:
            for one in merge.files:
                for batch in checked_rows(place, one):
                    if writer is None:
                        writer = FileWriter(place, self._compression, self._target_bytes, batch)
                    writer.add(batch)
            assert writer is not None  # every file of an archive has rows
            found, writer = replace(writer.finish(), stream_id=merge.files[0].stream_id), None
        finally:
            if writer is not None:
                writer.abandon()
        try:
            for _ in checked_rows(place, found):
                continue  # read back: what lies there is what was meant
        except ArchiveDamaged:
            place.remove(found.path)
            raise
        return found


def checked_rows(place: LakePlace, one: DataFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file; at their end ArchiveDamaged, if they were not what its commit says."""
    import pyarrow as pa

    digest = Digest()
    try:
        for batch in read_file(place, one):
            digest.add(batch)
            yield batch
    except (OSError, pa.ArrowException) as error:
        raise ArchiveDamaged(f"{place}/{one.path} cannot be read: {error}", hint=VERIFY_HINT) from None
    if (digest.rows, digest.value) != (one.rows, one.crc32c):
        raise ArchiveDamaged(f"{place}/{one.path} is not what was written", hint=VERIFY_HINT)


def _within(merges: list[Merge], bytes_max: int) -> list[Merge]:
    """The first ones that are together not larger; one at least."""
    found: list[Merge] = []
    size = 0
    for one in merges:
        if found and size + one.bytes > bytes_max:
            break
        found.append(one)
        size += one.bytes
    return found
