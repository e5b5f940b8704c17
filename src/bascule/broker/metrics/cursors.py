"""How far readers are behind: every cursor in a partition that this server leads. Consumer groups have one, Spark queries may.

The leader of the partition tells, since it has the log that the cursor stands in. The cursor itself is in `__cursors`, whose partition
another server may lead: that one is asked for all that concern this server, in one request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.broker.api.calls import Deadline
from bascule.broker.cursor_tables import Place, each
from bascule.broker.metrics.exposition import Page, labels
from bascule.broker.metrics.pace import Pace
from bascule.broker.partition import LedPartition
from bascule.broker.stream_options import CURSORS_STREAM
from bascule.errors import BasculeError
from bascule.log import PartitionLog
from bascule.log.backlog import backlog
from bascule.net.status import GrpcError
from bascule.proto import extensions_pb2 as extensions

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
    count = nbytes = 0
    last: Place | None = None
    for place, cursor, offset in each(places):
        nbytes += len(cursor.encode()) + 16
        if count == limits.METRICS_CURSORS_MAX or nbytes > limits.METRICS_CURSORS_BYTES_MAX:
            response.left_out += 1
            continue
        if place != last:
            last, nbytes = place, nbytes + len(place[0].encode()) + 16
            response.partitions.add(stream=place[0], partition=place[1])
        response.partitions[-1].cursors.append(cursor)
        response.partitions[-1].offsets.append(offset)
        count += 1
    return response


# ── how far they are ─────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Position:
    labels: str
    offset: int
    log: PartitionLog
    start: int
    """The first offset that is to be dealt with and still there."""
    end: int
    lag_bytes: int = 0
    lag_seconds: float = 0.0


async def collect(page: Page, services: Services, found: Known, pace: Pace) -> int:
    """Returns for how many cursors there was no room."""
    positions: list[_Position] = []
    left_out = found.left_out
    opening_until = time.monotonic() + limits.METRICS_OPENING_SECONDS_MAX
    for place in sorted(found.places):
        local = services.partitions.led(*place)
        if local is None:
            continue  # paused, or led elsewhere since
        room = limits.METRICS_CURSORS_MAX - len(positions)
        is_open = local.is_open
        if not is_open and room > 0 and time.monotonic() < opening_until:
            pace.end()
            is_open = await _open(local)
            pace.begin()
        names = sorted(found.places[place])
        shown = names[:room] if is_open else []
        left_out += len(names) - len(shown)
        positions += _positions(local, [(name, found.places[place][name]) for name in shown])
        await pace.rest()
    behind = [one for one in positions if one.end > one.start]
    if behind:
        pace.end()
        await asyncio.to_thread(_measure, behind, time.time_ns())
        pace.begin()
    for one in positions:
        page.add("bascule_cursor_offset", one.offset, one.labels)
        page.add("bascule_cursor_lag_offsets", max(0, one.end - one.start), one.labels)
        page.add("bascule_cursor_lag_bytes", one.lag_bytes, one.labels)
        page.add("bascule_cursor_lag_seconds", one.lag_seconds, one.labels)
        await pace.rest()
    page.add("bascule_cursors_unknown_partitions", found.unknown_partitions)
    return left_out


async def _open(local: LedPartition) -> bool:
    try:
        await asyncio.to_thread(lambda: local.log)
    except BasculeError:
        return False
    return True


def _positions(local: LedPartition, cursors: list[tuple[str, int]]) -> list[_Position]:
    try:
        log = local.log
        start, end = log.log_start_offset, log.readable_end_offset(committed=True)
    except BasculeError:
        return []  # closed just now
    return [
        _Position(_labels(name, local), max(offset, -1), log, max(offset + 1, start, 0), end)
        for name, offset in cursors
    ]


def _labels(cursor: str, local: LedPartition) -> str:
    place = {"cursor": cursor, "stream": local.stream, "partition": local.number}
    is_group = cursor.startswith(GROUP_PREFIX)
    return labels(**place, group=cursor.removeprefix(GROUP_PREFIX)) if is_group else labels(**place)


def _measure(positions: list[_Position], now_ns: int) -> None:
    """On a thread: it reads files."""
    for one in positions:
        try:
            found = backlog(one.log, one.start, one.end)
        except BasculeError:
            continue  # closed just now
        if found is None:
            one.end = one.start  # compaction has left nothing to deal with
        else:
            one.lag_bytes = found.bytes
            one.lag_seconds = round(max(0, now_ns - found.timestamp) / 1e9, 3)
