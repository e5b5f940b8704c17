"""A server starts: before it runs any partition, the cluster hears how its last run ended."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from bascule.broker.run_marker import Ending, RunMarker
from bascule.core.metadata.ops import RestartServer
from bascule.errors import BasculeError

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
