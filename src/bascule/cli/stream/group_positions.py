"""Positions of consumer groups, read from their cursors in the stream `__cursors`.

The API returns a group or a cursor by its id but cannot list them, so this module reads the stream. The cursor of a group is
`__group:<group>`, and its value is the last processed offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.cli.target.facts import CURSORS_STREAM
from bascule.errors import BasculeError, StateError

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.client.connection.metadata import StreamInfo
    from bascule.client.messages import Message

GROUP_PREFIX: Final = "__group:"

Place = tuple[str, str, int]
"""Group, stream and partition."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The last processed offset of a group in a partition. `newest` is None if it is not known: the partition is paused."""

    group: str
    stream: str
    partition: int
    offset: int
    newest: int | None

    @property
    def lag(self) -> int | None:
        """Number of messages that the group has not processed."""
        return None if self.newest is None else max(0, self.newest - self.offset)

    def document(self) -> dict[str, object]:
        return {
            "stream": self.stream,
            "partition": self.partition,
            "offset": self.offset,
            "newest_offset": self.newest,
            "lag": self.lag,
        }


class GroupCursors:
    """The newest cursor of each group and partition."""

    def __init__(self) -> None:
        self.offsets: dict[Place, int] = {}

    def take(self, messages: Iterable[Message]) -> None:
        from bascule.client.connection import wire

        for message in messages:
            try:
                # A cursor is stored in the encoding of the request that set it.
                fields = wire.decode("SetCursorRequest", message.value or b"")
            except BasculeError:
                continue
            cursor = fields["cursorId"]
            if isinstance(cursor, str) and cursor.startswith(GROUP_PREFIX):
                place = (cursor.removeprefix(GROUP_PREFIX), fields["stream"], fields["partition"])
                self.offsets[place] = fields["offset"]

    def positions(self, streams: Iterable[StreamInfo], group: str | None = None) -> list[GroupPosition]:
        """The positions ordered by group, stream and partition; deleted streams are left out."""
        newest = {
            (stream.name, one.id): None if one.paused else one.newest_offset
            for stream in streams
            for one in stream.partitions.values()
        }
        return [
            GroupPosition(name, stream, partition, offset, newest[stream, partition])
            for (name, stream, partition), offset in sorted(self.offsets.items())
            if (stream, partition) in newest and group in (None, name)
        ]


async def read_cursors(client: Client) -> GroupCursors:
    """Read all cursors. Raises StateError if the cluster keeps no cursors."""
    found = GroupCursors()
    if CURSORS_STREAM not in (await client.fetch_metadata([CURSORS_STREAM])).streams:
        raise no_cursors()
    subscription = client.subscribe(CURSORS_STREAM, partition="all", start="earliest", stop="latest", resume=True)
    async with subscription:
        async for batch in subscription.batches():
            found.take(batch)
    return found


def no_cursors() -> StateError:
    return StateError(
        "this cluster keeps no cursors, so its consumer groups cannot be listed",
        hint="set `cursors.stream.partitions` of the brokers, for example to 1, and restart them",
    )
