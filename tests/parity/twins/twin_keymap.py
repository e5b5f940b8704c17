"""The twin of `bascule.kernels.records.keymap`: a dict from SipHash to offset, and compaction record by record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import Buffer

from tests.parity.twins.twin_format import FOLLOWS_GAP, HEADER_BYTES, OFFSET_MAX, Header, plain_bytes, seal_checksum
from tests.parity.twins.twin_records import (
    BatchError,
    Record,
    Stored,
    inside,
    read_body,
    rebuild,
    verify_alone,
)
from tests.parity.twins.twin_siphash import siphash128

SEALED: Final = "sealed"


@dataclass(frozen=True, slots=True)
class Learned:
    stop: int
    next_offset: int
    full: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Sifted:
    stop: int
    kept: int
    removed: int
    gap: bool
    first_held: int
    reason: str | None


class KeyMap:
    """`capacity` is given, not computed: how many slots the memory makes is the kernel's own affair."""

    def __init__(self, capacity: int, secret: bytes) -> None:
        self.capacity = capacity
        self._secret = secret
        self._offsets: dict[bytes, int] = {}

    @property
    def count(self) -> int:
        return len(self._offsets)

    def put(self, key: Buffer, offset: int) -> bool:
        digest = siphash128(self._secret, plain_bytes(key))
        known = self._offsets.get(digest)
        if known is None and self.count >= self.capacity:
            return False
        self._offsets[digest] = offset if known is None else max(known, offset)
        return True

    def get(self, key: Buffer) -> int:
        return self._offsets.get(siphash128(self._secret, plain_bytes(key)), -1)

    def learn(self, data: Buffer, end_offset: int, start: int = 0, first_offset: int = 0) -> Learned:
        content = plain_bytes(data)
        at = inside(content, start)
        next_offset = -1
        while at != len(content):
            try:
                header, stored = _open_clear(content, at)
            except BatchError as error:
                return Learned(at, next_offset, full=False, reason=error.reason)
            if header.base_offset >= end_offset:
                break
            for one in stored:
                record = one.record
                if record.key is None or not first_offset <= record.offset < end_offset:
                    continue
                if not self.put(record.key, record.offset):
                    return Learned(at, record.offset, full=True, reason=None)
            next_offset = min(header.last_offset + 1, end_offset)
            at += header.length
        return Learned(at, next_offset, full=False, reason=None)


def _open_clear(data: bytes, position: int) -> tuple[Header, list[Stored]]:
    """Strict: the checksum is verified. What compaction reads wrongly it removes wrongly, under a good checksum."""
    header = verify_alone(data, position, len(data))
    if header.is_sealed:
        raise BatchError(SEALED, position)
    return header, read_body(data, position, header)


def sift(
    keys: KeyMap,
    data: Buffer,
    out: bytearray,
    *,
    end_offset: int,
    keep_since: int,
    tombstones_before: int,
    gap: bool,
    start: int = 0,
) -> Sifted:
    content = plain_bytes(data)
    at = inside(content, start)
    written = bytearray()
    kept = removed = 0
    first_held = OFFSET_MAX
    reason: str | None = None

    def superseded(record: Record) -> bool:
        return record.key is not None and record.offset < end_offset and keys.get(record.key) > record.offset

    def goes(record: Record) -> bool:
        if record.key is None or record.offset >= end_offset or record.timestamp >= keep_since:
            return False
        return superseded(record) or (record.value is None and record.timestamp < tombstones_before)

    while at != len(content):
        try:
            header, stored = _open_clear(content, at)
        except BatchError as error:
            reason = error.reason
            break
        keep = [one for one in stored if not goes(one.record)]
        held = [one.record.offset for one in keep if superseded(one.record)]
        first_held = min([first_held, *held])
        kept += len(keep)
        removed += len(stored) - len(keep)
        if keep:
            written += _rewrite(content, at, header, stored, keep, gap)
            gap = False
        else:  # also a batch that had no records to begin with
            gap = True
        at += header.length
    out += written
    return Sifted(at, kept, removed, gap, first_held, reason)


def _rewrite(data: bytes, at: int, header: Header, stored: list[Stored], keep: list[Stored], gap: bool) -> bytes:
    marked = replace(header, attributes=header.attributes | FOLLOWS_GAP) if gap else header
    if len(keep) < len(stored):
        return rebuild(data, at, marked, keep)
    if marked != header:
        return seal_checksum(marked, data[at + HEADER_BYTES : at + header.length])
    return data[at : at + header.length]
