"""Finds and reads batches in one segment. All returned batches have valid checksums."""

from __future__ import annotations

from bascule import limits
from bascule.kernels.records import records
from bascule.log.segments.damage import Damage, find_damage, walk
from bascule.log.segments.segment import Segment

_NOTHING = memoryview(b"")


def read_forward(segment: Segment, offset: int, end_offset: int, bytes_max: int) -> tuple[memoryview, int]:
    """Return batches from the one that holds `offset`, below `end_offset`, and the offset after them; no bytes if there are none.

    At least one batch, then as many as fit `bytes_max`. Raises CorruptBatch if `offset` is in damaged bytes.
    """
    size = segment.size
    newest_offset, newest_position = segment.newest_batch
    start = position = newest_position if offset == newest_offset else start_position(segment, offset)
    want = bytes_max + limits.INDEX_INTERVAL_BYTES
    while position < size:
        data = segment.file.read(min(want, size - position), position)
        found = records.select(data, offset, end_offset, bytes_max)
        if found.start < found.stop:
            if records.read_header(data, found.start).base_offset <= offset:
                return memoryview(data)[found.start : found.stop], found.next_offset
            break
        if found.reason is None and found.stop < len(data):
            break  # a batch whose header says that it begins at or after end_offset
        position += found.stop
        needed = None if found.reason not in (None, "incomplete") else _bytes_needed(data, found.stop, size - position)
        if needed is None:
            break
        want = max(want, needed)
    return _read_carefully(segment, start, offset, end_offset, bytes_max)


def start_position(segment: Segment, offset: int) -> int:
    """Return the position from which to scan for `offset`. Rebuilds an index that does not match the log."""
    entry = segment.index().entry_for_offset(offset)
    if entry is None:
        return 0
    try:
        if records.read_header(segment.file.read(records.HEADER_BYTES, entry[1])).base_offset == entry[0]:
            return entry[1]
    except records.BatchError:
        pass
    entry = segment.rebuild_index().entry_for_offset(offset)
    return 0 if entry is None else entry[1]


def _bytes_needed(data: bytes, at: int, available: int) -> int | None:
    """Return the bytes to read for the whole batch at `at`; None if the segment ends within it."""
    if available < records.HEADER_BYTES:
        return None if available else 0
    if len(data) - at < records.HEADER_BYTES:
        return records.HEADER_BYTES
    length = records.read_header(data, at).length
    return length if length <= available else None


def _read_carefully(
    segment: Segment, position: int, offset: int, end_offset: int, bytes_max: int
) -> tuple[memoryview, int]:
    """Read `offset` with all checks, when it is in a gap of compaction or a header before it is damaged."""
    for found in walk(segment, position, chunk_bytes=4 * limits.INDEX_INTERVAL_BYTES):
        if isinstance(found, Damage):
            if found.next_offset > offset:
                raise found.error()
            continue
        at = records.find_offset(found.data, offset)
        if at >= 0:
            position = found.position + at
            want = max(bytes_max, records.read_header(found.data, at).length)
            data = segment.file.read(min(want, segment.size - position), position)
            chosen = records.select(data, offset, end_offset, bytes_max)
            return memoryview(data)[: chosen.stop], chosen.next_offset
    return _NOTHING, offset


def read_backward(segment: Segment, offset: int, bytes_max: int) -> tuple[memoryview, int]:
    """Return batches up to the last one that begins at or before `offset`, and the base offset of the first of them.

    As many as fit `bytes_max`, at least one. Raises CorruptBatch if the last one is damaged.
    """
    target = _last_batch_from(segment, offset)
    if target is None:
        return _NOTHING, segment.base_offset
    position, length = target
    stop = position + length
    start = segment.index().entry_before(position, max(0, bytes_max - length))
    while True:
        data = segment.file.read(stop - start, start)
        found = records.scan(data, segment.base_offset, gap=True)
        if found.reason is None:
            return memoryview(data), records.read_header(data).base_offset
        start = find_damage(segment, start + found.end, found.reason).end_position


def _last_batch_from(segment: Segment, offset: int) -> tuple[int, int] | None:
    """Return position and length of the last batch with a base offset at or before `offset`."""
    last: tuple[int, int] | None = None
    for found in walk(segment, start_position(segment, offset), chunk_bytes=4 * limits.INDEX_INTERVAL_BYTES):
        if isinstance(found, Damage):
            if found.first_offset <= offset < found.next_offset:
                raise found.error()
            continue
        at = 0
        while at < len(found.data):
            header = records.read_header(found.data, at)
            if header.base_offset > offset:
                return last
            last = (found.position + at, header.length)
            at += header.length
    return last


def batch_reaching(segment: Segment, timestamp: int) -> bytes | None:
    """Return the first readable batch with a record at or after `timestamp`."""
    position = start_position(segment, segment.index().offset_for_timestamp(timestamp))
    for found in walk(segment, position, chunk_bytes=4 * limits.INDEX_INTERVAL_BYTES):
        if isinstance(found, Damage):
            continue
        at = records.find_timestamp(found.data, timestamp)
        if at >= 0:
            return bytes(found.data[at : at + records.read_header(found.data, at).length])
    return None
