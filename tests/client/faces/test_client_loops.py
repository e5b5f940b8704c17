"""The same client on uvloop: nothing depends on asyncio's own loop."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import bascule
from tests.support.broker_fixtures import StartBroker
from tests.support.on_loop import soon

uvloop: Any = import_module("uvloop")


def test_everything_works_on_uvloop(start_broker: StartBroker, name: str) -> None:
    broker = start_broker({"cursors.stream.partitions": 1})
    broker.config["listen"] = broker.address

    async def act() -> None:
        async with bascule.connect(broker.address, timeout=60, nats=broker.nats_url) as client:
            await client.create_stream(name)
            await client.publish_many(name, [b"%d" % number for number in range(1000)], ack="all")
            subscription = client.subscribe(name, start="earliest")
            assert [(await soon(anext(subscription))).offset for _ in range(1000)] == list(range(1000))
            await asyncio.to_thread(broker.restart)
            async with client.publisher(name) as publisher:
                await (await publisher.send(b"after"))
            async with client.nats_publisher(name) as nats:
                await (await nats.send(b"over NATS"))
            assert [(await soon(anext(subscription))).value for _ in range(2)] == [b"after", b"over NATS"]
            async with client.consumer(name, name, start="latest") as consumer:
                assert (await soon(anext(consumer))).offset == 1001

    uvloop.run(act())
