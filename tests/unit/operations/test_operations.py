"""What operations decide without anybody: what an election loses, why a move stands still, what is left of a removed server."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from bascule.broker.api.cluster import ClusterApi
from bascule.errors import PermissionDenied, StateError, Unavailable
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.requests import CallDeadline
from bascule.net.grpc.server import Call, Peer
from bascule.net.grpc.status import GrpcError, Status
from bascule.net.nats.subjects import ControlSubjects
from bascule.operations import membership
from bascule.operations.election import common_end, loss
from bascule.operations.membership import MembershipWatch
from bascule.operations.move_queue import stalled
from bascule.operations.switchboard import Switchboard, refusal
from bascule.proto import extensions_pb2 as extensions
from bascule.security.policy.resources import CLUSTER_ACTIONS
from tests.support.memory_bus import MemoryBus


def log(end: int, *epochs: tuple[int, int], high_watermark: int = -1) -> extensions.ReplicaLog:
    return extensions.ReplicaLog(
        log_end_offset=end,
        high_watermark=high_watermark,
        epochs=[extensions.LeaderEpoch(epoch=epoch, start_offset=start) for epoch, start in epochs],
    )


# ── elections ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("chosen", "other", "end"),
    [
        (log(10, (1, 0)), log(15, (1, 0)), 10),
        (log(15, (1, 0)), log(10, (1, 0)), 10),
        (log(10, (1, 0)), log(10, (1, 0)), 10),
        # The other went on in a later epoch that begins where the first one ended for it.
        (log(10, (1, 0)), log(15, (1, 0), (2, 8)), 8),
        (log(10, (1, 0)), log(15, (1, 0), (2, 10)), 10),
        (log(10, (1, 0)), log(15, (1, 0), (2, 12)), 10),
        # Both went on, each in an epoch of its own.
        (log(12, (1, 0), (2, 9)), log(15, (1, 0), (3, 10)), 9),
        # An epoch in which nothing was written says nothing.
        (log(10, (1, 0), (5, 10)), log(15, (1, 0)), 10),
        (log(0), log(15, (1, 0)), 0),
        (log(15, (1, 0)), log(0), 0),
        # What was compacted or expired is not there to compare; the rest is.
        (log(20, (3, 12)), log(25, (3, 12)), 20),
    ],
)
def test_two_logs_are_equal_up_to_where_their_epochs_part(
    chosen: extensions.ReplicaLog, other: extensions.ReplicaLog, end: int
) -> None:
    assert common_end(chosen, other) == end


def test_a_loss_is_what_the_other_has_behind_and_knows_what_was_committed() -> None:
    found = loss(log(10, (1, 0)), log(15, (1, 0), high_watermark=12))
    assert (found.from_offset, found.end_offset, found.messages, found.committed_end_offset) == (10, 15, 5, 13)
    nothing = loss(log(15, (1, 0)), log(10, (1, 0), high_watermark=9))
    assert nothing.messages == 0


# ── moves ────────────────────────────────────────────────────────────────────────────────────────


def moving(**changes: Any) -> Partition:
    fields: dict[str, Any] = {
        "id": 0,
        "replicas": ["a", "b", "c"],
        "leader": "a",
        "in_sync_replicas": ["a", "b"],
        "leader_epoch": 1,
        "epoch": 1,
        "target_replicas": ["b", "c"],
        "original_replicas": ["a", "b"],
    }
    return Partition(**{**fields, **changes})


def test_a_move_stands_still_for_a_reason() -> None:
    assert stalled(moving(), {"a", "b", "c"}) == ""
    assert stalled(moving(), {"a", "b"}) == "c does not answer"
    assert stalled(moving(), {"b", "c"}) == "its leader a does not answer"
    assert stalled(moving(paused=True), {"a", "b", "c"}) == "the partition is paused"
    # One that is in sync already need not answer for the move to be over.
    assert stalled(moving(in_sync_replicas=["a", "b", "c"]), {"a"}) == ""


# ── calls between servers ────────────────────────────────────────────────────────────────────────


class Servers:
    """Two switchboards on one bus, whose one method does what a test says."""

    def __init__(self, handler: Any) -> None:
        bus = MemoryBus()
        self.handler = handler
        self.boards = {name: Switchboard(bus, ControlSubjects("ns"), name) for name in ("a", "b")}

    async def start(self) -> None:
        for board in self.boards.values():
            await board.serve({"Drain": self.handler})

    async def ask(self, server: str, timeout: float = 60.0) -> Any:
        request = extensions.DrainRequest(server="x")
        return await self.boards["a"].call(server, "Drain", request, timeout=timeout)


def run(handler: Any, work: Any) -> Any:
    async def main() -> Any:
        servers = Servers(handler)
        await servers.start()
        try:
            return await work(servers)
        finally:
            for board in servers.boards.values():
                await board.stop()

    return asyncio.run(main())


async def answer(request: extensions.DrainRequest, deadline: CallDeadline) -> extensions.DrainResponse:
    assert 0 < deadline.left() <= 60
    return extensions.DrainResponse(kept=[extensions.KeptLeadership(stream=request.server)])


@pytest.mark.parametrize("server", ["a", "b"])
def test_a_call_is_the_same_here_and_there(server: str) -> None:
    found = run(answer, lambda servers: servers.ask(server))
    assert found.kept[0].stream == "x"


@pytest.mark.parametrize("server", ["a", "b"])
def test_a_refusal_comes_back_as_it_was(server: str) -> None:
    async def refuse(*_: Any) -> None:
        raise refusal(Status.FAILED_PRECONDITION, "what is wrong", "what to do")

    with pytest.raises(GrpcError) as caught:
        run(refuse, lambda servers: servers.ask(server))
    assert (caught.value.status, caught.value.text) == (Status.FAILED_PRECONDITION, "what is wrong\nwhat to do")


def test_an_error_of_ours_keeps_its_status_and_hint() -> None:
    async def fail(*_: Any) -> None:
        raise StateError("no", hint="yes")

    with pytest.raises(GrpcError) as caught:
        run(fail, lambda servers: servers.ask("b"))
    assert (caught.value.status, caught.value.text) == (Status.FAILED_PRECONDITION, "no\nyes")


def test_a_bug_over_there_is_told_and_harms_nobody() -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    async def ask_twice(servers: Servers) -> None:
        for _ in range(2):
            with pytest.raises(GrpcError) as caught:
                await servers.ask("b")
            assert caught.value.status == Status.INTERNAL

    run(fail, ask_twice)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="`c` does not answer"):
        run(answer, lambda servers: servers.ask("c", timeout=0.2))


def test_what_takes_too_long_is_told() -> None:
    async def wait(*_: Any) -> None:
        await asyncio.sleep(60)

    with pytest.raises((GrpcError, Unavailable)):
        run(wait, lambda servers: servers.ask("b", timeout=0.2))


def test_foreign_bytes_get_no_answer() -> None:
    async def send(servers: Servers) -> None:
        bus: Any = servers.boards["a"]._bus
        with pytest.raises(Unavailable):
            await bus.request(ControlSubjects("ns").operations("b"), b"rubbish", 0.1)
        assert (await servers.ask("b")).kept

    run(answer, send)


# ── whether a server still belongs ───────────────────────────────────────────────────────────────


class Controller:
    """As much of one as the watch looks at."""

    def __init__(self, server_id: str, leader: str | None, members: list[str]) -> None:
        self.server_id = server_id
        self.leader = leader
        self.members = members
        self.is_confirmed = True

    @property
    def is_leader(self) -> bool:
        return self.leader == self.server_id

    async def fresh_metadata(self, *, timeout: float) -> None:
        if not self.is_confirmed:
            raise Unavailable(f"no quorum within {timeout}")


async def watched(asker: Controller, *others: Controller, seconds: float) -> bool:
    """Whether the asker finds that it was removed, within many looks."""
    bus, found = MemoryBus(), asyncio.Event()
    watches = [
        MembershipWatch(bus, ControlSubjects("ns"), one, found.set)  # type: ignore[arg-type]
        for one in (asker, *others)
    ]
    for watch in watches:
        await watch.start()
    try:
        await asyncio.wait_for(found.wait(), seconds)
    except TimeoutError:
        return False
    finally:
        for watch in watches:
            await watch.stop()
    return True


@pytest.mark.parametrize(
    ("leader", "members", "is_confirmed", "is_removed"),
    [
        (None, ["a", "b"], True, True),
        (None, ["a", "b", "c"], True, False),
        ("a", ["a", "b"], True, False),
        # A leader that nobody confirms, or nobody at all, sends nobody away.
        (None, ["a", "b"], False, False),
    ],
)
def test_a_server_that_hears_of_no_leader_asks_whether_it_belongs(
    monkeypatch: pytest.MonkeyPatch, leader: str | None, members: list[str], is_confirmed: bool, is_removed: bool
) -> None:
    for name in ("LOOK_SECONDS", "SILENCE_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(membership, name, 0.01)
    controller = Controller("a", "a", members)
    controller.is_confirmed = is_confirmed
    asker = Controller("c", leader, ["a", "b", "c"])
    assert asyncio.run(watched(asker, controller, seconds=60 if is_removed else 0.5)) == is_removed


# ── who may ──────────────────────────────────────────────────────────────────────────────────────


class Policy:
    """Denies everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def require(self, _peer: Any, resource: str, action: str) -> None:
        self.asked.append((resource, action))
        raise PermissionDenied("no")


def test_every_call_asks_the_policy_first() -> None:
    policy: Any = Policy()
    handlers = ClusterApi(MagicMock(), MagicMock(), policy, MagicMock()).handlers()
    methods = [method.name for method in extensions.DESCRIPTOR.services_by_name["Cluster"].methods]
    assert list(handlers) == methods
    assert {*methods, "FetchMetadata", "ReadAudit"} == set(CLUSTER_ACTIONS), "every action can be granted"
    for name, (request, handler) in handlers.items():
        with pytest.raises(PermissionDenied):
            asyncio.run(cast(Any, handler(request(), Call(b"", Peer("x"), 1.0, []))))
        assert policy.asked[-1] == ("*", name)
