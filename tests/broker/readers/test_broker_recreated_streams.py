"""A stream that is deleted and created again: its groups and cursors begin again, and skip nothing. On one broker and on three."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import bascule
from bascule import errors
from tests.support.api_client import Api, Status, pb, refused
from tests.support.broker_fixtures import MakeStream, unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import LONG_TIMEOUTS, Cluster
from tests.support.on_loop import on_loop, soon, until

CONFIG = {
    **LONG_TIMEOUTS,
    "cursors.stream.partitions": 3,
    "cursors.stream.auto.pause.time": 0,
    "groups.consumer.timeout": "30s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("recreated"), config=CONFIG) as found:
        yield found


async def read(client: bascule.Client, group: str, stream: str, count: int) -> list[bytes]:
    async with client.consumer(group, [stream]) as consumer:
        return [(await soon(anext(consumer))).value or b"" for _ in range(count)]


async def read_twice(addresses: list[str], name: str, replicas: int) -> None:
    """100 messages, all read; the stream deleted and created; 50 messages."""
    async with bascule.connect(addresses, timeout=60) as client:
        await client.create_stream(name, partitions=2, replication_factor=replicas)
        await client.publish_many(name, [b"old %d" % n for n in range(100)], partitioner="round-robin")
        assert len(await read(client, name, name, 100)) == 100
        assert [await client.fetch_cursor(f"__group:{name}", name, n) for n in (0, 1)] == [49, 49]
        await client.delete_stream(name)
    async with bascule.connect(addresses, timeout=60) as client:
        await client.create_stream(name, partitions=2, replication_factor=replicas)
        assert [await client.fetch_cursor(f"__group:{name}", name, n) for n in (0, 1)] == [None, None]
        await client.publish_many(name, [b"new %d" % n for n in range(50)], partitioner="round-robin")
        assert sorted(await read(client, name, name, 50)) == sorted(b"new %d" % n for n in range(50))
        assert [await client.fetch_cursor(f"__group:{name}", name, n) for n in (0, 1)] == [24, 24]


@on_loop
async def test_a_group_reads_all_messages_of_a_stream_that_was_created_again(broker: BrokerProcess) -> None:
    await read_twice([broker.address], unique_name("again"), 1)


@on_loop
async def test_the_same_on_three_brokers(cluster: Cluster) -> None:
    await read_twice(cluster.addresses, unique_name("again"), 3)


def test_on_three_brokers_a_cursor_set_right_after_the_creation_is_kept(cluster: Cluster) -> None:
    """Each call goes to another broker, none of which may have applied the creation yet."""
    apis = [cluster.api(name) for name in cluster.servers]
    name = unique_name("quick")
    place = {"stream": name, "partition": 0, "cursorId": "c"}
    for turn in range(10):
        create, use, look = (apis[(turn + step) % 3] for step in range(3))
        create.CreateStream(name=name, subject=cluster.subject_of(name), timeout=60)
        assert look.FetchCursor(**place, timeout=60).offset == -1
        use.SetCursor(**place, offset=turn, timeout=60)
        assert look.FetchCursor(**place, timeout=60).offset == turn
        create.DeleteStream(name=name, timeout=60)


def test_a_cursor_is_that_of_the_stream_for_clients_that_know_no_identity(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    place = {"stream": stream.name, "partition": 0, "cursorId": "c"}
    api.SetCursor(**place, offset=7)
    api.DeleteStream(name=stream.name)
    assert api.FetchCursor(**place).offset == 7  # a cursor needs no stream
    api.SetCursor(**place, offset=8)
    make_stream(name=stream.name)
    assert api.FetchCursor(**place).offset == -1
    api.SetCursor(**place, offset=0, expected=-1)
    assert api.FetchCursor(**place).offset == 0


def test_a_client_that_names_the_identity_of_a_deleted_stream_is_refused(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    place = {"stream": stream.name, "partition": 0, "cursorId": "c"}
    former = api.FetchCursor(**place).streamId
    assert former == api.stream(stream.name).id > 0
    api.SetCursor(**place, offset=3, streamId=former)
    api.subscribe(stream.name, streamId=former).call.cancel()
    api.DeleteStream(name=stream.name)
    with refused(Status.NOT_FOUND, "was deleted"):
        api.SetCursor(**place, offset=4, streamId=former)
    make_stream(name=stream.name)
    for condition in ({}, {"expected": -1}):
        with refused(Status.NOT_FOUND, "was deleted"):
            api.SetCursor(**place, offset=4, streamId=former, **condition)
    assert api.FetchCursor(**place).offset == -1
    with refused(Status.NOT_FOUND, "created again"):
        api.subscribe(stream.name, streamId=former)


def test_a_cursor_of_an_older_broker_counts_if_it_was_set_after_the_stream_was_created(
    api: Api, make_stream: MakeStream
) -> None:
    """Older brokers stored no identity. The data directory of one is in tests/broker/streams."""
    stream = make_stream()
    place = {"stream": stream.name, "partition": 0, "cursorId": "c"}
    value = pb.SetCursorRequest(**place, offset=9).SerializeToString()

    def set_by_older_broker() -> None:
        key = f"c,{stream.name},0".encode()
        api.Publish(stream="__cursors", key=key, value=value, ackPolicy="ALL")

    set_by_older_broker()
    assert api.FetchCursor(**place).offset == 9
    api.DeleteStream(name=stream.name)
    set_by_older_broker()  # as a member of a group does that learns of the deletion too late
    make_stream(name=stream.name)
    assert api.FetchCursor(**place).offset == -1
    set_by_older_broker()
    assert api.FetchCursor(**place).offset == 9


def test_a_deleted_cursor_was_never_set(api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()
    place = {"stream": stream.name, "partition": 0, "cursorId": "c"}
    api.SetCursor(**place, offset=7)
    with refused(Status.INVALID_ARGUMENT, "delete"):
        api.SetCursor(**place, offset=-1, delete=True, expected=7)
    assert api.FetchCursor(**place).offset == 7
    for _ in range(2):
        api.SetCursor(**place, offset=-1, delete=True)
        assert api.FetchCursor(**place).offset == -1
    api.SetCursor(**place, offset=3, expected=-1)
    assert api.FetchCursor(**place).offset == 3


@on_loop
async def test_a_member_that_reads_while_its_stream_is_replaced_leaves_no_position_behind(
    broker: BrokerProcess,
) -> None:
    name = unique_name("replaced")
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name)
        await client.publish_many(name, [b"old"] * 20)
        revoked: list[bascule.Assignment] = []
        member = client.consumer(name, [name], auto_checkpoint=0.05, handover_timeout=0.2, on_revoked=revoked.extend)
        async with member:
            for _ in range(20):
                message = await soon(anext(member))
            await client.delete_stream(name)
            await client.create_stream(name)
            await client.publish_many(name, [b"new"] * 30)
            with pytest.raises((errors.StreamNotFound, errors.NotGroupMember)):
                await member.checkpoint(message)
            await until(lambda: revoked, "the partition of the deleted stream was revoked")
        assert await client.fetch_cursor(f"__group:{name}", name) is None
        assert await read(client, name, name, 30) == [b"new"] * 30
