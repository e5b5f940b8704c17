"""What a publisher gets back: acks with their partition, keys that hash by default, and expected offsets that are never ignored."""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Iterator

import pytest

import bascule
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop


@on_loop
async def test_an_ack_names_its_partition(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address, timeout=60, nats=broker.nats_url) as client:
        await client.create_stream(name, f"{name}.s", partitions=3)
        assert (await client.publish(name, b"x", partition=2)).partition == 2
        assert (await client.publish(name, b"x", partition=1, correlation_id="a call of its own")).partition == 1
        assert (await client.publish_to_subject(f"{name}.s.2", b"x")).partition == 2
        assert (await client.publish_to_subject(f"{name}.s", b"x")).partition == 0
        for publisher in (client.publisher(name), client.nats_publisher(name), client.publisher(name, idempotent=True)):
            async with publisher:
                ack = await (await publisher.send(b"x", partition=1))
                assert (ack.partition, ack.stream) == (1, name)
                assert "partition=1" in repr(ack)


@on_loop
async def test_keys_hash_by_default(broker: BrokerProcess, name: str) -> None:
    """As with `bascule publish`, and without a key in partition 0."""
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name, partitions=5)
        keys = [b"key-%d" % number for number in range(8)]
        right = [zlib.crc32(key) % 5 for key in keys]
        assert len(set(right)) > 2
        assert [(await client.publish(name, b"x", key=key)).partition for key in keys] == right
        async with client.publisher(name) as publisher:
            acks = [await (await publisher.send(b"x", key=key)) for key in keys]
            assert [ack.partition for ack in acks] == right
            assert (await (await publisher.send(b"x"))).partition == 0
        await client.publish_many(name, keys, keys)
        assert (await client.publish(name, b"x")).partition == 0
        found = [m async for m in client.subscribe(name, stop="latest") if m.value in keys]
        assert {m.value: m.partition for m in found} == dict(zip(keys, right, strict=True))


@on_loop
async def test_an_expected_offset_is_refused_where_nothing_would_check_it(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address, timeout=60, nats=broker.nats_url) as client:
        await client.create_stream(name)
        wanted = f"`expected_offset` is 7, and stream `{name}` has no optimistic concurrency control"
        with pytest.raises(bascule.InvalidOption, match=wanted):
            await client.publish(name, b"x", expected_offset=7)
        for publisher in (client.publisher(name), client.nats_publisher(name)):
            with pytest.raises(bascule.InvalidOption, match=wanted):
                await publisher.send(b"x", expected_offset=7)
            await publisher.close()
        assert (await client.fetch_partition_metadata(name)).newest_offset == -1
        # what was looked up before does not count for a stream that was created again
        await client.delete_stream(name)
        await client.create_stream(name, optimistic_concurrency_control=True)
        assert (await client.publish(name, b"x", expected_offset=0)).offset == 0
        with pytest.raises(bascule.IncorrectOffset):
            await client.publish(name, b"x", expected_offset=7)


@on_loop
async def test_a_stream_that_exists_is_named_and_may_be_left_as_it_is(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name, partitions=2, if_not_exists=True)
        with pytest.raises(bascule.StreamExists, match=f"stream `{name}` exists already") as refused:
            await client.create_stream(name)
        assert "if_not_exists=True" in (refused.value.hint or "")
        await client.create_stream(name, partitions=5, if_not_exists=True)
        assert len((await client.fetch_metadata([name])).streams[name].partitions) == 2


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port at which nothing answers, and which no other program gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_table_without_a_broker_is_an_error_soon(unused_port: int) -> None:
    began = time.monotonic()
    with pytest.raises(bascule.Unavailable, match=f"{unused_port}"):
        bascule.read_table("orders", servers=f"127.0.0.1:{unused_port}", timeout=0.5)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("position", ["yesterday", -1, 1.5, True, {0: "a"}])
def test_a_position_that_is_none_is_named(position: object) -> None:
    for option in ("start", "end"):
        with pytest.raises(bascule.InvalidOption, match=f"`{option}` is ") as refused:
            bascule.read_table("orders", **{option: position})  # type: ignore[arg-type]
        assert "a datetime" in (refused.value.hint or "")
