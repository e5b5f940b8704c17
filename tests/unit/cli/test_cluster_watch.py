"""Waiting until partitions have moved: what a controller that is silent knows of is not taken for done."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.cli.cluster import watch as cluster_watch
from bascule.client.admin.cluster import ClusterMember, ClusterStatus, Move
from bascule.errors import Unavailable
from bascule.metadata.core.model.ops import BrokerPlace, CreateStream, Reassign
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.requests import CallDeadline
from bascule.operations.status import StatusCalls
from bascule.proto import extensions_pb2 as extensions

MOVE = Move("orders", 0, ("a",), ("b",))


def told(*, controller_answers: bool, waiting: tuple[Move, ...] = ()) -> ClusterStatus:
    member = ClusterMember("a", "h", 1, True, True, controller_answers, "active", "1", 1.0, 1, 1, 0, 0, 0, False)
    return ClusterStatus("a", (member,), (), waiting, 0, (), 0, 0)


class Admin:
    def __init__(self, *answers: ClusterStatus) -> None:
        self.answers = list(answers)

    async def status(self) -> ClusterStatus:
        return self.answers.pop(0)


def watch(admin: Any) -> None:
    asyncio.run(cluster_watch.until_moved(admin, [MOVE], leaders=False, quiet=True))


def test_a_controller_that_is_silent_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "POLL_SECONDS", 0.0)
    admin = Admin(
        told(controller_answers=False),
        told(controller_answers=True, waiting=(MOVE,)),
        told(controller_answers=False),
        told(controller_answers=True),
    )
    watch(admin)
    assert admin.answers == []


def test_one_that_stays_silent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(Unavailable, match="the controller does not answer"):
        watch(Admin(told(controller_answers=False)))


def test_a_server_that_is_asked_knows_of_moves_that_no_longer_wait_with_the_controller() -> None:
    """It may hear of them last: then nothing would seem to move."""

    def state() -> ClusterMetadata:
        found = ClusterMetadata()
        brokers = (BrokerPlace("a"), BrokerPlace("b"))
        found.apply(1, CreateStream("orders", "orders", 1, 1, brokers, 1, config={}))
        return found

    class Controller:
        leader = "b"
        members = ("a", "b")
        metadata = state()
        driver = SimpleNamespace(node=SimpleNamespace(membership=SimpleNamespace(voters=members)))

        async def fresh_metadata(self, *, timeout: float) -> ClusterMetadata:
            assert timeout > 0
            (partition,) = self.metadata.streams["orders"].partitions
            other = next(one for one in self.members if one not in partition.replicas)
            self.metadata.apply(2, Reassign("orders", 0, (other,)))
            return self.metadata

    async def report(*_: Any, **__: Any) -> extensions.ReportResponse:
        return extensions.ReportResponse()

    async def servers(*_: Any, **__: Any) -> list[Any]:
        return []

    controller: Any = Controller()
    directory: Any = SimpleNamespace(servers=servers)
    switchboard: Any = SimpleNamespace(call=report)
    calls = StatusCalls(controller, directory, switchboard)
    found = asyncio.run(calls.status(extensions.StatusRequest(), CallDeadline.after(60.0)))
    assert [one.stream for one in found.reassignments] == ["orders"]
