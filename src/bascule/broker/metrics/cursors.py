"""The lag of readers: one set of metrics for each cursor that refers to a partition which this server leads.

Consumer groups have a cursor, -1 in a partition that the group has never read, and Spark queries may have one. The leader of the
partition measures the lag, because it has the log. The cursor itself is in `__cursors`, whose partition another server may lead: that
server is asked, in one request, for all cursors that refer to partitions of this server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.broker.metrics.exposition import Page, labels
from bascule.broker.metrics.exposition import number as written
from bascule.errors import BasculeError
from bascule.log import PartitionLog
from bascule.log.partition.backlog import backlog
from bascule.metadata.stream_options import CURSORS_STREAM
from bascule.net.grpc.status import GrpcError
from bascule.partition.replica import LedPartition
from bascule.proto import extensions_pb2 as extensions
from bascule.readers.cursor_tables import GROUP_PREFIX, CursorTables, Place, unread
from bascule.readers.pace import Pace
from bascule.readers.stored_cursors import NONE

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.operations.switchboard import Switchboard
    from bascule.partition.registry import Partitions

ASK_SECONDS: Final = 1.0


@dataclass(slots=True)
class Known:
    """Cursors by the partition that they refer to."""

    places: dict[Place, dict[str, int]] = field(default_factory=dict)
    unknown_partitions: int = 0
    """Partitions of `__cursors` whose leader did not answer."""
    left_out: int = 0

    def add(self, places: Iterable[tuple[Place, dict[str, int]]], left_out: int) -> None:
        for place, cursors in places:
            at = self.places.setdefault(place, {})
            for name, offset in cursors.items():
                if offset != NONE or name not in at:
                    at[name] = offset
        self.left_out += left_out


# ── which cursors there are ──────────────────────────────────────────────────────────────────────────────


class KnownCursors:
    def __init__(self, controller: Controller, tables: CursorTables, switchboard: Switchboard) -> None:
        self._controller = controller
        self._tables = tables
        self._switchboard = switchboard

    async def known(self) -> Known:
        """All cursors that refer to partitions which this server leads."""
        stream = self._controller.metadata.streams.get(CURSORS_STREAM)
        numbers = [] if stream is None else [partition.id for partition in stream.partitions]
        found = Known()
        for answer in await asyncio.gather(*(self._ask(number) for number in numbers)):
            if answer is None:
                found.unknown_partitions += 1
            else:
                found.add(*answer)
        await self._add_members(found)
        return found

    async def _add_members(self, found: Known) -> None:
        """The partitions of groups that have members and no cursor there yet."""
        count, pace = sum(map(len, found.places.values())), Pace()
        metadata, server_id = self._controller.metadata, self._controller.server_id
        for group in list(metadata.groups.values()):
            for name in {stream for member in group.members.values() for stream in member.streams}:
                stream, cursors = metadata.streams.get(name), (GROUP_PREFIX + group.id,)
                for place, cursor in list(unread(stream, cursors, server_id, found.places)):
                    if count >= limits.METRICS_CURSORS_MAX:
                        found.left_out += 1
                        continue
                    found.places.setdefault(place, {})[cursor] = NONE
                    count += 1
                await pace.rest()

    async def _ask(self, number: int) -> tuple[list[tuple[Place, dict[str, int]]], int] | None:
        partition = self._controller.metadata.find(CURSORS_STREAM, number)
        if partition is None:
            return [], 0
        server_id = self._controller.server_id
        try:
            async with asyncio.timeout(ASK_SECONDS):
                if partition.leader == server_id:
                    places, left_out = await self._tables.led_by(number, server_id)
                    return list(places.items()), left_out
                request = extensions.CursorsRequest(cursors_partition=number, server=server_id)
                answer: extensions.CursorsResponse = await self._switchboard.call(
                    partition.leader, "Cursors", request, timeout=ASK_SECONDS
                )
        except (TimeoutError, GrpcError, BasculeError):
            return None
        told = [
            ((one.stream, one.partition), dict(zip(one.cursors, one.offsets, strict=False)))
            for one in answer.partitions
        ]
        return told, answer.left_out


# ── their lag ─────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Position:
    labels: str
    log: PartitionLog
    offset: int = -1
    start: int = 0
    """The first unread offset that retention has not removed."""
    end: int = 0
    lag_bytes: int = 0
    waits_since_ns: int = 0

    def move(self, offset: int, start: int, end: int) -> None:
        """Drop the measurement when the reader or the log has moved."""
        self.offset = offset if offset > -1 else -1
        start = max(offset + 1, start, 0)
        if start != self.start or end != self.end:
            self.start, self.end = start, end
            self.lag_bytes = self.waits_since_ns = 0

    @property
    def is_to_be_measured(self) -> bool:
        return self.end > self.start and not self.waits_since_ns


_Positions = dict[tuple[str, int, str], _Position]
"""By stream, partition and cursor."""


class CursorLags:
    """Keeps the last measurements: no file is read again while neither the reader nor the log has moved."""

    def __init__(self) -> None:
        self._positions: _Positions = {}
        self._goes_back = False

    async def collect(self, page: Page, partitions: Partitions, found: Known, pace: Pace) -> int:
        """Returns how many cursors did not fit on the page."""
        self._positions, left_out = await _positions(partitions, found, self._positions, pace)
        to_measure = [one for one in self._positions.values() if one.is_to_be_measured]
        if to_measure:
            # In alternating order: the files that the last scrape opened last are still in the pool of open files.
            self._goes_back = not self._goes_back
            pace.end()
            await asyncio.to_thread(_measure, to_measure[::-1] if self._goes_back else to_measure)
            pace.begin()
        await _write(page, self._positions.values(), pace)
        page.add("bascule_cursors_unknown_partitions", found.unknown_partitions)
        return left_out


async def _write(page: Page, positions: Iterable[_Position], pace: Pace) -> None:
    offsets, lag_offsets = page.lines("bascule_cursor_offset"), page.lines("bascule_cursor_lag_offsets")
    lag_bytes, lag_seconds = page.lines("bascule_cursor_lag_bytes"), page.lines("bascule_cursor_lag_seconds")
    now_ns = time.time_ns()
    for place, one in enumerate(positions):
        seconds = max(0, now_ns - one.waits_since_ns) / 1e9 if one.waits_since_ns else 0
        offsets.append(f"bascule_cursor_offset{one.labels} {one.offset}\n")
        lag_offsets.append(f"bascule_cursor_lag_offsets{one.labels} {max(0, one.end - one.start)}\n")
        lag_bytes.append(f"bascule_cursor_lag_bytes{one.labels} {one.lag_bytes}\n")
        lag_seconds.append(f"bascule_cursor_lag_seconds{one.labels} {written(round(seconds, 3))}\n")
        if not place % 16:
            await pace.rest()


async def _positions(partitions: Partitions, found: Known, before: _Positions, pace: Pace) -> tuple[_Positions, int]:
    """The positions of cursors in open logs, and how many cursors did not fit."""
    positions: _Positions = {}
    left_out = found.left_out
    opening_until = time.monotonic() + limits.METRICS_OPENING_SECONDS_MAX
    for turn, place in enumerate(sorted(found.places)):
        local = partitions.led(*place)
        if local is None:
            continue  # paused, or led by another server since
        room = limits.METRICS_CURSORS_MAX - len(positions)
        if not local.is_open and room > 0 and time.monotonic() < opening_until:
            pace.end()
            await _open(local)
            pace.begin()
        names = sorted(found.places[place])
        shown = names[:room] if local.is_open else []
        left_out += len(names) - len(shown)
        _place(local, [(name, found.places[place][name]) for name in shown], before, positions)
        if not turn % 16:
            await pace.rest()
    return positions, left_out


async def _open(local: LedPartition) -> None:
    with contextlib.suppress(BasculeError):
        await asyncio.to_thread(lambda: local.log)


def _place(local: LedPartition, cursors: list[tuple[str, int]], before: _Positions, positions: _Positions) -> None:
    try:
        log = local.log
        start, end = log.log_start_offset, log.readable_end_offset(committed=True)
    except BasculeError:
        return  # closed just now
    for name, offset in cursors:
        key = (local.stream, local.number, name)
        one = before.get(key)
        if one is None or one.log is not log:
            one = _Position(_labels(name, local), log)
        one.move(offset, start, end)
        positions[key] = one


def _labels(cursor: str, local: LedPartition) -> str:
    place = {"cursor": cursor, "stream": local.stream, "partition": local.number}
    is_group = cursor.startswith(GROUP_PREFIX)
    return labels(**place, group=cursor.removeprefix(GROUP_PREFIX)) if is_group else labels(**place)


def _measure(positions: list[_Position]) -> None:
    """On a thread: it reads files."""
    for one in positions:
        try:
            found = backlog(one.log, one.start, one.end)
        except BasculeError:
            continue  # closed just now
        if found is None:
            one.end = one.start  # compaction has removed all unread messages
        else:
            one.lag_bytes, one.waits_since_ns = found.bytes, found.timestamp
