"""The consumer groups that this server coordinates, and the timeouts of their members.

A member's requests for its assignments are its heartbeats. A member without a heartbeat for `groups.consumer.timeout` is removed from
its group, by an op that is only applied while this server coordinates the group. A new coordinator restarts all timeouts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.changes import Change, GroupChanged
from bascule.metadata.core.model.groups import ConsumerGroup, GroupMember
from bascule.metadata.core.model.ops import LeaveConsumerGroup
from bascule.metadata.core.model.refusal import NO_GROUP, Refusal, precondition
from bascule.metadata.feed import MetadataFeed

_logger = logging.getLogger(__name__)

_Key = tuple[str, str]
"""Group and consumer."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that timeouts need."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[_Key], None], /, key: _Key) -> Timer: ...


class GroupCoordinator:
    def __init__(
        self, controller: Controller, feed: MetadataFeed, timeout_ns: int, timers: Timers | None = None
    ) -> None:
        self._controller = controller
        self._server_id = controller.server_id
        self._timeout = timeout_ns / 1e9
        self._loop: Timers = timers or asyncio.get_running_loop()
        self._seen: dict[_Key, float] = {}
        self._timers: dict[_Key, Timer] = {}
        self._timed: dict[str, set[str]] = {}
        """Group → consumers with a timer."""
        self._expiring: dict[_Key, asyncio.Task[None]] = {}
        self._runs = False
        feed.subscribe(self)

    # ── following the metadata ───────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Check the heartbeats of members from now on."""
        self._runs = True
        self.reload()

    async def stop(self) -> None:
        self._runs = False
        for key in list(self._timers):
            self._forget(key)
        for task in list(self._expiring.values()):
            task.cancel()

    def on_changes(self, _index: int, changes: tuple[Change, ...]) -> None:
        """From the feed: follow the groups that have changed."""
        for change in changes:
            if self._runs and isinstance(change, GroupChanged):
                self._follow(change.group)

    def reload(self) -> None:
        """From the feed: the state was replaced, follow all groups."""
        if self._runs:
            for group in {*self._controller.metadata.groups, *(group for group, _ in self._timers)}:
                self._follow(group)

    def _follow(self, name: str) -> None:
        group = self._controller.metadata.groups.get(name)
        members = set() if group is None or group.coordinator != self._server_id else set(group.members)
        for consumer in self._timed.get(name, set()) - members:
            self._forget((name, consumer))
        for consumer in members:
            if (name, consumer) not in self._timers:
                self._seen[name, consumer] = self._loop.time()
                self._arm((name, consumer), self._timeout)

    # ── heartbeats ───────────────────────────────────────────────────────────────────────────────

    def assignments(self, name: str, consumer: str, epoch: int) -> tuple[ConsumerGroup, GroupMember] | Refusal:
        """The assignments of a member; counts as its heartbeat. Refused for a newer epoch or a consumer that is not a member.

        A member whose epoch is older gets the present assignments with the present epoch. Liftbridge refuses it, and its Go client then
        pauses for two seconds; if it is closed within them, its `Close` never returns.
        """
        group = self._controller.metadata.groups.get(name)
        if group is None:
            return NO_GROUP
        if group.coordinator != self._server_id:
            return precondition(f"Server is not the coordinator of group {name}, {group.coordinator} is")
        if group.epoch < epoch:
            return precondition(f"Group epoch mismatch, current epoch: {group.epoch}, got epoch: {epoch}")
        member = group.members.get(consumer)
        if member is None:
            return precondition(f"{consumer} is not a member of group {name}")
        self._seen[name, consumer] = self._loop.time()
        return group, member

    def _arm(self, key: _Key, seconds: float) -> None:
        self._timed.setdefault(key[0], set()).add(key[1])
        self._timers[key] = self._loop.call_later(seconds, self._check, key)

    def _check(self, key: _Key) -> None:
        # A heartbeat only records the time; the timer runs again for the remaining time.
        left = self._seen[key] + self._timeout - self._loop.time()
        if left > 0:
            self._arm(key, left)
        elif key not in self._expiring:
            self._expiring[key] = asyncio.create_task(self._expire(key), name="expire-consumer")

    async def _expire(self, key: _Key) -> None:
        group, consumer = key
        _logger.info("consumer %s of group %s has sent no heartbeat and is removed", consumer, group)
        try:
            refusal = await self._controller.submit(LeaveConsumerGroup(group, consumer, True, self._server_id))
            if refusal is not None:
                _logger.info("consumer %s of group %s was not removed: %s", consumer, group, refusal.text)
        except BasculeError as error:
            _logger.warning("consumer %s of group %s could not be removed: %s", consumer, group, error.message)
        finally:
            del self._expiring[key]
        if self._runs and key in self._timers:
            self._arm(key, self._timeout)  # still a member: retried

    def _forget(self, key: _Key) -> None:
        self._timers.pop(key).cancel()
        timed = self._timed[key[0]]
        timed.discard(key[1])
        if not timed:
            del self._timed[key[0]]
        self._seen.pop(key, None)
