"""One page of metrics. Whoever asks while one is being made gets that one: a dozen scrapers cost what one does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bascule.broker.metrics import cluster, cursors, flow, partitions, server
from bascule.broker.metrics.catalogue import METRICS, SCRAPE
from bascule.broker.metrics.exposition import Page, labels
from bascule.broker.metrics.pace import Pace
from bascule.broker.metrics.sources import Sources


class Scrape:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._process = server.Process()
        self._lags = cursors.CursorLags()
        self._making: asyncio.Task[bytes] | None = None

    async def page(self) -> bytes:
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="metrics")
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)  # one who goes away does not take it from the others

    def _made(self, _task: asyncio.Task[bytes]) -> None:
        self._making = None

    async def _make(self) -> bytes:
        sources, page, pace = self._sources, Page(METRICS), Pace()
        # What waits for somebody else comes first: the rest is then as fresh as the page.
        pace.end()
        facts = await asyncio.to_thread(self._process.facts, str(sources.services.config.data_dir))
        found = await cursors.known(sources.services)
        answering = await cluster.answering(sources.services)
        pace.begin()
        server.collect(page, sources, facts)
        flow.collect(page, sources)
        await pace.rest()
        left_out = {
            "partitions": await partitions.collect(page, sources.services, pace),
            "cursors": await self._lags.collect(page, sources.services, found, pace),
            "groups": await cluster.collect(page, sources.services, answering, pace),
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
