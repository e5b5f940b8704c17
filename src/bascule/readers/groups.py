"""The consumer groups that this server coordinates: whose members are alive.

Fetching its assignments is a member's sign of life. One that gives none for `groups.consumer.timeout` is put out of its group, by an
op that counts only while this server coordinates the group. Whoever becomes coordinator gives all members the whole time again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.changes import Change, GroupChanged
from bascule.metadata.core.model.groups import ConsumerGroup, Member
from bascule.metadata.core.model.ops import LeaveConsumerGroup
from bascule.metadata.core.model.refusal import NO_GROUP, Refusal, precondition
from bascule.metadata.feed import MetadataFeed

_logger = logging.getLogger(__name__)

_Key = tuple[str, str]
"""Group and consumer."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """What an event loop offers."""

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
        self._expiring: dict[_Key, asyncio.Task[None]] = {}
        self._runs = False
        feed.subscribe(self)

    # ── following the metadata ───────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """From here on members have to give signs of life."""
        self._runs = True
        self.reload()

    async def stop(self) -> None:
        self._runs = False
        for key in list(self._timers):
            self._forget(key)
        for task in list(self._expiring.values()):
            task.cancel()

    def on_changes(self, _index: int, changes: tuple[Change, ...]) -> None:
        """From the state machine, as soon as an op was applied."""
        for change in changes:
            if self._runs and isinstance(change, GroupChanged):
                self._follow(change.group)

    def reload(self) -> None:
        """The metadata came anew, as a whole."""
        if self._runs:
            for group in {*self._controller.metadata.groups, *(group for group, _ in self._timers)}:
                self._follow(group)

    def _follow(self, name: str) -> None:
        group = self._controller.metadata.groups.get(name)
        members = set() if group is None or group.coordinator != self._server_id else set(group.members)
        for key in [key for key in self._timers if key[0] == name and key[1] not in members]:
            self._forget(key)
        for consumer in members:
            if (name, consumer) not in self._timers:
                self._seen[name, consumer] = self._loop.time()
                self._arm((name, consumer), self._timeout)

    # ── signs of life ────────────────────────────────────────────────────────────────────────────

    def assignments(self, name: str, consumer: str, epoch: int) -> tuple[ConsumerGroup, Member] | Refusal:
        """What a member is to read; it is alive. Refused for whoever is none, or is behind."""
        group = self._controller.metadata.groups.get(name)
        if group is None:
            return NO_GROUP
        if group.coordinator != self._server_id:
            return precondition(f"Server is not the coordinator of group {name}, {group.coordinator} is")
        if group.epoch != epoch:
            return precondition(f"Group epoch mismatch, current epoch: {group.epoch}, got epoch: {epoch}")
        member = group.members.get(consumer)
        if member is None:
            return precondition(f"{consumer} is not a member of group {name}")
        self._seen[name, consumer] = self._loop.time()
        return group, member

    def _arm(self, key: _Key, seconds: float) -> None:
        self._timers[key] = self._loop.call_later(seconds, self._check, key)

    def _check(self, key: _Key) -> None:
        # A sign of life only notes the time: a timer that finds one runs for the rest.
        left = self._seen[key] + self._timeout - self._loop.time()
        if left > 0:
            self._arm(key, left)
        elif key not in self._expiring:
            self._expiring[key] = asyncio.create_task(self._expire(key), name="expire-consumer")

    async def _expire(self, key: _Key) -> None:
        group, consumer = key
        _logger.info("consumer %s of group %s has given no sign of life and is put out", consumer, group)
        try:
            refusal = await self._controller.submit(LeaveConsumerGroup(group, consumer, True, self._server_id))
            if refusal is not None:
                _logger.info("consumer %s of group %s was not put out: %s", consumer, group, refusal.text)
        except BasculeError as error:
            _logger.warning("consumer %s of group %s could not be put out: %s", consumer, group, error.message)
        finally:
            del self._expiring[key]
        if self._runs and key in self._timers:
            self._arm(key, self._timeout)  # still a member: tried again

    def _forget(self, key: _Key) -> None:
        self._timers.pop(key).cancel()
        self._seen.pop(key, None)
