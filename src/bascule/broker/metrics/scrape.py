"""One page of metrics. Requests that arrive while a page is made get that page, so that many scrapers cost as much as one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bascule.broker.metrics import cluster, cursors, flow, partitions, server
from bascule.broker.metrics.catalogue import METRICS, SCRAPE
from bascule.broker.metrics.exposition import Page, labels
from bascule.broker.metrics.sources import Sources
from bascule.readers.pace import Pace


class Scrape:
    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._process = server.Process()
        self._lags = cursors.CursorLags()
        self._making: asyncio.Task[bytes] | None = None

    async def page(self) -> bytes:
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="metrics")
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)  # a client that disconnects must not cancel it for the others

    def _made(self, _task: asyncio.Task[bytes]) -> None:
        self._making = None

    async def _make(self) -> bytes:
        sources, page, pace = self.sources, Page(METRICS), Pace()
        # The answers of other servers are awaited first, so that the rest is as fresh as the page.
        pace.end()
        facts = await asyncio.to_thread(self._process.facts, str(sources.data_directory))
        found = await sources.cursors.known()
        answering = await cluster.answering(sources.members)
        pace.begin()
        server.collect(page, sources, facts)
        flow.collect(page, sources)
        await pace.rest()
        running = sources.data_plane.partitions
        left_out = {
            "partitions": await partitions.collect(page, running, sources.controller.metadata, pace),
            "cursors": await self._lags.collect(page, running, found, pace),
            "groups": await cluster.collect(page, sources.controller, answering, pace),
        }
        for kind, count in left_out.items():
            page.add("bascule_scrape_left_out", count, labels(kind=kind))
        pieces = []
        for piece in page.pieces():
            pieces.append(piece)
            await pace.rest()
        pace.end()
        return b"".join([*pieces, *_of_itself(pace)])


def _of_itself(pace: Pace) -> Iterable[bytes]:
    page = Page(SCRAPE)
    page.add("bascule_scrape_cpu_seconds", round(pace.cpu_seconds, 6))
    page.add("bascule_scrape_turn_seconds_max", round(pace.turn_seconds_max, 6))
    return page.pieces()
