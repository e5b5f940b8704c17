"""Segments of the durable log: consecutive frames. A frame holds the entries of one sync.

    crc u32 · length u32 · number u64 · entry …       CRC-32C of all bytes after it; length includes this header

Frames are numbered consecutively over all segments. A frame is written after the previous one is synced, so power loss can damage
only the last frame. If a whole frame with a higher number or another segment follows a damaged frame, synced data is lost, and the
server must not continue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from bascule.kernels.wire.checksum import crc32c
from bascule.raft.core.model.codec import U64, Malformed, Reader, encode_entry, read_entry
from bascule.raft.core.model.entries import Entry
from bascule.raft.disk.errors import DamagedRaftLog

_HEADER: Final = Struct("<IIQ")
_LATER_FRAMES: Final = 64
"""Number of frames to look for after a damaged one."""


def segment_name(number: int) -> str:
    return f"{number:020d}.wal"


def segment_number(name: str) -> int | None:
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "wal" and len(stem) == 20 and stem.isascii() and stem.isdigit() else None


def encode_frame(number: int, entries: Iterable[Entry]) -> bytes:
    body = b"".join(map(encode_entry, entries))
    head = _HEADER.pack(0, _HEADER.size + len(body), number)[4:]
    crc = crc32c(body, crc32c(head))
    return crc.to_bytes(4, "little") + head + body


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    frames: list[list[Entry]]
    whole_bytes: int
    """All frames before this position are whole."""

    next_number: int
    torn_bytes: int
    """Bytes of an incomplete frame at the end of the last segment."""


def scan_segment(data: bytes, number: int, path: str, *, is_last: bool) -> ScannedSegment:
    """Read the segment whose first frame has this number. Raises DamagedRaftLog for damage that power loss cannot cause."""
    frames: list[list[Entry]] = []
    position = 0
    while position < len(data):
        body = _frame_at(data, position)
        if body is not None and _number_at(data, position) != number:
            raise DamagedRaftLog(f"{path}: frame {_number_at(data, position)} instead of {number}")
        if body is None:
            if not is_last or _is_followed(data, position, number):
                raise DamagedRaftLog(f"{path}: the frame at byte {position} is damaged and other frames follow it")
            break
        frames.append(_entries(body, path, position))
        position += _HEADER.size + len(body)
        number += 1
    return ScannedSegment(frames, position, number, len(data) - position)


def _frame_at(data: bytes, position: int) -> bytes | None:
    """Return the body of the frame, or None if it is not whole."""
    if position + _HEADER.size > len(data):
        return None
    crc, length, _ = _HEADER.unpack_from(data, position)
    end = position + length
    if length < _HEADER.size or end > len(data) or crc32c(data[position + 4 : end]) != crc:
        return None
    return data[position + _HEADER.size : end]


def _number_at(data: bytes, position: int) -> int:
    return int.from_bytes(data[position + 8 : position + 16], "little")


def _is_followed(data: bytes, position: int, number: int) -> bool:
    """Return whether a whole frame with a higher number follows."""
    for later in range(number + 1, number + 1 + _LATER_FRAMES):
        pattern = U64.pack(later)
        found = data.find(pattern, position + 8)
        while found != -1:
            if _frame_at(data, found - 8) is not None:
                return True
            found = data.find(pattern, found + 1)
    return False


def _entries(body: bytes, path: str, position: int) -> list[Entry]:
    reader = Reader(body)
    entries = []
    try:
        while not reader.is_at_end:
            entries.append(read_entry(reader))
    except Malformed as error:
        raise DamagedRaftLog(
            f"{path}: the frame at byte {position} has a valid checksum but malformed entries: {error}"
        ) from None
    return entries
