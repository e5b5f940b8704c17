"""Where a read begins and ends, as options say it: `earliest`, `latest`, a cursor, offsets or timestamps by partition.

The JSON is that of Kafka's Spark connector: `{"orders": {"0": 23, "1": -2}}`, where -2 is the earliest offset and -1 the latest;
timestamps are milliseconds since 1970. ISO-8601 is understood wherever a timestamp may stand: `"2026-11-15T09:30:00Z"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from bascule.config.values.kinds import INT32_MAX, INT64_MAX, Kind, Unfit

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
OTHERS: Final = "*"
"""In JSON of offsets, in place of a stream: its partition 0 stands for all partitions that are not named."""
CURSOR_PREFIX: Final = "cursor:"
MILLISECOND_NS: Final = 1_000_000

T = TypeVar("T")
ByPartition = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Earliest:
    """The oldest record there is."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Behind the newest record."""


@dataclass(frozen=True, slots=True)
class AtCursor:
    """Behind the record that a cursor names; the oldest record of a partition for which it was never set."""

    cursor: str


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, or EARLIEST_OFFSET, or LATEST_OFFSET."""

    offsets: ByPartition


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record of each partition that is not older."""

    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The same with a timestamp for each partition."""

    timestamps_ns: ByPartition


Position = Earliest | Latest | AtCursor | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True, slots=True)
class OffsetsKind(Kind[Position]):
    """`earliest`, `latest`, JSON, and `cursor:<id>` where a read begins."""

    words: Mapping[str, Position]
    has_cursor: bool = False
    name = "position"

    def parse(self, text: str) -> Position:
        word = self.words.get(text.lower())
        if word is not None:
            return word
        if self.has_cursor and text.startswith(CURSOR_PREFIX) and len(text) > len(CURSOR_PREFIX):
            return AtCursor(text.removeprefix(CURSOR_PREFIX))
        try:
            return AtOffsets(by_partition(text, _offset))
        except Unfit as unfit:
            raise Unfit(self._right if not text.startswith("{") else str(unfit)) from None

    @property
    def _right(self) -> str:
        words = [f"`{word}`" for word in self.words] + (["`cursor:<id>`"] if self.has_cursor else [])
        return ", ".join(words) + ' or JSON such as `{"orders": {"0": 23, "1": -2}}`'


@dataclass(frozen=True, slots=True)
class TimestampKind(Kind[Position]):
    """One timestamp for all partitions."""

    name = "timestamp"

    def parse(self, text: str) -> Position:
        return AtTimestamp(timestamp(text))


@dataclass(frozen=True, slots=True)
class TimestampsKind(Kind[Position]):
    """A timestamp for each partition."""

    name = "JSON of timestamps"

    def parse(self, text: str) -> Position:
        return AtTimestamps(by_partition(text, timestamp))


@dataclass(frozen=True, slots=True)
class AssignKind(Kind[Mapping[str, tuple[int, ...]]]):
    """Partitions by stream."""

    name = "JSON of partitions"

    def parse(self, text: str) -> Mapping[str, tuple[int, ...]]:
        right = 'JSON such as `{"orders": [0, 1]}`'
        document = _object(text, right)
        assigned = {}
        for stream, numbers in document.items():
            if not stream or not isinstance(numbers, list) or not numbers:
                raise Unfit(right)
            assigned[stream] = tuple(sorted({_partition(number, right) for number in numbers}))
        return assigned


def by_partition(text: str, value: Callable[[Any], int]) -> ByPartition:
    """JSON of one number per partition, every part of it checked."""
    right = 'JSON such as `{"orders": {"0": 23, "1": -2}}`'
    found: dict[str, dict[int, int]] = {}
    for stream, entries in _object(text, right).items():
        if not stream or not isinstance(entries, dict) or not entries:
            raise Unfit(right)
        found[stream] = {_partition(number, right): value(entry) for number, entry in entries.items()}
        if len(found[stream]) != len(entries):
            raise Unfit(f"{right}; a partition of `{stream}` stands there twice")
    return found


def timestamp(value: object) -> int:
    """Nanoseconds of milliseconds since 1970, or of ISO-8601; without a zone it is UTC."""
    right = "milliseconds since 1970, or a time such as `2026-11-15T09:30:00Z`"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Unfit(right)
    is_number = isinstance(value, int) or re.fullmatch(r"[0-9]{1,19}", value)
    moment_ns = int(value) * MILLISECOND_NS if is_number else _iso(str(value), right)
    if not 0 <= moment_ns <= INT64_MAX:
        raise Unfit(f"{right}, from 1970 to 2262")
    return moment_ns


def _iso(text: str, right: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unfit(right) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


def _object(text: str, right: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Unfit(right) from None
    if not isinstance(document, dict) or not document:
        raise Unfit(right)
    return document


def _partition(value: object, right: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT32_MAX:
        raise Unfit(right)
    return value


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST_OFFSET <= value <= INT64_MAX:
        raise Unfit("JSON with whole numbers as offsets, -2 for the earliest and -1 for the latest")
    return value
