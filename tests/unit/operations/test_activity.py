"""The activity stream: what is published, in which order, and what happens when it cannot be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bascule.config.sections.cluster import Activity, AuditStream, CursorStream, PublishAckPolicy
from bascule.config.sections.streams import StreamDefaults
from bascule.config.values.duration import HOUR_NS, SECOND_NS
from bascule.metadata.core.model.activity import ActivityEvent
from bascule.metadata.stream_options import settings_of
from bascule.net.grpc.status import GrpcError, Status
from bascule.operations.activity_stream import encode_event
from bascule.proto import api_pb2 as api
from bascule.security.authorization import Authorizer
from tests.support.control_plane import Cluster, Server, configured, run, running, until

ENABLED = Activity(stream_enabled=True)


def published(server: Server) -> list[api.ActivityStreamEvent]:
    return [
        api.ActivityStreamEvent.FromString(value)
        for stream, _, _, value in server.publisher.published
        if stream == "__activity"
    ]


async def settled(server: Server) -> list[api.ActivityStreamEvent]:
    """Once nothing waits to be published any more."""
    await until(lambda: "__activity" in server.controller.metadata.streams)
    await until(lambda: not server.controller.metadata.activity)
    return published(server)


def test_the_first_events_are_the_internal_streams(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = configured(activity=ENABLED, cursors=CursorStream(stream_partitions=2))
        async with running(tmp_path, config=config) as cluster:
            server = cluster.alone
            await until(lambda: "__cursors" in server.controller.metadata.streams)
            events = await settled(server)
            assert [event.createStreamOp.stream for event in events] == ["__activity", "__cursors"]
            assert list(events[1].createStreamOp.partitions) == [0, 1]
            stream = server.controller.metadata.streams["__activity"]
            assert (stream.subject, len(stream.partitions), stream.id) == ("ns.activity", 1, events[0].id)

    run(scenario())


def test_the_audit_stream_keeps_records_by_their_age_whatever_the_defaults_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        defaults = StreamDefaults(compact_enabled=True, retention_max_bytes=1, auto_pause_time_ns=SECOND_NS)
        config = configured(streams=defaults, audit=AuditStream(stream_enabled=True))
        async with running(tmp_path, config=config) as cluster:
            streams = cluster.alone.controller.metadata.streams
            await until(lambda: "__audit" in streams)
            stream = streams["__audit"]
            assert (stream.subject, len(stream.partitions)) == ("ns.audit", 1)
            options = settings_of(stream).log_options
            assert (options.retention_bytes_max, options.retention_records_max, options.compact) == (0, 0, False)
            assert options.retention_age_max_ns == 365 * 24 * HOUR_NS
            assert settings_of(stream).auto_pause_time_ns == 0

    run(scenario())


def test_internal_streams_wait_for_servers_that_are_starting(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path, configured(cursors=CursorStream(stream_partitions=1)), Authorizer.disabled())
        try:
            await cluster.start("abc")
            leader = await cluster.leader()
            await leader.begin_internals()
            await asyncio.sleep(0.2)
            for server in cluster.servers.values():
                if server is not leader:
                    await server.begin_internals()
            metadata = leader.controller.metadata
            await until(lambda: "__cursors" in metadata.streams)
            stream = metadata.streams["__cursors"]
            assert sorted(stream.partitions[0].replicas) == ["a", "b", "c"]
            assert stream.id > max(metadata.server_epochs.values()), "nobody's replica is older than its server's run"
        finally:
            await cluster.stop()

    run(scenario())


def test_every_change_is_an_event_in_the_order_of_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=configured(activity=ENABLED)) as cluster:
            server = cluster.alone
            await settled(server)
            await server.call("CreateStream", name="orders", subject="s", partitions=2)
            await server.call("PauseStream", name="orders", resumeAll=True)
            await server.publish("orders", 1)
            await server.call("SetStreamReadonly", name="orders", partitions=[0], readonly=True)
            await server.call("SetStreamReadonly", name="orders", readonly=False)
            await server.call("JoinConsumerGroup", groupId="g", consumerId="c", streams=["orders"])
            await server.call("LeaveConsumerGroup", groupId="g", consumerId="c")
            await server.call("DeleteStream", name="orders")
            events = (await settled(server))[1:]
            ids = [event.id for event in events]
            assert ids == sorted(set(ids))
            for event in events:
                event.ClearField("id")
            expect = api.ActivityStreamEvent
            assert events == [
                expect(op="CREATE_STREAM", createStreamOp={"stream": "orders", "partitions": [0, 1]}),
                expect(op="PAUSE_STREAM", pauseStreamOp={"stream": "orders", "partitions": [0, 1], "resumeAll": True}),
                expect(op="RESUME_STREAM", resumeStreamOp={"stream": "orders", "partitions": [0, 1]}),
                expect(
                    op="SET_STREAM_READONLY",
                    setStreamReadonlyOp={"stream": "orders", "partitions": [0], "readonly": True},
                ),
                expect(op="SET_STREAM_READONLY", setStreamReadonlyOp={"stream": "orders", "partitions": [0]}),
                expect(
                    op="JOIN_CONSUMER_GROUP",
                    joinConsumerGroupOp={"groupId": "g", "consumerId": "c", "streams": ["orders"]},
                ),
                expect(op="LEAVE_CONSUMER_GROUP", leaveConsumerGroupOp={"groupId": "g", "consumerId": "c"}),
                expect(op="DELETE_STREAM", deleteStreamOp={"stream": "orders"}),
            ]

    run(scenario())


def test_an_event_that_cannot_be_published_holds_up_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=configured(activity=ENABLED)) as cluster:
            server = cluster.alone
            await settled(server)
            server.publisher.failures = [GrpcError(Status.DEADLINE_EXCEEDED, "no ack") for _ in range(7)]
            for name in ("x", "y"):
                await server.call("CreateStream", name=name, subject="s")
            events = await settled(server)
            assert [event.createStreamOp.stream for event in events] == ["__activity", "x", "y"]
            assert server.naps == [1, 2, 4, 8, 10, 10, 10]

    run(scenario())


def test_the_next_leader_publishes_what_the_last_one_did_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, "abc", config=configured(activity=ENABLED)) as cluster:
            old = await cluster.leader()
            await settled(old)
            for server in cluster.servers.values():
                server.publisher.is_down = True
            await old.call("CreateStream", name="orders", subject="s")
            await until(lambda: old.naps)
            new = next(server for server in cluster.servers.values() if server is not old)
            await cluster.transfer_leadership(new)
            for server in cluster.servers.values():
                server.publisher.is_down = False
            await until(lambda: [event.createStreamOp.stream for event in published(new)] == ["orders"])
            assert [event.createStreamOp.stream for event in published(old)] == ["__activity"]
            await until(lambda: not new.controller.metadata.activity)

    run(scenario())


def test_events_that_wait_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, config=configured(activity=ENABLED)) as cluster:
            server = cluster.alone
            await settled(server)
            server.publisher.is_down = True
            await server.call("CreateStream", name="orders", subject="s")
            server = await cluster.restart()
            assert [event.createStreamOp.stream for event in await settled(server)] == ["orders"]

    run(scenario())


def test_switched_off_nothing_is_published_and_nothing_piles_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            await cluster.alone.call("CreateStream", name="orders", subject="s")
            assert "__activity" not in cluster.alone.controller.metadata.streams
        async with running(tmp_path / "once", config=configured(activity=ENABLED)) as once:
            await settled(once.alone)
            once.config = configured()
            server = await once.restart()
            await server.call("CreateStream", name="orders", subject="s")
            assert await settled(server) == []

    run(scenario())


@pytest.mark.parametrize("policy", list(PublishAckPolicy))
def test_any_ack_policy_will_do(tmp_path: Path, policy: PublishAckPolicy) -> None:
    async def scenario() -> None:
        config = configured(activity=Activity(stream_enabled=True, stream_publish_ack_policy=policy))
        async with running(tmp_path, config=config) as cluster:
            assert len(await settled(cluster.alone)) == 1

    run(scenario())


def test_the_activity_stream_is_not_paused_by_the_defaults_of_streams(tmp_path: Path) -> None:
    async def scenario() -> None:
        streams = StreamDefaults(auto_pause_time_ns=1_000_000, concurrency_control=True)
        async with running(tmp_path, config=configured(activity=ENABLED, streams=streams)) as cluster:
            await settled(cluster.alone)
            settings = settings_of(cluster.alone.controller.metadata.streams["__activity"])
            assert settings.auto_pause_time_ns == 0
            assert not settings.concurrency_control

    run(scenario())


def test_what_is_no_activity_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        encode_event(ActivityEvent(1, "ShrinkIsr"))


def test_internal_streams_are_created_once_whoever_leads(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = configured(activity=ENABLED, cursors=CursorStream(stream_partitions=1))
        async with running(tmp_path, config=config) as cluster:
            await until(lambda: "__cursors" in cluster.alone.controller.metadata.streams)
            ids = {stream.id for stream in cluster.alone.controller.metadata.streams.values()}
            server: Server = await cluster.restart()
            await settled(server)
            assert {stream.id for stream in server.controller.metadata.streams.values()} == ids
            assert isinstance(cluster, Cluster)

    run(scenario())


def test_nothing_is_published_before_the_leader_of_the_stream_listens(tmp_path: Path) -> None:
    """The event would be lost, and missed only after the whole timeout of a publish."""

    async def scenario() -> None:
        async with running(tmp_path, "abc", config=configured(activity=ENABLED)) as cluster:
            old = await cluster.leader()
            await settled(old)
            old.publisher.is_down = True
            await old.call("CreateStream", name="orders", subject="s")
            new = next(server for server in cluster.servers.values() if server is not old)
            new.publisher.waits = [GrpcError(Status.INTERNAL, "the leader has not started it yet")]
            await cluster.transfer_leadership(new)
            await until(lambda: [event.createStreamOp.stream for event in published(new)] == ["orders"])
            assert new.publisher.waits == []
            assert new.naps == [1]

    run(scenario())
