"""Logs and damage to them, drawn from a `random.Random`: seeded in the fuzzers, shrinking in the Hypothesis tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tests.parity.twins.twin_crc32c import crc32c
from tests.parity.twins.twin_format import (
    CODEC_ZSTD,
    ENCRYPTED,
    FOLLOWS_GAP,
    HAS_HEADERS,
    HAS_KEY,
    HAS_REPLY,
    HAS_SUBJECT,
    HAS_VALUE,
    HEADER_BYTES,
    MAGIC,
    OFFSET_MAX,
    PRODUCERS,
    VERSION,
    VERSION_PLAIN,
    Header,
    Headers,
    pack_varint,
    seal_checksum,
    unpack_header,
)

U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1
LENGTHS_EXTREME: Final = (0, 1, 55, 56, 57, 2**31 - 1, 2**31, U32_MAX - 55, U32_MAX)
NUMBERS_EXTREME: Final = (0, 1, 127, 128, 2**31, U32_MAX, 2**32, OFFSET_MAX - 1, OFFSET_MAX, 2**63, U64_MAX)
SUBJECTS: Final = (b"", b"orders", b"orders.eu", b"s" * 130)
KEYS: Final = (b"", b"a", b"b", b"c", b"key-7", b"key-8", b"k" * 9, b"K" * 200)


@dataclass(frozen=True, slots=True)
class RecordSpec:
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    subject: bytes = b""
    reply: bytes = b""
    time_delta: int = 0


class Adds(Protocol):
    """Either builder."""

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = ...,
        subject: bytes = ...,
        reply: bytes = ...,
        time_delta: int = ...,
    ) -> None: ...


def fill(builder: Adds, records: list[RecordSpec]) -> None:
    for one in records:
        builder.add(one.key, one.value, one.headers, one.subject, one.reply, one.time_delta)


def blob(rng: random.Random, size_max: int) -> bytes:
    return rng.randbytes(rng.randint(0, size_max))


def record_spec(rng: random.Random, *, subject: bytes = b"orders") -> RecordSpec:
    value: bytes | None = None
    if rng.random() < 0.8:
        value = rng.choice((b"", blob(rng, 20), blob(rng, 20), b"v" * rng.choice((127, 128, 300))))
    return RecordSpec(
        key=rng.choice(KEYS) if rng.random() < 0.7 else None,
        value=value,
        headers=tuple((blob(rng, 5), blob(rng, 9)) for _ in range(rng.choice((0, 0, 0, 1, 3)))),
        subject=subject if rng.random() < 0.8 else rng.choice(SUBJECTS),
        reply=b"_INBOX.1" if rng.random() < 0.2 else b"",
        time_delta=rng.choice((0, 0, 1, 127, 128, 1_000_000, 10**12)),
    )


# ── whole logs ───────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Log:
    """Consecutive batches, where each begins, and what a scan over them must start from."""

    data: bytes = b""
    positions: list[int] = field(default_factory=list)
    first_offset: int = 0
    next_offset: int = 0
    last_timestamp: int = 0
    last_epoch: int = 0


def log(
    rng: random.Random,
    *,
    batches_min: int = 0,
    batches_max: int = 5,
    records_max: int = 5,
    oddity: float = 0.0,
    sealed: float = 0.1,
) -> Log:
    """A valid log with holes, thinned batches and sealed ones; with `oddity` above 0 some numbers in it are wrong."""
    made = Log()
    made.next_offset = made.first_offset = rng.choice((0, 0, 1, 1000, 2**40))
    made.last_timestamp = rng.choice((0, 5, 10**18))
    made.last_epoch = rng.choice((0, 0, 3, U64_MAX - 20))
    out = bytearray()
    for index in range(rng.randint(batches_min, batches_max)):
        made.positions.append(len(out))
        gap = index > 0 and rng.random() < 0.2
        out += _Forge(rng, oddity).batch(made, records_max, gap, rng.random() < sealed)
    made.data = bytes(out)
    return made


class _Forge:
    """Lays out one batch; each number it writes goes wrong with probability `oddity`, the checksum never."""

    def __init__(self, rng: random.Random, oddity: float) -> None:
        self.rng = rng
        self.oddity = oddity

    def odd(self) -> bool:
        return self.oddity > 0 and self.rng.random() < self.oddity

    def number(self, value: int, limit: int = U64_MAX) -> int:
        if self.odd():
            value = self.rng.choice((value + 1, value - 1, value ^ 0x80, *NUMBERS_EXTREME, limit - value))
        return max(0, min(value, limit))

    def signed(self, value: int) -> int:
        return self.rng.choice((-1, -(2**63), value + 1, value - 1, OFFSET_MAX)) if self.odd() else value

    def varint(self, value: int) -> bytes:
        packed = pack_varint(self.number(value))
        if self.odd():  # longer than needed: legal up to ten bytes
            zeros = self.rng.choice((1, 2, 10 - len(packed), 11 - len(packed)))
            packed = packed[:-1] + bytes([packed[-1] | 0x80]) + bytes([0x80]) * (zeros - 1) + b"\0"
        if self.odd():
            packed = b"\xff" * 9 + self.rng.choice((b"\x01", b"\x02", b"\x7f", b"\x80\x00"))
        if self.odd():  # the right number, if the bits above the 64th were dropped
            packed = bytes(value >> 7 * index & 0x7F | 0x80 for index in range(9)) + self.rng.choice((b"\x02", b"\x7e"))
        return packed

    def field(self, content: bytes) -> bytes:
        return self.varint(len(content)) + content

    def record(self, offset_delta: int, time_delta: int, subject: bytes) -> bytes:
        spec = record_spec(self.rng, subject=subject)
        flags = 0
        fields = self.varint(offset_delta) + self.varint(time_delta)
        if spec.key is not None:
            flags |= HAS_KEY
            fields += self.field(spec.key)
        if spec.value is not None:
            flags |= HAS_VALUE
            fields += self.field(spec.value)
        if spec.subject != subject or self.odd():
            flags |= HAS_SUBJECT
            fields += self.field(spec.subject)
        if spec.reply or self.odd():
            flags |= HAS_REPLY
            fields += self.field(spec.reply)
        if spec.headers or self.odd():
            flags |= HAS_HEADERS
            fields += self.varint(len(spec.headers))
            for name, content in spec.headers:
                fields += self.field(name) + self.field(content)
        if self.odd():
            flags = self.rng.randrange(256)
        if self.odd():
            fields += b"\0"
        return self.field(bytes([flags]) + fields)

    def batch(self, made: Log, records_max: int, gap: bool, sealed: bool) -> bytes:
        rng = self.rng
        base_offset = made.next_offset + (rng.randint(1, 50) if gap else 0)
        first_timestamp = made.last_timestamp + rng.choice((0, 1, 1000))
        epoch = min(made.last_epoch + rng.choice((0, 0, 0, 1, 4)), U64_MAX)
        last_delta = rng.randint(0, records_max - 1)
        deltas = list(range(last_delta + 1))
        if rng.random() < 0.3:  # thinned by compaction
            deltas = sorted(rng.sample(deltas, rng.randint(0, len(deltas))))
        times = sorted(rng.choice((0, 0, 5, 1000, 10**10)) for _ in deltas)
        subject = rng.choice(SUBJECTS)
        body = self.field(subject)
        for offset_delta, time_delta in zip(deltas, times, strict=True):
            body += self.record(self.number(offset_delta), self.number(time_delta), subject)
        body_bytes = len(body)
        attributes = FOLLOWS_GAP if gap or rng.random() < 0.05 else 0
        if rng.random() < 0.05:
            attributes |= PRODUCERS
        if sealed:
            body = blob(rng, 60)
            attributes |= rng.choice((CODEC_ZSTD, ENCRYPTED, CODEC_ZSTD | ENCRYPTED))
        header = Header(
            crc=0,
            length=self.number(HEADER_BYTES + len(body), U32_MAX),
            magic=self.number(MAGIC, 0xFFFF),
            version=self.number(VERSION if attributes & ENCRYPTED and rng.random() < 0.7 else VERSION_PLAIN, 0xFF),
            attributes=self.number(attributes, 0xFF),
            count=self.number(len(deltas), U32_MAX),
            base_offset=self.signed(base_offset),
            last_delta=self.number(last_delta, U32_MAX),
            body_bytes=self.number(body_bytes, U32_MAX),
            leader_epoch=self.number(epoch),
            first_timestamp=self.signed(first_timestamp),
            max_timestamp=self.signed(first_timestamp + (times[-1] if times else 0)),
        )
        made.next_offset = base_offset + last_delta + 1
        made.last_timestamp = first_timestamp + (times[-1] if times else 0)
        made.last_epoch = epoch
        return seal_checksum(header, body)


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


def repair_checksums(data: bytes) -> bytes:
    """Good checksums for all batches that can be hopped to, so that damage reaches the checks behind the checksum."""
    out = bytearray(data)
    at = 0
    while len(out) - at >= HEADER_BYTES:
        length = unpack_header(bytes(out), at).length
        if not HEADER_BYTES <= length <= len(out) - at:
            break
        out[at : at + 4] = crc32c(out[at + 4 : at + length]).to_bytes(4, "little")
        at += length
    return bytes(out)


def _flip_bit(rng: random.Random, data: bytearray, _: list[int]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, data: bytearray, _: list[int]) -> None:
    at = rng.randint(0, len(data))
    size = rng.randint(0, min(12, len(data) - at))
    data[at : at + size] = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))


def _truncate(rng: random.Random, data: bytearray, _: list[int]) -> None:
    del data[rng.randint(0, len(data)) :]


def _insert(rng: random.Random, data: bytearray, _: list[int]) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = blob(rng, 12)


def _delete(rng: random.Random, data: bytearray, _: list[int]) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.randint(1, 12)]


def _set_length(rng: random.Random, data: bytearray, positions: list[int]) -> None:
    at = rng.choice([*positions, 0])
    if len(data) - at >= 8:
        lengths = (*LENGTHS_EXTREME, len(data) - at, len(data) - at + 1, len(data) - at - 1)
        data[at + 4 : at + 8] = max(0, rng.choice(lengths)).to_bytes(4, "little")


def _damage_header(rng: random.Random, data: bytearray, positions: list[int]) -> None:
    at = rng.choice([*positions, 0]) + rng.randrange(HEADER_BYTES)
    if at < len(data):
        data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _damage_record(rng: random.Random, data: bytearray, positions: list[int]) -> None:
    """A byte right behind a header: subject length, record size, flags, deltas, lengths of keys and values."""
    at = rng.choice([*positions, 0]) + HEADER_BYTES + rng.randrange(24)
    if at < len(data):
        data[at] = rng.choice((0, 1, 0x1F, 0x20, 0x7F, 0x80, 0xFF, (data[at] + 1) % 256, (data[at] - 1) % 256))


def _zero_tail(rng: random.Random, data: bytearray, _: list[int]) -> None:
    at = rng.randint(0, len(data))
    data[at:] = bytes(len(data) - at + rng.choice((0, 7, 100)))


_DAMAGE: Final[tuple[Callable[[random.Random, bytearray, list[int]], None], ...]] = (
    _flip_bit,
    _overwrite,
    _truncate,
    _insert,
    _delete,
    _set_length,
    _damage_header,
    _damage_record,
    _zero_tail,
)


def damage(rng: random.Random, made: Log) -> bytes:
    """The log after one to three accidents; half of the time with checksums that hide them."""
    data = bytearray(made.data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_DAMAGE)(rng, data, made.positions)
    return repair_checksums(bytes(data)) if rng.random() < 0.5 else bytes(data)


def splice(rng: random.Random, one: Log, other: Log) -> bytes:
    """The head of one log and the tail of another, cut at batches or anywhere."""
    cuts = [*one.positions, len(one.data), rng.randint(0, len(one.data))]
    tails = [*other.positions, len(other.data), rng.randint(0, len(other.data))]
    return one.data[: rng.choice(cuts)] + other.data[rng.choice(tails) :]


def any_bytes(rng: random.Random) -> bytes:
    """What a reader may be handed: a good log, a damaged one, two halves, wrong numbers with good checksums, noise."""
    kind = rng.randrange(10)
    if kind == 0:
        return log(rng).data
    if kind <= 3:
        return damage(rng, log(rng, sealed=0.05))
    if kind == 4:
        return splice(rng, log(rng), log(rng))
    if kind <= 8:
        return log(rng, batches_min=1, oddity=rng.choice((0.003, 0.01, 0.03)), sealed=0.05).data
    return blob(rng, 200)


def numbers_in(data: bytes) -> tuple[list[int], list[int], list[int]]:
    """Positions, offsets and timestamps around which answers change, read leniently from the bytes."""
    positions, offsets, timestamps = [0, len(data)], [0, 1], [0, 1]
    at = 0
    while len(data) - at >= HEADER_BYTES:
        header = unpack_header(data, at)
        positions.append(at)
        offsets += [header.base_offset, header.last_offset, header.last_offset + 1]
        timestamps += [header.first_timestamp, header.max_timestamp, header.max_timestamp + 1]
        if header.length < HEADER_BYTES:
            break
        at += header.length
    low, high = -(2**63), 2**63 - 1
    return (
        [one for one in positions if one <= len(data)],
        [max(low, min(one, high)) for one in offsets],
        [max(low, min(one, high)) for one in timestamps],
    )


def with_header(data: bytes, position: int, **changes: int) -> bytes:
    """The bytes with one header changed and its checksum made good, when the batch lies inside."""
    header = replace(unpack_header(data, position), **changes)
    body_stop = min(position + header.length, len(data))
    changed = seal_checksum(header, data[position + HEADER_BYTES : body_stop])
    return data[:position] + changed + data[position + len(changed) :]
