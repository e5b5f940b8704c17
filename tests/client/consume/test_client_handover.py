"""A member hands a partition over after the application has processed the message in hand, or had the time to."""

from __future__ import annotations

import asyncio

import bascule
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop, soon, until


@on_loop
async def test_a_partition_is_handed_over_after_the_message_in_hand_was_processed(
    broker: BrokerProcess, name: str
) -> None:
    revoked: list[bascule.Assignment] = []
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish_many(name, [b"x"] * 10)
        async with client.consumer(name, name, on_revoked=revoked.extend, handover_timeout=60) as consumer:
            for offset in range(3):
                assert (await soon(anext(consumer))).offset == offset
            consumer._assigned(frozenset(), 99)  # as the coordinator answers after another member has joined
            await until(lambda: not consumer.assignments, "no more messages are delivered")
            await asyncio.sleep(0.1)
            assert not revoked
            assert await client.fetch_cursor(f"__hold:{name}", name) is not None
            asking = asyncio.create_task(anext(consumer))
            await until(lambda: revoked, "the partition is handed over")
            await until(lambda: not consumer._held, "the partition is released")
            assert await client.fetch_cursor(f"__hold:{name}", name) is None
            assert await client.fetch_cursor(f"__group:{name}", name) == 2
            asking.cancel()


@on_loop
async def test_a_message_that_is_not_processed_in_time_does_not_stop_a_handover(
    broker: BrokerProcess, name: str
) -> None:
    revoked: list[bascule.Assignment] = []
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish_many(name, [b"x"] * 10)
        async with client.consumer(name, name, on_revoked=revoked.extend, handover_timeout=0.2) as consumer:
            for offset in range(3):
                assert (await soon(anext(consumer))).offset == offset
            consumer._assigned(frozenset(), 99)
            await until(lambda: not consumer._held, "the partition is released")
            assert revoked == [(name, 0)]
            assert await client.fetch_cursor(f"__group:{name}", name) == 1
