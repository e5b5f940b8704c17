"""The streams that the cluster makes for itself: `__activity` and `__cursors`, created by the controller when they are enabled.

A cluster often begins with one server: as others join, the streams get the replicas that they are to have. They never lose one here;
who removes a server sees to that.

Both keep every message that matters until it is replaced or read: neither is paused or emptied by what is configured for
streams in general. Cursors are compacted, so that the last one of each key stays for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from bascule.config.sections.cluster import ClusterConfig
from bascule.config.stream import StreamOverrides, resolve
from bascule.config.values.duration import MILLISECOND_NS
from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.activity import ACTIVITY_STREAM
from bascule.metadata.core.model.ops import BrokerPlace, CreateStream, Reassign
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.rebalance import plan_replication_factor
from bascule.metadata.leader_task import LeaderTask
from bascule.metadata.server_directory import ServerDirectory
from bascule.metadata.stream_options import CURSORS_STREAM, stored_config

RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 1.0
"""How often the controller looks whether servers have joined."""
SURVEY_AGE_SECONDS_MAX: Final = 5.0
EVERY_SERVER: Final = -1
POLL_SECONDS: Final = 0.01
ARRIVAL_SECONDS_MAX: Final = 10.0
"""How long a server that answers already may take until it has begun its run."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    subject: str
    partitions: int
    replication_factor: int
    overrides: StreamOverrides


class InternalStreams:
    def __init__(
        self,
        controller: Controller,
        directory: ServerDirectory,
        config: ClusterConfig,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._controller = controller
        self._directory = directory
        self._config = config
        self._sleep = sleep
        self._task = LeaderTask(controller, self._work, "internal-streams", sleep)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    async def ready(self) -> None:
        """Until all that are enabled are there, whoever made them."""
        while any(one.name not in self._controller.metadata.streams for one in self._wanted()):
            await asyncio.sleep(POLL_SECONDS)

    async def _work(self) -> None:
        for wanted in self._wanted():
            while wanted.name not in self._controller.metadata.streams:
                await self._attempt(self._create(wanted), f"the stream {wanted.name} cannot be created yet")
        while True:
            await self._sleep(LOOK_SECONDS)
            for wanted in self._wanted():
                if self._lacks_replicas(wanted):
                    await self._attempt(self._grow(wanted), f"the stream {wanted.name} gets no more replicas yet")

    async def _attempt(self, work: Awaitable[None], failure: str) -> None:
        try:
            await work
        except BasculeError as error:
            _logger.warning("%s: %s", failure, error.message)
            await self._sleep(RETRY_SECONDS)

    def _wanted(self) -> Iterator[_Wanted]:
        namespace, cursors = self._config.replication.namespace, self._config.cursors
        if self._config.activity.stream_enabled:
            yield _Wanted(ACTIVITY_STREAM, f"{namespace}.activity", 1, EVERY_SERVER, activity_overrides())
        if cursors.stream_partitions > 0:
            yield _Wanted(
                CURSORS_STREAM,
                f"{namespace}.cursors",
                cursors.stream_partitions,
                cursors.stream_replication_factor,
                cursors_overrides(self._config),
            )

    async def _create(self, wanted: _Wanted) -> None:
        brokers = await self._brokers()
        await self._arrivals(brokers)
        op = CreateStream(
            name=wanted.name,
            subject=wanted.subject,
            partitions=wanted.partitions,
            replication_factor=_factor(wanted, len(brokers)),
            brokers=brokers,
            created_ns=time.time_ns(),
            config=stored_config(resolve(self._config, wanted.overrides)),
        )
        refusal = await self._controller.submit(op)
        if refusal is not None and refusal.code != "ALREADY_EXISTS":
            raise BasculeError(refusal.text)

    async def _brokers(self) -> tuple[BrokerPlace, ...]:
        """Members that answer and stay; all that answer, if none of them does."""
        servers = await self._directory.servers(self._controller.members, age_max_seconds=SURVEY_AGE_SECONDS_MAX)
        staying = set(self._controller.metadata.staying([server.id for server in servers]))
        return tuple(BrokerPlace(server.id, server.rack) for server in servers if server.id in staying)

    async def _arrivals(self, brokers: tuple[BrokerPlace, ...]) -> None:
        """A replica that is older than the run of its server counts as one that lost its files, and leaves the in-sync ones to begin
        anew: in a cluster that starts that would be the rule, with leaders that change and warnings about nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_SECONDS_MAX):
                while any(one.id not in self._controller.metadata.server_epochs for one in brokers):
                    await asyncio.sleep(POLL_SECONDS)

    # ── growing ──────────────────────────────────────────────────────────────────────────────────

    def _lacks_replicas(self, wanted: _Wanted) -> bool:
        """As far as can be told without asking anybody."""
        state = self._controller.metadata
        stream = state.streams.get(wanted.name)
        factor = _factor(wanted, sum(server not in state.leaving for server in self._controller.members))
        return stream is not None and any(
            len(one.target_replicas or one.replicas) < factor for one in stream.partitions if not one.paused
        )

    async def _grow(self, wanted: _Wanted) -> None:
        brokers = await self._brokers()
        state = self._controller.metadata
        plan = plan_replication_factor(state, wanted.name, _factor(wanted, len(brokers)), brokers)
        for move in () if isinstance(plan, Refusal) else plan.moves:
            partition = state.find(move.stream, move.partition)
            if partition is None or partition.paused:
                continue  # nobody would fetch it; it grows when it is used again
            if len(move.replicas) > len(partition.target_replicas or partition.replicas):
                refusal = await self._controller.submit(Reassign(move.stream, move.partition, move.replicas))
                if refusal is not None:
                    raise BasculeError(refusal.text)


def _factor(wanted: _Wanted, servers: int) -> int:
    return servers if wanted.replication_factor == EVERY_SERVER else min(wanted.replication_factor, servers)


def activity_overrides() -> StreamOverrides:
    # A pause would be an event, which would end the pause, which would be an event, …
    return StreamOverrides(auto_pause_time_ms=0, concurrency_control=False, min_insync_replicas=1)


def cursors_overrides(config: ClusterConfig) -> StreamOverrides:
    return StreamOverrides(
        retention_max_age_ms=0,
        retention_max_bytes=0,
        retention_max_messages=0,
        compact_enabled=True,
        auto_pause_time_ms=config.cursors.stream_auto_pause_time_ns // MILLISECOND_NS,
        auto_pause_disable_if_subscribers=False,
        concurrency_control=False,
        min_insync_replicas=1,
    )
