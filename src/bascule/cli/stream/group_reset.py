"""`bascule group reset`: the new positions of a group, as a plan that can be shown before it is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from bascule.cli.stream.group_positions import group_positions
from bascule.cli.stream.stored_positions import GROUP_PREFIX, read_cursors
from bascule.cli.target import facts
from bascule.cli.terminal import values
from bascule.errors import PartitionPaused, StateError

if TYPE_CHECKING:
    from bascule.client.client import Client
    from bascule.client.connection.metadata import StreamInfo

Wanted = str | int | datetime

BEGINNING: Final = -2
"""The stored position before the first message. -1 would mean that the group has no position."""

RIGHT: Final = "`earliest`, `latest`, an offset such as `42`, or a time such as `2026-01-31T12:00` or `2h` ago"


@dataclass(frozen=True, slots=True)
class NewPosition:
    group: str
    stream: str
    partition: int
    before: int | None
    """The last processed offset until now; None if no message was processed."""
    following: int
    """The offset of the next message that the group will read."""
    end: int
    """The offset after the newest message."""

    @property
    def lag(self) -> int:
        return self.end - self.following

    @property
    def stored(self) -> int:
        """The cursor's value: the last processed offset."""
        return self.following - 1 if self.following else BEGINNING

    def document(self) -> dict[str, object]:
        return {
            "stream": self.stream,
            "partition": self.partition,
            "before": self.before,
            "next_offset": self.following,
            "lag": self.lag,
        }


def wanted(option: str, text: str) -> Wanted:
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 1 << 63:
        return int(text)
    return values.moment(option, text, RIGHT)


async def plan(
    client: Client, group: str, names: list[str], partitions: list[int] | None, where: Wanted
) -> list[NewPosition]:
    """The new positions. Raises StateError if the group has members, or no stream is named and the group has no position."""
    await require_no_members(client, group)
    cursors = await read_cursors(client)
    metadata, streams = await facts.streams(client)
    before = {
        (one.stream, one.partition): one.offset
        for one in group_positions(cursors, streams, metadata.groups)
        if one.group == group
    }
    if names:
        await facts.streams(client, names)  # all of them exist
    read = set(names) or {stream for stream, _ in before}
    if not read:
        raise StateError(
            f"group `{group}` has no position in any stream", hint="name the streams that the group is going to read"
        )
    found = []
    for stream in streams:
        if stream.name in read:
            for number in partitions or stream.partitions:
                if number not in stream.partitions:
                    raise values.no_partition(number, facts.partitions_of(stream))
                reached = before.get((stream.name, number))
                found.append(await _new_position(client, group, stream, number, reached, where))
    return found


async def require_no_members(client: Client, group: str) -> None:
    known = (await client.fetch_metadata([], groups=[group])).groups.get(group)
    if known is not None:
        members = ", ".join(f"`{one.id}`" for one in known.members)
        raise StateError(
            f"group `{group}` has members: {members}",
            hint="stop them first; a dead member leaves the group after `groups.consumer.timeout`",
        )


async def carry_out(client: Client, planned: list[NewPosition]) -> None:
    for one in planned:
        await client.set_cursor(GROUP_PREFIX + one.group, one.stream, one.partition, one.stored)


async def _new_position(
    client: Client, group: str, stream: StreamInfo, number: int, before: int | None, where: Wanted
) -> NewPosition:
    oldest, end = await _range(client, stream.name, number)
    if isinstance(where, datetime):
        following = await _first(client, stream.name, number, where, end)
    elif isinstance(where, int):
        following = where
    else:
        following = oldest if where == "earliest" else end
    return NewPosition(group, stream.name, number, before, min(max(following, oldest), end), end)


async def _range(client: Client, stream: str, number: int) -> tuple[int, int]:
    """The offset of the oldest message, and the one after the newest."""
    try:
        end = (await client.fetch_partition_metadata(stream, number)).newest_offset + 1
    except PartitionPaused:
        async with client.subscribe(stream, partition=number, start="new", resume=True):
            end = (await client.fetch_partition_metadata(stream, number)).newest_offset + 1
    return await _first(client, stream, number, "earliest", end), end


async def _first(client: Client, stream: str, number: int, start: str | datetime, end: int) -> int:
    """The offset of the first message from `start` on; `end` if there is none."""
    if end == 0:
        return 0
    subscription = client.subscribe(stream, partition=number, start=start, stop="latest", resume=True)
    async with subscription:
        async for batch in subscription.batches():
            return batch.first_offset
    return end
