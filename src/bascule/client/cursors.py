"""Cursors: offsets that brokers remember for whoever reads, by a name of the reader's choice."""

from __future__ import annotations

from bascule.client import options, wire
from bascule.client.core import ClientCore


class CursorCalls(ClientCore):
    async def set_cursor(
        self, cursor: str, stream: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> None:
        """Remember an offset; by custom that of the last message that was dealt with."""
        await self._call(
            "SetCursor",
            timeout,
            **_place(cursor, stream, partition),
            offset=options.integer("offset", offset, -(1 << 63)),
        )

    async def fetch_cursor(
        self, cursor: str, stream: str, partition: int = 0, *, timeout: float | None = None
    ) -> int | None:
        """The offset that was remembered, or None."""
        answer = await self._call("FetchCursor", timeout, **_place(cursor, stream, partition))
        offset: int = wire.decode("FetchCursorResponse", answer)["offset"]
        return None if offset == -1 else offset


def _place(cursor: object, stream: str, partition: int) -> wire.Fields:
    if not isinstance(cursor, str) or not cursor:
        raise options.wrong("cursor", cursor, "a name that is not empty")
    return {
        "cursorId": cursor,
        "stream": options.stream_name(stream),
        "partition": options.integer("partition", partition, 0, options.INT32_MAX),
    }
