"""The timers of members: a coordinator that starts sets them for all members, and clears that of a member that leaves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from bascule.metadata.core.model.changes import GroupChanged
from bascule.metadata.feed import MetadataFeed
from bascule.readers.groups import GroupCoordinator
from tests.support.control_plane import ManualTimers, run


class FakeController:
    """One group, coordinated by this server. Notes the members that are removed."""

    server_id = "a"

    def __init__(self, *members: str) -> None:
        self.group = SimpleNamespace(coordinator="a", epoch=1, members=dict.fromkeys(members))
        self.metadata = SimpleNamespace(groups={"g": self.group})
        self.removed: list[str] = []

    async def submit(self, op: Any) -> None:
        self.removed.append(op.consumer)
        self.group.members.pop(op.consumer, None)


def coordinated(controller: Any, timers: ManualTimers) -> GroupCoordinator:
    made = GroupCoordinator(controller, MetadataFeed(), 15 * 10**9, timers)
    made.start()
    return made


def test_a_coordinator_that_starts_removes_members_that_never_send_a_heartbeat() -> None:
    async def scenario() -> None:
        controller, timers = FakeController("c1", "c2"), ManualTimers()
        groups = coordinated(controller, timers)
        timers.advance(16)
        await asyncio.sleep(0)
        assert sorted(controller.removed) == ["c1", "c2"]
        await groups.stop()

    run(scenario())


def test_a_member_that_has_left_is_not_removed_again() -> None:
    async def scenario() -> None:
        controller, timers = FakeController("c1", "c2"), ManualTimers()
        groups = coordinated(controller, timers)
        del controller.group.members["c1"]
        groups.on_changes(1, (GroupChanged("g"),))
        timers.advance(16)
        await asyncio.sleep(0)
        assert controller.removed == ["c2"]
        await groups.stop()

    run(scenario())
