"""Bytes that look like protobuf: good, strange but legal, and broken."""

from __future__ import annotations

import random

from tests.parity.twins.twin_crc32c import crc32c
from tests.parity.twins.twin_messages import ACK_TYPE, MAGIC, PUBLISH_TYPE, varint

TEXTS = (b"", b"a", b"orders", "größe".encode(), "日本 🦊".encode(), b"x" * 130)
BAD_TEXTS = (
    b"\xff",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xf4\x90\x80\x80",
    b"ok\xe2\x82",
    b"\xe0\x80\x80",
    b"12345678\xc3",
)
NUMBERS = (0, 1, 2, 7, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def long_varint(rng: random.Random, value: int) -> bytes:
    """A number in more bytes than it needs; sometimes in more than are allowed."""
    size = rng.choice((2, 3, 4, 5, 6, 9, 10, 11))
    out = bytearray((value >> (7 * index)) & 0x7F | 0x80 for index in range(size))
    out[-1] &= 0x7F
    return bytes(out)


def number(rng: random.Random) -> bytes:
    if rng.random() < 0.05:
        return bytes(rng.choice((0x80, 0xFF)) for _ in range(9)) + bytes([rng.randrange(256)])
    value = rng.choice(NUMBERS)
    return long_varint(rng, value) if rng.random() < 0.1 else varint(value)


def text(rng: random.Random) -> bytes:
    return rng.choice(BAD_TEXTS) if rng.random() < 0.03 else rng.choice(TEXTS)


def span(rng: random.Random, content: bytes) -> bytes:
    size = len(content)
    if rng.random() < 0.02:
        size += rng.choice((1, 100, 2**31, 2**32))
    length = long_varint(rng, size) if rng.random() < 0.03 else varint(size)
    return length + content


def tag(rng: random.Random, field: int, kind: int) -> bytes:
    value = field << 3 | kind
    return long_varint(rng, value) if rng.random() < 0.03 else varint(value)


def group(rng: random.Random, field: int) -> bytes:
    depth = rng.choice((1, 2, 3, 99, 100, 101)) if rng.random() < 0.2 else 1
    inner = fields(rng, 0, rng.randint(0, 2)) if rng.random() < 0.5 else b""
    ending = field if rng.random() < 0.95 else field + 1
    return varint(field << 3 | 3) * depth + inner + varint(ending << 3 | 4) * depth


def entry(rng: random.Random) -> bytes:
    parts = []
    for _ in range(rng.choice((0, 1, 2, 2, 2, 3))):
        which = rng.choice((1, 1, 2, 2, 2, 3)) if rng.random() < 0.2 else rng.choice((1, 2))
        parts.append(tag(rng, which, 2) + span(rng, text(rng)) if rng.random() < 0.97 else fields(rng, 0, 1))
    return b"".join(parts)


def fields(rng: random.Random, headers_field: int, count: int) -> bytes:
    out = []
    for _ in range(count):
        field = rng.randint(1, 13)
        if rng.random() < 0.05:
            field = rng.choice((0, 15, 16, 100, 2**28, 2**29 - 1, 2**29))
        kind = rng.random()
        if field == headers_field and kind < 0.9:
            out.append(tag(rng, field, 2) + span(rng, entry(rng)))
        elif kind < 0.4:
            out.append(tag(rng, field, 2) + span(rng, text(rng)))
        elif kind < 0.8:
            out.append(tag(rng, field, 0) + number(rng))
        elif kind < 0.85:
            out.append(tag(rng, field, 1) + rng.randbytes(8))
        elif kind < 0.9:
            out.append(tag(rng, field, 5) + rng.randbytes(4))
        elif kind < 0.98:
            out.append(group(rng, field))
        else:
            out.append(tag(rng, field, rng.choice((4, 6, 7))))
    return b"".join(out)


def damaged(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not out:
            break
        at = rng.randrange(len(out))
        what = rng.randrange(4)
        if what == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del out[at:]
        elif what == 2:
            out.insert(at, rng.randrange(256))
        else:
            del out[at]
    return bytes(out)


def any_message(rng: random.Random, headers_field: int) -> bytes:
    shape = rng.random()
    if shape < 0.1:
        return rng.randbytes(rng.randrange(20))
    data = fields(rng, headers_field, rng.choice((1, 2, 4, 8)))
    return damaged(rng, data) if shape < 0.3 else data


def any_envelope(rng: random.Random, kind: int = PUBLISH_TYPE) -> bytes:
    payload = any_message(rng, 9)
    shape = rng.random()
    if shape < 0.5:
        return MAGIC + bytes((0, 8, 0, kind)) + payload
    if shape < 0.75:
        crc = crc32c(payload) ^ (rng.random() < 0.2)
        size = 12 if rng.random() < 0.9 else rng.choice((8, 11, 13, 255))
        return MAGIC + bytes((0, size, 1, kind)) + crc.to_bytes(4, "big") + payload
    if shape < 0.9:
        head = (
            rng.choice((0, 0, 1)),
            rng.choice((0, 7, 8, 9, 12, 200)),
            rng.choice((0, 1, 2, 254)),
            rng.choice((PUBLISH_TYPE, ACK_TYPE, 14)),
        )
        return MAGIC + bytes(head) + payload
    return damaged(rng, MAGIC + bytes((0, 8, 0, kind)) + payload)
