"""The twin of `bascule.kernels.arrow.columns`: rows from record batches as plain Python objects, without haste."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.parity.twins.twin_format import Header
from tests.parity.twins.twin_messages import readable
from tests.parity.twins.twin_records import (
    BatchError,
    Record,
    _MalformedError,
    _read_body,
    verify_numbers,
    whole,
)

ALL: Final = 0
FULL: Final = 1
END: Final = 2
DAMAGED: Final = 3

COLUMNS: Final = (
    "key",
    "value",
    "stream",
    "partition",
    "offset",
    "timestamp",
    "subject",
    "replySubject",
    "headers",
    "leaderEpoch",
)
ROW_BYTES: Final = 48
HEADER_BYTES: Final = 8


@dataclass(slots=True)
class Columns:
    """Rows are made one by one; `fill` may be called again after FULL, with what is loaded."""

    stream: str
    partition: int
    wanted: tuple[str, ...] = COLUMNS
    rows: list[dict[str, Any]] = field(default_factory=list)
    nbytes: int = 0
    next_offset: int = 0
    _data: bytes = b""
    _end_offset: int = 0

    def load(self, data: bytes, first_offset: int, end_offset: int) -> None:
        self._data = data
        self.next_offset = first_offset
        self._end_offset = end_offset

    def fill(self, rows_max: int, bytes_max: int) -> int:
        """Begins at the first batch each time: rows below `next_offset` were made before."""
        at, behind = 0, 0
        while at < len(self._data):
            try:
                header = whole(self._data, at, len(self._data))
                verify_numbers(header, at)
            except BatchError:
                return DAMAGED
            if header.base_offset < behind:
                return DAMAGED
            if header.last_offset >= self.next_offset:
                if header.base_offset >= self._end_offset:
                    self.next_offset = max(self.next_offset, self._end_offset)
                    return END
                outcome = self._fill_batch(at, header, rows_max, bytes_max)
                if outcome != ALL:
                    return outcome
                self.next_offset = header.last_offset + 1
            behind = header.last_offset + 1
            at += header.length
        return ALL

    def _fill_batch(self, at: int, header: Header, rows_max: int, bytes_max: int) -> int:
        if header.is_sealed:
            return DAMAGED
        try:
            for stored in _read_body(self._data, at, header):
                record = stored.record
                if record.timestamp > header.max_timestamp:
                    return DAMAGED
                if record.offset >= self._end_offset:
                    self.next_offset = max(self.next_offset, self._end_offset)
                    return END
                if record.offset < self.next_offset:
                    continue
                if len(self.rows) >= rows_max or self.nbytes >= bytes_max:
                    return FULL
                self._append(record)
                self.next_offset = record.offset + 1
        except _MalformedError:
            return DAMAGED
        return ALL

    def _append(self, record: Record) -> None:
        headers: dict[str, bytes] = {}
        for name, value in record.headers:
            headers.pop(readable(name), None)  # the last one counts, and stands where it stood
            headers[readable(name)] = value
        row = {
            "key": record.key,
            "value": record.value,
            "stream": self.stream,
            "partition": self.partition,
            "offset": record.offset,
            "timestamp": record.timestamp // 1000,
            "subject": readable(record.subject),
            "replySubject": readable(record.reply) if record.reply else None,
            "headers": list(headers.items()),
            "leaderEpoch": (record.leader_epoch + 2**63) % 2**64 - 2**63,
        }
        self.nbytes += ROW_BYTES + sum(
            size_of(row[name]) for name in self.wanted if name in ("key", "value", "subject", "replySubject", "headers")
        )
        self.rows.append({name: row[name] for name in self.wanted})

    def take(self) -> list[dict[str, Any]]:
        taken, self.rows, self.nbytes = self.rows, [], 0
        return taken


def size_of(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    return sum(HEADER_BYTES + len(name.encode()) + len(one) for name, one in value)
