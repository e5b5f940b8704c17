"""All cursors in the partitions of `__cursors` that this server leads, for metrics, which do not know the names of cursors.

A consumer group reads whole streams: a partition in which it has never written a cursor is part of its lag. Such a partition has the
cursor -1 in the answers if the group has a cursor in another partition of the stream; another table may have the real one.

A table continues where its last read ended, so that a request costs as much as has changed since the last one. While its partition is
paused nothing changes, and the table is served as it is. It holds committed cursors only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.errors import Unavailable
from bascule.kernels.records.records import Record
from bascule.log import PartitionLog
from bascule.metadata.core.model.streams import EventTimestamps, Stream
from bascule.metadata.requests import CallDeadline
from bascule.metadata.stream_options import CURSORS_STREAM
from bascule.names import cursor_id_fault, stream_name_fault
from bascule.proto import extensions_pb2 as extensions
from bascule.readers.cursors import INLINE_RECORDS_MAX, read_some
from bascule.readers.pace import Pace
from bascule.readers.stored_cursors import NONE, StoredCursor, cursor_in, name_in

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.metadata.partition_starts import PartitionStarts
    from bascule.partition.registry import Partitions
    from bascule.partition.replica import LocalPartition

GROUP_PREFIX: Final = "__group:"
HOLD_PREFIX: Final = "__hold:"
"""Prefix of the cursors in which group members record the holder of a partition; they are no reader positions."""

Place = tuple[str, int]
"""Stream and partition."""


@dataclass(slots=True)
class CursorTable:
    """The cursors in the log of one partition of `__cursors`, grouped by the partition that they refer to."""

    stream_id: int
    cursors_max: int = limits.CURSORS_REMEMBERED_MAX
    places: dict[Place, dict[str, StoredCursor]] = field(default_factory=dict)
    count: int = 0
    left_out: int = 0
    """Messages of cursors beyond `cursors_max`, or whose names are not allowed."""
    received: EventTimestamps = field(default_factory=EventTimestamps)
    """When messages arrived in the partition; kept while it is paused."""
    read_ns: int = 0
    _next_offset: int = 0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_up_to_date(self) -> bool:
        """Whether no message has arrived since the last read, as far as is known while the partition is paused."""
        return self.read_ns > self.received.latest_ns

    async def read_on(self, log: PartitionLog) -> None:
        """Read up to the present high watermark."""
        async with self._reading:
            now_ns = time.time_ns()
            end_offset = log.readable_end_offset(committed=True)
            if end_offset < self._next_offset:  # the log was truncated
                self.places.clear()
                self.count = self.left_out = self._next_offset = 0
            if end_offset - self._next_offset > INLINE_RECORDS_MAX:
                await asyncio.to_thread(self._read, log)
            else:
                self._read(log)
            self.read_ns = now_ns

    def _read(self, log: PartitionLog) -> None:
        while (found := read_some(log, self._next_offset, True)) is not None:
            records, self._next_offset = found
            for record in records:
                self._take(record)

    def _take(self, record: Record) -> None:
        if not record.value:
            self._remove(record.key or b"")
            return
        found = cursor_in(record)
        if found is None or found[0].cursor_id.startswith(HOLD_PREFIX):
            return
        cursor, stored = found
        if cursor_id_fault(cursor.cursor_id) is not None or stream_name_fault(cursor.stream) is not None:
            self.left_out += 1  # set by an older server, or published to the stream: readable, but no label
            return
        at = self.places.setdefault((cursor.stream, cursor.partition), {})
        if cursor.cursor_id not in at:
            if self.count >= self.cursors_max:
                self.left_out += 1
                return
            self.count += 1
        at[cursor.cursor_id] = stored

    def _remove(self, key: bytes) -> None:
        name = name_in(key)
        at = None if name is None else self.places.get((name.stream, name.partition))
        if name is not None and at is not None and at.pop(name.cursor_id, None) is not None:
            self.count -= 1


class CursorTables:
    def __init__(self, controller: Controller, partitions: Partitions, starts: PartitionStarts) -> None:
        self._controller = controller
        self._partitions = partitions
        self._starts = starts
        self._tables: dict[int, CursorTable] = {}

    async def answer(self, request: extensions.CursorsRequest, _deadline: CallDeadline) -> extensions.CursorsResponse:
        """For another server: the cursors that refer to partitions which it leads."""
        places, left_out = await self.led_by(request.cursors_partition, request.server)
        response = extensions.CursorsResponse(left_out=left_out)
        nbytes = 0
        last: Place | None = None
        for place, cursor, offset in each(places):
            nbytes += len(cursor.encode()) + 16
            if nbytes > limits.METRICS_CURSORS_BYTES_MAX:
                response.left_out += 1
                continue
            if place != last:
                last, nbytes = place, nbytes + len(place[0].encode()) + 16
                response.partitions.add(stream=place[0], partition=place[1])
            response.partitions[-1].cursors.append(cursor)
            response.partitions[-1].offsets.append(offset)
        return response

    async def led_by(self, number: int, server: str) -> tuple[dict[Place, dict[str, int]], int]:
        """From one partition of `__cursors` that this server leads: the cursors that refer to partitions which `server` leads, and how
        many more did not fit.

        Raises GrpcError and Unavailable.
        """
        table = await self._table(number)
        left_out, count, pace = table.left_out, 0, Pace()
        found: dict[Place, dict[str, int]] = {}
        groups: dict[str, set[str]] = {}
        for place, stored in list(table.places.items()):
            await pace.rest()
            stream = self._controller.metadata.streams.get(place[0])
            partition = None if stream is None else stream.partition(place[1])
            if partition is None:
                continue
            # A copy: a thread may be adding to it.
            cursors = {name: one.offset for name, one in dict(stored).items() if one.belongs_to(stream)}
            groups.setdefault(place[0], set()).update(name for name in cursors if name.startswith(GROUP_PREFIX))
            if partition.leader != server or not cursors:
                continue
            if count + len(cursors) > limits.METRICS_CURSORS_MAX:
                left_out += len(cursors)
                continue
            found[place] = cursors
            count += len(cursors)
        for name, readers in groups.items():
            await pace.rest()
            stream = self._controller.metadata.streams.get(name)
            for place, cursor in list(unread(stream, readers, server, found)):
                if count >= limits.METRICS_CURSORS_MAX:
                    left_out += 1
                    continue
                found.setdefault(place, {})[cursor] = NONE
                count += 1
        return found, left_out

    async def _table(self, number: int) -> CursorTable:
        stream = self._controller.metadata.streams.get(CURSORS_STREAM)
        partition = None if stream is None else stream.partition(number)
        if stream is None or partition is None or partition.leader != self._controller.server_id:
            raise Unavailable(f"cursors partition {number} is led by another server")
        table = self._tables.get(number)
        if table is None or table.stream_id != stream.id:
            table = self._tables[number] = CursorTable(stream.id)
        if partition.paused:
            if table.is_up_to_date:
                return table
            await self._starts.resume(CURSORS_STREAM, number)
        local = self._partitions.led(CURSORS_STREAM, number)
        if local is None or local.stream_id != stream.id:
            raise Unavailable(f"cursors partition {number} is being started")
        await self._read(table, local)
        return table

    async def _read(self, table: CursorTable, local: LocalPartition) -> None:
        log = local.log if local.is_open else await asyncio.to_thread(lambda: local.log)
        table.received = local.received_times
        await table.read_on(log)


def unread(
    stream: Stream | None, groups: Collection[str], server: str, places: Mapping[Place, Mapping[str, int]]
) -> Iterator[tuple[Place, str]]:
    """The partitions of a stream that the server leads and in which one of these groups has no cursor, and the cursor's id."""
    if stream is None or not groups:
        return
    for partition in stream.partitions:
        if partition.leader == server:
            place = stream.name, partition.id
            at = places.get(place, {})
            yield from ((place, cursor) for cursor in groups if cursor not in at)


def each(places: dict[Place, dict[str, int]]) -> Iterator[tuple[Place, str, int]]:
    """Sorted, so that the order stays the same from one scrape to the next."""
    for place in sorted(places):
        for cursor in sorted(places[place]):
            yield place, cursor, places[place][cursor]
