"""Cursors: offsets that brokers keep for readers, under a name of the reader's choice."""

from __future__ import annotations

import zlib
from typing import Final

from bascule.client.connection import options, wire
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.core import ClientCore
from bascule.client.connection.retry import TimeLimit
from bascule.errors import Conflict, StateError

CURSORS_STREAM: Final = "__cursors"
"""The stream that holds them; a cursor's partition is the CRC-32 of its key modulo the number of partitions."""


class CursorMethods(ClientCore):
    async def set_cursor(
        self, cursor: str, stream: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> None:
        """Store an offset; by convention that of the last processed message."""
        place = _place(cursor, stream, partition)
        number = options.integer("offset", offset, -(1 << 63))
        await set_cursor(self._brokers, place, number, self._seconds(timeout))

    async def fetch_cursor(
        self, cursor: str, stream: str, partition: int = 0, *, timeout: float | None = None
    ) -> int | None:
        """The stored offset, or None."""
        offset = await fetch_cursor(self._brokers, _place(cursor, stream, partition), self._seconds(timeout))
        return None if offset == -1 else offset


async def set_cursor(brokers: Brokers, place: wire.Fields, offset: int, seconds: float) -> None:
    await _call(brokers, "SetCursor", place, wire.encode("SetCursorRequest", **place, offset=offset), seconds)


async def replace_cursor(brokers: Brokers, place: wire.Fields, expected: int, offset: int, seconds: float) -> None:
    """Set the cursor if it is `expected`, else raise Conflict. Liftbridge's brokers ignore the condition."""
    condition = {"value": expected}
    request = wire.encode("SetCursorRequest", **place, offset=offset, expected=condition)
    await _call(brokers, "SetCursor", place, request, seconds)


async def fetch_cursor(brokers: Brokers, place: wire.Fields, seconds: float) -> int:
    """-1 for a cursor that was never set."""
    answer = await _call(brokers, "FetchCursor", place, wire.encode("FetchCursorRequest", **place), seconds)
    offset: int = wire.decode("FetchCursorResponse", answer)["offset"]
    return offset


async def _call(brokers: Brokers, method: str, place: wire.Fields, request: bytes, seconds: float) -> bytes:
    """Our brokers forward the call to the broker that has this cursor. Liftbridge's refuse, so that broker is asked directly."""
    deadline = TimeLimit.after(seconds)
    try:
        return await brokers.call(method, request, timeout=deadline.left)
    except Conflict:
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
