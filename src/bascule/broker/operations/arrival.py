"""A server starts: before it runs any partition, the cluster hears how its last run ended."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from bascule.broker.run_marker import RunMarker
from bascule.core.metadata.ops import RestartServer
from bascule.errors import BasculeError

if TYPE_CHECKING:
    from bascule.broker.services import Services

RETRY_SECONDS: Final = 0.2

_logger = logging.getLogger(__name__)


async def arrive(services: Services, marker: RunMarker) -> None:
    """Have the server's epoch raised, then mark it as running. Tried until it is done: nothing may run before."""
    if not marker.was_intact:
        _logger.warning(
            "the machine went down while this server ran: what was not synced may be lost, and is fetched from other replicas"
        )
    elif not marker.was_clean:
        _logger.warning("the last run of this server did not end cleanly; nothing that was written is lost")
    op = RestartServer(services.server_id, marker.was_intact)
    while True:
        try:
            refusal = await services.controller.submit(op)
            assert refusal is None, refusal
            break
        except BasculeError:
            # Perhaps it was done: doing it twice only raises the epoch once more.
            await asyncio.sleep(RETRY_SECONDS)
    await asyncio.to_thread(marker.write)
