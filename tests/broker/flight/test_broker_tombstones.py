"""A message without a value is no message with an empty one: on every way in and out, as Kafka has it."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa

import bascule
from bascule import blocking
from bascule.client.arrow.reader import FlightConnection
from tests.support.api_client import Api
from tests.support.broker_process import BrokerProcess
from tests.support.nats_client import NatsClient
from tests.support.tables import stream, tables_api, tables_broker
from tests.support.waiting import eventually

__all__ = ["stream", "tables_api", "tables_broker"]

HEADER = "bascule-tombstone"
BOTH = [("none", None), ("empty", b"")]


def read(client: blocking.BlockingClient, stream: str, **options: Any) -> list[tuple[str, bytes | None]]:
    """Keys and values. No message shows the header to an application."""
    with client.subscribe(stream, **{"partition": 0, "start": "earliest", "stop": "latest", **options}) as found:
        messages = list(found)
    assert not any(HEADER in message.headers for message in messages)
    return [((message.key or b"").decode(), message.value) for message in messages]


def test_every_way_in_keeps_a_tombstone_and_an_empty_value_apart(tables_broker: BrokerProcess, stream: str) -> None:
    subject = f"subject.{stream}"
    with blocking.connect(tables_broker.address, nats=tables_broker.nats_url) as client:
        for key, value in BOTH:
            client.publish(stream, value, key=key, partition=0)
            client.publish(stream, value, key=key, partition=0, correlation_id="a call of its own")
            client.publish_to_subject(subject, value, key=key)
        keys, values = [key for key, _ in BOTH], [value for _, value in BOTH]
        client.publish_many(stream, values, keys, partition=0)
        for publisher in (
            client.publisher(stream, partition=0),
            client.publisher(stream, partition=0, idempotent=True),
            client.nats_publisher(stream, partition=0),
        ):
            with publisher:
                publisher.send_all([(key, value) for key, value in BOTH])
                publisher.send(None, key="none", headers={"own": b"1"}).result()
        with FlightConnection(tables_broker.address) as connection:
            rows = {"key": [key.encode() for key in keys], "value": values, "partition": [0, 0]}
            connection.put(stream, [pa.RecordBatch.from_pydict(rows)])
        forward = read(client, stream)
        assert forward == [("none", None)] * 3 + [("empty", b"")] * 3 + BOTH + [*BOTH, ("none", None)] * 3 + BOTH
        # backward another part of the broker encodes the messages
        assert read(client, stream, start="latest", stop=None, reverse=True) == forward[::-1]
    table = bascule.read_table(stream, servers=tables_broker.address)
    assert [(row["key"].decode(), row["value"]) for row in table.to_pylist()] == forward
    assert not any(HEADER in dict(row["headers"]) for row in table.to_pylist())


def test_clients_that_cannot_say_none_say_it_in_a_header(
    tables_broker: BrokerProcess, tables_api: Api, stream: str
) -> None:
    tables_api.publish(stream, b"", key=b"old")
    tables_api.publish(stream, b"", key=b"new", headers={HEADER: b"1", "own": b"2"})
    with NatsClient(tables_broker.nats_url) as nats:
        nats.publish(f"subject.{stream}", b"", headers=f"{HEADER}: 1\r\n".encode())
    with blocking.connect(tables_broker.address) as client:
        eventually(lambda: client.fetch_partition_metadata(stream).newest_offset == 2, "the message of NATS is stored")
        assert read(client, stream) == [("old", b""), ("new", None), ("", None)]
    # and read it there
    headers = [dict(message.headers) for message in tables_api.read(stream)]
    added = {"subject": f"subject.{stream}".encode(), "reply": b""}
    assert headers == [added, {**added, HEADER: b"1", "own": b"2"}, {**added, HEADER: b"1"}]
    assert all(message.value == b"" for message in tables_api.read(stream))


def test_compaction_removes_a_tombstone_and_keeps_an_empty_value(tables_broker: BrokerProcess, stream: str) -> None:
    name = f"{stream}-compacted"

    async def scenario() -> None:
        async with bascule.connect(tables_broker.address) as client:
            await client.create_stream(
                name,
                compact=True,
                cleaner_interval=0.05,
                segment_max_bytes=300,
                compact_min_lag=0,
                tombstone_retention=0,
            )
            for key in ("deleted", "emptied"):
                await client.publish(name, b"full", key=key)
            await client.publish(name, None, key="deleted")
            await client.publish(name, b"", key="emptied")
            left: dict[str, bytes | None] = {"deleted": b""}
            async with asyncio.timeout(60):
                while "deleted" in left:
                    await client.publish(name, b"x" * 200, key="other")
                    left = {}
                    async for message in client.subscribe(name, start="earliest", stop="latest"):
                        left[(message.key or b"").decode()] = message.value
            assert left.keys() == {"emptied", "other"}
            assert left["emptied"] == b""

    asyncio.run(scenario())
