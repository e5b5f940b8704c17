"""FetchMetadata and FetchPartitionMetadata."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import PermissionDenied
from bascule.net.grpc.status import GrpcError
from bascule.proto import api_pb2 as api
from bascule.security.authorization import Authorizer
from tests.support.control_plane import Server, refused, run, running
from tests.unit.security.test_authorization import MODEL, Client


async def create(server: Server, name: str, **more: Any) -> Any:
    return await server.call("CreateStream", **{"subject": name, "name": name, **more})


async def partition(server: Server, stream: str = "orders", number: int = 0) -> api.PartitionMetadata:
    return (await server.call("FetchPartitionMetadata", stream=stream, partition=number)).metadata  # type: ignore[no-any-return]


def test_the_server_that_is_asked_comes_first_with_its_load(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            await create(cluster.servers["b"], "orders", partitions=3)
            found = await cluster.servers["b"].call("FetchMetadata", None)
            assert [broker.id for broker in found.brokers] == ["b", "a", "c"]
            assert [broker.host for broker in found.brokers] == ["b.example", "a.example", "c.example"]
            assert all((broker.partitionCount, broker.leaderCount) == (1, 1) for broker in found.brokers)
            assert all(broker.port == 9292 for broker in found.brokers)

    run(scenario())


def test_streams_come_in_the_order_asked_for_and_unknown_ones_are_no_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            before = time.time_ns()
            for name in ("x", "y", "z"):
                await create(server, name, subject=f"{name}.>")
            found = await server.call("FetchMetadata", streams=["z", "nobody", "x", "z"], groups=["g"])
            assert [stream.name for stream in found.streamMetadata] == ["z", "nobody", "x"]
            assert found.streamMetadata[0].subject == "z.>"
            assert before <= found.streamMetadata[0].creationTimestamp <= time.time_ns()
            assert found.streamMetadata[1].error == api.StreamMetadata.UNKNOWN_STREAM
            assert not found.streamMetadata[1].partitions
            assert found.groupMetadata[0] == api.ConsumerGroupMetadata(groupId="g", error="UNKNOWN_GROUP")
            everything = await server.call("FetchMetadata")
            assert sorted(stream.name for stream in everything.streamMetadata) == ["x", "y", "z"]
            assert not everything.groupMetadata

    run(scenario())


def test_what_moves_is_seen_although_entries_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders")

            async def now() -> api.PartitionMetadata:
                found = await server.call("FetchMetadata")
                return found.streamMetadata[0].partitions[0]  # type: ignore[no-any-return]

            first = await now()
            assert (first.leader, list(first.replicas), list(first.isr)) == ("a", ["a"], ["a"])
            assert (first.highWatermark, first.newestOffset) == (-1, -1)
            assert await now() == first
            await server.publish("orders")
            assert ((await now()).highWatermark, (await now()).newestOffset) == (0, 0)
            await server.call("SetStreamReadonly", name="orders", readonly=True)
            assert (await now()).readonly
            await server.call("PauseStream", name="orders")
            paused = await now()
            assert (paused.paused, paused.highWatermark) == (True, -1)
            await server.call("DeleteStream", name="orders")
            assert not (await server.call("FetchMetadata")).streamMetadata

    run(scenario())


def test_asking_for_metadata_opens_no_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await create(cluster.alone, "orders", partitions=20)
            await cluster.alone.call("FetchMetadata")
            assert not any(local.is_open for local in cluster.alone.partitions.running.values())

    run(scenario())


def test_thousands_of_idle_streams_are_answered_quickly(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            for first in range(0, 500, 50):  # a slow machine has time for as many at once
                await asyncio.gather(*(create(server, f"s{number}") for number in range(first, first + 50)))
            first = await server.call("FetchMetadata")
            assert len(first.streamMetadata) == 500
            assert (await server.call("FetchMetadata")).SerializeToString(
                deterministic=True
            ) == first.SerializeToString(deterministic=True)

    run(scenario())


def test_metadata_needs_neither_a_leader_nor_nats(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "ab") as cluster:
            await create(cluster.servers["a"], "orders")
            await cluster.servers["a"].controller.fresh_metadata()
            cluster.bus.is_down = True
            found = await cluster.servers["a"].call("FetchMetadata", None)
            assert found.brokers[0].id == "a"
            assert found.streamMetadata[0].name == "orders"
            cluster.bus.is_down = False

    run(scenario())


# ── one partition ────────────────────────────────────────────────────────────────────────────────


def test_the_leader_tells_offsets(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders", partitions=2)
            found = await partition(server, number=1)
            assert (found.id, found.leader, found.highWatermark, found.newestOffset) == (1, "a", -1, -1)
            for _ in range(5):
                await server.publish("orders", 1)
            found = await partition(server, number=1)
            assert (found.highWatermark, found.newestOffset) == (4, 4)

    run(scenario())


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await create(cluster.alone, "orders")
            assert await refused(partition(cluster.alone, "nobody")) == ("NOT_FOUND", "partition not found")
            assert await refused(partition(cluster.alone, "orders", 1)) == ("NOT_FOUND", "partition not found")

    run(scenario())


def test_only_the_leader_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "ab") as cluster:
            await create(cluster.servers["a"], "orders")
            for server in cluster.servers.values():
                await server.controller.fresh_metadata()
            leader = cluster.servers["a"].controller.metadata.streams["orders"].partitions[0].leader
            for name, server in cluster.servers.items():
                if name == leader:
                    await partition(server)
                else:
                    assert (await refused(partition(server)))[0] == "FAILED_PRECONDITION"

    run(scenario())


def test_events_have_a_first_and_a_latest_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders")
            found = await partition(server)
            never = api.PartitionEventTimestamps()
            assert found.messagesReceivedTimestamps == found.pauseTimestamps == found.readonlyTimestamps == never
            await server.publish("orders")
            once = (await partition(server)).messagesReceivedTimestamps
            assert 0 < once.firstTimestamp == once.latestTimestamp
            await server.publish("orders")
            twice = (await partition(server)).messagesReceivedTimestamps
            assert twice.firstTimestamp == once.firstTimestamp < twice.latestTimestamp
            await server.call("SetStreamReadonly", name="orders", readonly=True)
            once = (await partition(server)).readonlyTimestamps
            assert 0 < once.firstTimestamp == once.latestTimestamp
            await server.call("SetStreamReadonly", name="orders", readonly=False)
            twice = (await partition(server)).readonlyTimestamps
            assert twice.firstTimestamp == once.firstTimestamp < twice.latestTimestamp

    run(scenario())


def test_a_paused_partition_has_no_leader_that_answers_until_a_publish_resumes_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders")
            await server.publish("orders")
            received = (await partition(server)).messagesReceivedTimestamps
            await server.call("PauseStream", name="orders")
            assert (await refused(partition(server)))[0] == "FAILED_PRECONDITION"
            await server.publish("orders")
            found = await partition(server)
            assert not found.paused
            assert (found.highWatermark, found.newestOffset) == (1, 1)
            assert 0 < found.pauseTimestamps.firstTimestamp < found.pauseTimestamps.latestTimestamp
            assert found.messagesReceivedTimestamps.firstTimestamp == received.firstTimestamp

    run(scenario())


def test_readonly_outlives_a_pause_and_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "orders")
            await server.call("SetStreamReadonly", name="orders", readonly=True)
            await server.call("PauseStream", name="orders")
            server = await cluster.restart()
            found = (await server.call("FetchMetadata")).streamMetadata[0].partitions[0]
            assert (found.paused, found.readonly) == (True, True)

    run(scenario())


# ── authorization ────────────────────────────────────────────────────────────────────────────────

CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("CreateStream", "orders", {"name": "orders", "subject": "s"}),
    ("DeleteStream", "orders", {"name": "orders"}),
    ("PauseStream", "orders", {"name": "orders"}),
    ("SetStreamReadonly", "orders", {"name": "orders"}),
    ("FetchMetadata", "*", {}),
    ("FetchPartitionMetadata", "orders", {"stream": "orders"}),
    ("SetCursor", "orders", {"stream": "orders", "cursorId": "c"}),
    ("FetchCursor", "orders", {"stream": "orders", "cursorId": "c"}),
    ("JoinConsumerGroup", "g", {"groupId": "g", "consumerId": "c", "streams": ["orders"]}),
    ("LeaveConsumerGroup", "g", {"groupId": "g", "consumerId": "c"}),
    ("FetchConsumerGroupAssignments", "g", {"groupId": "g", "consumerId": "c"}),
    ("ReportConsumerGroupCoordinator", "g", {"groupId": "g", "consumerId": "c", "coordinator": "a"}),
]


@pytest.mark.parametrize(("name", "resource", "fields"), CALLS, ids=[call[0] for call in CALLS])
def test_every_call_needs_to_be_granted(tmp_path: Path, name: str, resource: str, fields: dict[str, Any]) -> None:
    (tmp_path / "model.conf").write_text(MODEL)
    (tmp_path / "policy.csv").write_text(f"p, alice, {resource}, {name}\n")
    authorizer = Authorizer.of_files(tmp_path / "model.conf", tmp_path / "policy.csv")

    async def scenario() -> None:
        async with running(tmp_path, authorizer=authorizer) as cluster:
            with pytest.raises(PermissionDenied, match=f"The client is not authorized to call {name} on resource"):
                await cluster.alone.call(name, 5, Client("mallory"), **fields)
            assert not cluster.alone.controller.metadata.streams
            try:
                await cluster.alone.call(name, 5, Client("alice"), **fields)
            except GrpcError as error:
                assert error.status.name in ("NOT_FOUND", "FAILED_PRECONDITION", "INTERNAL")

    run(scenario())
