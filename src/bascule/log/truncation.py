"""Cutting a log back to an offset."""

from __future__ import annotations

import contextlib

from bascule.kernels import records
from bascule.log.damage import find_damage
from bascule.log.index_file import SegmentTotals
from bascule.log.sealing import Sealer
from bascule.log.segment import Segment
from bascule.log.segment_list import SegmentList


def truncate_segments(segments: SegmentList, offset: int, sealer: Sealer) -> None:
    """Drop everything at or behind `offset`. The newest files go first, so that a crash on the way leaves no hole."""
    newer = sum(1 for segment in segments if segment.base_offset >= offset)
    for segment in segments.drop_newest(min(newer, len(segments) - 1)):
        segment.remove()
    _truncate_segment(segments.active, offset, sealer)


def _truncate_segment(segment: Segment, offset: int, sealer: Sealer) -> None:
    totals, split = _totals_below(segment, offset)
    head = None
    if split is not None:
        position, length = split
        with contextlib.suppress(ValueError):  # a damaged batch cannot be cut in two: it goes as a whole
            batch = sealer.open(segment.file.read(length, position))
            head = sealer.seal(records.trim(batch, offset))
    segment.cut(totals)
    if head is not None:
        segment.append(head, records.read_header(head))


def _totals_below(segment: Segment, offset: int) -> tuple[SegmentTotals, tuple[int, int] | None]:
    """What the whole batches below `offset` come to, and (position, length) of a batch that has to be cut in two."""
    position, next_offset, count, first, last = 0, segment.base_offset, 0, -1, -1
    while position < segment.size:
        header = _header_at(segment, position)
        if header is None:
            damage = find_damage(segment, position, "bad batch")
            if damage.next_offset > offset or damage.end_position >= segment.size:
                break
            position, next_offset = damage.end_position, damage.next_offset
            continue
        if header.last_offset >= offset:
            split = (position, header.length) if header.base_offset < offset else None
            return SegmentTotals(segment.base_offset, next_offset, position, count, first, last), split
        position, next_offset = position + header.length, header.last_offset + 1
        count += header.count
        first = header.first_timestamp if first < 0 else first
        last = header.max_timestamp
    return SegmentTotals(segment.base_offset, next_offset, position, count, first, last), None


def _header_at(segment: Segment, position: int) -> records.BatchHeader | None:
    try:
        return records.read_header(segment.file.read(records.HEADER_BYTES, position))
    except records.BatchError:
        return None
