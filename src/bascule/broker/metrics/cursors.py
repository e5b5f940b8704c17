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
from bascule.broker.cursor_tables import Place, each
from bascule.broker.metrics.exposition import Page, labels
from bascule.broker.metrics.exposition import number as written
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
    offset: int
    log: PartitionLog
    start: int
    """The first offset that is to be dealt with and still there."""
    end: int
    lag_bytes: int = 0
    waits_since_ns: int = 0

    @property
    def is_behind(self) -> bool:
        return self.end > self.start


class CursorLags:
    """Remembers what the last scrape measured: of a reader that stands still in a stream that does, no file is read again."""

    def __init__(self) -> None:
        self._before: dict[str, _Position] = {}
        self._labels = _Labels()
        self._goes_back = False

    async def collect(self, page: Page, services: Services, found: Known, pace: Pace) -> int:
        """Returns for how many cursors there was no room."""
        positions, left_out = await _positions(services, found, self._labels, pace)
        self._labels.forget_unused()
        to_measure = [one for one in positions if one.is_behind and not self._is_known(one)]
        if to_measure:
            # There and back again: files that the last scrape opened last are still open now, however many there are.
            self._goes_back = not self._goes_back
            pace.end()
            await asyncio.to_thread(_measure, to_measure[::-1] if self._goes_back else to_measure)
            pace.begin()
        self._before = {one.labels: one for one in positions if one.waits_since_ns}
        await _write(page, positions, pace)
        page.add("bascule_cursors_unknown_partitions", found.unknown_partitions)
        return left_out

    def _is_known(self, one: _Position) -> bool:
        before = self._before.get(one.labels)
        if before is None or (before.log, before.start, before.end) != (one.log, one.start, one.end):
            return False
        one.lag_bytes, one.waits_since_ns = before.lag_bytes, before.waits_since_ns
        return True


class _Labels:
    """Written once for each cursor, as long as it is there: escaping costs more than the rest of a sample."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int, str], str] = {}
        self._now: dict[tuple[str, int, str], str] = {}

    def of(self, cursor: str, local: LedPartition) -> str:
        key = (local.stream, local.number, cursor)
        found = self._now[key] = self._before.get(key) or _labels(cursor, local)
        return found

    def forget_unused(self) -> None:
        self._before, self._now = self._now, {}


async def _write(page: Page, positions: list[_Position], pace: Pace) -> None:
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


async def _positions(services: Services, found: Known, labels: _Labels, pace: Pace) -> tuple[list[_Position], int]:
    """Where cursors stand in logs that are open, and for how many there was no room."""
    positions: list[_Position] = []
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
        positions += _positions_in(local, [(name, found.places[place][name]) for name in shown], labels)
        if not turn % 16:
            await pace.rest()
    return positions, left_out


async def _open(local: LedPartition) -> None:
    with contextlib.suppress(BasculeError):
        await asyncio.to_thread(lambda: local.log)


def _positions_in(local: LedPartition, cursors: list[tuple[str, int]], labels: _Labels) -> list[_Position]:
    try:
        log = local.log
        start, end = log.log_start_offset, log.readable_end_offset(committed=True)
    except BasculeError:
        return []  # closed just now
    return [
        _Position(labels.of(name, local), max(offset, -1), log, max(offset + 1, start, 0), end)
        for name, offset in cursors
    ]


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
