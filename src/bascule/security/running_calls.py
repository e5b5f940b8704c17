"""Calls that last: subscriptions, publishing sessions and reads of tables. After a change of the policy they are judged again.

A call that waits for events is registered here, and ended by `judge_again`. A call that runs on a thread of its own asks a
`JudgedCall` before each step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bascule import limits
from bascule.security.authorization import Authorizer, CertifiedPeer

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class RunningCall:
    peer: CertifiedPeer | None
    resource: str
    action: str
    end: Callable[[str], None]
    """Ends the call with PERMISSION_DENIED and this text."""


class Judge(Protocol):
    def __call__(self) -> int:
        """End what the policy does not allow any more. Returns how many calls."""


class RunningCalls:
    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._calls: set[RunningCall] = set()
        self._judges: list[Judge] = [self._judge]

    def __len__(self) -> int:
        return len(self._calls)

    def begin(
        self, peer: CertifiedPeer | None, resource: str, action: str, end: Callable[[str], None]
    ) -> RunningCall | None:
        """Register a call that was authorized. None if no call needs authorization."""
        if not self._authorizer.is_enabled:
            return None
        call = RunningCall(peer, resource, action, end)
        self._calls.add(call)
        return call

    def over(self, call: RunningCall | None) -> None:
        if call is not None:
            self._calls.discard(call)

    def add_judge(self, judge: Judge) -> None:
        """For calls that another part keeps."""
        self._judges.append(judge)

    def judge_again(self) -> None:
        """End all calls that the present policy does not allow."""
        ended = sum(judge() for judge in self._judges)
        if ended:
            _logger.info("%d running calls ended: the policy does not allow them any more", ended)

    def judge_credentials(self) -> None:
        """End all calls that the present policy does not allow, or whose tokens have expired or were revoked."""
        self._authorizer.credentials_changed()
        self.judge_again()

    async def watch_credentials(self) -> None:
        """End calls whose tokens expire, until cancelled."""
        while True:
            await asyncio.sleep(limits.TOKEN_EXPIRY_CHECK_SECONDS)
            self.judge_credentials()

    def _judge(self) -> int:
        denied = [call for call in self._calls if not self._authorizer.allows(call.peer, call.resource, call.action)]
        for call in denied:
            self.over(call)
            call.end(self._authorizer.refusal(call.peer, call.resource, call.action))
        return len(denied)


class JudgedCall:
    """A call that was authorized, for a thread that serves it."""

    def __init__(self, authorizer: Authorizer, peer: CertifiedPeer | None, resource: str, action: str) -> None:
        """Raises PermissionDenied if the call is not allowed."""
        self._authorizer = authorizer
        self._peer = peer
        self._resource = resource
        self._action = action
        self._generation = authorizer.generation
        authorizer.require(peer, resource, action)

    def check(self) -> None:
        """Raises PermissionDenied if the policy has changed and does not allow the call any more."""
        generation = self._authorizer.generation
        if generation != self._generation:
            self._authorizer.require(self._peer, self._resource, self._action)
            self._generation = generation
