"""The controller of a single server, and what it makes of bad bytes, bad state and a bad disk."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import (
    CallerError,
    InvalidConfig,
    OperatorError,
    OutcomeUnknown,
    RejectedEnvelope,
    StorageError,
    Unavailable,
)
from bascule.log.disk.operations import PosixDisk
from bascule.metadata.bootstrap import SeedWatch, as_peer, by_joining, decode_join_request, encode_join_response
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.changes import Change
from bascule.metadata.core.model.ops import BrokerPlace, CreateStream, DeleteStream, JoinConsumerGroup, encode_op
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.machine import MetadataMachine, decode_verdict
from bascule.metadata.start import ControllerStart, start_controller
from bascule.net.nats.envelope import MessageType, encode
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.internal_pb2 import PropagatedRequest, RaftJoinRequest
from bascule.raft.core.model.message_codec import encode_message
from bascule.raft.core.model.messages import VoteRequest
from tests.support.memory_bus import MemoryBus

SUBJECTS = ControlSubjects("ns")
BROKERS = (BrokerPlace("a"), BrokerPlace("b"), BrokerPlace("c"))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


async def alone(bus: MemoryBus, directory: Path, **more: Any) -> Controller:
    options = ControllerStart("ns", "a", is_seed=True, **more)
    return await start_controller(bus, PosixDisk(), str(directory), options)


def creation(name: str) -> CreateStream:
    return CreateStream(name, "subject", 1, 1, BROKERS, 0)


def test_a_single_server_is_a_cluster_of_one_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = await alone(MemoryBus(), tmp_path)
        assert await controller.submit(creation("orders"), timeout=30) is None
        assert controller.is_leader
        refusal = await controller.submit(creation("orders"))
        assert refusal == Refusal("ALREADY_EXISTS", "stream already exists")
        assert list((await controller.fresh_metadata()).streams) == ["orders"]
        await controller.stop()

    run(scenario())


def test_a_restart_keeps_everything_also_what_only_a_snapshot_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        for number in range(3):
            controller = await alone(MemoryBus(), tmp_path, snapshot_entries=7)
            for name in range(10):
                await controller.submit(creation(f"r{number}-{name}"), timeout=30)
            metadata = await controller.fresh_metadata()
            assert len(metadata.streams) == 10 * (number + 1)
            await controller.stop()

    run(scenario())


def test_many_ops_at_once_are_each_done_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = await alone(MemoryBus(), tmp_path)
        outcomes = await asyncio.gather(
            *(controller.submit(creation(f"s{number % 100}"), timeout=30) for number in range(300))
        )
        assert sum(outcome is None for outcome in outcomes) == 100
        await controller.stop()

    run(scenario())


def test_an_op_too_large_for_the_log_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = await alone(MemoryBus(), tmp_path)
        with pytest.raises(CallerError, match="larger than"):
            await controller.submit(DeleteStream("x" * 300_000), timeout=30)
        assert await controller.submit(creation("orders"), timeout=30) is None
        await controller.stop()

    run(scenario())


BAD_BYTES = [
    b"",
    b"hello",
    encode(MessageType.ACK, b""),
    encode(MessageType.RAFT_JOIN_REQUEST, b"\xff\xff\xff"),
    encode(MessageType.RAFT_JOIN_REQUEST, RaftJoinRequest(node_id="").SerializeToString()),
    encode(MessageType.RAFT_JOIN_REQUEST, RaftJoinRequest(node_id="a.b").SerializeToString()),
    encode(MessageType.PROPAGATED_REQUEST, b"\xff\xff\xff"),
    encode_message(VoteRequest("evil", "a", 1_000_000, 1_000_000, 1_000_000), "another-cluster"),
]


def test_foreign_bytes_on_internal_subjects_change_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        controller = await alone(bus, tmp_path)
        await controller.submit(creation("orders"), timeout=30)
        before = controller.driver.node.term, controller.members
        for data in BAD_BYTES:
            for subject in (SUBJECTS.raft("a"), SUBJECTS.join, SUBJECTS.propagate, SUBJECTS.bootstrap):
                await bus.publish(subject, data, "inbox")
        for _ in range(20):
            await asyncio.sleep(0)
        assert (controller.driver.node.term, controller.members) == before
        assert controller.is_leader
        assert not any(subject == "inbox" for subject, _ in bus.published)
        await controller.stop()

    run(scenario())


def test_a_request_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = await alone(MemoryBus(), tmp_path)
        await controller.submit(creation("orders"), timeout=30)
        refusal = await controller._propagate(PropagatedRequest(), 5)
        assert refusal is not None
        assert refusal.code == "INVALID_ARGUMENT"
        await controller.stop()

    run(scenario())


def test_an_op_can_be_sent_to_the_controller_and_its_verdict_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = await alone(MemoryBus(), tmp_path)
        await controller.submit(creation("orders"), timeout=30)
        assert await controller.forward(creation("more")) is None
        assert await controller.forward(creation("more")) == Refusal("ALREADY_EXISTS", "stream already exists")
        malformed = await controller._propagate(PropagatedRequest(op=b"{}"), 5)
        assert malformed is not None
        assert malformed.code == "INVALID_ARGUMENT"
        assert sorted(controller.metadata.streams) == ["more", "orders"]
        await controller.stop()

    run(scenario())


def test_reports_reach_the_controller_and_its_verdict_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = await alone(MemoryBus(), tmp_path)
        await controller.submit(CreateStream("orders", "s", 1, 3, BROKERS, 0), timeout=30)
        partition = controller.metadata.streams["orders"].partitions[0]
        leader, epoch = partition.leader, partition.leader_epoch
        followers = [replica for replica in partition.replicas if replica != leader]
        refusal = await controller.report_leader("orders", 0, "stranger", leader, epoch)
        assert refusal is not None and refusal.code == "FAILED_PRECONDITION"
        assert await controller.report_leader("orders", 0, followers[0], leader, epoch) is None
        assert controller.metadata.streams["orders"].partitions[0].leader == leader
        assert await controller.report_leader("orders", 0, followers[1], leader, epoch) is None
        changed = controller.metadata.streams["orders"].partitions[0]
        assert changed.leader != leader
        assert leader not in changed.in_sync_replicas
        await controller.stop()

    run(scenario())


class DeafBus(MemoryBus):
    """Nobody leads for a while: what is asked of the controller meanwhile is not answered."""

    unheard = 2

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if subject.endswith(".propagate") and self.unheard:
            self.unheard -= 1
            return
        await super().publish(subject, data, reply)


def test_a_report_that_nobody_heard_is_made_again_soon(tmp_path: Path) -> None:
    async def scenario() -> None:
        bus = DeafBus()
        controller = await alone(bus, tmp_path)
        await controller.submit(creation("orders"), timeout=30)
        partition = controller.metadata.streams["orders"].partitions[0]
        refusal = await controller.report_leader("orders", 0, "stranger", partition.leader, partition.leader_epoch)
        assert refusal is not None and refusal.code == "FAILED_PRECONDITION"
        assert bus.unheard == 0
        bus.unheard = 1000
        again = (partition.leader, partition.leader_epoch)
        reporting = asyncio.create_task(controller.report_leader("orders", 0, "b", *again, timeout=60))
        while bus.unheard > 998:  # it is made once, and then again
            await asyncio.sleep(0.01)
        reporting.cancel()
        with pytest.raises(Unavailable):
            await controller.report_leader("orders", 0, "b", *again, timeout=0.2)
        await controller.stop()

    run(scenario())


def test_coordinator_reports_reach_the_controller_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = await alone(MemoryBus(), tmp_path)
        await controller.submit(creation("orders"), timeout=30)
        await controller.submit(JoinConsumerGroup("g", "c", ("orders",), ("a", "b")))
        group = controller.metadata.groups["g"]
        refusal = await controller.report_coordinator("g", "c", group.coordinator, group.epoch)
        # the only member has reported, but no other broker is there to take over
        assert refusal is not None
        assert "candidates" in refusal.text
        await controller.stop()

    run(scenario())


def test_a_data_directory_of_another_server_is_refused_untouched(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = await alone(MemoryBus(), tmp_path)
        await controller.submit(creation("orders"), timeout=30)
        await controller.stop()
        before = {path: path.read_bytes() for path in (tmp_path / "raft").iterdir()}
        with pytest.raises(OperatorError, match="belongs to the server `a`"):
            await start_controller(MemoryBus(), PosixDisk(), str(tmp_path), ControllerStart("ns", "b", is_seed=True))
        assert {path: path.read_bytes() for path in (tmp_path / "raft").iterdir()} == before

    run(scenario())


# ── beginnings ───────────────────────────────────────────────────────────────────────────────────


def test_peers_come_to_the_same_cluster_by_themselves() -> None:
    beginnings = {as_peer("ns", own, ("c", "a", "b"), 2) for own in ("a", "b", "c")}
    assert len(beginnings) == 1
    beginning = beginnings.pop()
    assert beginning.membership.voters == {"a", "b"}
    assert beginning.membership.learners == {"c"}
    assert as_peer("other", "a", ("b", "c"), 2).cluster_id != beginning.cluster_id
    with pytest.raises(InvalidConfig, match="peers"):
        as_peer("ns", "a", ("",), 0)


def test_joining_says_what_the_leader_said() -> None:
    async def scenario() -> None:
        bus = MemoryBus()

        async def on_join(_data: bytes, reply: str) -> None:
            await bus.publish(reply, encode_join_response("", "the cluster is full"))

        await bus.subscribe(SUBJECTS.join, on_join)
        with pytest.raises(Unavailable, match="the cluster is full"):
            await by_joining(bus, SUBJECTS, "b", attempts=2, wait_seconds=0.01)

    run(scenario())


@pytest.mark.parametrize("data", [b"", b"junk", encode(MessageType.RAFT_JOIN_REQUEST, b"\xff")])
def test_a_join_request_must_be_one(data: bytes) -> None:
    with pytest.raises(RejectedEnvelope):
        decode_join_request(data)


@pytest.mark.parametrize(
    ("has_begun", "word", "expected"),
    [
        (False, b"b other 3 100", [("b", True)]),
        (False, b"b other 1 5", [("b", False)]),
        (False, b"b other 2 10", [("b", True)]),
        (True, b"b other 3 100", [("b", False)]),
        (True, b"b other 9223372036854775807 9223372036854775807", [("b", False)]),
        (False, b"b mine 9 9", []),
        (False, b"nonsense", []),
        (False, b"b other x y", []),
        (False, b"b other 1 " + b"9" * 100_000, []),
        (False, b"\xff\xfe", []),
    ],
)
def test_of_two_seeds_the_lighter_one_gives_way_unless_it_has_begun(
    has_begun: bool, word: bytes, expected: list[tuple[str, bool]]
) -> None:
    async def scenario() -> None:
        bus, heard = MemoryBus(), []
        watch = SeedWatch(
            bus,
            SUBJECTS,
            "a",
            "mine",
            lambda: (2, 10),
            lambda: has_begun,
            lambda rival, yields: heard.append((rival, yields)),
        )
        await watch.start(1000)
        await bus.publish(SUBJECTS.bootstrap, word)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        watch.stop()
        assert heard == expected

    run(scenario())


# ── the machine ──────────────────────────────────────────────────────────────────────────────────


def test_a_malformed_op_is_refused_and_the_next_one_is_applied() -> None:
    machine = MetadataMachine(MetadataFeed())
    refusal = decode_verdict(machine.apply(1, b"\xff"))
    assert refusal is not None
    assert (refusal.code, machine.state.applied_index) == ("INVALID_ARGUMENT", 1)
    assert decode_verdict(machine.apply(2, encode_op(creation("orders")))) is None
    other = MetadataMachine(MetadataFeed())
    other.restore(machine.snapshot())
    assert other.snapshot() == machine.snapshot()
    other.restore(b"")
    assert not other.state.streams


class Subscriber:
    def __init__(self) -> None:
        self.called: list[int | str] = []

    def on_changes(self, index: int, _changes: tuple[Change, ...]) -> None:
        self.called.append(index)

    def reload(self) -> None:
        self.called.append("reload")


def test_the_feed_publishes_changes_to_every_subscriber_and_refusals_to_none() -> None:
    feed, early, late = MetadataFeed(), Subscriber(), Subscriber()
    machine = MetadataMachine(feed)
    feed.subscribe(early)
    machine.apply(1, encode_op(creation("orders")))
    feed.subscribe(late)
    machine.apply(2, encode_op(creation("orders")))
    machine.apply(3, encode_op(DeleteStream("orders")))
    machine.restore(machine.snapshot())
    assert (early.called, late.called) == ([1, 3, "reload"], [3, "reload"])


class BreakingDisk(PosixDisk):
    """A disk whose syncs fail from some moment on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False

    def sync(self, handle: int) -> None:
        if self.is_broken:
            raise StorageError("cannot sync: the disk is broken")
        super().sync(handle)


def test_a_server_that_cannot_persist_says_nothing_more_and_refuses_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        bus, disk = MemoryBus(), BreakingDisk()
        controller = await start_controller(bus, disk, str(tmp_path), ControllerStart("ns", "a", is_seed=True))
        await controller.submit(creation("orders"), timeout=30)
        disk.is_broken = True
        with pytest.raises((Unavailable, OutcomeUnknown, StorageError)):
            await controller.submit(creation("lost"), timeout=2)
        with pytest.raises(Unavailable, match="the disk is broken"):
            await controller.submit(creation("more"), timeout=0.3)
        assert "lost" not in controller.metadata.streams
        await controller.stop()
        disk.is_broken = False
        again = await start_controller(bus, disk, str(tmp_path), ControllerStart("ns", "a", is_seed=True))
        assert "orders" in (await again.fresh_metadata(timeout=30)).streams
        await again.stop()

    run(scenario())


def test_a_server_that_stops_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        # one of two peers: it can never win an election alone
        controller = await start_controller(bus, PosixDisk(), str(tmp_path), ControllerStart("ns", "a", peers=("b",)))
        with pytest.raises(Unavailable, match="no known metadata leader"):
            await controller.submit(creation("orders"), timeout=0.2)
        with pytest.raises(Unavailable):
            await controller.fresh_metadata(timeout=0.2)
        await controller.stop()

    run(scenario())
