"""The policy that the cluster stores, on this broker: it follows the metadata and puts each change in force.

See docs/internals/policies.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.changes import Change, PoliciesChanged
from bascule.metadata.feed import MetadataFeed
from bascule.net.retry import retry
from bascule.security.authorization import Authorizer
from bascule.security.policy.builtin import BuiltinPolicy
from bascule.security.policy.lines import MalformedLine, PolicyLine, administrators, parse_line
from bascule.security.running_calls import RunningCalls

RETRY_SECONDS: Final = 0.2

_logger = logging.getLogger(__name__)


class ClusterPolicies:
    def __init__(
        self,
        controller: Controller,
        feed: MetadataFeed,
        authorizer: Authorizer,
        running: RunningCalls,
        admins: Sequence[str],
    ) -> None:
        self._controller = controller
        self._authorizer = authorizer
        self._running = running
        self._admins = administrators(admins)
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Task[None] | None = None
        self._is_fresh = False
        self._is_scheduled = False
        self._lines: dict[str, PolicyLine | None] = {}
        """The lines in force; None for one that this version cannot parse."""
        feed.subscribe(self)

    def start(self) -> None:
        """Put the policy in force as soon as a quorum has answered: the lines of the last snapshot may be old."""
        self._reading = asyncio.create_task(self._read(), name="read policies")

    async def known(self, *, timeout: float) -> None:
        """Wait until the policy is in force, at most for `timeout` seconds."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=timeout)

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        await retry(self._controller.fresh_metadata, (BasculeError,), (RETRY_SECONDS,))
        self._is_fresh = True
        self.put_in_force()

    # ── following the metadata ───────────────────────────────────────────────────────────────────

    def on_changes(self, _index: int, changes: tuple[Change, ...]) -> None:
        """From the feed."""
        if any(isinstance(change, PoliciesChanged) for change in changes):
            self.reload()

    def reload(self) -> None:
        """From the feed: the policy may be another one. Changes that are applied together are put in force together."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.put_in_force)

    def put_in_force(self) -> None:
        """Decide by the lines in the metadata from now on, and end running calls that they do not allow any more."""
        self._is_scheduled = False
        if not self._is_fresh:
            return
        stored = self._controller.metadata.policies
        is_first = not self._authorizer.is_complete
        removed = self._lines.keys() - stored
        if not (is_first or removed or stored - self._lines.keys()):
            return
        self._lines = {line: self._lines[line] if line in self._lines else _parsed(line) for line in sorted(stored)}
        self._authorizer.use(
            BuiltinPolicy([*self._admins, *(line for line in self._lines.values() if line is not None)])
        )
        if removed:
            self._running.judge_again()
        if not is_first:
            _logger.info("the policies of the cluster have changed: %d lines are in force", len(self._lines))


def _parsed(text: str) -> PolicyLine | None:
    try:
        return parse_line(text)
    except MalformedLine as error:
        _logger.error("a policy of the cluster grants nothing on this server: %s (%s)", error.problem, error.hint)
        return None
