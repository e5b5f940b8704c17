"""All cursors in the partitions of `__cursors` that this server leads, for metrics, which do not know the names of cursors.

A table continues where its last read ended, so that a request costs as much as has changed since the last one. While its partition is
paused nothing changes, and the table is served as it is. It holds committed cursors only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.errors import Unavailable
from bascule.kernels.records.records import Record
from bascule.log import PartitionLog
from bascule.metadata.core.model.streams import EventTimestamps
from bascule.metadata.requests import CallDeadline
from bascule.metadata.stream_options import CURSORS_STREAM
from bascule.names import cursor_id_fault, stream_name_fault
from bascule.proto import extensions_pb2 as extensions
from bascule.proto.internal_pb2 import Cursor
from bascule.readers.cursors import INLINE_RECORDS_MAX, read_some
from bascule.readers.pace import Pace

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.metadata.partition_starts import PartitionStarts
    from bascule.partition.registry import Partitions
    from bascule.partition.replica import LocalPartition

HOLD_PREFIX: Final = "__hold:"
"""Prefix of the cursors in which group members record the holder of a partition; they are no reader positions."""

Place = tuple[str, int]
"""Stream and partition."""


@dataclass(slots=True)
class CursorTable:
    """The cursors in the log of one partition of `__cursors`, grouped by the partition that they refer to."""

    stream_id: int
    cursors_max: int = limits.CURSORS_REMEMBERED_MAX
    places: dict[Place, dict[str, int]] = field(default_factory=dict)
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
        try:
            cursor = None if record.value is None else Cursor.FromString(record.value)
        except DecodeError:
            return  # not a message of ours: a client published to the stream's subject
        if cursor is None or cursor.cursor_id.startswith(HOLD_PREFIX):
            return
        if cursor_id_fault(cursor.cursor_id) is not None or stream_name_fault(cursor.stream) is not None:
            self.left_out += 1  # set by an older server, or published to the stream: readable, but no label
            return
        at = self.places.setdefault((cursor.stream, cursor.partition), {})
        if cursor.cursor_id not in at:
            if self.count >= self.cursors_max:
                self.left_out += 1
                return
            self.count += 1
        at[cursor.cursor_id] = cursor.offset


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
        for place, cursors in list(table.places.items()):
            await pace.rest()
            partition = self._controller.metadata.find(*place)
            if partition is None or partition.leader != server:
                continue
            if count + len(cursors) > limits.METRICS_CURSORS_MAX:
                left_out += len(cursors)
                continue
            found[place] = dict(cursors)  # a thread may be adding to it
            count += len(cursors)
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


def each(places: dict[Place, dict[str, int]]) -> Iterator[tuple[Place, str, int]]:
    """Sorted, so that the order stays the same from one scrape to the next."""
    for place in sorted(places):
        for cursor in sorted(places[place]):
            yield place, cursor, places[place][cursor]
