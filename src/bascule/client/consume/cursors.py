"""Cursors: offsets that brokers keep for readers, under a name of the reader's choice."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from bascule.client.connection import options, wire
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.core import ClientCore
from bascule.client.connection.retry import TimeLimit
from bascule.errors import Conflict, StateError, StreamNotFound

NONE: Final = -1
"""The offset of a cursor that was never set."""

CURSORS_STREAM: Final = "__cursors"
"""The stream that holds them; a cursor's partition is the CRC-32 of its key modulo the number of partitions."""


class CursorMethods(ClientCore):
    async def set_cursor(
        self, cursor: str, stream: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> None:
        """Store an offset; by convention that of the last processed message. A cursor belongs to the stream as it is now: if the stream
        is deleted and created again, the cursor counts as never set.

        Raises OutcomeUnknown if no broker confirmed it within the timeout: the cursor may be stored.
        """
        place = _place(cursor, stream, partition)
        number = options.integer("offset", offset, -(1 << 63))
        await set_cursor(self._brokers, place, number, self._seconds(timeout))

    async def fetch_cursor(
        self, cursor: str, stream: str, partition: int = 0, *, timeout: float | None = None
    ) -> int | None:
        """The stored offset, or None."""
        found = await fetch_cursor(self._brokers, _place(cursor, stream, partition), self._seconds(timeout))
        return None if found.offset == NONE else found.offset

    async def delete_cursor(
        self, cursor: str, stream: str, partition: int = 0, *, timeout: float | None = None
    ) -> None:
        """Remove a cursor; nothing happens if there is none. Raises OutcomeUnknown as `set_cursor` does."""
        place = _place(cursor, stream, partition)
        # A broker that does not know `delete` stores -1, which means the same to readers.
        request = wire.encode("SetCursorRequest", **place, offset=NONE, delete=True)
        await _call(self._brokers, "SetCursor", place, request, self._seconds(timeout))


class FetchedCursor(NamedTuple):
    offset: int
    """-1 for a cursor that was never set."""
    stream_id: int
    """Identity of the stream; 0 if it does not exist, or the broker does not tell it."""


async def set_cursor(brokers: Brokers, place: wire.Fields, offset: int, seconds: float, stream_id: int = 0) -> None:
    """Raises StreamNotFound if `stream_id` is given and the stream has another identity by now."""
    request = wire.encode("SetCursorRequest", **place, offset=offset, streamId=stream_id)
    await _call(brokers, "SetCursor", place, request, seconds)


async def replace_cursor(brokers: Brokers, place: wire.Fields, expected: int, offset: int, seconds: float) -> None:
    """Set the cursor if it is `expected`, else raise Conflict. Liftbridge's brokers ignore the condition."""
    condition = {"value": expected}
    request = wire.encode("SetCursorRequest", **place, offset=offset, expected=condition)
    await _call(brokers, "SetCursor", place, request, seconds)


async def fetch_cursor(brokers: Brokers, place: wire.Fields, seconds: float) -> FetchedCursor:
    answer = await _call(brokers, "FetchCursor", place, wire.encode("FetchCursorRequest", **place), seconds)
    fields = wire.decode("FetchCursorResponse", answer)
    return FetchedCursor(fields["offset"], fields["streamId"])


async def _call(brokers: Brokers, method: str, place: wire.Fields, request: bytes, seconds: float) -> bytes:
    """Our brokers forward the call to the broker that has this cursor. Liftbridge's refuse, so that broker is asked directly."""
    deadline = TimeLimit.after(seconds)
    try:
        return await brokers.call(method, request, timeout=deadline.left, changes=method == "SetCursor")
    except (Conflict, StreamNotFound):
        raise
    except StateError:
        count = len((await brokers.stream(CURSORS_STREAM, deadline)).partitions)
    key = f"{place['cursorId']},{place['stream']},{place['partition']}".encode()
    return await brokers.call_leader(method, request, CURSORS_STREAM, zlib.crc32(key) % count, timeout=deadline.left)


def _place(cursor: object, stream: str, partition: int) -> wire.Fields:
    if not isinstance(cursor, str) or not cursor:
        raise options.wrong("cursor", cursor, "a name that is not empty")
    return {
        "cursorId": cursor,
        "stream": options.stream_name(stream),
        "partition": options.integer("partition", partition, 0, options.INT32_MAX),
    }
