"""Start and stop of a subscription, and how both are pinned to offsets so that a new connection continues exactly there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bascule.client.connection import options
from bascule.client.connection.wire import Fields
from bascule.errors import InvalidOption

Start = str | int | datetime
Stop = str | int | datetime | None

NEW_ONLY, OFFSET, EARLIEST, LATEST, TIMESTAMP = range(5)
STOP_ON_CANCEL, STOP_OFFSET, STOP_LATEST, STOP_TIMESTAMP = range(4)

_STARTS: Final = {"new": NEW_ONLY, "earliest": EARLIEST, "latest": LATEST}
_START_RIGHT: Final = "'new', 'earliest', 'latest', an offset from 0 on, or a datetime with a time zone"
_STOP_RIGHT: Final = "None, 'latest', an offset from 0 on, or a datetime with a time zone that is not in the future"


@dataclass(frozen=True, slots=True)
class Range:
    """Start and stop as requested. `start` and `stop` are offsets or nanoseconds, depending on the positions."""

    start_position: int
    start: int
    stop_position: int
    stop: int
    reverse: bool

    @property
    def has_stop(self) -> bool:
        return self.stop_position != STOP_ON_CANCEL


def parse(start: Start, stop: Stop, *, reverse: bool, now_ns: int) -> Range:
    """Check and convert the options. Raises InvalidOption."""
    options.flag("reverse", reverse)
    start_position, first = _start(start)
    stop_position, last = _stop(stop, now_ns)
    if start_position == OFFSET and stop_position == STOP_OFFSET and (last > first if reverse else last < first):
        side = "after" if reverse else "before"
        raise InvalidOption(
            f"`stop` is {last}, {side} `start`, which is {first}",
            hint="a reverse subscription ends at a smaller offset"
            if reverse
            else "swap them, or read with reverse=True",
        )
    if start_position == TIMESTAMP and first > now_ns:
        start_position, first = NEW_ONLY, 0  # the same as the next message
    return Range(start_position, first, stop_position, last, reverse)


def _start(start: Any) -> tuple[int, int]:
    if isinstance(start, str) and start in _STARTS:
        return _STARTS[start], 0
    if isinstance(start, datetime):
        return TIMESTAMP, max(0, options.timestamp_ns("start", start))
    if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start <= options.INT64_MAX:
        raise options.wrong("start", start, _START_RIGHT)
    return OFFSET, start


def _stop(stop: Any, now_ns: int) -> tuple[int, int]:
    if stop is None:
        return STOP_ON_CANCEL, 0
    if stop == "latest":
        return STOP_LATEST, 0
    if isinstance(stop, datetime):
        moment = options.timestamp_ns("stop", stop)
        if moment > now_ns:
            raise options.wrong("stop", stop, _STOP_RIGHT)
        return STOP_TIMESTAMP, moment
    if isinstance(stop, bool) or not isinstance(stop, int) or not 0 <= stop <= options.INT64_MAX:
        raise options.wrong("stop", stop, _STOP_RIGHT)
    return STOP_OFFSET, stop


class Position:
    """The position of a subscription in one partition: what to request next.

    Before the first request everything that depends on the end of the log is pinned to offsets: `new`, `latest`, an offset after the
    end, and a stop at `latest`. So a connection that is lost before the first message repeats and skips nothing.
    """

    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted
        self._start_position = wanted.start_position
        self._start = wanted.start
        self.stop: int | None = wanted.stop if wanted.stop_position == STOP_OFFSET else None
        self.last: int | None = None
        """The last offset received."""
        self.is_empty = False
        """The range has no messages."""

    def pin(self, newest_offset: int) -> None:
        """`newest_offset` is -1 for an empty partition."""
        end = newest_offset + 1
        reverse = self.wanted.reverse
        if self.wanted.stop_position == STOP_LATEST:
            self.stop = newest_offset
        if newest_offset < 0 and (reverse or self.wanted.stop_position in (STOP_LATEST, STOP_TIMESTAMP)):
            self.is_empty = True
            return
        match self._start_position:
            case 0:  # NEW_ONLY
                self._pin_start(newest_offset if reverse else end)
            case 3:  # LATEST
                self._pin_start(max(newest_offset, 0))
            case 1:  # OFFSET
                self._pin_start(min(self._start, newest_offset if reverse else end))
        if self._start_position == OFFSET and self.stop is not None:
            self.is_empty = self.stop > self._start if reverse else self.stop < self._start

    def _pin_start(self, offset: int) -> None:
        self._start_position, self._start = OFFSET, offset

    @property
    def is_done(self) -> bool:
        """Everything requested was received."""
        if self.is_empty:
            return True
        if self.last is None:
            return False
        if self.wanted.reverse:
            return self.last == 0 or (self.stop is not None and self.last <= self.stop)
        return self.stop is not None and self.last >= self.stop

    @property
    def pinned_start(self) -> int | None:
        """The offset of the start, if it is known."""
        return self._start if self._start_position == OFFSET else None

    def start_at(self, offset: int) -> None:
        """Start here, whatever was requested: at a consumer's cursor."""
        self._pin_start(offset)

    def request(self) -> Fields:
        """The fields of a SubscribeRequest for what is still missing."""
        fields: Fields = {"reverse": self.wanted.reverse}
        if self.last is not None:
            step = -1 if self.wanted.reverse else 1
            fields |= {"startPosition": OFFSET, "startOffset": self.last + step}
        elif self._start_position == TIMESTAMP:
            fields |= {"startPosition": TIMESTAMP, "startTimestamp": self._start}
        else:
            fields |= {"startPosition": self._start_position, "startOffset": self._start}
        if self.stop is not None:
            fields |= {"stopPosition": STOP_OFFSET, "stopOffset": self.stop}
        elif self.wanted.stop_position == STOP_TIMESTAMP:
            fields |= {"stopPosition": STOP_TIMESTAMP, "stopTimestamp": self.wanted.stop}
        return fields
