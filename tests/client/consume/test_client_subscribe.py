"""Subscriptions against a real broker: every start and stop, many partitions, batches, and each way to end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bascule
from bascule import errors
from bascule.client.connection.metadata import moment
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop, soon, until


async def offsets(subscription: bascule.Subscription, count: int | None = None) -> list[int]:
    """Of so many messages, or of all until the end."""
    found: list[int] = []
    async with subscription:
        async for message in subscription:
            found.append(message.offset)
            if len(found) == count:
                break
    return found


async def filled(client: bascule.Client, name: str, count: int = 10, **settings: Any) -> None:
    await client.create_stream(name, **settings)
    await client.publish_many(name, [b"%d" % number for number in range(count)], ack="all")


@on_loop
async def test_messages_have_everything(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, f"{name}.s")
        ack = await client.publish(name, b"v", key=b"k", headers={"h": b"1"})
        assert ack is not None
        message = await soon(anext(client.subscribe(name, start="earliest")))
        assert (message.offset, message.key, message.value, message.stream) == (0, b"k", b"v", name)
        assert (message.partition, message.subject, message.headers["h"]) == (0, f"{name}.s", b"1")
        assert message.timestamp == ack.reception_timestamp
        assert isinstance(message, bascule.Message)


@on_loop
async def test_every_start(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name)
        middle = await anext(client.subscribe(name, start=5, stop=5))
        assert await offsets(client.subscribe(name, start="earliest"), 10) == list(range(10))
        assert await offsets(client.subscribe(name, start=7), 3) == [7, 8, 9]
        assert await offsets(client.subscribe(name, start="latest"), 1) == [9]
        just_before = moment(middle.timestamp)
        found = await offsets(client.subscribe(name, start=just_before, stop="latest"))
        assert found[-1] == 9
        assert found[0] <= 5
        for start in ("new", 100, datetime.now(UTC) + timedelta(hours=1)):
            subscription = await client.subscribe(name, start=start)
            ack = await client.publish(name, b"new")
            assert ack is not None
            assert (await soon(anext(subscription))).offset == ack.offset
            await subscription.close()


@on_loop
async def test_a_range_that_retention_has_taken_is_empty(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        every = timedelta(milliseconds=50)
        await client.create_stream(name, retention_max_messages=5, segment_max_bytes=1, cleaner_interval=every)
        for number in range(20):
            await client.publish(name, b"%d" % number, ack="all")
        while (first := (await anext(client.subscribe(name, start="earliest"))).offset) < 15:
            await asyncio.sleep(0.05)
        assert await offsets(client.subscribe(name, start=0, stop=first - 1)) == []
        assert await offsets(client.subscribe(name, start=0, stop=first + 1)) == [first, first + 1]


@on_loop
async def test_every_stop(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name)
        assert await offsets(client.subscribe(name, start="earliest", stop="latest")) == list(range(10))
        assert await offsets(client.subscribe(name, start=2, stop=4)) == [2, 3, 4]
        assert await offsets(client.subscribe(name, start="new", stop="latest")) == []
        assert await offsets(client.subscribe(name, start="earliest", stop=datetime.now(UTC))) == list(range(10))
        long_ago = datetime(2001, 1, 1, tzinfo=UTC)
        assert await offsets(client.subscribe(name, start="earliest", stop=long_ago)) == []
        empty = f"{name}-empty"
        await client.create_stream(empty)
        assert await offsets(client.subscribe(empty, start="earliest", stop="latest")) == []
        assert await offsets(client.subscribe(empty, start="latest", reverse=True)) == []


@on_loop
async def test_backward(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name)
        assert await offsets(client.subscribe(name, start="latest", reverse=True)) == list(range(9, -1, -1))
        assert await offsets(client.subscribe(name, start="new", reverse=True)) == list(range(9, -1, -1))
        assert await offsets(client.subscribe(name, start=6, stop=4, reverse=True)) == [6, 5, 4]
        assert await offsets(client.subscribe(name, start=100, stop=8, reverse=True)) == [9, 8]


@on_loop
async def test_several_partitions_at_once(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=3)
        for number in range(3):
            await client.publish_many(name, [b"%d" % number] * 100, partition=number)
        seen: dict[int, list[int]] = {}
        async for message in client.subscribe(name, partition="all", start="earliest", stop="latest"):
            seen.setdefault(message.partition, []).append(message.offset)
        assert seen == {number: list(range(100)) for number in range(3)}
        found = [m.partition async for m in client.subscribe(name, partition=[0, 2], start="latest", stop="latest")]
        assert sorted(found) == [0, 2]
        with pytest.raises(errors.StreamNotFound, match="no partition 3"):
            await client.subscribe(name, partition=[0, 3])


@on_loop
async def test_batches_are_columns(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        values = [bytes([number % 251]) * (number % 300) for number in range(5000)]
        await client.publish_many(name, values)
        found: list[bytes | None] = []
        rows: list[int] = []
        async for batch in client.subscribe(name, start="earliest", stop="latest").batches():
            assert isinstance(batch, bascule.MessageBatch)
            found += batch.values()
            rows += list(batch.offsets)
        assert found == values
        assert rows == list(range(5000))


@on_loop
async def test_a_slow_reader_misses_nothing(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        count, size = 300, 100_000  # more than all windows hold
        await client.publish_many(name, [bytes(size)] * count, timeout=60)
        seen = []
        async for message in client.subscribe(name, start="earliest", stop="latest"):
            seen.append(message.offset)
            if len(seen) % 100 == 1:
                await asyncio.sleep(0.2)
        assert seen == list(range(count))


@on_loop
async def test_ends_say_why(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name, 3)
        with pytest.raises(errors.StreamNotFound):
            await client.subscribe("nobody")
        subscription = await client.subscribe(name, start="earliest")
        await client.set_readonly(name)
        seen = []
        with pytest.raises(errors.EndOfPartition, match="readonly"):
            while True:
                seen.append((await anext(subscription)).offset)
        assert seen == [0, 1, 2]
        with pytest.raises(errors.EndOfPartition):
            await anext(subscription)
        assert await offsets(client.subscribe(name, start="earliest", stop="latest")) == [0, 1, 2]
        await client.set_readonly(name, readonly=False)

        subscription = await client.subscribe(name, start="new")
        waiting = asyncio.create_task(anext(subscription))
        await client.pause_stream(name)
        with pytest.raises(errors.PartitionPaused, match="resume=True"):
            await soon(waiting)
        with pytest.raises(errors.PartitionPaused):
            await client.subscribe(name)
        subscription = await client.subscribe(name, start="earliest", resume=True)
        assert (await soon(anext(subscription))).offset == 0
        await subscription.close()

        subscription = await client.subscribe(name, start="new")
        await client.delete_stream(name)
        with pytest.raises(errors.StreamDeleted, match="deleted"):
            await soon(anext(subscription))


@on_loop
async def test_new_messages_of_a_paused_partition(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name, 3)
        await client.pause_stream(name)
        subscription = await client.subscribe(name, start="new", resume=True)
        await client.publish(name, b"new")
        assert (await soon(anext(subscription))).offset == 3


@on_loop
async def test_a_paused_partition_is_resumed_under_a_subscription_that_asks_for_it(
    broker: BrokerProcess, name: str
) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name, 3)
        subscription = await client.subscribe(name, start="earliest", resume=True)
        assert [(await soon(anext(subscription))).offset for _ in range(3)] == [0, 1, 2]
        await client.pause_stream(name)
        await client.publish(name, b"more")
        assert (await soon(anext(subscription))).offset == 3


@on_loop
async def test_closing_wakes_who_waits(broker: BrokerProcess, name: str) -> None:
    client = await bascule.connect(broker.address)
    await client.create_stream(name)
    subscription = await client.subscribe(name)
    waiting = asyncio.create_task(anext(subscription))
    await asyncio.sleep(0.05)
    await subscription.close()
    with pytest.raises(errors.ClientClosed):
        await soon(waiting)
    subscription = await client.subscribe(name)
    waiting = asyncio.create_task(anext(subscription))
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(errors.ClientClosed):
        await soon(waiting)


@on_loop
async def test_who_stops_waiting_loses_no_message(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        subscription = await client.subscribe(name)
        for number in range(5):
            with pytest.raises(TimeoutError):
                await soon(anext(subscription), 0.02)
            await client.publish(name, b"x")
            assert (await soon(anext(subscription))).offset == number


@on_loop
async def test_a_replica_may_be_read(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name, 3)
        assert await offsets(client.subscribe(name, start="earliest", stop="latest", read_replica=True)) == [0, 1, 2]


@on_loop
async def test_a_subscription_that_nobody_holds_any_more_ends(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await filled(client, name, 3)

        async def first() -> int:
            async for message in client.subscribe(name, start="earliest"):
                return message.offset
            raise AssertionError("nothing came")

        assert await first() == 0
        (channel,) = client._brokers._channels.values()
        sessions = len(client._sessions.sessions)
        await until(lambda: channel.open_calls == sessions, "the broker was told")


@on_loop
async def test_one_partition_that_fails_ends_the_others(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=3)
        subscription = await client.subscribe(name, partition="all")
        await client.set_readonly(name, [1])
        for _ in range(2):
            with pytest.raises(errors.EndOfPartition, match="partition 1"):
                await soon(anext(subscription))
        (channel,) = client._brokers._channels.values()
        await until(lambda: channel.open_calls == 0, "nothing is read any more")
