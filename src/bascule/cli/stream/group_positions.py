"""Positions of consumer groups: for each partition the last processed offset, and the member that reads it.

The cursor `__group:<group>` holds the last processed offset. A group reads whole streams: a partition of a stream that it reads belongs
to its lag, whether the group has written a cursor there or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bascule.cli.stream.stored_positions import GROUP_PREFIX, VALID, ListedCursor
from bascule.errors import BasculeError

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.client.connection.metadata import GroupInfo, StreamInfo


@dataclass(frozen=True, slots=True)
class GroupPosition:
    group: str
    stream: str
    partition: int
    offset: int | None
    """The last processed offset; None if no message was processed."""
    newest: int | None
    """None if it is not known: the partition is paused."""
    owner: str | None = None
    """The member that reads the partition now."""
    oldest: int = 0
    """The first offset that retention has left."""

    @property
    def lag(self) -> int | None:
        """Number of messages that the group has not processed."""
        if self.newest is None:
            return None
        return max(0, self.newest + 1 - max(self.oldest, 0 if self.offset is None else self.offset + 1))

    def document(self) -> dict[str, object]:
        return {
            "stream": self.stream,
            "partition": self.partition,
            "offset": self.offset,
            "newest_offset": self.newest,
            "lag": self.lag,
            "owner": self.owner,
        }


def group_positions(
    cursors: Iterable[ListedCursor], streams: Iterable[StreamInfo], groups: Mapping[str, GroupInfo]
) -> list[GroupPosition]:
    """The positions of all groups in all partitions of the streams that they read, ordered by group, stream and partition.

    `groups` are those that have members.
    """
    known = {stream.name: stream for stream in streams}
    offsets: dict[tuple[str, str, int], int] = {}
    read: set[tuple[str, str]] = set()
    for one in cursors:
        name, stream = one.place.cursor, known.get(one.place.stream)
        if name.startswith(GROUP_PREFIX) and stream is not None and one.state(stream) == VALID:
            group = name.removeprefix(GROUP_PREFIX)
            offsets[group, stream.name, one.place.partition] = one.offset
            read.add((group, stream.name))
    owners: dict[tuple[str, str, int], str] = {}
    for group, info in groups.items():
        for member in info.members:
            read |= {(group, stream) for stream in member.streams if stream in known}
            for stream_name, numbers in member.assignments.items():
                owners |= dict.fromkeys(((group, stream_name, number) for number in numbers), member.id)
    return [
        GroupPosition(
            group,
            name,
            one.id,
            _processed(offsets.get((group, name, one.id))),
            None if one.paused and one.newest_offset < 0 else one.newest_offset,
            owners.get((group, name, one.id)),
        )
        for group, name in sorted(read)
        for one in known[name].partitions.values()
    ]


async def from_log_starts(client: Client, positions: list[GroupPosition]) -> list[GroupPosition]:
    """The positions with the starts of the logs: what retention has removed is no lag. Without the right to describe a stream, or an
    answer of its leaders, its offsets count from 0."""
    import asyncio

    from bascule.client.admin.streams import StreamAdmin

    async def starts(stream: str) -> dict[tuple[str, int], int]:
        try:
            described = await StreamAdmin(client).describe(stream)
        except BasculeError:
            return {}
        return {(stream, one.partition): one.log_start_offset for one in described.partitions if not one.error}

    names = sorted({one.stream for one in positions if one.lag})
    found: dict[tuple[str, int], int] = {}
    for part in await asyncio.gather(*(starts(name) for name in names)):
        found |= part
    return [replace(one, oldest=max(0, found.get((one.stream, one.partition), 0))) for one in positions]


def _processed(offset: int | None) -> int | None:
    """Negative offsets are positions before the first message."""
    return None if offset is None or offset < 0 else offset
