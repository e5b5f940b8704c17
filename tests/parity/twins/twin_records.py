"""The twin of `bascule.kernels.records.records`: the same functions over `bytes`, without haste.

Where `records.pyi` leaves a choice, the stricter one stands here, next to the word *strict*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import Buffer

from tests.parity.twins.twin_crc32c import crc32c
from tests.parity.twins.twin_format import (
    ATTRIBUTES_ZERO,
    CODEC_MASK,
    CODEC_ZSTD,
    ENCRYPTED,
    FLAGS_ALL,
    FOLLOWS_GAP,
    HAS_HEADERS,
    HAS_KEY,
    HAS_REPLY,
    HAS_SUBJECT,
    HAS_VALUE,
    HEADER_BYTES,
    MAGIC,
    OFFSET_MAX,
    VERSION,
    VERSION_PLAIN,
    Header,
    Headers,
    VarintError,
    plain_bytes,
    seal_checksum,
    unpack_header,
    unpack_varint,
)

INCOMPLETE: Final = "incomplete"
BAD_LENGTH: Final = "bad length"
BAD_MAGIC: Final = "bad magic"
FUTURE_VERSION: Final = "future version"
BAD_ATTRIBUTES: Final = "bad attributes"
BAD_CHECKSUM: Final = "bad checksum"
BAD_OFFSETS: Final = "bad offsets"
BAD_TIMESTAMPS: Final = "bad timestamps"
BAD_EPOCH: Final = "bad epoch"
BAD_RECORDS: Final = "bad records"

REASONS: Final = (
    INCOMPLETE,
    BAD_LENGTH,
    BAD_MAGIC,
    FUTURE_VERSION,
    BAD_ATTRIBUTES,
    BAD_CHECKSUM,
    BAD_OFFSETS,
    BAD_TIMESTAMPS,
    BAD_EPOCH,
    BAD_RECORDS,
)


class BatchError(ValueError):
    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at {position}")
        self.reason = reason
        self.position = position


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    timestamp: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    subject: bytes
    reply: bytes


@dataclass(frozen=True, slots=True)
class Scan:
    end: int
    next_offset: int
    batches: int
    records: int
    first_timestamp: int
    last_timestamp: int
    last_epoch: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Selection:
    start: int
    stop: int
    next_offset: int
    reason: str | None


# ── one batch: is it good ────────────────────────────────────────────────────────────────────────


def inside(data: bytes, position: int) -> int:
    """Strict: a position outside of the bytes is the caller's fault; a negative one is not counted from the end."""
    if not 0 <= position <= len(data):
        raise ValueError("the position lies outside of the bytes")
    return position


def peek(data: bytes, position: int, stop: int) -> Header:
    """The checks that need the 56 bytes of the header and nothing else."""
    if stop - position < HEADER_BYTES:
        raise BatchError(INCOMPLETE, position)
    header = unpack_header(data, position)
    if header.length < HEADER_BYTES:
        raise BatchError(BAD_LENGTH, position)
    if header.magic != MAGIC or header.version == 0:
        raise BatchError(BAD_MAGIC, position)
    if header.version > VERSION:
        raise BatchError(FUTURE_VERSION, position)
    if header.attributes & ATTRIBUTES_ZERO or header.attributes & CODEC_MASK > CODEC_ZSTD:
        raise BatchError(BAD_ATTRIBUTES, position)
    return header


def whole(data: bytes, position: int, stop: int) -> Header:
    header = peek(data, position, stop)
    if header.length > stop - position:
        raise BatchError(INCOMPLETE, position)
    return header


def verify_checksum(data: bytes, position: int, header: Header) -> None:
    if crc32c(data[position + 4 : position + header.length]) != header.crc:
        raise BatchError(BAD_CHECKSUM, position)


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a batch must continue: the log in front of it."""

    next_offset: int
    last_timestamp: int
    last_epoch: int
    gap: bool


def verify_numbers(header: Header, position: int, before: Continuation | None = None) -> None:
    # Strict: the offset behind the batch must be an int64 too, so OFFSET_MAX itself is never a record's.
    if header.base_offset < 0 or header.last_offset >= OFFSET_MAX or header.count > header.last_delta + 1:
        raise BatchError(BAD_OFFSETS, position)
    if before is not None:
        jump_allowed = before.gap or header.attributes & FOLLOWS_GAP
        if header.base_offset < before.next_offset or (header.base_offset > before.next_offset and not jump_allowed):
            raise BatchError(BAD_OFFSETS, position)
    if header.first_timestamp < 0 or header.max_timestamp < header.first_timestamp:
        raise BatchError(BAD_TIMESTAMPS, position)
    if before is not None:
        if header.first_timestamp < before.last_timestamp:
            raise BatchError(BAD_TIMESTAMPS, position)
        if header.leader_epoch < before.last_epoch:
            raise BatchError(BAD_EPOCH, position)


# ── the body ─────────────────────────────────────────────────────────────────────────────────────


class _MalformedError(Exception):
    """The body does not parse."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A record and the bytes it takes in the buffer, its size field included."""

    start: int
    stop: int
    record: Record


class _Cursor:
    """Reads fields and never beyond `stop`."""

    def __init__(self, data: bytes, position: int, stop: int) -> None:
        self.data = data
        self.position = position
        self.stop = stop

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        try:
            value, self.position = unpack_varint(self.data, self.position, self.stop)
        except VarintError:
            raise _MalformedError from None
        return value

    def take(self, size: int) -> bytes:
        if size > self.stop - self.position:
            raise _MalformedError
        self.position += size
        return self.data[self.position - size : self.position]

    def field(self) -> bytes:
        return self.take(self.varint())

    def enter(self) -> _Cursor:
        """A cursor over the next field; this one goes on behind it."""
        size = self.varint()
        self.take(size)
        return _Cursor(self.data, self.position - size, self.position)

    @property
    def at_end(self) -> bool:
        return self.position == self.stop


def _read_record(body: _Cursor, header: Header, batch_subject: bytes) -> Stored:
    start = body.position
    fields = body.enter()
    flags = fields.byte()
    if flags & ~FLAGS_ALL:
        raise _MalformedError
    offset_delta = fields.varint()
    time_delta = fields.varint()
    key = fields.field() if flags & HAS_KEY else None
    value = fields.field() if flags & HAS_VALUE else None
    subject = fields.field() if flags & HAS_SUBJECT else batch_subject
    reply = fields.field() if flags & HAS_REPLY else b""
    # Flags that announce nothing (no headers, an empty reply, the batch's own subject) are odd but legal.
    header_count = fields.varint() if flags & HAS_HEADERS else 0
    headers: list[tuple[bytes, bytes]] = []
    while len(headers) < header_count:
        name = fields.field()
        headers.append((name, fields.field()))
    if not fields.at_end:
        raise _MalformedError
    record = Record(
        header.base_offset + offset_delta,
        header.first_timestamp + time_delta,
        header.leader_epoch,
        key,
        value,
        tuple(headers),
        subject,
        reply,
    )
    return Stored(start, body.position, record)


def _read_body(data: bytes, position: int, header: Header) -> Iterator[Stored]:
    if header.body_bytes != header.length - HEADER_BYTES:
        raise _MalformedError
    body = _Cursor(data, position + HEADER_BYTES, position + header.length)
    subject = body.field()
    last_offset = header.base_offset - 1
    last_timestamp = header.first_timestamp
    for _ in range(header.count):
        stored = _read_record(body, header, subject)
        if not last_offset < stored.record.offset <= header.last_offset:
            raise _MalformedError
        if stored.record.timestamp < last_timestamp:
            raise _MalformedError
        last_offset, last_timestamp = stored.record.offset, stored.record.timestamp
        yield stored
    if not body.at_end or last_timestamp != header.max_timestamp:
        raise _MalformedError


def read_body(data: bytes, position: int, header: Header) -> list[Stored]:
    """Every record of a clear batch, or `bad records`; a sealed one has no records to read."""
    if header.is_sealed:
        raise BatchError(BAD_RECORDS, position)
    try:
        return list(_read_body(data, position, header))
    except _MalformedError:
        raise BatchError(BAD_RECORDS, position) from None


def open_batch(data: bytes, position: int, stop: int) -> tuple[Header, list[Stored]]:
    """Everything but the checksum.

    Strict: also the batch's own offsets and timestamps, without which a record's offset need not fit an int64; and the
    whole body, wherever the answer lies in it.
    """
    header = whole(data, position, stop)
    verify_numbers(header, position)
    return header, read_body(data, position, header)


def verify_alone(data: bytes, position: int, stop: int) -> Header:
    """What `scan` asks of a batch unless told more."""
    header = whole(data, position, stop)
    verify_checksum(data, position, header)
    verify_numbers(header, position)
    return header


def verify(data: bytes, position: int, stop: int) -> Header:
    header = verify_alone(data, position, stop)
    if not header.is_sealed:
        read_body(data, position, header)
    return header


# ── the public functions ─────────────────────────────────────────────────────────────────────────


def read_header(data: Buffer, position: int = 0) -> Header:
    content = plain_bytes(data)
    return peek(content, inside(content, position), len(content))


def check(data: Buffer, position: int = 0) -> int:
    content = plain_bytes(data)
    return verify(content, inside(content, position), len(content)).length


def scan(
    data: Buffer,
    next_offset: int,
    last_timestamp: int = 0,
    last_epoch: int = 0,
    start: int = 0,
    *,
    gap: bool = False,
    checksums: bool = True,
    structure: bool = False,
    position: int = 0,
    interval: int = 0,
    marks: list[tuple[int, int, int]] | None = None,
    epochs: list[tuple[int, int]] | None = None,
) -> Scan:
    content = plain_bytes(data)
    at = inside(content, start)
    batches = records = 0
    first_timestamp = -1
    last_mark: int | None = None
    reason: str | None = None
    while at != len(content):
        try:
            header = whole(content, at, len(content))
            if checksums:
                verify_checksum(content, at, header)
            before = Continuation(next_offset, last_timestamp, last_epoch, gap and batches == 0)
            verify_numbers(header, at, before)
            if structure and not header.is_sealed:
                read_body(content, at, header)
        except BatchError as error:
            reason = error.reason
            break
        if marks is not None and (last_mark is None or at - last_mark >= interval):
            marks.append((header.base_offset, position + at, header.first_timestamp))
            last_mark = at
        if epochs is not None and header.leader_epoch > last_epoch:
            epochs.append((header.leader_epoch, next_offset))
        if batches == 0:
            first_timestamp = header.first_timestamp
        batches += 1
        records += header.count
        next_offset = header.last_offset + 1
        last_timestamp = header.max_timestamp
        last_epoch = header.leader_epoch
        at += header.length
    return Scan(at, next_offset, batches, records, first_timestamp, last_timestamp, last_epoch, reason)


def _hop(data: bytes, start: int) -> Iterator[tuple[int, Header]]:
    """Batches by their headers alone, up to the first that is none."""
    at = inside(data, start)
    while True:
        try:
            header = peek(data, at, len(data))
        except BatchError:
            return
        yield at, header
        at += header.length


def find_offset(data: Buffer, offset: int, start: int = 0) -> int:
    for at, header in _hop(plain_bytes(data), start):
        if header.last_offset >= offset:
            return at
    return -1


def find_timestamp(data: Buffer, timestamp: int, start: int = 0) -> int:
    for at, header in _hop(plain_bytes(data), start):
        if header.count > 0 and header.max_timestamp >= timestamp:
            return at
    return -1


def select(data: Buffer, offset: int, end_offset: int, bytes_max: int, start: int = 0) -> Selection:
    content = plain_bytes(data)
    at = inside(content, start)
    first: int | None = None
    next_offset = offset
    reason: str | None = None
    while at != len(content):
        try:
            header = peek(content, at, len(content))
            if first is None and header.last_offset < offset:
                at += whole(content, at, len(content)).length
                continue
            if header.base_offset >= end_offset:
                break
            if first is not None and at + header.length - first > bytes_max:
                break
            # Whether their records parse was settled when they were appended or recovered.
            verify_alone(content, at, len(content))
            jumps = header.base_offset > next_offset and not header.attributes & FOLLOWS_GAP
            if first is not None and (header.base_offset < next_offset or jumps):
                raise BatchError("bad offsets", at)
        except BatchError as error:
            reason = error.reason
            break
        first = at if first is None else first
        next_offset = header.last_offset + 1
        at += header.length
    return Selection(at if first is None else first, at, next_offset, reason)


def resync(data: Buffer, start: int, offset: int) -> int:
    content = plain_bytes(data)
    for at in range(inside(content, start), len(content) - HEADER_BYTES + 1):
        try:
            header = verify_alone(content, at, len(content))
        except BatchError:
            continue
        if header.base_offset >= offset:
            return at
    return -1


def decode(
    data: Buffer, first_offset: int = 0, end_offset: int = OFFSET_MAX, start: int = 0, stop: int = -1
) -> list[Record]:
    content = plain_bytes(data)
    if stop == -1:
        stop = len(content)
    if not 0 <= start <= stop <= len(content):
        raise ValueError("`start` and `stop` must lie inside the bytes")
    found: list[Record] = []
    at = start
    while at != stop:
        header, stored = open_batch(content, at, stop)
        found += [one.record for one in stored if first_offset <= one.record.offset < end_offset]
        at += header.length
    return found


def offset_at(data: Buffer, timestamp: int, position: int = 0) -> int:
    content = plain_bytes(data)
    _, stored = open_batch(content, inside(content, position), len(content))
    return next((one.record.offset for one in stored if one.record.timestamp >= timestamp), -1)


# ── rewriting ────────────────────────────────────────────────────────────────────────────────────


def rebuild(data: bytes, position: int, header: Header, keep: list[Stored]) -> bytes:
    """The batch with only some of its records, each byte for byte as it was."""
    head = _Cursor(data, position + HEADER_BYTES, position + header.length)
    head.field()
    body = data[position + HEADER_BYTES : head.position] + b"".join(data[one.start : one.stop] for one in keep)
    changed = replace(
        header,
        length=HEADER_BYTES + len(body),
        count=len(keep),
        body_bytes=len(body),
        max_timestamp=keep[-1].record.timestamp if keep else header.first_timestamp,
    )
    return seal_checksum(changed, body)


def with_body(batch: Buffer, body: Buffer, attributes: int) -> bytes:
    """`body_bytes` is the size in the clear: it stays under a seal and follows a clear body. *Follows a gap* stays."""
    content, new_body = plain_bytes(batch), plain_bytes(body)
    codec_bits = CODEC_MASK | ENCRYPTED
    # Strict: bits that are not this function's to set are refused, not masked away.
    if attributes & ~codec_bits or attributes & CODEC_MASK > CODEC_ZSTD:
        raise ValueError("only codec and encryption bits can be given")
    header = peek(content, 0, len(content))  # the old body is of no interest
    changed = replace(
        header,
        length=HEADER_BYTES + len(new_body),
        version=VERSION if attributes & ENCRYPTED else VERSION_PLAIN,
        attributes=header.attributes & ~codec_bits | attributes,
        body_bytes=header.body_bytes if attributes else len(new_body),
    )
    return seal_checksum(changed, new_body)


def trim(batch: Buffer, end_offset: int) -> bytes:
    content = plain_bytes(batch)
    # Strict: the checksum too, or damage would leave with a good one.
    header = verify(content, 0, len(content))
    stored = read_body(content, 0, header)
    if not header.base_offset < end_offset <= header.last_offset + 1:
        raise ValueError("the batch cannot end there")
    keep = [one for one in stored if one.record.offset < end_offset]
    return rebuild(content, 0, replace(header, last_delta=end_offset - 1 - header.base_offset), keep)
