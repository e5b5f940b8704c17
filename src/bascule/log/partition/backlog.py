"""Computes how far a reader lags: the bytes of a log after an offset, and the age of the first of them.

It uses the index and a few batch headers, which are never encrypted, and reads no records. The first batch counts as a whole, even
if the reader has read a part of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from bascule import limits
from bascule.kernels.records import records
from bascule.log.disk.files import FileGone
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.segments.search import start_position
from bascule.log.segments.segment import Segment

READ_BYTES: Final = limits.INDEX_INTERVAL_BYTES + records.HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Backlog:
    offset: int
    """The base offset of the first batch."""
    bytes: int
    timestamp: int
    """The timestamp of the first record of that batch, in nanoseconds."""


def backlog(log: PartitionLog, offset: int, end_offset: int) -> Backlog | None:
    """Return the backlog from the batch that holds `offset`, or the next one, up to `end_offset`; None if there is none.

    Raises LogClosed if the log is closed.
    """
    while True:
        log.open()
        try:
            return _backlog(tuple(log.segments), offset, end_offset)
        except FileGone:
            continue  # replaced by the cleaner, or the log is closed: then open() raises


def _backlog(segments: tuple[Segment, ...], offset: int, end_offset: int) -> Backlog | None:
    first: tuple[int, records.BatchHeader] | None = None
    size = 0
    for segment in segments:
        if segment.next_offset <= offset or segment.is_empty:
            continue
        if segment.base_offset >= end_offset:
            break
        begin = 0
        if first is None:
            first = _batch_reaching(segment, max(offset, segment.base_offset))
            if first is None or first[1].base_offset >= end_offset:
                first = None
                continue  # a gap up to the end of the segment
            begin = first[0]
        size += _end_position(segment, end_offset) - begin
    return None if first is None else Backlog(first[1].base_offset, size, first[1].first_timestamp)


def _end_position(segment: Segment, end_offset: int) -> int:
    if segment.next_offset <= end_offset:
        return segment.size
    found = _batch_reaching(segment, end_offset - 1)
    if found is None:
        return segment.size
    position, header = found
    return position + header.length if header.base_offset < end_offset else position


def _batch_reaching(segment: Segment, offset: int) -> tuple[int, records.BatchHeader] | None:
    """Return position and header of the first batch that ends at or after `offset`; None if damage comes first."""
    position, data = _beginning(segment, offset)
    while len(data) >= records.HEADER_BYTES:
        at = records.find_offset(data, offset)
        if at >= 0:
            return position + at, records.read_header(data, at)
        behind = _behind(data)
        if behind is None:
            return None
        position += behind
        data = _read(segment, position)
    return None


def _beginning(segment: Segment, offset: int) -> tuple[int, bytes]:
    """Return the position from which to look for the offset, and the bytes there."""
    entry = segment.index().entry_for_offset(offset)
    if entry is not None:
        data = _read(segment, entry[1])
        with contextlib.suppress(records.BatchError):
            if records.read_header(data).base_offset == entry[0]:
                return entry[1], data
    position = start_position(segment, offset)  # repairs the index
    return position, _read(segment, position)


def _read(segment: Segment, position: int) -> bytes:
    size = min(READ_BYTES, segment.size - position)
    return segment.file.read(size, position) if size > 0 else b""


def _behind(data: bytes) -> int | None:
    """Return the end of the last batch whose header is in `data`; None if the bytes are not a batch."""
    at = 0
    while at + records.HEADER_BYTES <= len(data):
        try:
            at += records.read_header(data, at).length
        except records.BatchError:
            return None
    return at or None
