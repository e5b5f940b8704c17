"""Replaces sealed segments by a rewritten one while readers read.

    1. write `<base>.log.cleaned`, sync it
    2. rename it to `<base>-<end>.swap`: from here on, recovery completes the replacement after a crash
    3. put the new segment into the list: new readers use the swap file
    4. remove the files of the old segments, rename the swap file to `<base>.log`

Readers of an old segment finish with the handle they have, and then find the new segment. If the disk fails from step 3 on, the log
stays readable and refuses changes; the next open completes the replacement.
"""

from __future__ import annotations

import contextlib

from bascule import limits
from bascule.errors import StorageError
from bascule.kernels.records import records
from bascule.log.core.sparse_index import SparseIndex
from bascule.log.disk.files import FileGone
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.recovery.opening import CLEANED_SUFFIX, complete_swap, swap_path
from bascule.log.segments.index_file import SegmentTotals
from bascule.log.segments.segment import Segment, segment_path


class Rewrite:
    """The new content of a group of adjacent sealed segments. No file is written while it equals the old content."""

    def __init__(self, log: PartitionLog, group: tuple[Segment, ...]) -> None:
        self._log = log
        self._disk = log.pool.disk
        self._group = group
        self._base_offset = group[0].base_offset
        self._end_offset = group[-1].next_offset
        self._path = segment_path(log.directory, self._base_offset, CLEANED_SUFFIX)
        self._handle: int | None = None
        self._index = SparseIndex()
        self._records = 0
        self._first_timestamp = -1
        self._last_timestamp = -1
        self._merges = len(group) > 1
        self.size = 0
        self.next_offset = self._base_offset
        """The offset after the last batch."""

    def keep(self, data: bytes | memoryview) -> None:
        """Add batches of the first old segment unchanged."""
        self._take(data, changed=self._merges)

    def change(self, data: bytes | bytearray | memoryview) -> None:
        """Add changed batches; no bytes for removed ones."""
        self._take(data, changed=True)

    def _take(self, data: bytes | bytearray | memoryview, *, changed: bool) -> None:
        if changed and self._handle is None:
            self._begin()
        if not len(data):
            return
        if self._handle is not None:
            self._disk.write(self._handle, memoryview(data), self.size)
        marks: list[tuple[int, int, int]] = []
        found = records.scan(
            data,
            self.next_offset,
            gap=True,
            checksums=False,
            position=self.size,
            interval=limits.INDEX_INTERVAL_BYTES,
            marks=marks,
        )
        assert found.reason is None, f"the cleaner wrote an invalid batch: {found.reason}"
        self._index.add_spaced(marks)
        self._records += found.records
        self._first_timestamp = found.first_timestamp if self._first_timestamp < 0 else self._first_timestamp
        self._last_timestamp = found.last_timestamp
        self.size += len(data)
        self.next_offset = found.next_offset

    def _begin(self) -> None:
        """Create the file at the first difference, and copy the unchanged batches before it."""
        self._handle = self._disk.open(self._path, create=True)
        self._disk.truncate(self._handle, 0)
        position = 0
        while position < self.size:
            data = self._group[0].file.read(min(limits.SCAN_CHUNK_BYTES, self.size - position), position)
            self._disk.write(self._handle, data, position)
            position += len(data)

    def commit(self) -> None:
        """Replace the old content, if the new one differs."""
        if self._handle is None:
            return
        self._disk.sync(self._handle)
        self._disk.close(self._handle)
        self._handle = None
        swap = swap_path(self._log.directory, self._base_offset, self._end_offset)
        if self.size:
            self._disk.rename(self._path, swap)
        else:
            self._disk.remove(self._path)
        with self._log.durability.whole_or_failed():
            self._swap(swap) if self.size else self._vanish()

    def _swap(self, swap: str) -> None:
        log = self._log
        self._disk.sync_directory(log.directory)
        totals = SegmentTotals(
            self._base_offset,
            self._end_offset,
            self.size,
            self._records,
            self._first_timestamp,
            self._last_timestamp,
        )
        replacement = Segment(log.pool, log.directory, totals)
        replacement.adopt_index(self._index)
        path, replacement.file.path = replacement.file.path, swap
        with log.lock:
            log.segments.replace(self._group, replacement)
            for segment in self._group:
                segment.retire()
            complete_swap(self._disk, log.directory, self._base_offset, self._end_offset)
            replacement.file.path = path
        replacement.seal()
        replacement.forget_index()
        self._disk.sync_directory(log.directory)

    def _vanish(self) -> None:
        segments = self._log.segments
        with self._log.lock:
            before = segments.oldest.base_offset
            segments.replace(self._group, None)
            if segments.oldest.base_offset > before:
                self._log.durability.note_front_compacted(before, segments.oldest.base_offset)
            for segment in self._group:
                segment.retire()
        for segment in self._group:
            segment.remove()
        self._disk.sync_directory(self._log.directory)

    def discard(self) -> None:
        """Remove the new file, unless it was committed."""
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None
            with contextlib.suppress(StorageError, FileGone):
                self._disk.remove(self._path)
