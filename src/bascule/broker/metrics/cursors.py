"""How far readers are behind: every cursor in a partition that this server leads. Consumer groups have one, Spark queries may.

The leader of the partition tells, since it has the log that the cursor stands in. The cursor itself is in `__cursors`, whose partition
another server may lead: that one is asked for all that concern this server, in one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.broker.api.calls import Deadline
from bascule.broker.metrics.exposition import Page, labels
from bascule.broker.metrics.exposition import number as written
from bascule.broker.metrics.pace import Pace
from bascule.errors import BasculeError
from bascule.log import PartitionLog
from bascule.log.partition.backlog import backlog
from bascule.metadata.stream_options import CURSORS_STREAM
from bascule.net.grpc.status import GrpcError
from bascule.partition.replica import LedPartition
from bascule.proto import extensions_pb2 as extensions
from bascule.readers.cursor_tables import Place, each

if TYPE_CHECKING:
    from bascule.broker.services import Services

ASK_SECONDS: Final = 1.0
GROUP_PREFIX: Final = "__group:"


@dataclass(slots=True)
class Known:
    """Cursors by their partition, as far as somebody could be asked."""

    places: dict[Place, dict[str, int]] = field(default_factory=dict)
    unknown_partitions: int = 0
    left_out: int = 0

    def add(self, places: Iterable[tuple[Place, dict[str, int]]], left_out: int) -> None:
        for place, cursors in places:
            self.places.setdefault(place, {}).update(cursors)
        self.left_out += left_out


# ── which there are ──────────────────────────────────────────────────────────────────────────────


async def known(services: Services) -> Known:
    """All that stand in partitions led here."""
    stream = services.controller.metadata.streams.get(CURSORS_STREAM)
    numbers = [] if stream is None else [partition.id for partition in stream.partitions]
    found = Known()
    for answer in await asyncio.gather(*(_ask(services, number) for number in numbers)):
        if answer is None:
            found.unknown_partitions += 1
        else:
            found.add(*answer)
    return found


async def _ask(services: Services, number: int) -> tuple[list[tuple[Place, dict[str, int]]], int] | None:
    partition = services.controller.metadata.find(CURSORS_STREAM, number)
    if partition is None:
        return [], 0
    try:
        async with asyncio.timeout(ASK_SECONDS):
            if partition.leader == services.server_id:
                places, left_out = await services.cursor_tables.led_by(services, number, services.server_id)
                return list(places.items()), left_out
            request = extensions.CursorsRequest(cursors_partition=number, server=services.server_id)
            answer: extensions.CursorsResponse = await services.administration.call(
                partition.leader, "Cursors", request, timeout=ASK_SECONDS
            )
    except (TimeoutError, GrpcError, BasculeError):
        return None
    told = [
        ((one.stream, one.partition), dict(zip(one.cursors, one.offsets, strict=False))) for one in answer.partitions
    ]
    return told, answer.left_out


async def answer(
    services: Services, request: extensions.CursorsRequest, _deadline: Deadline
) -> extensions.CursorsResponse:
    """What another server asks: cursors in partitions that it leads."""
    places, left_out = await services.cursor_tables.led_by(services, request.cursors_partition, request.server)
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


# ── how far they are ─────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Position:
    labels: str
    log: PartitionLog
    offset: int = -1
    start: int = 0
    """The first offset that is to be dealt with and still there."""
    end: int = 0
    lag_bytes: int = 0
    waits_since_ns: int = 0

    def move(self, offset: int, start: int, end: int) -> None:
        """What was measured counts as long as neither the reader nor the log moves."""
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
    """Remembers what the last scrape measured: of a reader that stands still in a stream that does, no file is read again."""

    def __init__(self) -> None:
        self._positions: _Positions = {}
        self._goes_back = False

    async def collect(self, page: Page, services: Services, found: Known, pace: Pace) -> int:
        """Returns for how many cursors there was no room."""
        self._positions, left_out = await _positions(services, found, self._positions, pace)
        to_measure = [one for one in self._positions.values() if one.is_to_be_measured]
        if to_measure:
            # There and back again: files that the last scrape opened last are still open now, however many there are.
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


async def _positions(services: Services, found: Known, before: _Positions, pace: Pace) -> tuple[_Positions, int]:
    """Where cursors stand in logs that are open, and for how many there was no room."""
    positions: _Positions = {}
    left_out = found.left_out
    opening_until = time.monotonic() + limits.METRICS_OPENING_SECONDS_MAX
    for turn, place in enumerate(sorted(found.places)):
        local = services.partitions.led(*place)
        if local is None:
            continue  # paused, or led elsewhere since
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
            one.end = one.start  # compaction has left nothing to deal with
        else:
            one.lag_bytes, one.waits_since_ns = found.bytes, found.timestamp
