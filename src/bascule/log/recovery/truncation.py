"""Truncates a log to an offset.

Before it begins, the checkpoint marks the segment with the offset as not synced, so that recovery verifies it if the process crashes
meanwhile. If the offset is within a batch, the segment is copied with the first part of the batch, and the copy replaces it
atomically.
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
            hint="truncate after the high watermark, or pass allow_committed to delete them",
        )


def last_kept(segments: SegmentList, offset: int) -> Segment:
    """Return the segment that is truncated and becomes the active one."""
    return segments.before(offset) or segments.oldest


def truncate_segments(segments: SegmentList, offset: int, sealer: Sealer) -> bool:
    """Delete all records at or after `offset`. The newest files are removed first, so that a crash leaves no gap.

    Returns whether damage at `offset` was deleted as well: the records before `offset` that it contained have to be copied again.
    """
    kept = last_kept(segments, offset)
    for segment in segments.drop_newest(sum(1 for segment in segments if segment.base_offset > kept.base_offset)):
        segment.remove()
    totals, split, cuts_damage = _totals_below(kept, offset)
    head = None if split is None else _head(kept, *split, offset, sealer)
    if head is None:
        kept.cut(totals)
    else:
        segments.replace_active(_with_other_end(kept, totals, head))
    return cuts_damage or (split is not None and head is None)


def _head(segment: Segment, position: int, length: int, offset: int, sealer: Sealer) -> bytes | memoryview | None:
    """Return the records of the batch below `offset` as a batch, or None if it cannot be opened."""
    with contextlib.suppress(ValueError):  # a batch that cannot be opened is removed as a whole
        batch = sealer.open(segment.file.read(length, position))
        return sealer.seal(records.trim(batch, offset))
    return None


def _with_other_end(segment: Segment, totals: SegmentTotals, head: bytes | memoryview) -> Segment:
    """Return a copy of the segment that ends with `head` after the batches of `totals`."""
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


def _totals_below(segment: Segment, offset: int) -> tuple[SegmentTotals, tuple[int, int] | None, bool]:
    """Return the totals of the whole batches below `offset`, (position, length) of a batch that has to be split, and whether `offset`
    is within damage. Damage below `offset` stays: without it, readers would take its offsets for compacted ones."""
    position, next_offset, count, first, last = 0, segment.base_offset, 0, -1, -1
    cuts_damage = False
    for found in walk(segment):
        if isinstance(found, Damage):
            if found.next_offset > offset:
                cuts_damage = found.first_offset < offset
                break
            position, next_offset = found.end_position, found.next_offset
            continue
        at = 0
        while at < len(found.data):
            header = records.read_header(found.data, at)
            if header.last_offset >= offset:
                split = (position, header.length) if header.base_offset < offset else None
                return SegmentTotals(segment.base_offset, next_offset, position, count, first, last), split, False
            at, position = at + header.length, position + header.length
            next_offset, count = header.last_offset + 1, count + header.count
            first = header.first_timestamp if first < 0 else first
            last = header.max_timestamp
    return SegmentTotals(segment.base_offset, next_offset, position, count, first, last), None, cuts_damage
