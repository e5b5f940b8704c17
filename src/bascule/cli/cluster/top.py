"""`bascule top`: a live view of a cluster; in a pipe a single snapshot."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bascule.cli.stream.group_positions import GroupPosition, from_log_starts, group_positions
from bascule.cli.stream.stored_positions import CursorList
from bascule.cli.target import facts
from bascule.cli.target.target import Json, Target, connected
from bascule.cli.terminal import values
from bascule.cli.terminal.output import known, show_json, show_rows, table
from bascule.config.values.shown import rate
from bascule.errors import BasculeError, Unavailable

if TYPE_CHECKING:
    import asyncio

    from rich.console import RenderableType

    from bascule.client.client import Client
    from bascule.client.connection.metadata import Metadata, StreamInfo

TITLES: Final = ("Stream", "Partitions", "Rate/s", "Received", "Lag", "In sync", "State")
RIGHT: Final = ("Partitions", "Rate/s", "Received", "Lag", "In sync")


@dataclass(frozen=True, slots=True)
class Row:
    """A stream, or one of its partitions, at this moment."""

    stream: str
    partition: int | None
    partitions: int
    rate: float
    received: int | None
    lag: int | None
    in_sync: int
    replicas: int
    state: str

    def cells(self) -> tuple[object, ...]:
        place = self.partitions if self.partition is None else f"#{self.partition}"
        numbers = rate(self.rate), known(self.received), known(self.lag)
        return self.stream, place, *numbers, f"{self.in_sync}/{self.replicas}", self.state

    def document(self) -> dict[str, object]:
        place = {"partitions": self.partitions} if self.partition is None else {"partition": self.partition}
        return {
            "stream": self.stream,
            **place,
            "rate": round(self.rate, 3),
            "received": self.received,
            "lag": self.lag,
            "in_sync": self.in_sync,
            "replicas": self.replicas,
            "state": self.state,
        }


@connected
def top(
    target: Target,
    interval: Annotated[str, typer.Option("--interval", "-i", metavar="DURATION", help="Refresh interval.")] = "2s",
    each: Annotated[bool, typer.Option("--partitions", "-p", help="Show a line for each partition.")] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include internal streams.")] = False,
    as_json: Json = False,
) -> None:
    """Watch streams: messages per second, the largest lag of a consumer group, the smallest in-sync set. Ctrl-C ends.

    In a pipe, and with --json, it measures over one interval, prints the result, and exits.
    """
    seconds = values.seconds("--interval", interval) or 2.0
    view = View(each=each, everything=everything)
    if as_json or not sys.stdout.isatty():
        rows = target.run(_once, view, seconds)
        if as_json:
            show_json([row.document() for row in rows])
        else:
            show_rows(TITLES, [row.cells() for row in rows])
        return
    target.run(_watch, view, seconds, target)


@dataclass(frozen=True, slots=True)
class Lags:
    """The largest lag of a consumer group, by partition and by stream."""

    partitions: dict[tuple[str, int], int] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)


class View:
    """Computes the rows of the view; rates come from the difference between two updates."""

    def __init__(self, *, each: bool, everything: bool) -> None:
        self.each = each
        self.everything = everything
        self.cursors = CursorList()
        self.knows_lag = False
        self.brokers = 0
        self._before: dict[tuple[str, int], int] = {}
        self._seen_at = 0.0

    def positions(self, metadata: Metadata, streams: list[StreamInfo]) -> list[GroupPosition]:
        """Of all groups, without the starts of the logs."""
        return group_positions(self.cursors, streams, metadata.groups)

    def update(
        self, metadata: Metadata, streams: list[StreamInfo], positions: list[GroupPosition], now: float
    ) -> list[Row]:
        self.brokers = len(metadata.brokers)
        seconds = now - self._seen_at if self._before else 0.0
        newest = {(one.name, part.id): part.newest_offset for one in streams for part in one.partitions.values()}
        rates = {
            place: max(0, offset - self._before.get(place, offset)) / seconds if seconds > 0 else 0.0
            for place, offset in newest.items()
        }
        self._before, self._seen_at = newest, now
        lags = _lags(positions)
        shown = [one for one in streams if self.everything or not facts.is_internal(one.name)]
        rows = [row for one in shown for row in self._rows(one, rates, lags)]
        return sorted(rows, key=lambda row: (-row.rate, row.stream, row.partition or 0))

    def _rows(self, stream: StreamInfo, rates: dict[tuple[str, int], float], lags: Lags) -> list[Row]:
        parts = list(stream.partitions.values())
        if self.each:
            return [
                Row(
                    stream.name,
                    one.id,
                    len(parts),
                    rates[stream.name, one.id],
                    None if one.paused and one.newest_offset < 0 else one.newest_offset + 1,
                    lags.partitions.get((stream.name, one.id)),
                    len(one.in_sync_replicas),
                    len(one.replicas),
                    facts.state(stream, one),
                )
                for one in parts
            ]
        worst = min(parts, key=lambda one: len(one.in_sync_replicas) - len(one.replicas))
        return [
            Row(
                stream.name,
                None,
                len(parts),
                sum(rates[stream.name, one.id] for one in parts),
                facts.received(stream),
                lags.streams.get(stream.name),
                len(worst.in_sync_replicas),
                len(worst.replicas),
                facts.stream_state(stream),
            )
        ]


def _lags(positions: list[GroupPosition]) -> Lags:
    found, by_group = Lags(), Counter[tuple[str, str]]()
    for one in positions:
        if one.lag is not None:
            place = one.stream, one.partition
            found.partitions[place] = max(found.partitions.get(place, 0), one.lag)
            by_group[one.stream, one.group] += one.lag
    for (stream, _), lag in by_group.items():
        found.streams[stream] = max(found.streams.get(stream, 0), lag)
    return found


async def _look(client: Client, view: View) -> list[Row]:
    metadata, streams = await facts.streams(client, groups=None)
    streams = [one for one in streams if one.partitions]
    positions = await from_log_starts(client, view.positions(metadata, streams))
    return view.update(metadata, streams, positions, monotonic())


async def _follow_cursors(client: Client, view: View) -> asyncio.Task[None] | None:
    """Start following the cursors of consumer groups; None if the cluster keeps no cursors."""
    import asyncio

    if facts.CURSORS_STREAM not in (await client.fetch_metadata([facts.CURSORS_STREAM])).streams:
        return None
    view.knows_lag = True
    subscription = client.subscribe(facts.CURSORS_STREAM, partition="all", start="earliest", resume=True)

    async def follow() -> None:
        try:
            async with subscription:
                async for batch in subscription.batches():
                    view.cursors.take(batch)
        except BasculeError:
            view.knows_lag = False  # the view continues without lags

    return asyncio.create_task(follow())


async def _once(client: Client, view: View, seconds: float) -> list[Row]:
    import asyncio

    following = await _follow_cursors(client, view)
    try:
        await _look(client, view)
        await asyncio.sleep(seconds)
        return await _look(client, view)
    finally:
        if following is not None:
            following.cancel()


async def _watch(client: Client, view: View, seconds: float, target: Target) -> None:
    import asyncio

    from rich.live import Live

    following = await _follow_cursors(client, view)
    problem = ""
    rows: list[Row] = []
    try:
        with Live(_screen(view, rows, target, problem), screen=True, auto_refresh=False) as live:
            while True:
                try:
                    rows, problem = await _look(client, view), ""
                except Unavailable as error:
                    problem = error.message  # keep showing the last rows: the cluster may come back
                live.update(_screen(view, rows, target, problem), refresh=True)
                await asyncio.sleep(seconds)
    finally:
        if following is not None:
            following.cancel()


def _screen(view: View, rows: list[Row], target: Target, problem: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    name = f"{target.name} · " if target.name else ""
    total = sum(row.rate for row in rows)
    head = Text(f"{name}{target.server} · {view.brokers} brokers · {rate(total)} messages/s", style="bold")
    parts: list[RenderableType] = [head]
    if problem:
        parts.append(Text(problem, style="bold red"))
    return Group(*parts, Text(""), table(TITLES, [row.cells() for row in rows], right=RIGHT))
