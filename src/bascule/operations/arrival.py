"""A server starts: before it runs any partition, the cluster hears how its last run ended."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError, OperatorError
from bascule.metadata.core.model.ops import RestartServer
from bascule.metadata.core.state import Metadata
from bascule.metadata.run_marker import Ending, RunMarker

if TYPE_CHECKING:
    from bascule.broker.services import Services

RETRY_SECONDS: Final = 0.2

_logger = logging.getLogger(__name__)


_WARNINGS: Final = {
    Ending.PROCESS_DIED: "the last run of this server did not end cleanly; nothing that was written is lost",
    Ending.MACHINE_DIED: "the machine went down while this server ran: what was not synced may be lost, and is fetched from others",
    Ending.OTHER_DATA: "this data directory is not the one that this server last ran with: what is missing is fetched from others",
}


async def arrive(services: Services, marker: RunMarker) -> None:
    """Have the server's epoch raised, then mark it as running. Tried until it is done: nothing may run before.

    The metadata has to be the cluster's of now.
    """
    metadata = services.controller.metadata
    ending = marker.ending(metadata.server_epochs.get(services.server_id, 0))
    if ending is Ending.OTHER_DATA:
        _must_not_be_missed(metadata, services.server_id)
    if ending in _WARNINGS:
        _logger.warning(_WARNINGS[ending])
    op = RestartServer(services.server_id, ending.is_intact)
    while True:
        try:
            refusal = await services.controller.submit(op)
            assert refusal is None, refusal
            break
        except BasculeError:
            # Perhaps it was done: doing it twice only raises the epoch once more.
            await asyncio.sleep(RETRY_SECONDS)
    await asyncio.to_thread(marker.write_running, services.controller.metadata.server_epochs[services.server_id])


def _must_not_be_missed(metadata: Metadata, server_id: str) -> None:
    """Raises OperatorError when nobody else has what this server should have and has not: leading from nothing, it would have the
    replicas that were behind throw away what is left."""
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
        f"the data of this server is gone, and it alone was in sync for {len(alone)} partitions, {name}/{partition.id} among them",
        hint=f"bring its directory back; or, knowing what is lost, `bascule cluster elect {name} {partition.id} {other}` on another "
        "server, for each of them, and start this one again",
    )
