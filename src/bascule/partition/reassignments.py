"""Completes the reassignments of partitions that this server leads.

The reassignment is state of the metadata: the new replicas are replicas, and fetch like the others. When all of them are in sync, the
leader completes the reassignment, or hands over to one of them first if it is not one itself. The next leader continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import CompleteReassignment
from bascule.metadata.core.model.streams import Partition
from bascule.partition.replica import LedPartition

_logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
HAND_OVER_SECONDS: Final = 10.0

HandOver = Callable[[LedPartition, str], Awaitable[str]]


class Reassignments:
    def __init__(self, server_id: str, controller: Controller, hand_over: HandOver) -> None:
        self._server_id = server_id
        self._controller = controller
        self._hand_over = hand_over
        self._tasks: dict[LedPartition, asyncio.Task[None]] = {}

    def look_at(self, local: LedPartition, partition: Partition) -> None:
        """Takes the next step of the reassignment if the partition is ready for it."""
        if _is_ready(partition) and local not in self._tasks:
            self._tasks[local] = asyncio.create_task(self._finish(local), name="reassignment")

    async def _finish(self, local: LedPartition) -> None:
        try:
            while (partition := self._known(local)) is not None and _is_ready(partition):
                try:
                    await self._take_step(local, partition)
                except BasculeError as error:
                    _logger.warning(
                        "%s/%d: the reassignment cannot be completed yet: %s", local.stream, local.number, error.message
                    )
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._tasks.pop(local, None)

    async def _take_step(self, local: LedPartition, partition: Partition) -> None:
        if self._server_id not in partition.target_replicas:
            await self._hand_over(local, partition.target_replicas[0])
            return
        moved_to = ", ".join(partition.target_replicas)
        op = CompleteReassignment(local.stream, local.number, self._server_id, local.leader_epoch)
        refusal = await self._controller.submit(op)
        if refusal is not None:
            raise BasculeError(refusal.text)
        _logger.info("%s/%d: reassigned to %s", local.stream, local.number, moved_to)

    def _known(self, local: LedPartition) -> Partition | None:
        stream = self._controller.metadata.streams.get(local.stream)
        partition = None if stream is None or stream.id != local.stream_id else stream.partition(local.number)
        return partition if partition is not None and partition.leader_epoch == local.leader_epoch else None

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()


def _is_ready(partition: Partition) -> bool:
    targets = partition.target_replicas
    return bool(targets) and set(targets) <= set(partition.in_sync_replicas) and not partition.paused
