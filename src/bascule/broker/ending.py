"""Why and how a broker ends: it is asked to stop, or a failure makes it impossible to go on; then its parts are closed in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bascule.errors import BasculeError, OperatorError, StorageError
from bascule.kernels.calls.publish import PublishGate

_logger = logging.getLogger(__name__)

QUIET_SECONDS: Final = 0.05
"""Time without a new message after which all messages sent before the request to reconnect have arrived."""


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
        self._when_clean: list[Callable[[], None]] = []

    def add(self, close: Callable[[], Awaitable[Any]]) -> None:
        self._work.append(close)

    def when_clean(self, work: Callable[[], None]) -> None:
        """Do this after everything is closed, if nothing failed."""
        self._when_clean.append(work)

    async def run(self) -> None:
        """Close everything; errors are logged, not raised: an earlier error that stops the server is the better message."""
        failures = 0
        while self._work:
            try:
                await self._work.pop()()
            except BasculeError as error:
                failures += 1
                _logger.error("while stopping: %s", error.message)
        while self._when_clean and not failures:
            try:
                self._when_clean.pop()()
            except BasculeError as error:
                _logger.error("while stopping: %s", error.message)


class PublishersAtWork:
    """Whether publishers still wait for acks: messages that they sent before the server asked them to reconnect are acked."""

    def __init__(self, gate: PublishGate) -> None:
        self._gate = gate
        self._published = gate.published
        self._busy_at = time.monotonic()

    def __call__(self) -> bool:
        if not self._gate.receivers:
            return False
        now = time.monotonic()
        if self._gate.unanswered or self._gate.published != self._published:
            self._published = self._gate.published
            self._busy_at = now
        return now - self._busy_at < QUIET_SECONDS
