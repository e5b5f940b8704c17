"""The `.index` file of a segment: a header with totals, and entries with checksums. docs/internals/formats.md shows the format.

It can be rebuilt from the `.log` file; a function that returns None here means that it has to be.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from bascule.kernels.wire.checksum import crc32c
from bascule.log.core.sparse_index import SparseIndex
from bascule.log.disk.operations import Disk, read_file, replace_file

_MAGIC = 0xBA5C1D01
_HEADER = struct.Struct("<IIqqQQqq8x")
_ENTRY = struct.Struct("<IIqq")
_ENTRY_BODY = struct.Struct("<Iqq")

HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size


@dataclass(frozen=True, slots=True)
class SegmentTotals:
    """The totals of a segment. In the file of an active segment `bytes` is 0, because the segment still grows."""

    base_offset: int
    end_offset: int = 0
    bytes: int = 0
    records: int = 0
    first_timestamp: int = -1
    last_timestamp: int = -1


def encode_header(totals: SegmentTotals) -> bytes:
    packed = _HEADER.pack(
        0,
        _MAGIC,
        totals.base_offset,
        totals.end_offset,
        totals.bytes,
        totals.records,
        totals.first_timestamp,
        totals.last_timestamp,
    )
    return struct.pack("<I", crc32c(packed[4:])) + packed[4:]


def encode_entry(offset: int, position: int, timestamp: int) -> bytes:
    body = _ENTRY_BODY.pack(position, offset, timestamp)
    return struct.pack("<I", crc32c(body)) + body


def decode_header(data: bytes, base_offset: int) -> SegmentTotals | None:
    if len(data) < HEADER_BYTES:
        return None
    crc, magic, *fields = _HEADER.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(memoryview(data)[4:HEADER_BYTES]) or fields[0] != base_offset:
        return None
    return SegmentTotals(*fields)


def decode_entries(data: bytes) -> SparseIndex:
    """Return the entries up to the first one that is damaged or out of order."""
    index = SparseIndex()
    view = memoryview(data)
    last_offset = last_position = last_timestamp = -1
    for start in range(HEADER_BYTES, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        crc, position, offset, timestamp = _ENTRY.unpack_from(data, start)
        rises = offset > last_offset and position > last_position and timestamp >= last_timestamp
        if not rises or crc != crc32c(view[start + 4 : start + ENTRY_BYTES]):
            break
        index.add(offset, position, timestamp)
        last_offset, last_position, last_timestamp = offset, position, timestamp
    return index


def read_totals(disk: Disk, path: str, base_offset: int) -> SegmentTotals | None:
    """Return the totals in the header, without reading the entries."""
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return decode_header(disk.read(handle, HEADER_BYTES, 0), base_offset)
    finally:
        disk.close(handle)


def read_index(disk: Disk, path: str, base_offset: int) -> SparseIndex | None:
    data = read_file(disk, path)
    if data is None or decode_header(data, base_offset) is None:
        return None
    return decode_entries(data)


def write_index(disk: Disk, path: str, totals: SegmentTotals, index: SparseIndex, *, sync: bool = False) -> None:
    """Write the whole file, when a segment is sealed or its index was rebuilt. With `sync` power loss leaves the old or the new one."""
    entries = b"".join(encode_entry(offset, position, timestamp) for offset, position, timestamp in index)
    replace_file(disk, path, encode_header(totals) + entries, sync=sync, durable=False)
