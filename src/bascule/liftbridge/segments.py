"""The messages in the segments of a Go Liftbridge partition. All integers are big-endian.

    message set   offset i64 · timestamp i64 (ns) · leader epoch u64 · size i32 · message
    message       crc u32 (CRC-32C of the rest) · magic i8, 1 · attributes i8, 0 ·
                  key length i32 · key · value length i32 · value · header count i16 ·
                  headers: name length i16 · name · value length i32 · value

A length of −1 means that there is no key or value. Offsets increase; retention and compaction leave gaps. The server does not sync its
files: a crash can leave an incomplete message at the end of the last segment, which is cut. Any other damage is an error. The index
tells the two apart: offset − base i32 · timestamp i64 · position i32 · size i32 for every message.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bascule.errors import OperatorError
from bascule.kernels.wire.checksum import crc32c

SET_HEADER: Final = struct.Struct(">qqQi")
MESSAGE_HEADER: Final = struct.Struct(">Ibb")
MESSAGE_BYTES_MAX: Final = 100 << 20
"""Liftbridge's own bound when it rebuilds an index."""
MAGIC: Final = 1

_INDEX_ENTRY: Final = struct.Struct(">iqii")
_LENGTH: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class LiftbridgeMessage:
    offset: int
    timestamp: int
    leader_epoch: int
    key: bytes | None
    value: bytes
    """Empty also if none is stored: Liftbridge's clients cannot tell the two apart, and it has no tombstones."""
    headers: tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True)
class SegmentEnd:
    """Filled by `read_segments` when it is done."""

    torn_bytes: int = 0
    """Bytes of an incomplete message at the end."""


def read_segments(paths: list[Path], end: SegmentEnd | None = None) -> Iterator[LiftbridgeMessage]:
    """Yield the messages of a partition. Raises OperatorError, which names file, position and offset of damage."""
    last = -1
    for path in paths:
        if path.stat().st_size == 0:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            position = 0
            while position < len(data):
                size = _set_bytes(data, position)
                if size is None or position + size > len(data):
                    if path is not paths[-1] or _is_damage(path, data, position):
                        raise _damaged(path, position, last, "the size of a message does not fit the file")
                    if end is not None:
                        end.torn_bytes = len(data) - position
                    return
                message = _message(data, position, size, path, last)
                if message.offset <= last:
                    raise _damaged(path, position, last, f"its offset is {message.offset}")
                yield message
                last = message.offset
                position += size


def _set_bytes(data: mmap.mmap, position: int) -> int | None:
    """The size of the message set; None if its header is incomplete or impossible."""
    if position + SET_HEADER.size > len(data):
        return None
    size: int = SET_HEADER.unpack_from(data, position)[3]
    return SET_HEADER.size + size if MESSAGE_HEADER.size <= size <= MESSAGE_BYTES_MAX else None


def _is_damage(path: Path, data: mmap.mmap, position: int) -> bool:
    """Whether the message at `position` is damaged, and not the end of an interrupted write: it has an impossible size, or the index
    has a later message that is in the file."""
    header = data[position : position + SET_HEADER.size]
    if len(header) == SET_HEADER.size and _set_bytes(data, position) is None and any(header):
        return True
    index = path.with_suffix(".index")
    entries = index.read_bytes() if index.is_file() else b""
    for at in range(0, len(entries) - _INDEX_ENTRY.size + 1, _INDEX_ENTRY.size):
        _, _, place, size = _INDEX_ENTRY.unpack_from(entries, at)
        if size > 0 and place > position and place + size <= len(data):
            return True
    return False


def _message(data: mmap.mmap, position: int, size: int, path: Path, last: int) -> LiftbridgeMessage:
    offset, timestamp, epoch, _ = SET_HEADER.unpack_from(data, position)
    start, stop = position + SET_HEADER.size, position + size
    body = data[start:stop]
    crc, magic, _attributes = MESSAGE_HEADER.unpack_from(body)
    if crc32c(memoryview(body)[4:]) != crc:
        raise _damaged(path, position, last, "its checksum is wrong")
    if magic != MAGIC:
        raise _damaged(path, position, last, f"its format is {magic}, and only {MAGIC} is known")
    try:
        key, value, headers = _content(body)
    except (struct.error, ValueError):
        raise _damaged(path, position, last, "its fields do not fit its size") from None
    if offset < 0 or timestamp < 0:
        raise _damaged(path, position, last, f"its offset is {offset}, its timestamp {timestamp}")
    return LiftbridgeMessage(offset, timestamp, epoch, key, value or b"", headers)


def _content(body: bytes) -> tuple[bytes | None, bytes | None, tuple[tuple[bytes, bytes], ...]]:
    key, position = _bytes(body, MESSAGE_HEADER.size)
    value, position = _bytes(body, position)
    (count,) = _SHORT.unpack_from(body, position)
    position += _SHORT.size
    headers = []
    for _ in range(count):
        (size,) = _SHORT.unpack_from(body, position)
        position += _SHORT.size
        name = _exactly(body, position, size)
        content, position = _bytes(body, position + size)
        headers.append((name, content or b""))
    if count < 0 or position != len(body):
        raise ValueError("bytes are left over")
    return key, value, tuple(headers)


def _bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    (size,) = _LENGTH.unpack_from(body, position)
    position += _LENGTH.size
    return (None, position) if size == -1 else (_exactly(body, position, size), position + size)


def _exactly(body: bytes, position: int, size: int) -> bytes:
    if size < 0 or position + size > len(body):
        raise ValueError("a field is longer than its message")
    return body[position : position + size]


def _damaged(path: Path, position: int, last: int, reason: str) -> OperatorError:
    after = f"after offset {last}" if last >= 0 else "at the start of the partition"
    return OperatorError(
        f"{path} is damaged at byte {position}: the message {after} cannot be read, {reason}",
        hint="import the copy of another Liftbridge server as well, or leave this stream out with --stream; nothing was imported",
    )
