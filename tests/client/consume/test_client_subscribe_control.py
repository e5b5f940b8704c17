"""What a subscription delivers and from where: filters, polling, seeking, pausing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import bascule
from bascule import errors
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop, soon


async def filled(client: bascule.Client, name: str, count: int = 6, partitions: int = 2) -> None:
    await client.create_stream(name, partitions=partitions)
    for number in range(partitions):
        await client.publish_many(name, [b"%d-%d" % (number, one) for one in range(count)], partition=number)


async def places(subscription: bascule.Subscription, count: int) -> list[tuple[int, int]]:
    found = [await soon(anext(subscription)) for _ in range(count)]
    return sorted((message.partition, message.offset) for message in found)


@on_loop
async def test_all_partitions_are_read_from_the_beginning_by_default(broker: BrokerProcess, name: str) -> None:
    """As `bascule subscribe` does it."""
    async with bascule.connect(broker.address, timeout=60) as client:
        await filled(client, name, 2)
        assert await places(client.subscribe(name), 4) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        backward = [m.offset async for m in client.subscribe(name, partition=0, reverse=True)]
        assert backward == [1, 0]


@on_loop
async def test_messages_are_selected_by_key_and_headers(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name, partitions=2)
        for number in range(40):
            headers = {"kind": b"%d" % (number % 2), **({"rare": b""} if number % 10 == 0 else {})}
            await client.publish(name, b"%d" % number, key=f"k{number % 4}", headers=headers, partition=number % 2)

        async def values(**wanted: Any) -> list[int]:
            found = client.subscribe(name, stop="latest", **wanted)
            return sorted([int(message.value or b"") async for message in found])

        assert await values(key="k1") == list(range(1, 40, 4))
        assert await values(headers={"rare": None}) == [0, 10, 20, 30]
        assert await values(key=b"k2", headers={"rare": None, "kind": "0"}) == [10, 30]
        assert await values(headers={"kind": b"2"}) == await values(key="unused") == []
        batches = client.subscribe(name, stop="latest", key="k3").batches()
        found = [(m.key, m.headers) async for batch in batches for m in batch]
        assert found == [(b"k3", {"kind": b"1"})] * 10
        with pytest.raises(bascule.InvalidOption, match="`headers`"):
            client.subscribe(name, headers=["rare"])  # type: ignore[arg-type]


@on_loop
async def test_polling_ends_after_its_time(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name)
        subscription = client.subscribe(name)
        assert await soon(subscription.poll(0.02)) is None
        assert await soon(subscription.poll(0)) is None
        await client.publish(name, b"x")
        message = await soon(subscription.poll(60))
        assert message is not None
        assert message.value == b"x"
        ending = client.subscribe(name, stop="latest")
        assert [await soon(ending.poll(60)) is None for _ in range(3)] == [False, True, True]


@on_loop
async def test_seeking_goes_back_and_forth(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address, timeout=60) as client:
        await filled(client, name)
        subscription = await client.subscribe(name)
        assert len(await places(subscription, 12)) == 12
        await subscription.seek(4)
        assert await places(subscription, 4) == [(0, 4), (0, 5), (1, 4), (1, 5)]
        await subscription.seek("earliest", 1)
        assert await places(subscription, 6) == [(1, offset) for offset in range(6)]
        assert await subscription.poll(0.05) is None
        with pytest.raises(bascule.InvalidOption, match="`start` is 'yesterday'"):
            await subscription.seek("yesterday")
        with pytest.raises(bascule.InvalidOption, match="`partitions` is 7"):
            await subscription.seek(0, 7)
        await client.publish(name, b"the next", partition=1)
        assert await places(subscription, 1) == [(1, 6)]
        # a partition that was read to its end begins again
        ended = client.subscribe(name, partition=0, stop=5)
        assert [m.offset async for m in ended] == list(range(6))
        await ended.seek(3)
        assert [m.offset async for m in ended] == [3, 4, 5]


@on_loop
async def test_a_paused_partition_waits_and_loses_nothing(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address, timeout=60) as client:
        await filled(client, name)
        subscription = client.subscribe(name)
        with pytest.raises(bascule.InvalidOption, match="not open"):
            subscription.pause(0)
        first = await soon(anext(subscription))
        subscription.pause(first.partition)
        assert subscription.paused == [first.partition]
        other = 1 - first.partition
        assert await places(subscription, 6) == [(other, offset) for offset in range(6)]
        assert await subscription.poll(0.05) is None
        subscription.resume()
        found = [(await soon(anext(subscription))).offset for _ in range(5)]
        assert found == list(range(1, 6))
        waiting = asyncio.create_task(subscription.poll(60))
        subscription.pause()
        await client.publish(name, b"later", partition=0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.05)
        assert not waiting.done()
        subscription.resume(0)
        message = await soon(waiting)
        assert message is not None
        assert message.value == b"later"
        await subscription.close()
        with pytest.raises(errors.ClientClosed):
            subscription.pause(0)


def test_the_same_without_asyncio(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address, timeout=60) as client:
        client.create_stream(name)
        client.publish_many(name, [b"a", b"b", b"c"], ["k", "l", "k"])
        with client.subscribe(name, key="k") as subscription:
            assert [next(subscription).value, next(subscription).value] == [b"a", b"c"]
            assert subscription.poll(0.02) is None
            subscription.seek(1)
            subscription.pause()
            assert subscription.poll(0.02) is None
            assert subscription.paused == [0]
            subscription.resume()
            message = subscription.poll(60)
            assert message is not None
            assert message.value == b"c"
        ended = client.subscribe(name, stop="latest")
        assert [message.value for message in ended] == [b"a", b"b", b"c"]
        assert ended.poll(0.02) is None
