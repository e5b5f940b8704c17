"""The twin of `BatchBuilder`: a list of packed records that becomes a batch when it is stamped."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from typing_extensions import Buffer

from tests.parity.twins.twin_format import (
    HEADER_BYTES,
    MAGIC,
    OFFSET_MAX,
    PRODUCERS,
    VERSION_PLAIN,
    Header,
    pack_field,
    pack_record,
    plain_bytes,
    seal_checksum,
)

INT64_FORMATS: Final = ("q", "l")
EMPTY_HEAD: Final = pack_field(b"")


class LimitError(ValueError):
    def __init__(self, field: str, size: int, limit: int) -> None:
        super().__init__(f"{field}: {size} is more than {limit}")
        self.field = field
        self.size = size
        self.limit = limit


def _bound(field: str, size: int, limit: int) -> None:
    if size > limit:
        raise LimitError(field, size, limit)


class BatchBuilder:
    def __init__(
        self,
        *,
        key_bytes_max: int,
        value_bytes_max: int,
        headers_max: int,
        headers_bytes_max: int,
        subject_bytes_max: int,
        batch_bytes_max: int,
        records_max: int,
    ) -> None:
        self._key_bytes_max = key_bytes_max
        self._value_bytes_max = value_bytes_max
        self._headers_max = headers_max
        self._headers_bytes_max = headers_bytes_max
        self._subject_bytes_max = subject_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._records_max = records_max
        self.clear()

    def clear(self) -> None:
        self._head: bytes = b""
        """Length and text of the batch's subject: the one of its first record."""
        self._subject: bytes = b""
        self._records: list[bytes] = []
        self._time_delta = 0
        self._has_producer = False

    @property
    def count(self) -> int:
        return len(self._records)

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + len(self._head or EMPTY_HEAD) + sum(map(len, self._records))

    def add(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[bytes, bytes]] = (),
        subject: bytes = b"",
        reply: bytes = b"",
        time_delta: int = 0,
    ) -> None:
        # One more than is allowed is enough to refuse: a generator may have no end.
        pairs = tuple(islice(headers, self._headers_max + 1))
        key = None if key is None else plain_bytes(key)
        value = None if value is None else plain_bytes(value)
        _bound("key", len(key or b""), self._key_bytes_max)
        _bound("value", len(value or b""), self._value_bytes_max)
        _bound("headers", len(pairs), self._headers_max)
        # Strict: the lengths in front of names and values count too, so that a million empty headers are not nothing.
        packed = b"".join(pack_field(name) + pack_field(content) for name, content in pairs)
        _bound("header bytes", len(packed), self._headers_bytes_max)
        _bound("subject", len(subject), self._subject_bytes_max)
        _bound("reply", len(reply), self._subject_bytes_max)
        self._append([(key, value)], pairs, subject, reply, max(time_delta, self._time_delta))

    def add_columns(
        self,
        values: Buffer,
        value_ends: Buffer,
        keys: Buffer | None = None,
        key_ends: Buffer | None = None,
        subject: bytes = b"",
    ) -> None:
        if (keys is None) != (key_ends is None):
            raise ValueError("`keys` and `key_ends` belong together")
        value_column = _column(values, value_ends)
        key_column: list[bytes | None] = [None] * len(value_column)
        if keys is not None and key_ends is not None:
            key_column = [*_column(keys, key_ends)]
        if len(key_column) != len(value_column):
            raise ValueError("as many keys as values")
        for value in value_column:
            _bound("value", len(value), self._value_bytes_max)
        for key in key_column:
            _bound("key", len(key or b""), self._key_bytes_max)
        _bound("subject", len(subject), self._subject_bytes_max)
        self._append(list(zip(key_column, value_column, strict=True)), (), subject, b"", self._time_delta)

    def _append(
        self,
        rows: list[tuple[bytes | None, bytes | None]],
        headers: tuple[tuple[bytes, bytes], ...],
        subject: bytes,
        reply: bytes,
        time_delta: int,
    ) -> None:
        if not rows:
            return
        _bound("records", self.count + len(rows), self._records_max)
        batch_subject = self._subject if self._records else subject
        own_subject = None if subject == batch_subject else subject
        packed = [
            pack_record(self.count + index, time_delta, key, value, headers, own_subject, reply)
            for index, (key, value) in enumerate(rows)
        ]
        head = pack_field(batch_subject)
        nbytes = HEADER_BYTES + len(head) + sum(map(len, self._records)) + sum(map(len, packed))
        _bound("batch", nbytes, self._batch_bytes_max)
        self._head, self._subject = head, batch_subject
        self._records += packed
        self._has_producer = self._has_producer or any(name == b"bascule-producer" for name, _ in headers)
        self._time_delta = time_delta

    def stamp(self, base_offset: int, leader_epoch: int, timestamp: int) -> memoryview:
        if not self._records:
            raise ValueError("a batch without records is never written")
        if base_offset < 0 or base_offset + self.count > OFFSET_MAX:
            raise ValueError("offsets must fit an int64")
        if timestamp < 0 or timestamp + self._time_delta > 2**63 - 1:
            raise ValueError("timestamps must fit an int64")
        body = self._head + b"".join(self._records)
        header = Header(
            crc=0,
            length=HEADER_BYTES + len(body),
            magic=MAGIC,
            version=VERSION_PLAIN,
            attributes=PRODUCERS if self._has_producer else 0,
            count=self.count,
            base_offset=base_offset,
            last_delta=self.count - 1,
            body_bytes=len(body),
            leader_epoch=leader_epoch,
            first_timestamp=timestamp,
            max_timestamp=timestamp + self._time_delta,
        )
        return memoryview(seal_checksum(header, body))


def _column(content: Buffer, ends: Buffer) -> list[bytes]:
    """Strict: `ends` is one row of native int64, nothing that merely has the right number of bytes."""
    view = memoryview(ends)
    if view.ndim != 1 or view.itemsize != 8 or view.format not in INT64_FORMATS:
        raise ValueError("end positions are int64")
    plain = plain_bytes(content)
    column: list[bytes] = []
    begin = 0
    for end in view.tolist():
        if not begin <= end <= len(plain):
            raise ValueError("end positions never decrease and stay inside the bytes")
        column.append(plain[begin:end])
        begin = end
    return column
