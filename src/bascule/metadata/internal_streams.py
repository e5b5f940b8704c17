"""The internal streams `__activity`, `__audit` and `__cursors`, which the controller creates when they are enabled.

A cluster often begins with one server: as others join, these streams get replicas up to their replication factor. Removing a server
removes its replicas; this file never does.

The defaults for streams do not apply to retention and pauses of these streams. Cursors are compacted, so that the last one of each key
is kept. Audit records are removed by their age alone, and never by their number or size: otherwise a client could push records out by
making others. That age is stored when the stream is created; a change of the configuration does not change it.
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
from bascule.names import AUDIT_STREAM

RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 1.0
"""Interval at which the controller checks whether servers have joined."""
SURVEY_AGE_SECONDS_MAX: Final = 5.0
EVERY_SERVER: Final = -1
POLL_SECONDS: Final = 0.01
ARRIVAL_SECONDS_MAX: Final = 10.0
"""Maximum time to wait until a server that answers has raised its epoch."""

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
        """Wait until all enabled internal streams exist."""
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
        audit = self._config.audit
        if audit.stream_enabled:
            subject, factor = f"{namespace}.audit", audit.stream_replication_factor
            yield _Wanted(AUDIT_STREAM, subject, 1, factor, audit_overrides(self._config))
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
        """Members that answer and are not leaving; all that answer, if all are leaving."""
        servers = await self._directory.servers(self._controller.members, age_max_seconds=SURVEY_AGE_SECONDS_MAX)
        staying = set(self._controller.metadata.staying([server.id for server in servers]))
        return tuple(BrokerPlace(server.id, server.rack) for server in servers if server.id in staying)

    async def _arrivals(self, brokers: tuple[BrokerPlace, ...]) -> None:
        """Wait until the servers have raised their epochs. A replica that is older than its server's epoch and has no files counts as
        lost: in a starting cluster it would leave the in-sync set, with a change of leader and a warning for no reason."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_SECONDS_MAX):
                while any(one.id not in self._controller.metadata.server_epochs for one in brokers):
                    await asyncio.sleep(POLL_SECONDS)

    # ── growing ──────────────────────────────────────────────────────────────────────────────────

    def _lacks_replicas(self, wanted: _Wanted) -> bool:
        """Judged by the metadata alone, without asking other servers."""
        state = self._controller.metadata
        stream = state.streams.get(wanted.name)
        factor = _factor(wanted, sum(server not in state.leaving for server in self._controller.members))
        return stream is not None and any(
            len(one.final_replicas) < factor for one in stream.partitions if not one.paused
        )

    async def _grow(self, wanted: _Wanted) -> None:
        brokers = await self._brokers()
        state = self._controller.metadata
        plan = plan_replication_factor(state, wanted.name, _factor(wanted, len(brokers)), brokers)
        for move in () if isinstance(plan, Refusal) else plan.moves:
            partition = state.find(move.stream, move.partition)
            if partition is None or partition.paused:
                continue  # a paused partition is not fetched; it gets its replicas after it is resumed
            if len(move.replicas) > len(partition.final_replicas):
                refusal = await self._controller.submit(Reassign(move.stream, move.partition, move.replicas))
                if refusal is not None:
                    raise BasculeError(refusal.text)


def _factor(wanted: _Wanted, servers: int) -> int:
    return servers if wanted.replication_factor == EVERY_SERVER else min(wanted.replication_factor, servers)


def activity_overrides() -> StreamOverrides:
    # A pause is an event, and publishing it would end the pause, which is an event again.
    return StreamOverrides(auto_pause_time_ms=0, concurrency_control=False, min_insync_replicas=1)


def audit_overrides(config: ClusterConfig) -> StreamOverrides:
    return StreamOverrides(
        retention_max_age_ms=config.audit.stream_retention_max_age_ns // MILLISECOND_NS,
        retention_max_bytes=0,
        retention_max_messages=0,
        compact_enabled=False,
        auto_pause_time_ms=0,
        concurrency_control=False,
        min_insync_replicas=1,
    )


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
