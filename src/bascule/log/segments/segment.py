"""One segment: a `.log` file of record batches, and its sparse index.

One thread at a time writes to the active segment; any number of threads read. `size` and `next_offset` change after the bytes are in
the file, so readers can read up to them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from bascule import limits
from bascule.errors import DiskFull, StorageError
from bascule.kernels.records import records
from bascule.log.core.retention import SegmentFacts
from bascule.log.core.sparse_index import SparseIndex
from bascule.log.disk.files import FileGone, FilePool, PooledFile
from bascule.log.segments import index_file
from bascule.log.segments.index_file import SegmentTotals

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"


def segment_path(directory: str, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    return f"{directory}/{base_offset:020d}{suffix}"


class Segment:
    __slots__ = (
        "_index",
        "_index_file",
        "_index_flushed",
        "_index_lock",
        "_is_sealed",
        "base_offset",
        "file",
        "first_timestamp",
        "has_gap",
        "last_timestamp",
        "newest_batch",
        "next_offset",
        "pool",
        "records",
        "size",
    )

    def __init__(self, pool: FilePool, directory: str, totals: SegmentTotals) -> None:
        self.pool = pool
        self.base_offset = totals.base_offset
        self.next_offset = totals.end_offset
        self.size = totals.bytes
        self.records = totals.records
        self.first_timestamp = totals.first_timestamp
        self.last_timestamp = totals.last_timestamp
        self.has_gap = False
        """Offsets without records follow the last record. Only the index has their end, so power loss must not take it."""
        self.newest_batch = (-1, 0)
        """Base offset and position of the batch that was appended last: readers at the end of the log find it without the index."""
        self.file = PooledFile(pool, segment_path(directory, self.base_offset))
        self._index_file = PooledFile(pool, segment_path(directory, self.base_offset, INDEX_SUFFIX))
        self._index: SparseIndex | None = None
        self._index_flushed = 0
        self._index_lock = threading.Lock()
        """Held while the index file is replaced: the sync thread may find it missing while another thread seals the segment."""
        self._is_sealed = False
        """The index file has the totals; it must not be replaced by one without."""

    @classmethod
    def create(cls, pool: FilePool, directory: str, base_offset: int) -> Segment:
        """Create an empty segment on disk. An existing file of this name is emptied; a failure leaves no file."""
        segment = cls(pool, directory, SegmentTotals(base_offset, base_offset))
        try:
            handle = pool.disk.open(segment.path, create=True)
            try:
                pool.disk.truncate(handle, 0)
            finally:
                pool.disk.close(handle)
            segment.start_index(SparseIndex())
        except StorageError:
            with contextlib.suppress(StorageError):
                segment.remove()
            raise
        return segment

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def is_empty(self) -> bool:
        return self.size == 0

    @property
    def totals(self) -> SegmentTotals:
        return SegmentTotals(
            self.base_offset, self.next_offset, self.size, self.records, self.first_timestamp, self.last_timestamp
        )

    @property
    def facts(self) -> SegmentFacts:
        return SegmentFacts(self.base_offset, self.size, self.records, self.last_timestamp)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def append(self, data: bytes | memoryview, header: records.BatchHeader) -> None:
        """Append one batch."""
        position = self.size
        self.file.write(data, position)
        self.account(header, position)

    def account(self, header: records.BatchHeader, position: int) -> None:
        """Add the batch at `position` to the totals and the index."""
        index = self._index if self._index is not None else self.index()
        if position >= index.next_position:
            index.add(header.base_offset, position, header.first_timestamp)
        self.records += header.count
        if self.first_timestamp < 0:
            self.first_timestamp = header.first_timestamp
        self.last_timestamp = header.max_timestamp
        self.newest_batch = (header.base_offset, position)
        self.size = position + header.length
        self.next_offset = header.last_offset + 1

    def cut(self, totals: SegmentTotals) -> None:
        """Truncate the segment to `totals`."""
        index = self.index()
        self.has_gap = False
        self.newest_batch = (-1, 0)
        self.size = totals.bytes
        self.next_offset = totals.end_offset
        self.records = totals.records
        self.first_timestamp = totals.first_timestamp
        self.last_timestamp = totals.last_timestamp
        self.file.truncate(totals.bytes)
        index.truncate(totals.bytes)
        self.start_index(index)

    # ── the index ────────────────────────────────────────────────────────────────────────────────

    def index(self) -> SparseIndex:
        if self._index is None:
            index = index_file.read_index(self.pool.disk, self._index_file.path, self.base_offset)
            if index is None or index.last_position >= self.size or (self.size and not len(index)):
                return self.rebuild_index()
            self.adopt_index(index)
            return index
        return self._index

    def rebuild_index(self) -> SparseIndex:
        """Rebuild the index from the batches. Skips damage, so that the batches after it are found."""
        index = SparseIndex()
        position, next_offset = 0, self.base_offset
        while position < self.size:
            position, next_offset = self._index_from(position, next_offset, index)
            if position < self.size:
                found = self.next_batch(position + 1, self.size, next_offset)
                position = self.size if found is None else found
        self._index = index
        # Another thread may be writing the same file.
        with contextlib.suppress(StorageError):
            index_file.write_index(self.pool.disk, self._index_file.path, self.totals, index)
        self._index_flushed = len(index)
        return index

    def _save_index(self, totals: SegmentTotals, index: SparseIndex, *, is_required: bool = False) -> None:
        """Save the index for the next open. If the disk is full, the file is removed: no index is better than a stale one. One with the
        end of a gap stays."""
        try:
            index_file.write_index(self.pool.disk, self._index_file.path, totals, index, sync=self.has_gap)
        except DiskFull:
            if is_required:
                raise
            if not self.has_gap:
                self.pool.disk.remove(self._index_file.path)
        self._index_file.close()  # an old handle would write to the replaced file
        self._index_flushed = len(index)

    def _index_from(self, position: int, next_offset: int, index: SparseIndex) -> tuple[int, int]:
        """Add the good batches from `position` on; return their end position and end offset."""
        for start, data in self.chunks(position):
            marks: list[tuple[int, int, int]] = []
            # With checksums, because a damaged header could break the order of the entries.
            found = records.scan(
                data, next_offset, gap=True, position=start, interval=limits.INDEX_INTERVAL_BYTES, marks=marks
            )
            index.add_spaced(marks)
            position, next_offset = start + found.end, found.next_offset
            if found.reason is not None:
                break
        return position, next_offset

    def start_index(self, index: SparseIndex) -> None:
        """Write the index file of an active segment, without totals and with the present entries."""
        with self._index_lock:
            self._is_sealed = False
            self._index = index
            self._save_index(SegmentTotals(self.base_offset), index)

    def adopt_index(self, index: SparseIndex) -> None:
        """Use an index that equals the index file."""
        self._index = index
        self._index_flushed = len(index)

    def flush_index(self) -> None:
        """Append the entries since the last call to the file. It is not synced, because lost entries are found again by scanning."""
        index, flushed = self._index, self._index_flushed
        if index is None or len(index) == flushed:
            return
        new = index.entries_from(flushed)
        entries = b"".join(index_file.encode_entry(*entry) for entry in new)
        try:
            self._index_file.write(entries, index_file.HEADER_BYTES + flushed * index_file.ENTRY_BYTES)
        except FileGone:
            with self._index_lock:
                if (
                    not self._index_file.retired and not self._is_sealed
                ):  # the disk was full when the segment was created
                    self._save_index(SegmentTotals(self.base_offset), index)
            return
        self._index_flushed = flushed + len(new)

    def cut_leftover(self) -> None:
        """Remove the bytes that a refused append left, if the disk also refused to remove them."""
        self.file.cut_leftover(self.size)

    def seal(self) -> None:
        """Write the index with the final totals, so that the next open does not read the log. May be called again."""
        self._seal(is_required=False)

    def _seal(self, *, is_required: bool) -> None:
        self.cut_leftover()
        index = self.index()
        with self._index_lock:
            self._save_index(self.totals, index, is_required=is_required)
            self._is_sealed = True

    def reach(self, end_offset: int) -> None:
        """Seal the segment up to `end_offset`. A gap belongs to the segment before it, whose index records its end."""
        before, self.next_offset = self.next_offset, end_offset
        try:
            self._seal(is_required=end_offset > before)
        except StorageError:
            self.next_offset = before
            raise
        self.has_gap = self.has_gap or end_offset > before

    def forget_index(self) -> None:
        """Free the memory of the index of a sealed segment; the next lookup reads the file."""
        self._index = None

    # ── walking ──────────────────────────────────────────────────────────────────────────────────

    def chunks(
        self, position: int = 0, stop: int | None = None, *, chunk_bytes: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the file in pieces of whole batches according to their headers: (position, bytes).

        If the bytes at `position` are not a batch, the piece is unchecked; the caller checks it and stops.
        """
        stop = self.size if stop is None else stop
        chunk_bytes = chunk_bytes or limits.SCAN_CHUNK_BYTES
        while position < stop:
            data = self.file.read(min(chunk_bytes, stop - position), position)
            if not data:
                return
            used = records.scan(data, 0, gap=True, checksums=False).end
            if used == 0:
                data = self._one_batch(data, position, stop)
                used = len(data)
            yield position, data[:used]
            position += used

    def _one_batch(self, data: bytes, position: int, stop: int) -> bytes:
        """Return the whole batch if it is larger than a chunk, else `data`."""
        try:
            length = records.read_header(data).length
        except records.BatchError:
            return data
        if length <= len(data) or position + length > stop:
            return data
        return self.file.read(length, position)

    def next_batch(self, position: int, stop: int, offset: int) -> int | None:
        """Return the position of the first good batch from `position` to `stop` whose base offset is at or after `offset`."""
        data = self.file.read(stop - position, position)
        found = records.resync(data, 0, offset)
        return None if found < 0 else position + found

    # ── closing ──────────────────────────────────────────────────────────────────────────────────

    def sync(self) -> None:
        self.file.sync()
        if self.has_gap:
            self._index_file.sync()

    def retire(self) -> None:
        """Mark the files as about to be removed or replaced."""
        self.file.retire()
        self._index_file.retire()

    def remove(self) -> None:
        """Remove the files, the log first: an index without a log is ignored."""
        self.retire()
        self.pool.disk.remove(self.file.path)
        self.pool.disk.remove(self._index_file.path)

    def close(self) -> None:
        self.file.close()
        self._index_file.close()
