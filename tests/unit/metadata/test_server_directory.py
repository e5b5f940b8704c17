"""Where servers can be reached, and how partitions are doing there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.errors import RejectedEnvelope, Unavailable
from bascule.metadata.partition_starts import PartitionStarts, PartitionStatus
from bascule.metadata.requests import CallDeadline
from bascule.metadata.server_directory import ServerDirectory, ServerInfo
from bascule.net.nats.envelope import MessageType, decode, encode
from bascule.net.nats.subjects import ControlSubjects
from tests.support.memory_bus import MemoryBus

SUBJECTS = ControlSubjects("ns")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


async def directory(bus: MemoryBus, name: str, clock: Clock) -> ServerDirectory:
    own = ServerInfo(name, f"{name}.example", 9292, "rack-1")
    made = ServerDirectory(bus, SUBJECTS, own, age_max_seconds=60, clock=clock)
    await made.start()
    return made


def requests(bus: MemoryBus) -> int:
    return sum(subject == SUBJECTS.info and _is_request(data) for subject, data in bus.published)


def _is_request(data: bytes) -> bool:
    try:
        decode(data, MessageType.SERVER_INFO_REQUEST)
    except RejectedEnvelope:
        return False
    return True


def test_every_member_answers_for_itself_and_the_asker_comes_first() -> None:
    async def scenario() -> None:
        bus, clock = MemoryBus(), Clock()
        first, *_ = [await directory(bus, name, clock) for name in "bac"]
        found = await first.servers(["a", "b", "c"])
        assert [server.id for server in found] == ["b", "a", "c"]
        assert found[1] == ServerInfo("a", "a.example", 9292, "rack-1")

    run(scenario())


def test_answers_are_remembered_until_they_are_old() -> None:
    async def scenario() -> None:
        bus, clock = MemoryBus(), Clock()
        first = await directory(bus, "a", clock)
        await directory(bus, "b", clock)
        await first.servers(["a", "b"])
        await first.servers(["a", "b"])
        assert requests(bus) == 1
        clock.now += 61
        await first.servers(["a", "b"])
        assert requests(bus) == 2

    run(scenario())


def test_a_server_that_starts_elsewhere_is_known_there_at_once() -> None:
    async def scenario() -> None:
        bus, clock = MemoryBus(), Clock()
        first = await directory(bus, "a", clock)
        await directory(bus, "b", clock)
        assert (await first.servers(["a", "b"]))[1].flight_port == 0
        moved = ServerInfo("b", "elsewhere.example", 9393, "rack-1", 9494)
        await ServerDirectory(bus, SUBJECTS, moved).start()
        for _ in range(10):
            await asyncio.sleep(0)
        assert await first.servers(["a", "b"]) == [ServerInfo("a", "a.example", 9292, "rack-1"), moved]
        assert requests(bus) <= 1

    run(scenario())


def test_a_silent_member_is_waited_for_once_and_is_back_when_it_speaks() -> None:
    async def scenario() -> None:
        bus, clock = MemoryBus(), Clock()
        first = await directory(bus, "a", clock)
        assert [server.id for server in await first.servers(["a", "b"], timeout=0.02)] == ["a"]
        # a silent one is not waited for again: this would time out the test otherwise
        assert [server.id for server in await first.servers(["a", "b"], timeout=1000)] == ["a"]
        await directory(bus, "b", clock)
        await first.servers(["a", "b"], timeout=1000)
        for _ in range(10):  # the answer that nobody waited for arrives
            await asyncio.sleep(0)
        assert [server.id for server in await first.servers(["a", "b"], timeout=1000)] == ["a", "b"]

    run(scenario())


def test_a_member_that_stops_answering_leaves_the_list() -> None:
    async def scenario() -> None:
        bus, clock = MemoryBus(), Clock()
        first = await directory(bus, "a", clock)
        await directory(bus, "b", clock)
        assert len(await first.servers(["a", "b"])) == 2
        for _ in range(10):  # whatever b has said arrives
            await asyncio.sleep(0)
        clock.now += 61
        del bus._handlers[SUBJECTS.info][-2:]
        assert [server.id for server in await first.servers(["a", "b"], timeout=0.02)] == ["a"]

    run(scenario())


async def starts(bus: MemoryBus, name: str) -> PartitionStarts:
    statuses = {("orders", 0): PartitionStatus(True, name == "a")}
    replicas = SimpleNamespace(
        status=lambda stream, number: statuses.get((stream, number), PartitionStatus(False, False))
    )
    made = PartitionStarts(bus, SUBJECTS, cast(Any, SimpleNamespace(server_id=name)), cast(Any, replicas))
    await made.start()
    return made


def test_each_server_answers_for_the_partitions_that_it_runs() -> None:
    async def scenario() -> None:
        bus = MemoryBus()
        first, _ = [await starts(bus, name) for name in "ab"]
        assert await first.status("a", "orders", 0, timeout=60) == PartitionStatus(True, True)
        assert await first.status("b", "orders", 0, timeout=60) == PartitionStatus(True, False)
        assert await first.status("b", "orders", 7, timeout=60) == PartitionStatus(False, False)
        with pytest.raises(Unavailable, match="no server listens"):
            await first.status("z", "orders", 0, timeout=60)

    run(scenario())


def test_a_leader_of_a_former_stream_of_the_same_name_has_not_started_the_new_one() -> None:
    """It is behind, and would lose what is published to it; a server that tells no identity is believed."""

    async def scenario() -> None:
        bus, status = MemoryBus(), PartitionStatus(True, True, stream_id=5)
        replicas = SimpleNamespace(status=lambda *_: status, settled=lambda _: asyncio.sleep(0))
        metadata = SimpleNamespace(
            applied_index=9,
            streams={"orders": SimpleNamespace(id=9)},
            find=lambda *_: SimpleNamespace(leader="b"),
        )
        servers = [SimpleNamespace(server_id=name, metadata=metadata) for name in "ab"]
        first, second = (PartitionStarts(bus, SUBJECTS, cast(Any, one), cast(Any, replicas)) for one in servers)
        await second.start()
        assert not await first.started("orders", [0], CallDeadline.after(0.2))
        for stream_id in (9, 0):
            status = PartitionStatus(True, True, stream_id=stream_id)
            assert await first.started("orders", [0], CallDeadline.after(60))

    run(scenario())


GARBAGE = [
    b"",
    b"hello",
    encode(MessageType.ACK, b""),
    encode(MessageType.SERVER_INFO_REQUEST, b"\xff\xff"),
    encode(MessageType.SERVER_INFO_RESPONSE, b"\xff\xff"),
    encode(MessageType.PARTITION_STATUS_REQUEST, b"\xff\xff"),
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_foreign_and_malformed_bytes_get_no_answer_and_change_nothing(data: bytes) -> None:
    async def scenario() -> None:
        bus, clock = MemoryBus(), Clock()
        first = await directory(bus, "a", clock)
        await directory(bus, "b", clock)
        await starts(bus, "a")
        for subject in (SUBJECTS.info, SUBJECTS.info_inbox("a"), SUBJECTS.status("a")):
            await bus.publish(subject, data, "inbox")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(subject == "inbox" for subject, _ in bus.published)
        assert [server.id for server in await first.servers(["a", "b"])] == ["a", "b"]

    run(scenario())


def test_who_wants_to_rely_on_a_server_now_can_ask_for_a_fresh_answer() -> None:
    async def scenario() -> None:
        bus, clock = MemoryBus(), Clock()
        first, *_ = [await directory(bus, name, clock) for name in "ab"]
        await first.servers(["a", "b"])
        clock.now += 10
        await first.servers(["a", "b"])
        assert requests(bus) == 1
        found = await first.servers(["a", "b"], age_max_seconds=5)
        assert requests(bus) == 2
        assert [server.id for server in found] == ["a", "b"]

    run(scenario())


def test_a_survey_that_cannot_be_sent_leaves_what_is_known() -> None:
    async def scenario() -> None:
        bus, clock = MemoryBus(), Clock()
        first, *_ = [await directory(bus, name, clock) for name in "ab"]
        await first.servers(["a", "b"])
        clock.now += 1000
        bus.is_down = True
        assert [server.id for server in await first.servers(["a", "b"])] == ["a", "b"]

    run(scenario())
