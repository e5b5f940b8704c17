"""Cutting a log back to an offset.

Before this begins, the checkpoint says that nothing of the segment that holds the offset counts as synced any more: a crash on the way
leaves a log that recovery verifies up to wherever the cut had come. A batch that has to be cut in two is never missing: the segment
is copied up to there, and the copy takes its place at once.
"""

from __future__ import annotations

import contextlib

from bascule import limits
from bascule.errors import CallerError
from bascule.kernels.records import records
from bascule.log.disk.operations import Disk
from bascule.log.disk.sealing import Sealer
from bascule.log.recovery.opening import CLEANED_SUFFIX, complete_swap, swap_path
from bascule.log.segments.damage import Damage, walk
from bascule.log.segments.index_file import SegmentTotals
from bascule.log.segments.segment import Segment, segment_path
from bascule.log.segments.segment_list import SegmentList


def check_uncommitted(directory: str, offset: int, high_watermark: int) -> None:
    if offset <= high_watermark:
        raise CallerError(
            f"truncating {directory} at {offset} would delete committed records up to {high_watermark}",
            hint="truncate behind the high watermark, or pass allow_committed to lose them knowingly",
        )


def last_kept(segments: SegmentList, offset: int) -> Segment:
    """The segment that is cut, and is the active one then."""
    return segments.before(offset) or segments.oldest


def truncate_segments(segments: SegmentList, offset: int, sealer: Sealer) -> None:
    """Drop everything at or behind `offset`. The newest files go first, so that a crash on the way leaves no hole."""
    kept = last_kept(segments, offset)
    for segment in segments.drop_newest(sum(1 for segment in segments if segment.base_offset > kept.base_offset)):
        segment.remove()
    totals, split = _totals_below(kept, offset)
    head = None if split is None else _head(kept, *split, offset, sealer)
    if head is None:
        kept.cut(totals)
    else:
        segments.replace_active(_with_other_end(kept, totals, head))


def _head(segment: Segment, position: int, length: int, offset: int, sealer: Sealer) -> bytes | memoryview | None:
    """What the batch holds below `offset`."""
    with contextlib.suppress(ValueError):  # one that cannot be opened cannot be cut in two: it goes as a whole
        batch = sealer.open(segment.file.read(length, position))
        return sealer.seal(records.trim(batch, offset))
    return None


def _with_other_end(segment: Segment, totals: SegmentTotals, head: bytes | memoryview) -> Segment:
    """The segment with `head` behind what `totals` count."""
    disk, directory = segment.pool.disk, segment.path.rpartition("/")[0]
    header = records.read_header(head)
    path = segment_path(directory, segment.base_offset, CLEANED_SUFFIX)
    handle = disk.open(path, create=True)
    try:
        disk.truncate(handle, 0)
        _copy(segment, totals.bytes, disk, handle)
        disk.write(handle, head, totals.bytes)
        disk.sync(handle)
    finally:
        disk.close(handle)
    index = segment.index()
    index.truncate(totals.bytes)
    segment.retire()
    disk.rename(path, swap_path(directory, segment.base_offset, header.last_offset + 1))
    complete_swap(disk, directory, segment.base_offset, header.last_offset + 1)
    replacement = Segment(segment.pool, directory, totals)
    replacement.start_index(index)
    replacement.account(header, totals.bytes)
    return replacement


def _copy(segment: Segment, size: int, disk: Disk, handle: int) -> None:
    position = 0
    while position < size:
        data = segment.file.read(min(limits.SCAN_CHUNK_BYTES, size - position), position)
        disk.write(handle, data, position)
        position += len(data)


def _totals_below(segment: Segment, offset: int) -> tuple[SegmentTotals, tuple[int, int] | None]:
    """What the whole batches below `offset` come to, and (position, length) of a batch that has to be cut in two."""
    position, next_offset, count, first, last = 0, segment.base_offset, 0, -1, -1
    for found in walk(segment):
        if isinstance(found, Damage):
            if found.next_offset > offset or found.end_position >= segment.size:
                break
            position, next_offset = found.end_position, found.next_offset
            continue
        at = 0
        while at < len(found.data):
            header = records.read_header(found.data, at)
            if header.last_offset >= offset:
                split = (position, header.length) if header.base_offset < offset else None
                return SegmentTotals(segment.base_offset, next_offset, position, count, first, last), split
            at, position = at + header.length, position + header.length
            next_offset, count = header.last_offset + 1, count + header.count
            first = header.first_timestamp if first < 0 else first
            last = header.max_timestamp
    return SegmentTotals(segment.base_offset, next_offset, position, count, first, last), None
