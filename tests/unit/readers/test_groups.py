"""Consumer groups: who reads what, who coordinates, and what becomes of members that fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from bascule.config.sections.cluster import Activity
from bascule.errors import Unavailable
from bascule.metadata.core.model.ops import ChangeCoordinator
from bascule.net.grpc.status import GrpcError
from bascule.proto import api_pb2 as api
from tests.support.control_plane import Cluster, Server, configured, refused, run, running, until

SECOND = 10**9


async def code(call: Coroutine[Any, Any, Any]) -> str:
    return (await refused(call))[0]


async def create(server: Server, name: str, partitions: int = 2) -> None:
    await server.call("CreateStream", name=name, subject=name, partitions=partitions)


async def join(server: Server, consumer: str, *streams: str, group: str = "g") -> api.JoinConsumerGroupResponse:
    fields = {"groupId": group, "consumerId": consumer, "streams": streams}
    return cast(api.JoinConsumerGroupResponse, await server.call("JoinConsumerGroup", **fields))


async def assignments(server: Server, consumer: str, epoch: int) -> dict[str, list[int]]:
    found = await server.call("FetchConsumerGroupAssignments", groupId="g", consumerId=consumer, epoch=epoch)
    assert found.epoch == epoch
    return {each.stream: list(each.partitions) for each in found.assignments}


def test_the_life_of_a_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "foo")
            await create(server, "bar")
            first = await join(server, "c1", "foo", "bar")
            assert (first.coordinator, first.epoch) == ("a", 0)
            assert (first.consumerTimeout, first.coordinatorTimeout) == (15 * SECOND, 15 * SECOND)
            assert await assignments(server, "c1", 0) == {"foo": [0, 1], "bar": [0, 1]}
            second = await join(server, "c2", "foo")
            assert second.epoch > 0
            assert await code(assignments(server, "c1", second.epoch + 1)) == "FAILED_PRECONDITION"
            assert await assignments(server, "c2", second.epoch) == {"foo": [1]}
            assert await assignments(server, "c1", second.epoch) == {"foo": [0], "bar": [0, 1]}
            older = await server.call("FetchConsumerGroupAssignments", groupId="g", consumerId="c1", epoch=0)
            assert (older.epoch, len(older.assignments)) == (second.epoch, 2)
            metadata = (await server.call("FetchMetadata", groups=["g", "h"])).groupMetadata
            assert (metadata[0].coordinator, metadata[0].epoch, metadata[0].error) == ("a", second.epoch, 0)
            assert metadata[1].error == api.ConsumerGroupMetadata.UNKNOWN_GROUP
            await server.call("LeaveConsumerGroup", groupId="g", consumerId="c2")
            epoch = server.controller.metadata.groups["g"].epoch
            assert await assignments(server, "c1", epoch) == {"foo": [0, 1], "bar": [0, 1]}
            await server.call("LeaveConsumerGroup", groupId="g", consumerId="c1")
            assert await code(assignments(server, "c1", epoch)) == "NOT_FOUND"

    run(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        {"groupId": "", "consumerId": "c", "streams": ["foo"]},
        {"groupId": "g", "consumerId": "", "streams": ["foo"]},
        {"groupId": "g", "consumerId": "c", "streams": []},
    ],
)
def test_a_join_names_a_group_a_consumer_and_a_stream(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await create(cluster.alone, "foo")
            assert await code(cluster.alone.call("JoinConsumerGroup", **fields)) == "INVALID_ARGUMENT"

    run(scenario())


def test_joining_twice_or_for_an_unknown_stream_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "foo")
            assert await code(join(server, "c", "nobody")) == "FAILED_PRECONDITION"
            await join(server, "c", "foo")
            assert await code(join(server, "c", "foo")) == "FAILED_PRECONDITION"

    run(scenario())


def test_leaving_what_one_is_not_in_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "foo")
            assert await code(server.call("LeaveConsumerGroup", groupId="g", consumerId="c")) == "NOT_FOUND"
            await join(server, "c", "foo")
            assert await code(server.call("LeaveConsumerGroup", groupId="g", consumerId="x")) == "FAILED_PRECONDITION"

    run(scenario())


def test_assignments_are_refused_in_order_of_what_is_wrong(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "foo")
            await join(server, "c", "foo")

            async def text(group: str, consumer: str, epoch: int) -> str:
                with pytest.raises(GrpcError) as error:
                    await server.call("FetchConsumerGroupAssignments", groupId=group, consumerId=consumer, epoch=epoch)
                return error.value.text

            assert "does not exist" in await text("h", "c", 0)
            assert "epoch" in await text("g", "x", 7)
            assert "not a member" in await text("g", "x", 0)

    run(scenario())


def test_a_deleted_stream_is_taken_from_the_members(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            await create(server, "foo")
            await create(server, "bar")
            await join(server, "c", "foo", "bar")
            await server.call("DeleteStream", name="foo")
            epoch = server.controller.metadata.groups["g"].epoch
            assert epoch > 0
            assert await assignments(server, "c", epoch) == {"bar": [0, 1]}

    run(scenario())


# ── several servers ──────────────────────────────────────────────────────────────────────────────


def coordinator_of(cluster: Cluster, group: str = "g") -> Server:
    any_server = next(iter(cluster.servers.values()))
    return cluster.servers[any_server.controller.metadata.groups[group].coordinator]


def test_groups_are_spread_over_coordinators_and_only_they_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            server = cluster.servers["b"]
            await create(server, "foo")
            names = {(await join(server, "c", "foo", group=group)).coordinator for group in ("g", "h", "i")}
            assert names == {"a", "b", "c"}
            coordinator = server.controller.metadata.groups["g"].coordinator
            # right after the join, also on a server that has not applied it yet
            assert await assignments(cluster.servers[coordinator], "c", 0) == {"foo": [0, 1]}
            other = next(each for name, each in cluster.servers.items() if name != coordinator)
            assert await code(assignments(other, "c", 0)) == "FAILED_PRECONDITION"

    run(scenario())


def test_a_majority_of_members_gets_another_coordinator(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc") as cluster:
            server = await cluster.leader()
            await create(server, "foo")
            await join(server, "c1", "foo")
            joined = await join(server, "c2", "foo")
            old, epoch = joined.coordinator, joined.epoch

            async def report(consumer: str, coordinator: str = old, at: int = epoch) -> None:
                await server.call(
                    "ReportConsumerGroupCoordinator",
                    groupId="g",
                    consumerId=consumer,
                    coordinator=coordinator,
                    epoch=at,
                )

            for wrong in (report("x"), report("c1", "nobody"), report("c1", old, epoch + 1)):
                assert await code(wrong) == "FAILED_PRECONDITION"
            await report("c1")
            await report("c1")
            assert server.controller.metadata.groups["g"].coordinator == old
            await report("c2")
            group = server.controller.metadata.groups["g"]
            assert group.coordinator != old
            assert group.epoch > epoch
            new = cluster.servers[group.coordinator]
            assert await assignments(new, "c1", group.epoch) == {"foo": [0]}
            fields = {"consumerId": "c1", "coordinator": "a"}
            assert await code(server.call("ReportConsumerGroupCoordinator", **fields)) == "INVALID_ARGUMENT"
            missing = {**fields, "groupId": "nobody"}
            assert await code(server.call("ReportConsumerGroupCoordinator", **missing)) == "FAILED_PRECONDITION"

    run(scenario())


def test_a_group_of_one_server_has_nobody_else_to_coordinate_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await create(cluster.alone, "foo")
            await join(cluster.alone, "c", "foo")
            call = cluster.alone.call(
                "ReportConsumerGroupCoordinator", groupId="g", consumerId="c", coordinator="a", epoch=0
            )
            assert await code(call) == "FAILED_PRECONDITION"

    run(scenario())


# ── signs of life ────────────────────────────────────────────────────────────────────────────────


def test_a_silent_member_is_put_out_and_one_that_speaks_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=configured(activity=Activity(stream_enabled=True))) as cluster:
            server, timers = cluster.alone, cluster.timers
            await until(lambda: "__activity" in server.controller.metadata.streams)
            await create(server, "foo")
            await join(server, "silent", "foo")
            epoch = (await join(server, "alive", "foo")).epoch
            timers.advance(14)
            await assignments(server, "alive", epoch)
            timers.advance(2)
            groups = server.controller.metadata.groups
            await until(lambda: list(groups["g"].members) == ["alive"])
            timers.advance(12)
            assert await assignments(server, "alive", groups["g"].epoch) == {"foo": [0, 1]}
            timers.advance(14)
            await asyncio.sleep(0.05)
            assert "g" in groups
            timers.advance(2)
            await until(lambda: "g" not in groups)
            expired = api.LeaveConsumerGroupOp(groupId="g", consumerId="silent", expired=True)
            await until(lambda: any(event.leaveConsumerGroupOp == expired for event in activity_of(server)))

    run(scenario())


def activity_of(server: Server) -> list[api.ActivityStreamEvent]:
    published = [value for stream, _, _, value in server.publisher.published if stream == "__activity"]
    return [api.ActivityStreamEvent.FromString(value) for value in published]


def test_a_member_that_cannot_be_put_out_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            server = cluster.alone
            submit, failures = server.controller.submit, [Unavailable("no known metadata leader")] * 2

            async def failing(op: Any, **more: Any) -> Any:
                if failures and type(op).__name__ == "LeaveConsumerGroup":
                    raise failures.pop()
                return await submit(op, **more)

            await create(server, "foo")
            await join(server, "c", "foo")
            monkeypatch.setattr(server.controller, "submit", failing)
            for left in (1, 0):
                cluster.timers.advance(16)
                await until(lambda left=left: len(failures) == left)
                await asyncio.sleep(0)
                assert "g" in server.controller.metadata.groups
            cluster.timers.advance(16)
            await until(lambda: not server.controller.metadata.groups)

    run(scenario())


def test_a_restarted_coordinator_gives_members_the_whole_time_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await create(cluster.alone, "foo")
            await join(cluster.alone, "c", "foo")
            cluster.timers.advance(14)
            server = await cluster.restart()
            cluster.timers.advance(14)
            await asyncio.sleep(0.05)
            assert "g" in server.controller.metadata.groups
            cluster.timers.advance(2)
            await until(lambda: "g" not in server.controller.metadata.groups)

    run(scenario())


def test_who_coordinates_no_more_puts_nobody_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "ab") as cluster:
            server = cluster.servers["a"]
            await create(server, "foo")
            await join(server, "c", "foo")
            for each in cluster.servers.values():
                await each.controller.fresh_metadata()
            old = coordinator_of(cluster)
            assert old.groups is not None and list(old.groups._timers) == [("g", "c")]
            group = old.controller.metadata.groups["g"]
            await old.controller.submit(ChangeCoordinator("g", group.coordinator, group.epoch, ("a", "b")))
            for each in cluster.servers.values():
                await each.controller.fresh_metadata()
            new = coordinator_of(cluster)
            assert new is not old
            assert not old.groups._timers
            assert new.groups is not None and list(new.groups._timers) == [("g", "c")]
            new.groups.reload()
            assert list(new.groups._timers) == [("g", "c")]

    run(scenario())
