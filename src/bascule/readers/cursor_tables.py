"""All cursors of the partitions of `__cursors` that this server leads: who asks how far readers are does not know their names.

A table reads on from where it was, so that asking again costs what has changed since. While its partition is paused nothing changes:
what was read stands. A cursor is in it once it is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.broker.api.streams import resume
from bascule.broker.metrics.pace import Pace
from bascule.errors import Unavailable
from bascule.kernels.records.records import Record
from bascule.log import PartitionLog
from bascule.metadata.core.model.streams import EventTimes
from bascule.metadata.stream_options import CURSORS_STREAM
from bascule.proto.internal_pb2 import Cursor
from bascule.readers.cursors import INLINE_RECORDS_MAX, read_some

if TYPE_CHECKING:
    from bascule.broker.services import Services
    from bascule.partition.replica import LocalPartition

HOLD_PREFIX: Final = "__hold:"
"""Members of groups note with such cursors who holds a partition: no position of a reader."""

Place = tuple[str, int]
"""Stream and partition."""


@dataclass(slots=True)
class CursorTable:
    """The cursors that the log of one partition holds, by the partition that they stand in."""

    stream_id: int
    cursors_max: int = limits.CURSORS_REMEMBERED_MAX
    places: dict[Place, dict[str, int]] = field(default_factory=dict)
    count: int = 0
    left_out: int = 0
    """Messages of cursors for which there was no room."""
    received: EventTimes = field(default_factory=EventTimes)
    """When messages came to the partition: outlives its pauses."""
    read_ns: int = 0
    _next_offset: int = 0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_up_to_date(self) -> bool:
        """As far as can be told while the partition does not run."""
        return self.read_ns > self.received.latest_ns

    async def read_on(self, log: PartitionLog) -> None:
        """Up to what is committed now."""
        async with self._reading:
            now_ns = time.time_ns()
            end_offset = log.readable_end_offset(committed=True)
            if end_offset < self._next_offset:  # the log was cut back
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
            return  # somebody published to the stream by hand
        if cursor is None or cursor.cursor_id.startswith(HOLD_PREFIX):
            return
        at = self.places.setdefault((cursor.stream, cursor.partition), {})
        if cursor.cursor_id not in at:
            if self.count >= self.cursors_max:
                self.left_out += 1
                return
            self.count += 1
        at[cursor.cursor_id] = cursor.offset


class CursorTables:
    def __init__(self) -> None:
        self._tables: dict[int, CursorTable] = {}

    async def led_by(self, services: Services, number: int, server: str) -> tuple[dict[Place, dict[str, int]], int]:
        """The cursors in partitions that `server` leads, of one partition of `__cursors` that is led here; for how many there was no
        room.

        Raises GrpcError and Unavailable.
        """
        table = await self._table(services, number)
        left_out, count, pace = table.left_out, 0, Pace()
        found: dict[Place, dict[str, int]] = {}
        for place, cursors in list(table.places.items()):
            await pace.rest()
            partition = services.controller.metadata.find(*place)
            if partition is None or partition.leader != server:
                continue
            if count + len(cursors) > limits.METRICS_CURSORS_MAX:
                left_out += len(cursors)
                continue
            found[place] = dict(cursors)  # a thread may be reading on
            count += len(cursors)
        return found, left_out

    async def _table(self, services: Services, number: int) -> CursorTable:
        stream = services.controller.metadata.streams.get(CURSORS_STREAM)
        partition = None if stream is None else stream.partition(number)
        if stream is None or partition is None or partition.leader != services.server_id:
            raise Unavailable(f"cursors partition {number} is led elsewhere")
        table = self._tables.get(number)
        if table is None or table.stream_id != stream.id:
            table = self._tables[number] = CursorTable(stream.id)
        if partition.paused:
            if table.is_up_to_date:
                return table
            await resume(services, CURSORS_STREAM, number)
        local = services.partitions.led(CURSORS_STREAM, number)
        if local is None or local.stream_id != stream.id:
            raise Unavailable(f"cursors partition {number} is being started")
        await self._read(table, local)
        return table

    async def _read(self, table: CursorTable, local: LocalPartition) -> None:
        log = local.log if local.is_open else await asyncio.to_thread(lambda: local.log)
        table.received = local.received_times
        await table.read_on(log)


def each(places: dict[Place, dict[str, int]]) -> Iterator[tuple[Place, str, int]]:
    """In an order that does not change from one time to the next."""
    for place in sorted(places):
        for cursor in sorted(places[place]):
            yield place, cursor, places[place][cursor]
