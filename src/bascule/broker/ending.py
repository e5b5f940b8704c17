"""Why and how a broker ends: it is asked to stop, or a failure makes it impossible to go on; then its parts are closed in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from bascule.errors import BasculeError, OperatorError, StorageError

_logger = logging.getLogger(__name__)


class BrokerEnding:
    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """The broker has to drain and stop."""
        self.hands_over = True
        """False when the server was removed from its cluster: then it leads nothing that others could take."""
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def failed(self) -> None:
        """Raises as soon as a failure occurs that a broker cannot survive."""
        await self._failure

    def fail(self, error: BasculeError) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def on_rival_seed(self, rival: str, give_way: bool) -> None:
        message = f"server {rival} was started as seed too: there would be two clusters in one namespace"
        if give_way:
            hint = "start all but one server without --raft-bootstrap-seed, and with an empty directory"
            self.fail(OperatorError(message, hint=hint))
        else:
            _logger.error("%s; it has to stop", message)

    def on_metadata_failure(self, error: BaseException) -> None:
        """The Raft log cannot be written. The server no longer follows the metadata; a restart continues from what is on disk."""
        message = f"the metadata log of this server has failed: {error}"
        self.fail(StorageError(message, hint="make room on the disk if it is full, then start the server again"))

    def on_removed(self, server_id: str, data_directory: object, *, was_running: bool) -> None:
        message = f"server {server_id} was removed from the cluster"
        if was_running:
            _logger.warning("%s while it was running: it stops", message)
            self.hands_over = False
            self.requested.set()
        else:
            hint = (
                f"to have it join anew, start it with another data directory than {data_directory}, or empty this one"
            )
            self.fail(OperatorError(f"{message}, or never was part of it", hint=hint))


class Closing:
    """Closes the parts of a broker in reverse order, when it stops or its start fails."""

    def __init__(self) -> None:
        self._work: list[Callable[[], Awaitable[Any]]] = []

    def add(self, close: Callable[[], Awaitable[Any]]) -> None:
        self._work.append(close)

    async def run(self) -> bool:
        """Close everything; errors are logged. False when there were any."""
        failures = 0
        while self._work:
            try:
                await self._work.pop()()
            except BasculeError as error:
                failures += 1
                _logger.error("while stopping: %s", error.message)
        return not failures
