"""A publisher and a subscription that live through several kill -9 of their broker: nothing acked is missing, nothing comes twice."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import bascule
from bascule import errors
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop, soon, until

pytestmark = pytest.mark.disturbs

RESTARTS = 5


def pinned(broker: BrokerProcess) -> BrokerProcess:
    """The same address after each restart, as a service has."""
    broker.config["listen"] = broker.address
    return broker


@on_loop
async def test_restarts(start_broker: StartBroker, name: str) -> None:
    broker = pinned(start_broker())
    acked: dict[bytes, int] = {}
    unknown: set[bytes] = set()
    seen: list[tuple[int, bytes]] = []
    stopping = asyncio.Event()

    async def publish(client: bascule.Client) -> None:
        number = 0
        publisher = client.publisher(name, window=64, timeout=60, on_error=lambda _: None)
        pending: list[tuple[bytes, asyncio.Future[bascule.Ack]]] = []
        while not stopping.is_set():
            value = b"%d" % number
            number += 1
            with contextlib.suppress(bascule.Unavailable):  # surely not sent
                pending.append((value, await publisher.send(value)))
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        await publisher.flush()
        for value, future in pending:
            try:
                acked[value] = (await future).offset
            except bascule.OutcomeUnknown:
                unknown.add(value)

    async def read(client: bascule.Client) -> None:
        async for batch in client.subscribe(name, start="earliest").batches():
            seen.extend(zip(batch.offsets, [value or b"" for value in batch.values()], strict=True))

    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name)
        publishing = asyncio.create_task(publish(client))
        reading = asyncio.create_task(read(client))
        for _ in range(RESTARTS):
            before = len(seen)
            await until(lambda before=before: len(seen) > before + 200, "messages flow")  # type: ignore[misc]
            await asyncio.to_thread(broker.restart)
        before = len(seen)
        await until(lambda: len(seen) > before + 200, "messages flow after the last restart")
        stopping.set()
        await soon(publishing, 120)
        last = max(acked.values())
        await until(lambda: seen[-1][0] >= last, "everything acked is read")
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    numbers = [offset for offset, _ in seen]
    assert numbers == list(range(len(numbers))), "a gap or a repeat"
    values = [value for _, value in seen]
    assert len(set(values)) == len(values), "a message that was stored twice"
    stored = dict(zip(values, numbers, strict=True))
    assert {value: stored.get(value) for value in acked} == acked
    assert set(values) <= acked.keys() | unknown


@on_loop
async def test_a_restart_before_the_first_message_skips_and_repeats_nothing(
    start_broker: StartBroker, name: str
) -> None:
    broker = pinned(start_broker())
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name)
        await client.publish_many(name, [b"old"] * 5, ack="all")
        starts: list[tuple[str | int, list[int]]] = [
            ("new", [5, 6]),
            ("latest", [4, 5, 6]),
            (100, [5, 6]),
            (3, [3, 4, 5, 6]),
        ]
        subscriptions = [await client.subscribe(name, start=start) for start, _ in starts]
        broker.kill()
        await asyncio.to_thread(broker.start)
        async with bascule.connect(broker.address) as other:
            await other.publish_many(name, [b"new", b"new"], ack="all")
        for subscription, (_, wanted) in zip(subscriptions, starts, strict=True):
            assert [(await soon(anext(subscription))).offset for _ in wanted] == wanted


@on_loop
async def test_a_subscription_gives_up_when_the_brokers_stay_away(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    async with bascule.connect(broker.address, patience=0.5) as client:
        await client.create_stream(name)
        subscription = await client.subscribe(name)
        broker.kill()
        try:
            await soon(anext(subscription))
        except bascule.Unavailable as error:
            assert name in error.message
        else:
            raise AssertionError("it waits for ever")


@on_loop
async def test_a_stream_that_is_gone_after_a_restart_is_told(start_broker: StartBroker, name: str) -> None:
    broker = pinned(start_broker())
    async with bascule.connect(broker.address, timeout=60) as client, bascule.connect(broker.address) as other:
        await client.create_stream(name)
        await client.publish(name, b"x")
        subscription = await client.subscribe(name, start="earliest")
        await soon(anext(subscription))
        publisher = client.publisher(name)
        await (await publisher.send(b"y"))
        await soon(anext(subscription))
        await other.delete_stream(name)
        try:
            await soon(anext(subscription))
        except errors.StreamDeleted:
            pass
        else:
            raise AssertionError("deleted, and still read")
        future = await publisher.send(b"z")
        await asyncio.wait([future], timeout=60)
        assert isinstance(future.exception(), errors.StreamNotFound)
        await publisher.close()
