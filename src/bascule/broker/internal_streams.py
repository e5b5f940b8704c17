"""The streams that the cluster makes for itself: `__activity` and `__cursors`, created by the controller when they are enabled.

Both keep every message that matters until it is replaced or read: neither is paused or emptied by what is configured for
streams in general. Cursors are compacted, so that the last one of each key stays for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from bascule.broker.controller import Controller
from bascule.broker.leader_task import LeaderTask
from bascule.broker.server_directory import ServerDirectory
from bascule.broker.stream_options import CURSORS_STREAM, stored_config
from bascule.config.cluster import ClusterConfig
from bascule.config.duration import MILLISECOND_NS
from bascule.config.stream import StreamOverrides, resolve
from bascule.core.metadata.activity import ACTIVITY_STREAM
from bascule.core.metadata.ops import Broker, CreateStream
from bascule.errors import BasculeError

RETRY_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.01

_logger = logging.getLogger(__name__)


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
        self._task = LeaderTask(controller, self._ensure, "internal-streams", sleep)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    async def ready(self) -> None:
        """Until all that are enabled are there, whoever made them."""
        while any(name not in self._controller.metadata.streams for name, *_ in self._wanted()):
            await asyncio.sleep(POLL_SECONDS)

    async def _ensure(self) -> None:
        for name, subject, partitions, overrides in self._wanted():
            while name not in self._controller.metadata.streams:
                try:
                    await self._create(name, subject, partitions, overrides)
                except BasculeError as error:
                    _logger.warning("the stream %s cannot be created yet: %s", name, error.message)
                    await self._sleep(RETRY_SECONDS)

    def _wanted(self) -> Iterator[tuple[str, str, int, StreamOverrides]]:
        namespace = self._config.replication.namespace
        if self._config.activity.stream_enabled:
            yield ACTIVITY_STREAM, f"{namespace}.activity", 1, activity_overrides()
        if self._config.cursors.stream_partitions > 0:
            partitions = self._config.cursors.stream_partitions
            yield CURSORS_STREAM, f"{namespace}.cursors", partitions, cursors_overrides(self._config)

    async def _create(self, name: str, subject: str, partitions: int, overrides: StreamOverrides) -> None:
        servers = await self._directory.servers(self._controller.members)
        op = CreateStream(
            name=name,
            subject=subject,
            partitions=partitions,
            replication_factor=1,
            brokers=tuple(Broker(server.id, server.rack) for server in servers),
            created_ns=time.time_ns(),
            config=stored_config(resolve(self._config, overrides)),
        )
        refusal = await self._controller.submit(op)
        if refusal is not None and refusal.code != "ALREADY_EXISTS":
            raise BasculeError(refusal.text)


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
