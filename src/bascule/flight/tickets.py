"""Tickets and commands of the Flight service, in JSON.

    ticket      {"stream": "orders", "stream_id": 17, "partition": 0, "start": 0, "end": 1000, "columns": ["key", "value"],
                 "batch_rows": 10000, "batch_bytes": 4194304}
    descriptor  a path of one part, the stream; or a command {"stream": "orders", "partitions": [0, 1], "columns": ["value"]}
    criteria    {"pattern": "orders-*"}
    offsets     {"streams": ["orders"], "timestamps": {"orders": {"0": 1700000000000000000}}}

Only `stream` and `partition` are required. `start` is an offset or "earliest"; `end` is exclusive, and null means the high
watermark at the time of the call. An unknown name is refused: a reader that misspells `end` would read too much.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from bascule import limits
from bascule.errors import CallerError
from bascule.flight.schema import COLUMNS, check_columns

EARLIEST: Final = "earliest"
OFFSETS_ACTION: Final = "offsets"
LOCATIONS_ACTION: Final = "locations"
"""Call on a broker's gRPC port that returns the Flight locations of all brokers."""
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTicket:
    """A range of one partition. With `stream_id` None, the stream that has the name now."""

    stream: str
    partition: int
    stream_id: int | None = None
    start: int | None = None
    """None: from the start of the log."""
    end: int | None = None
    """Exclusive. None: up to the high watermark."""
    columns: tuple[str, ...] = COLUMNS
    batch_rows: int = limits.FLIGHT_BATCH_ROWS
    batch_bytes: int = limits.FLIGHT_BATCH_BYTES

    def encode(self) -> bytes:
        fields = asdict(self)
        if self.start is None:
            fields["start"] = EARLIEST
        if self.columns == COLUMNS:
            fields["columns"] = None
        return json.dumps(fields, separators=(",", ":")).encode()


def parse_ticket(data: bytes) -> ReadTicket:
    """Parse a ticket. Raises CallerError, which names the field."""
    given = _Given("ticket", data)
    start = given.take("start", EARLIEST)
    ticket = ReadTicket(
        stream=given.text("stream"),
        partition=given.integer("partition", 0, INT32_MAX),
        stream_id=given.integer_or_none("stream_id", 0, INT64_MAX),
        start=None if start == EARLIEST else given.checked("start", start, 0, INT64_MAX),
        end=given.integer_or_none("end", 0, INT64_MAX),
        columns=given.columns(),
        batch_rows=given.integer_or_none("batch_rows", 1, limits.FLIGHT_BATCH_ROWS_MAX) or limits.FLIGHT_BATCH_ROWS,
        batch_bytes=given.integer_or_none("batch_bytes", 1, limits.FLIGHT_BATCH_BYTES_MAX) or limits.FLIGHT_BATCH_BYTES,
    )
    given.must_be_empty()
    if ticket.start is not None and ticket.end is not None and ticket.start > ticket.end:
        raise CallerError(f"ticket: start {ticket.start} is after end {ticket.end}", hint="`end` is exclusive")
    return ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommand:
    """The stream, partitions and columns of a request for information."""

    stream: str
    partitions: tuple[int, ...] | None = None
    columns: tuple[str, ...] = COLUMNS

    def encode(self) -> bytes:
        return json.dumps({"stream": self.stream, "partitions": self.partitions, "columns": self.columns}).encode()


def parse_command(data: bytes) -> TableCommand:
    given = _Given("command", data)
    partitions = given.take("partitions", None)
    if partitions is not None:
        if not isinstance(partitions, list):
            raise CallerError(f"command: partitions is {partitions!r}", hint="give a list of numbers, or null for all")
        partitions = tuple(given.checked("partitions", number, 0, INT32_MAX) for number in partitions)
    command = TableCommand(stream=given.text("stream"), partitions=partitions, columns=given.columns())
    given.must_be_empty()
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsQuery:
    """A request of the action `offsets`. None: all streams."""

    streams: tuple[str, ...] | None = None
    timestamps: Mapping[str, Mapping[int, int]] | None = None
    """Stream → partition → nanoseconds since 1970: the answer has the first offset at or after that time."""

    def encode(self) -> bytes:
        return json.dumps({"streams": self.streams, "timestamps": self.timestamps}).encode()


def parse_offsets_query(data: bytes) -> OffsetsQuery:
    given = _Given("offsets", data or b"{}")
    streams = given.take("streams", None)
    if streams is not None and not (isinstance(streams, list) and all(isinstance(one, str) for one in streams)):
        raise CallerError(f"offsets: streams is {streams!r}", hint="give a list of names, or null for all")
    asked = given.take("timestamps", None)
    if asked is None:
        timestamps = None
    elif isinstance(asked, dict) and all(isinstance(times, dict) for times in asked.values()):
        timestamps = {
            stream: {
                _partition(given, number): given.checked("timestamps", at, 0, INT64_MAX) for number, at in times.items()
            }
            for stream, times in asked.items()
        }
    else:
        raise CallerError(
            f"offsets: timestamps is {asked!r}", hint='write {"orders": {"0": 1700000000000000000}}, in nanoseconds'
        )
    given.must_be_empty()
    return OffsetsQuery(streams=None if streams is None else tuple(streams), timestamps=timestamps)


def _partition(given: _Given, text: str) -> int:
    try:
        number: object = int(text)
    except ValueError:
        number = text
    return given.checked("timestamps", number, 0, INT32_MAX)


def parse_pattern(data: bytes) -> NamePattern | None:
    """Parse the criteria of ListFlights. Returns None for all streams."""
    if not data:
        return None
    given = _Given("criteria", data)
    pattern = given.text("pattern")
    given.must_be_empty()
    if len(pattern) > limits.NAME_PATTERN_CHARACTERS_MAX:
        raise CallerError(
            f"criteria: pattern has {len(pattern)} characters",
            hint=f"give at most {limits.NAME_PATTERN_CHARACTERS_MAX}",
        )
    return NamePattern(pattern)


class NamePattern:
    """A pattern of whole names: `*` stands for any characters, `?` for one, every other character for itself.

    A regular expression of a client could take exponential time. This match takes at most name × pattern steps.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def matches(self, name: str) -> bool:
        pattern, place, at = self._pattern, 0, 0
        star, resume = -1, 0
        while at < len(name):
            if place < len(pattern) and pattern[place] == "*":
                star, resume = place, at
                place += 1
            elif place < len(pattern) and pattern[place] in ("?", name[at]):
                place += 1
                at += 1
            elif star >= 0:
                resume += 1  # the latest star takes one more character
                place, at = star + 1, resume
            else:
                return False
        return set(pattern[place:]) <= {"*"}


class _Given:
    """A JSON object whose fields are taken one by one."""

    def __init__(self, what: str, data: bytes) -> None:
        self._what = what
        if len(data) > limits.FLIGHT_REQUEST_BYTES_MAX:
            raise CallerError(
                f"the {what} has {len(data)} bytes", hint=f"at most {limits.FLIGHT_REQUEST_BYTES_MAX} are read"
            )
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise CallerError(
                f"the {what} is no JSON: {bytes(data[:80])!r}", hint="see docs/internals/flight.md"
            ) from None
        if not isinstance(found, dict):
            raise CallerError(f"the {what} is no JSON object", hint="see docs/internals/flight.md")
        self._left: dict[str, Any] = found

    def take(self, name: str, default: Any) -> Any:
        return self._left.pop(name, default)

    def text(self, name: str) -> str:
        value = self.take(name, None)
        if not isinstance(value, str) or not value:
            raise CallerError(f"{self._what}: {name} is {value!r}", hint="give a text")
        return value

    def integer(self, name: str, least: int, most: int) -> int:
        return self.checked(name, self.take(name, None), least, most)

    def integer_or_none(self, name: str, least: int, most: int) -> int | None:
        value = self.take(name, None)
        return None if value is None else self.checked(name, value, least, most)

    def checked(self, name: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise CallerError(f"{self._what}: {name} is {value!r}", hint=f"give a whole number from {least} to {most}")
        return value

    def columns(self) -> tuple[str, ...]:
        names = self.take("columns", None)
        if names is not None and not (isinstance(names, list) and all(isinstance(one, str) for one in names)):
            raise CallerError(f"{self._what}: columns is {names!r}", hint=f"give a list of {', '.join(COLUMNS)}")
        return check_columns(names)

    def must_be_empty(self) -> None:
        for name in self._left:
            raise CallerError(f"{self._what}: there is no field {name!r}", hint="see docs/internals/flight.md")
