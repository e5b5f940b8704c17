"""Finding and reading batches in one segment. Whatever is returned has passed its checksum."""

from __future__ import annotations

from bascule import limits
from bascule.kernels import records
from bascule.log.damage import find_damage
from bascule.log.segment import Segment

_NOTHING = memoryview(b"")


def read_forward(segment: Segment, offset: int, end_offset: int, bytes_max: int) -> tuple[memoryview, int]:
    """Batches from the one that holds `offset` on, below `end_offset`, and the offset behind them; no bytes when there are none.

    At least one batch, then as many as fit `bytes_max`. Raises CorruptBatch when `offset` itself lies in damage.
    """
    size = segment.size
    position = start_position(segment, offset)
    want = bytes_max + limits.INDEX_INTERVAL_BYTES
    while position < size:
        data = segment.file.read(min(want, size - position), position)
        found = records.select(data, offset, end_offset, bytes_max)
        if found.start < found.stop:
            _check_jump(segment, position, data[: found.start], data[found.start :], offset)
            return memoryview(data)[found.start : found.stop], found.next_offset
        if found.stop < len(data) and found.reason is None:
            break  # the next batch begins at or behind end_offset
        position += found.stop
        if found.reason in (None, "incomplete"):
            needed = _bytes_needed(data, found.stop, size - position)
            if needed is not None:
                want = max(want, needed)
                continue
        damage = find_damage(segment, position, found.reason or "incomplete")
        if damage.next_offset > offset:
            raise damage.error()
        position = damage.end_position  # a header that lies about its offsets hid the batch that is wanted
    return _NOTHING, offset


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


def _check_jump(segment: Segment, position: int, skipped: bytes, data: bytes, offset: int) -> None:
    """The batch found begins behind the offset that is wanted: fine after compaction, but a damaged header looks the same.

    Headers are hopped over without their checksums, so the batches that were skipped are checked before records are left out.
    """
    header = records.read_header(data)
    if header.base_offset <= offset:
        return
    found = records.scan(skipped, segment.base_offset, gap=True)
    expected = found.next_offset
    if found.reason is None and (
        expected == header.base_offset or not found.batches or header.attributes & records.FOLLOWS_GAP
    ):
        return
    damage = find_damage(segment, position + found.end, found.reason or "bad offsets")
    if damage.next_offset > offset:
        raise damage.error()


def read_backward(segment: Segment, offset: int, bytes_max: int) -> tuple[memoryview, int]:
    """Batches that end with the last one beginning at or before `offset`, and the base offset of the first of them.

    As many as fit `bytes_max`, at least one. Raises CorruptBatch when that last one is damaged.
    """
    target = _last_batch_from(segment, offset)
    if target is None:
        return _NOTHING, segment.base_offset
    stop = target + records.read_header(segment.file.read(records.HEADER_BYTES, target)).length
    start = segment.index().entry_before(target, max(0, bytes_max - (stop - target)))
    while True:
        data = segment.file.read(stop - start, start)
        found = records.scan(data, segment.base_offset, gap=True)
        if found.reason is None:
            return memoryview(data), records.read_header(data).base_offset
        damage = find_damage(segment, start + found.end, found.reason)
        if damage.end_position >= stop:
            raise damage.error()
        start = damage.end_position


def _last_batch_from(segment: Segment, offset: int) -> int | None:
    """Position of the last batch with a base offset at or before `offset`."""
    last: int | None = None
    for start, data in segment.chunks(start_position(segment, offset)):
        at = 0
        while at < len(data):
            try:
                header = records.read_header(data, at)
            except records.BatchError as error:
                damage = find_damage(segment, start + at, error.reason)
                if damage.next_offset > offset:
                    raise damage.error() from None
                return _last_batch_behind(segment, damage.end_position, offset)
            if header.base_offset > offset:
                return last
            last = start + at
            at += header.length
    return last


def _last_batch_behind(segment: Segment, position: int, offset: int) -> int | None:
    last: int | None = None
    while position < segment.size:
        header = records.read_header(segment.file.read(records.HEADER_BYTES, position))
        if header.base_offset > offset:
            break
        last = position
        position += header.length
    return last


def batch_reaching(segment: Segment, timestamp: int) -> bytes | None:
    """The first readable batch with records whose last one is at or behind `timestamp`."""
    position = start_position(segment, segment.index().offset_for_timestamp(timestamp))
    while position < segment.size:
        start, data = next(segment.chunks(position))
        at = records.find_timestamp(data, timestamp)
        if at >= 0:
            try:
                return data[at : at + records.check(data, at)]
            except records.BatchError as error:
                raise find_damage(segment, start + at, error.reason).error() from None
        hopped = records.scan(data, 0, gap=True, checksums=False)
        position = start + hopped.end
        if hopped.reason is not None:
            position = find_damage(segment, position, hopped.reason).end_position
    return None
