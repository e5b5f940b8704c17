"""What a type checker knows about the client: checked by `make check`, and by calling it."""

from __future__ import annotations

import concurrent.futures
from asyncio import Future
from typing import assert_type

import bascule
from bascule.client import blocking
from bascule.client.connection.metadata import Metadata, PartitionInfo
from bascule.client.publish.calls import Published
from bascule.client.publish.publisher import BasePublisher, NatsPublisher
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop


@on_loop
async def test_types_of_the_client(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address, nats=broker.nats_url) as client:
        assert_type(client, bascule.Client)
        assert_type(await client.fetch_metadata(), Metadata)
        await client.create_stream(name)
        assert_type(await client.publish(name, b"x", key=b"k", timeout=60), bascule.Ack)
        assert_type(await client.publish(name, b"x", ack="all"), bascule.Ack)
        assert_type(await client.publish_to_subject(name, b"x"), bascule.Ack)
        await client.publish(name, b"x", ack="none")
        assert_type(await client.publish_many(name, [b"x"]), Published)
        assert_type(await client.fetch_partition_metadata(name), PartitionInfo)
        assert_type(await client.fetch_cursor("c", name), int | None)
        async with client.publisher(name) as publisher:
            assert_type(publisher, BasePublisher)
            future = await publisher.send(b"x")
            assert_type(future, Future[bascule.Ack])
            assert_type(await future, bascule.Ack)
        async with client.nats_publisher(name) as nats:
            assert_type(nats, NatsPublisher)
        subscription = client.subscribe(name, start="earliest", stop="latest")
        assert_type(subscription, bascule.Subscription)
        async for message in subscription:
            assert_type(message, bascule.Message)
            assert_type(message.key, bytes | None)
            assert_type(message.value, bytes | None)
        async for batch in client.subscribe(name, start="earliest", stop="latest").batches():
            assert_type(batch, bascule.MessageBatch)
        consumer = client.consumer("g", name)
        assert_type(consumer, bascule.Consumer)
        assert_type(consumer.assignments, list[bascule.Assignment])


def test_types_of_the_blocking_client(broker: BrokerProcess, name: str) -> None:
    with bascule.blocking.connect(broker.address) as client:
        assert_type(client, blocking.BlockingClient)
        client.create_stream(name, partitions=1)
        assert_type(client.publish(name, b"x", partition=0), bascule.Ack)
        assert_type(client.fetch_metadata(), Metadata)
        with client.publisher(name) as publisher:
            assert_type(publisher.send(b"x"), concurrent.futures.Future[bascule.Ack])
        for message in client.subscribe(name, start="earliest", stop="latest"):
            assert_type(message, bascule.Message)
