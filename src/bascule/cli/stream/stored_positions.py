"""All cursors of a cluster, read from the stream `__cursors`: the API returns a cursor by its name but cannot list them.

A message without a value deletes a cursor. A cursor belongs to one stream, not to its name: docs/internals/api.md has the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from bascule.cli.target.facts import CURSORS_STREAM
from bascule.errors import BasculeError, StateError

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.client.connection.metadata import StreamInfo
    from bascule.client.messages import Message

GROUP_PREFIX: Final = "__group:"
HOLD_PREFIX: Final = "__hold:"
"""Prefixes of the cursors of consumer groups: the last processed offset, and the member that reads the partition."""

VALID: Final = "ok"
NO_STREAM: Final = "no stream"
FORMER_STREAM: Final = "former stream"
"""The stream was deleted and created again since: readers do not get the cursor."""


class CursorPlace(NamedTuple):
    cursor: str
    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class ListedCursor:
    place: CursorPlace
    offset: int
    stream_id: int
    """Identity of its stream; 0 if it was set without."""
    timestamp_ns: int

    def state(self, stream: StreamInfo | None) -> str:
        """`stream` is the present one of its name."""
        if stream is None:
            return NO_STREAM
        if self.stream_id and stream.id:
            return VALID if self.stream_id == stream.id else FORMER_STREAM
        return VALID if self.timestamp_ns // 1000 >= int(stream.created.timestamp() * 1_000_000) else FORMER_STREAM


class CursorList:
    """The newest message of each cursor."""

    def __init__(self) -> None:
        self._cursors: dict[CursorPlace, ListedCursor] = {}

    def __iter__(self) -> Iterator[ListedCursor]:
        """Ordered by cursor, stream and partition."""
        return iter([self._cursors[place] for place in sorted(self._cursors)])

    def take(self, messages: Iterable[Message]) -> None:
        from bascule.client.connection import wire

        for message in messages:
            if not message.value:
                self._remove(message.key or b"")
                continue
            try:
                # A cursor is stored in the encoding of the request that set it.
                fields = wire.decode("SetCursorRequest", message.value)
            except BasculeError:
                continue  # another program's message
            place = CursorPlace(fields["cursorId"], fields["stream"], fields["partition"])
            self._cursors[place] = ListedCursor(place, fields["offset"], fields["streamId"], message.timestamp)

    def _remove(self, key: bytes) -> None:
        parts = key.rsplit(b",", 2)
        if len(parts) == 3 and parts[2].isdigit():
            cursor, stream = (part.replace(b"\xff", b",").decode(errors="replace") for part in parts[:2])
            self._cursors.pop(CursorPlace(cursor, stream, int(parts[2])), None)


async def read_cursors(client: Client) -> CursorList:
    """Read all cursors. Raises StateError if the cluster keeps no cursors."""
    found = CursorList()
    if CURSORS_STREAM not in (await client.fetch_metadata([CURSORS_STREAM])).streams:
        raise StateError(
            "this cluster keeps no cursors, so its cursors and consumer groups cannot be listed",
            hint="set `cursors.stream.partitions` of the brokers, for example to 1, and restart them",
        )
    subscription = client.subscribe(CURSORS_STREAM, partition="all", start="earliest", stop="latest", resume=True)
    async with subscription:
        async for batch in subscription.batches():
            found.take(batch)
    return found
