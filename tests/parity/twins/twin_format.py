"""The byte format of `docs/internals/formats.md`, written as plainly as Python allows, for the twins to read and write.

Nothing here checks anything but varints; `twin_records` judges, this file only lays bytes out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import Buffer

from tests.parity.twins.twin_crc32c import crc32c

HEADER_BYTES: Final = 56
MAGIC: Final = 0xBA5C
VERSION: Final = 2
VERSION_PLAIN: Final = 1
CODEC_MASK: Final = 0b0000_0111
CODEC_NONE: Final = 0
CODEC_ZSTD: Final = 1
ENCRYPTED: Final = 0b0000_1000
FOLLOWS_GAP: Final = 0b0001_0000
PRODUCERS: Final = 0b0010_0000
ATTRIBUTES_ZERO: Final = 0b1100_0000
OFFSET_MAX: Final = 2**63 - 1
VARINT_BYTES_MAX: Final = 10

HAS_KEY: Final = 1
HAS_VALUE: Final = 2
HAS_SUBJECT: Final = 4
HAS_REPLY: Final = 8
HAS_HEADERS: Final = 16
FLAGS_ALL: Final = 31

# crc length magic version attributes count · base_offset last_delta body_bytes · leader_epoch · first max
_HEADER: Final = struct.Struct("<IIHBBIqIIQqq")
assert _HEADER.size == HEADER_BYTES

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Header:
    crc: int
    length: int
    magic: int
    version: int
    attributes: int
    count: int
    base_offset: int
    last_delta: int
    body_bytes: int
    leader_epoch: int
    first_timestamp: int
    max_timestamp: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_delta

    @property
    def is_sealed(self) -> bool:
        return self.attributes & (CODEC_MASK | ENCRYPTED) != 0

    def pack(self) -> bytes:
        return _HEADER.pack(
            self.crc,
            self.length,
            self.magic,
            self.version,
            self.attributes,
            self.count,
            self.base_offset,
            self.last_delta,
            self.body_bytes,
            self.leader_epoch,
            self.first_timestamp,
            self.max_timestamp,
        )


def unpack_header(data: bytes, position: int) -> Header:
    return Header(*_HEADER.unpack_from(data, position))


def seal_checksum(header: Header, body: bytes) -> bytes:
    """The batch with the checksum that belongs to it; every other field as it is given."""
    unsealed = header.pack()[4:] + body
    return replace(header, crc=crc32c(unsealed)).pack()[:4] + unsealed


def plain_bytes(data: Buffer) -> bytes:
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the bytes do not lie in one piece")
    return view.tobytes()


# ── varints ──────────────────────────────────────────────────────────────────────────────────────


class VarintError(Exception):
    """No varint here: the bytes end, or it has more than ten bytes, or its value needs more than 64 bits."""


def pack_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def unpack_varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Value and the position behind it. A longer form than needed is legal: the format only bounds it."""
    value = 0
    for index in range(VARINT_BYTES_MAX):
        if position + index >= stop:
            raise VarintError
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >= 1 << 64:
                raise VarintError
            return value, position + index + 1
    raise VarintError


# ── records ──────────────────────────────────────────────────────────────────────────────────────


def pack_field(content: bytes) -> bytes:
    return pack_varint(len(content)) + content


def pack_record(
    offset_delta: int,
    time_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[bytes, bytes]] = (),
    own_subject: bytes | None = None,
    reply: bytes = b"",
) -> bytes:
    flags = 0
    fields = bytearray()
    if key is not None:
        flags |= HAS_KEY
        fields += pack_field(key)
    if value is not None:
        flags |= HAS_VALUE
        fields += pack_field(value)
    if own_subject is not None:
        flags |= HAS_SUBJECT
        fields += pack_field(own_subject)
    if reply:
        flags |= HAS_REPLY
        fields += pack_field(reply)
    pairs = tuple(headers)
    if pairs:
        flags |= HAS_HEADERS
        fields += pack_varint(len(pairs))
        for name, content in pairs:
            fields += pack_field(name) + pack_field(content)
    return pack_field(bytes([flags]) + pack_varint(offset_delta) + pack_varint(time_delta) + bytes(fields))
