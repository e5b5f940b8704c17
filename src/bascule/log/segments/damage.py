"""Damaged bytes of a segment: their position, their extent, and the offsets that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bascule.errors import CorruptBatch, FormatTooNew
from bascule.kernels.records import records
from bascule.kernels.wire.checksum import crc32c
from bascule.log.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class Damage:
    file: str
    position: int
    bytes_damaged: int
    first_offset: int
    next_offset: int
    reason: str

    @property
    def end_position(self) -> int:
        return self.position + self.bytes_damaged

    def describe(self) -> str:
        return (
            f"{self.file}: {self.reason} at byte {self.position} ({self.bytes_damaged} bytes): "
            f"offsets {self.first_offset} to {self.next_offset - 1} cannot be read"
        )

    def error(self) -> CorruptBatch:
        return CorruptBatch(
            self.describe(),
            file=self.file,
            position=self.position,
            bytes_damaged=self.bytes_damaged,
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            hint="the rest of the log is readable; other replicas of this partition may have these records",
        )


def find_damage(segment: Segment, position: int, reason: str) -> Damage:
    """Return the damage from the bad batch at `position` to the next good batch, or to the end of the segment.

    Raises FormatTooNew if the batch is intact and has a later version.
    """
    if reason == "future version" and _is_intact(segment, position):
        raise FormatTooNew(
            f"{segment.path}: the batch at byte {position} has a later format than version {records.VERSION}",
            hint="use the version of Bascule that wrote it, or a later one",
        )
    first_offset = _offset_expected_at(segment, position)
    stop, next_offset = _after_it(segment, position, first_offset) or _next_good(segment, position + 1, first_offset)
    return Damage(segment.path, position, stop - position, first_offset, max(first_offset, next_offset), reason)


def _is_intact(segment: Segment, position: int) -> bool:
    """Return whether a batch with a valid checksum begins at `position`, of any version."""
    head = segment.file.read(8, position)
    length = int.from_bytes(head[4:8], "little")
    if len(head) < 8 or not records.HEADER_BYTES <= length <= segment.size - position:
        return False
    batch = segment.file.read(length, position)
    return crc32c(memoryview(batch)[4:]) == int.from_bytes(head[:4], "little")


def _offset_expected_at(segment: Segment, position: int) -> int:
    """Return the offset after the last good batch before `position`."""
    next_offset, at = segment.index().offset_before(position) or (segment.base_offset, 0)
    while at < position:
        start, data = next(segment.chunks(at, position))
        found = records.scan(data, next_offset, gap=True)
        next_offset, at = found.next_offset, start + found.end
        if found.reason is not None and at < position:
            behind = segment.next_batch(at + 1, position, next_offset)
            if behind is None:
                break
            at = behind
    return next_offset


def _after_it(segment: Segment, position: int, offset: int) -> tuple[int, int] | None:
    """Return (position, base offset) of the good batch at the end of the damaged one according to its length field, or None.

    This is tried before a search, because a value may contain the bytes of a batch that does not belong to the log.
    """
    end = position + int.from_bytes(segment.file.read(8, position)[4:8], "little")
    if position + records.HEADER_BYTES <= end < segment.size and _is_good(segment, end, offset):
        return end, records.read_header(segment.file.read(records.HEADER_BYTES, end)).base_offset
    return None


def _next_good(segment: Segment, position: int, offset: int) -> tuple[int, int]:
    """Return (position, base offset) of the next good batch with a base offset from `offset` on, or the end of the segment.

    It searches from one index entry to the next, so that damage in a large segment does not read all of it.
    """
    while position < segment.size:
        behind = segment.index().entry_behind(position)
        stop = segment.size if behind is None else behind
        found = segment.next_batch(position, stop, offset)
        if found is None and behind is not None:
            found = behind if _is_good(segment, behind, offset) else None
        if found is not None:
            return found, records.read_header(segment.file.read(records.HEADER_BYTES, found)).base_offset
        position = stop + 1
    return segment.size, segment.next_offset


def _is_good(segment: Segment, position: int, offset: int) -> bool:
    try:
        header = records.read_header(segment.file.read(records.HEADER_BYTES, position))
        records.check(segment.file.read(min(header.length, segment.size - position), position))
    except records.BatchError:
        return False
    return header.base_offset >= offset


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive good batches."""

    position: int
    data: memoryview


def walk(
    segment: Segment, position: int = 0, *, chunk_bytes: int | None = None, strict: bool = False
) -> Iterator[Run | Damage]:
    """Yield good batches and damage from the batch at `position` to the end of the segment. All checksums are verified.

    `strict` also checks timestamps, epochs and every record that is not compressed or encrypted.
    """
    next_offset, gap = segment.base_offset, True
    timestamp = epoch = 0
    while position < segment.size:
        start, data = next(segment.chunks(position, chunk_bytes=chunk_bytes))
        found = records.scan(data, next_offset, timestamp, epoch, gap=gap, structure=strict)
        if strict:
            timestamp, epoch = found.last_timestamp, found.last_epoch
        if found.batches:
            yield Run(start, memoryview(data)[: found.end])
        position, next_offset, gap = start + found.end, found.next_offset, gap and not found.batches
        if found.reason is not None and position < segment.size:  # else the segment was truncated meanwhile
            damage = find_damage(segment, position, found.reason)
            yield damage
            position, next_offset, gap = damage.end_position, damage.next_offset, True
