"""Finding and reading batches in one segment. Whatever is returned has passed its checksum."""

from __future__ import annotations

from bascule import limits
from bascule.kernels.records import records
from bascule.log.segments.damage import Damage, find_damage, walk
from bascule.log.segments.segment import Segment

_NOTHING = memoryview(b"")


def read_forward(segment: Segment, offset: int, end_offset: int, bytes_max: int) -> tuple[memoryview, int]:
    """Batches from the one that holds `offset` on, below `end_offset`, and the offset behind them; no bytes when there are none.

    At least one batch, then as many as fit `bytes_max`. Raises CorruptBatch when `offset` itself lies in damage.
    """
    size = segment.size
    start = position = start_position(segment, offset)
    want = bytes_max + limits.INDEX_INTERVAL_BYTES
    while position < size:
        data = segment.file.read(min(want, size - position), position)
        found = records.select(data, offset, end_offset, bytes_max)
        if found.start < found.stop:
            if records.read_header(data, found.start).base_offset <= offset:
                return memoryview(data)[found.start : found.stop], found.next_offset
            break
        if found.reason is None and found.stop < len(data):
            break  # a batch that begins at or behind end_offset, or says so
        position += found.stop
        needed = None if found.reason not in (None, "incomplete") else _bytes_needed(data, found.stop, size - position)
        if needed is None:
            break
        want = max(want, needed)
    return _read_carefully(segment, start, offset, end_offset, bytes_max)


def start_position(segment: Segment, offset: int) -> int:
    """Where to look for `offset`. An index that does not point at a batch with its offset is made again."""
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
    """Bytes to read so that the batch at `at` is whole; None when the segment ends inside of it."""
    if available < records.HEADER_BYTES:
        return None if available else 0
    if len(data) - at < records.HEADER_BYTES:
        return records.HEADER_BYTES
    length = records.read_header(data, at).length
    return length if length <= available else None


def _read_carefully(
    segment: Segment, position: int, offset: int, end_offset: int, bytes_max: int
) -> tuple[memoryview, int]:
    """`offset` is not where the headers before it say: it lies in a hole that compaction left, or one of them is damaged."""
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
    """Batches that end with the last one beginning at or before `offset`, and the base offset of the first of them.

    As many as fit `bytes_max`, at least one. Raises CorruptBatch when that last one is damaged.
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
    """Position and length of the last batch with a base offset at or before `offset`."""
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
    """The first readable batch with records whose last one is at or behind `timestamp`."""
    position = start_position(segment, segment.index().offset_for_timestamp(timestamp))
    for found in walk(segment, position, chunk_bytes=4 * limits.INDEX_INTERVAL_BYTES):
        if isinstance(found, Damage):
            continue
        at = records.find_timestamp(found.data, timestamp)
        if at >= 0:
            return bytes(found.data[at : at + records.read_header(found.data, at).length])
    return None
