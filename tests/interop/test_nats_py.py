"""nats-py as a publisher that has never heard of us."""

from __future__ import annotations

import asyncio

import nats

from tests.support.api_client import Api
from tests.support.broker_fixtures import MakeStream
from tests.support.broker_process import BrokerProcess


def test_what_nats_py_publishes_is_kept(broker: BrokerProcess, api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()

    async def scenario() -> None:
        client = await nats.connect(broker.nats_url, connect_timeout=60)
        for number in range(1000):
            await client.publish(stream.subject, b"%d" % number)
        await client.publish(stream.subject, b"with headers", headers={"Name": "value"})
        await client.publish(stream.subject, b"with a reply", reply="somewhere")
        await client.drain()

    asyncio.run(asyncio.wait_for(scenario(), 120))
    subscription = api.subscribe(stream.name)
    found = subscription.take(1002)
    subscription.cancel()
    assert [message.value for message in found[:1000]] == [b"%d" % number for number in range(1000)]
    assert found[1000].headers["Name"] == b"value"
    assert found[1001].replySubject == "somewhere"


def test_nats_py_sees_what_the_api_publishes(broker: BrokerProcess, api: Api, make_stream: MakeStream) -> None:
    stream = make_stream()

    async def scenario() -> None:
        client = await nats.connect(broker.nats_url, connect_timeout=60)
        subscription = await client.subscribe(stream.subject)
        await client.flush()
        await asyncio.to_thread(api.publish, stream.name, b"value")
        message = await subscription.next_msg(timeout=60)
        assert message.data.startswith(bytes.fromhex("b90e43b400080000"))
        assert b"value" in message.data
        await client.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))
