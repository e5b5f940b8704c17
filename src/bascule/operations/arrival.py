"""The arrival of a server that starts: before it runs any partition, it reports to the cluster how its last run ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from bascule.errors import BasculeError, OperatorError, Unavailable
from bascule.metadata.core.model.ops import RestartServer
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.run_marker import Ending, RunMarker
from bascule.net.retry import retry

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.partition.registry import Partitions

RETRY_SECONDS: Final = 0.2

_logger = logging.getLogger(__name__)


_WARNINGS: Final = {
    Ending.PROCESS_DIED: "the last run of this server did not end cleanly; no written message is lost",
    Ending.MACHINE_DIED: "the machine went down while this server ran: messages that were not synced are fetched from other replicas",
    Ending.OTHER_DATA: "this server last ran with another data directory: missing messages are fetched from other replicas",
}


class LatePart(Protocol):
    """Follows the metadata once the server has arrived."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class Arrival:
    """Brings this server into its cluster, in the background: a quorum may be late.

    It waits for up-to-date metadata, reports how the last run ended, and only then starts the partitions and the other parts.
    """

    def __init__(
        self, controller: Controller, partitions: Partitions, marker: RunMarker, parts: Sequence[LatePart]
    ) -> None:
        self._controller = controller
        self._partitions = partitions
        self._marker = marker
        self._parts = parts
        self._task: asyncio.Task[None] | None = None
        self.is_complete = False

    async def start(self, on_refused: Callable[[OperatorError], None], *, wait_seconds: float) -> None:
        """Returns when the partitions run, or after `wait_seconds`. `on_refused` gets the reason when this server must not run."""
        self._task = asyncio.create_task(self._arrive(), name="arrival")
        self._task.add_done_callback(lambda task: _report(task, on_refused))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._task), wait_seconds)
        if not self._task.done():
            members = ", ".join(self._controller.members)
            _logger.warning("no quorum of %s answers yet: partitions start when one does", members)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(part.stop() for part in self._parts))

    async def _arrive(self) -> None:
        await retry(self._controller.fresh_metadata, (Unavailable,), (0.0,))
        await arrive(self._controller, self._marker)
        self._partitions.begin()
        await self._partitions.settled(self._controller.metadata.applied_index)
        for part in self._parts:
            part.start()
        self.is_complete = True


def _report(task: asyncio.Task[None], on_refused: Callable[[OperatorError], None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, OperatorError):
        on_refused(error)


async def arrive(controller: Controller, marker: RunMarker) -> None:
    """Raise the server's epoch and mark it as running; retried until it is done. Needs up-to-date metadata."""
    metadata = controller.metadata
    ending = marker.ending(metadata.server_epochs.get(controller.server_id, 0))
    if ending is Ending.OTHER_DATA:
        _must_not_be_missed(metadata, controller.server_id)
    if ending in _WARNINGS:
        _logger.warning(_WARNINGS[ending])
    op = RestartServer(controller.server_id, ending.is_intact)
    # An attempt without an answer may have been applied; applying the op twice raises the epoch once more, which does no harm.
    refusal = await retry(lambda: controller.submit(op), (BasculeError,), (RETRY_SECONDS,))
    assert refusal is None, refusal
    await asyncio.to_thread(marker.write_running, controller.metadata.server_epochs[controller.server_id])


def _must_not_be_missed(metadata: ClusterMetadata, server_id: str) -> None:
    """Raises OperatorError when this server was the only in-sync replica of a partition and its data is gone: it would lead an empty
    log, and the lagging replicas would truncate theirs to match."""
    alone = [
        (stream.name, partition)
        for stream in metadata.streams.values()
        for partition in stream.partitions
        if partition.in_sync_replicas == [server_id] and len(partition.replicas) > 1
    ]
    if not alone:
        return
    name, partition = alone[0]
    other = next(replica for replica in partition.replicas if replica != server_id)
    raise OperatorError(
        f"the data of this server is gone, and it was the only in-sync replica of {len(alone)} partitions, e.g. {name}/{partition.id}",
        hint="restore its data directory; or, to accept the loss of messages, run "
        f"`bascule cluster elect {name} {partition.id} {other}` for each of them on another server, and start this one again",
    )
