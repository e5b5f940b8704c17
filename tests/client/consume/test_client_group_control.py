"""Members of a group that go back and forth, hold partitions, and wait for a while, against real brokers."""

from __future__ import annotations

import asyncio

import pytest

import bascule
from bascule import errors
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop, soon, until


async def filled(client: bascule.Client, name: str, partitions: int = 2, count: int = 6) -> None:
    await client.create_stream(name, partitions=partitions)
    for number in range(partitions):
        await client.publish_many(name, [b"%d-%d" % (number, one) for one in range(count)], partition=number)


async def places(consumer: bascule.Consumer, count: int) -> list[tuple[int, int]]:
    found = [await soon(anext(consumer)) for _ in range(count)]
    return sorted((message.partition, message.offset) for message in found)


@on_loop
async def test_polling_ends_after_its_time_and_the_message_before_counts(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        consumer = client.consumer(name, name, auto_checkpoint=0.05)
        assert await soon(consumer.poll(0.02)) is None
        await client.publish(name, b"x")
        message = await soon(consumer.poll(60))
        assert message is not None
        assert message.value == b"x"
        assert await client.fetch_cursor(f"__group:{name}", name) in (None, -2)
        assert await soon(consumer.poll(0)) is None

        async def is_written() -> None:
            while await client.fetch_cursor(f"__group:{name}", name) != 0:
                await asyncio.sleep(0.02)

        await soon(is_written())
        with pytest.raises(bascule.InvalidOption, match="`timeout` is -1"):
            await consumer.poll(-1)
        await consumer.close()
        with pytest.raises(errors.ClientClosed):
            await consumer.poll(0)


@on_loop
async def test_a_paused_partition_stays_and_loses_nothing(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name)
        async with client.consumer(name, name) as consumer:
            await until(lambda: len(consumer.assignments) == 2, "both partitions are assigned")
            first = await soon(anext(consumer))
            held, other = first.partition, 1 - first.partition
            consumer.pause((name, held))
            assert consumer.paused == [bascule.Assignment(name, held)]
            assert await places(consumer, 6) == [(other, offset) for offset in range(6)]
            await client.publish(name, b"later", partition=held)
            assert await consumer.poll(0.1) is None
            assert len(consumer.assignments) == 2
            consumer.resume()
            assert consumer.paused == []
            found = [await soon(anext(consumer)) for _ in range(6)]
            assert [(message.partition, message.offset) for message in found] == [(held, n) for n in range(1, 7)]
            waiting = asyncio.create_task(consumer.poll(60))
            await asyncio.sleep(0)
            consumer.pause()
            await client.publish(name, b"while paused", partition=other)
            await asyncio.sleep(0.1)
            assert not waiting.done()
            consumer.resume((name, other))
            message = await soon(waiting)
            assert message is not None
            assert message.value == b"while paused"
            with pytest.raises(errors.NotGroupMember, match="partition 7"):
                consumer.pause((name, 7))


@on_loop
async def test_seeking_moves_the_member_and_with_the_next_checkpoint_the_group(
    broker: BrokerProcess, name: str
) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name)
        async with client.consumer(name, name, auto_checkpoint=3600) as consumer:
            await until(lambda: len(consumer.assignments) == 2, "both partitions are assigned")
            assert len(await places(consumer, 12)) == 12
            await consumer.seek(4)
            assert await places(consumer, 4) == [(0, 4), (0, 5), (1, 4), (1, 5)]
            await consumer.seek("earliest", (name, 1))
            assert await places(consumer, 3) == [(1, 0), (1, 1), (1, 2)]
            await consumer.seek(5, (name, 1))
            assert await consumer.poll(60) is not None
            await consumer.seek("new", (name, 1))
            await client.publish(name, b"the next", partition=1)
            assert await places(consumer, 1) == [(1, 6)]
            with pytest.raises(bascule.InvalidOption, match="`start` is 'yesterday'"):
                await consumer.seek("yesterday")
            with pytest.raises(errors.NotGroupMember):
                await consumer.seek(0, ("another", 0))
            await consumer.seek(2, (name, 0))
            await consumer.seek("earliest", (name, 1))
        assert await client.fetch_cursor(f"__group:{name}", name, 0) == 1
        assert await client.fetch_cursor(f"__group:{name}", name, 1) == -2
        async with client.consumer(name, name, auto_checkpoint=None) as consumer:
            assert await places(consumer, 11) == [
                *((0, offset) for offset in range(2, 6)),
                *((1, offset) for offset in range(7)),
            ]
            await consumer.seek(3)
            await consumer.checkpoint()
        assert [await client.fetch_cursor(f"__group:{name}", name, number) for number in (0, 1)] == [2, 2]


@pytest.mark.disturbs
@on_loop
async def test_a_seek_while_the_broker_is_down_takes_effect_when_it_is_back(
    start_broker: StartBroker, name: str
) -> None:
    broker = start_broker({"cursors.stream.partitions": 1, "groups.consumer.timeout": "60s"})
    broker.config["listen"] = broker.address
    async with bascule.connect(broker.address, timeout=0.5) as client:
        await client.create_stream(name, timeout=60)
        await client.publish_many(name, [b"x"] * 6, ack="all", timeout=60)
        async with client.consumer(name, name) as consumer:
            assert await places(consumer, 6) == [(0, offset) for offset in range(6)]
            await asyncio.to_thread(broker.kill)
            with pytest.raises(bascule.Unavailable):
                await consumer.seek(3)
            await asyncio.to_thread(broker.start)
            assert await places(consumer, 3) == [(0, 3), (0, 4), (0, 5)]


@on_loop
async def test_a_partition_that_went_to_another_member_is_not_paused_there(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name)
        async with client.consumer(name, name, consumer_id="one", handover_timeout=60.0) as one:
            await until(lambda: len(one.assignments) == 2, "the first member has both")
            one.pause()
            two = client.consumer(name, name, consumer_id="two", handover_timeout=60.0)
            async with two:
                await until(lambda: len(one.assignments) == len(two.assignments) == 1, "each has one")
                (place,) = two.assignments
                assert one.paused == one.assignments
                assert await places(two, 6) == [(place.partition, offset) for offset in range(6)]
            await until(lambda: len(one.assignments) == 2, "the first member has both again")
            assert len(one.paused) == 1
            await client.publish(name, b"next", partition=place.partition)
            assert await places(one, 1) == [(place.partition, 6)]


def test_the_same_without_asyncio(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address) as client:
        client.create_stream(name)
        client.publish_many(name, [b"a", b"b", b"c"])
        with client.consumer(name, name) as consumer:
            assert [next(consumer).value for _ in range(3)] == [b"a", b"b", b"c"]
            assert consumer.poll(0.02) is None
            consumer.seek(1, (name, 0))
            consumer.pause()
            assert consumer.poll(0.02) is None
            assert consumer.paused == [(name, 0)]
            consumer.resume()
            message = consumer.poll(60)
            assert message is not None
            assert message.value == b"b"


def test_operators_need_no_asyncio(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address) as client:
        client.create_stream(name)
        client.publish(name, b"x")
        streams = bascule.blocking.BlockingStreamAdmin(client)
        streams.set(name, retention_max_messages=10)
        found = streams.describe(name)
        assert found.settings["retentionMaxMessages"] == "10"
        assert [one.messages for one in found.partitions] == [1]
        cluster = bascule.blocking.BlockingClusterAdmin(client)
        (member,) = cluster.status().members
        assert member.answers
        (counts,) = cluster.counts(["bascule_ready"])
        assert [one.value for one in counts.counts] == [1.0]
        with pytest.raises(bascule.BasculeError, match="nobody"):
            cluster.drain("nobody")


def test_each_call_of_an_admin_object_has_a_blocking_one() -> None:
    for plain, blocking in (
        (bascule.ClusterAdmin, bascule.blocking.BlockingClusterAdmin),
        (bascule.StreamAdmin, bascule.blocking.BlockingStreamAdmin),
    ):
        assert {name for name in vars(plain) if name[0] != "_"} == {name for name in vars(blocking) if name[0] != "_"}
