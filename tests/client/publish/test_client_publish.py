"""Publishing against a real broker: acks, policies, partitions, expectations, and what each failure says."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Any, Literal

import pytest

import bascule
from bascule import errors
from tests.support.api_client import Api
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop, soon
from tests.support.waiting import eventually, pause


@on_loop
async def test_one_message_and_its_ack(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, f"{name}.s")
        ack = await client.publish(name, b"lamp", key="k", headers={"h": b"1", "t": "text"})
        assert ack is not None
        assert (ack.stream, ack.offset, ack.message_subject, ack.error) == (name, 0, f"{name}.s", 0)
        ack = await client.publish(name, "text", ack="all", correlation_id="mine")
        assert ack is not None
        assert (ack.offset, ack.correlation_id, ack.ack_policy) == (1, "mine", 1)
        assert await client.publish(name, b"", ack="none") is None  # type: ignore[func-returns-value]
        ack = await client.publish(name, memoryview(b"view"))
        assert ack is not None
    first, second, *_, last = api.read(name)
    assert (first.key, first.value, dict(first.headers)["h"], dict(first.headers)["t"]) == (
        b"k",
        b"lamp",
        b"1",
        b"text",
    )
    assert (second.value, last.value) == (b"text", b"view")


@on_loop
async def test_many_at_once_keep_their_order(broker: BrokerProcess, api: Api, name: str) -> None:
    values = [f"{number}".encode() for number in range(20_000)]
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        published = await client.publish_many(name, values)
        assert published.offsets == list(range(20_000))
        assert not published.errors
        assert (await client.publish_many(name, [])).offsets == []
        assert (await client.publish_many(name, [b"x"], ack="none")).errors == {}
    assert [message.value for message in api.read(name)][:20_000] == values


@on_loop
async def test_all_who_need_to_know_of_a_stream_ask_one_question(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, name)
    async with bascule.connect(broker.address) as client:
        asked: list[str] = []
        call = client._brokers.call

        async def counted(method: str, *arguments: Any, **more: Any) -> bytes:
            asked.append(method)
            return await call(method, *arguments, **more)

        client._brokers.call = counted  # type: ignore[method-assign]
        acks = await asyncio.gather(*(client.publish(name, b"%d" % number) for number in range(200)))
        assert sorted(ack.offset for ack in acks if ack is not None) == list(range(200))
        assert asked.count("FetchMetadata") == 1


@on_loop
async def test_partitions_by_key_in_turn_and_by_hand(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=3)
        keys = [b"a", b"b", b"c", b"d"]
        await client.publish_many(name, keys, keys, partitioner="key")
        for _ in range(3):
            await client.publish(name, b"turn", partitioner="round-robin")
        await client.publish(name, b"mine", partitioner=lambda _key, _value, count: count - 1)
        await client.publish(name, b"two", partition=2)
        for key in keys:
            assert key in [message.value for message in api.read(name, zlib.crc32(key) % 3)]
        for number in range(3):
            assert b"turn" in [message.value for message in api.read(name, number)]
        assert [message.value for message in api.read(name, 2)][-2:] == [b"mine", b"two"]
        with pytest.raises(errors.StreamNotFound):
            await client.publish(name, b"", partition=3)


@on_loop
async def test_an_expected_offset_holds_or_nothing_is_stored(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, optimistic_concurrency_control=True)
        await client.publish(name, b"0", expected_offset=0)
        with pytest.raises(errors.IncorrectOffset):
            await client.publish(name, b"x", expected_offset=0)
        with pytest.raises(errors.IncorrectOffset):
            await client.publish(name, b"x", expected_offset=0, correlation_id="unary")
        await client.publish(name, b"1")
        with pytest.raises(bascule.CallerError, match="AckPolicy"):
            await client.publish(name, b"x", ack="none")
    assert [message.value for message in api.read(name)] == [b"0", b"1"]


@on_loop
async def test_each_refusal_is_an_error_of_its_own(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        policies: list[Literal["leader", "none"]] = ["leader", "none"]
        for policy in policies:
            with pytest.raises(errors.StreamNotFound):
                await client.publish("nobody", b"", ack=policy)
        with pytest.raises(errors.RecordTooLarge):
            await client.publish(name, bytes(2 << 20))
        with pytest.raises(errors.RecordTooLarge):
            await client.publish(name, bytes(2 << 20), correlation_id="unary")
        with pytest.raises(errors.InvalidOption, match="`ack` is 'most'"):
            await client.publish(name, b"", ack="most")  # type: ignore[call-overload]
        with pytest.raises(errors.InvalidOption, match="`value` is 'int'"):
            await client.publish(name, 7)  # type: ignore[call-overload]
        await client.set_readonly(name)
        with pytest.raises(errors.PartitionReadonly):
            await client.publish(name, b"")
        with pytest.raises(errors.PartitionReadonly):
            await client.publish(name, b"", ack="none")
        result = await client.publish_many(name, [b"a", b"b"], raise_errors=False)
        assert [type(error) for error in result.errors.values()] == [errors.PartitionReadonly] * 2
        with pytest.raises(errors.PartitionReadonly):
            await client.publish_many(name, [b"a"])


@on_loop
async def test_a_publish_resumes_what_is_paused(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish(name, b"0")
        await client.pause_stream(name)
        ack = await client.publish(name, b"1")
        assert ack is not None
        assert ack.offset == 1


@on_loop
async def test_publishing_to_a_subject(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, f"{name}.*")
        ack = await client.publish_to_subject(f"{name}.eu", b"x", key=b"k", correlation_id="c")
        assert ack is not None
        assert (ack.stream, ack.message_subject, ack.correlation_id) == (name, f"{name}.eu", "c")
        assert await client.publish_to_subject(f"{name}.eu", b"x", ack="none") is None  # type: ignore[func-returns-value]
        with pytest.raises(bascule.OutcomeUnknown):
            await client.publish_to_subject(f"nobody.{name}", b"x", timeout=0.3)


@on_loop
async def test_a_publisher_with_a_window(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=2)
        async with client.publisher(name, partitioner="round-robin", window=16) as publisher:
            futures = [await publisher.send(f"{number}", headers={"n": str(number)}) for number in range(1000)]
            await publisher.flush()
            assert [future.result().offset for future in futures] == [number // 2 for number in range(1000)]
            assert (publisher.sent, publisher.failed) == (1000, 0)
        with pytest.raises(errors.ClientClosed):
            await publisher.send(b"late")
        async with client.publisher(name, ack="none") as publisher:
            assert await (await publisher.send(b"unacked")) is None
        assert [message.value for message in api.read(name, 1)] == [b"%d" % number for number in range(1, 1000, 2)]


@on_loop
async def test_nothing_without_an_ack_is_left_behind_when_a_publisher_closes(
    broker: BrokerProcess, api: Api, name: str
) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        async with client.publisher(name, ack="none") as publisher:
            for number in range(20_000):
                await publisher.send(b"%d" % number)
            await publisher.flush()
            await publisher.send(b"behind the flush")
    values = [b"%d" % number for number in range(20_000)]
    eventually(lambda: api.partition(name).newestOffset == 20_000, "all messages")
    assert [message.value for message in api.read(name)] == [*values, b"behind the flush"]


@on_loop
async def test_nothing_without_an_ack_is_left_behind_when_a_client_closes(
    broker: BrokerProcess, api: Api, name: str
) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish_many(name, [b"x"] * 20_000, ack="none")
    eventually(lambda: api.partition(name).newestOffset == 19_999, "all messages")


@on_loop
async def test_a_publisher_reports_what_failed_once(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.set_readonly(name)
        publisher = client.publisher(name)
        future = await publisher.send(b"x")
        with pytest.raises(errors.PartitionReadonly):
            await publisher.flush()
        with pytest.raises(errors.PartitionReadonly):
            await future
        await publisher.flush()
        heard: list[bascule.BasculeError] = []
        async with client.publisher(name, on_error=heard.append) as publisher:
            await publisher.send_all([b"a", (b"k", b"b")])
        assert [type(error) for error in heard] == [errors.PartitionReadonly] * 2


@on_loop
async def test_an_ack_that_does_not_come_is_an_unknown_outcome(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish(name, b"0")
        pause(broker.pid)
        try:
            with pytest.raises(bascule.OutcomeUnknown, match="no answer came"):
                await soon(client.publish(name, b"1", timeout=1))
            result = await soon(client.publish_many(name, [b"2"], timeout=1, raise_errors=False))
            assert isinstance(result.errors[0], bascule.OutcomeUnknown)
        finally:
            broker.process.send_signal(18)  # type: ignore[union-attr]
        ack = await client.publish(name, b"3")
        assert ack is not None


@pytest.mark.disturbs
@on_loop
async def test_a_broker_that_dies_leaves_publishes_of_unknown_outcome(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        await client.publish(name, b"0")
        broker.process.send_signal(19)  # type: ignore[union-attr]
        waiting = asyncio.create_task(client.publish(name, b"x", timeout=600))
        await asyncio.sleep(0.2)
        broker.kill()
        with pytest.raises(bascule.OutcomeUnknown):
            await soon(waiting)
        with pytest.raises(bascule.Unavailable):
            await soon(client.publish(name, b"x", timeout=0.5))


@on_loop
async def test_closing_ends_whatever_is_under_way(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    client = await bascule.connect(broker.address)
    await client.create_stream(name)
    publisher = client.publisher(name)
    await client.publish(name, b"0")
    await (await publisher.send(b"1"))
    broker.process.send_signal(19)  # type: ignore[union-attr]
    try:
        waiting = asyncio.create_task(client.publish(name, b"x", timeout=600))
        future = await publisher.send(b"y")
        await asyncio.sleep(0.1)
        await soon(client.close())
        with pytest.raises(bascule.OutcomeUnknown):
            await soon(waiting)
        with pytest.raises(bascule.OutcomeUnknown, match="closed"):
            await soon(future)
    finally:
        broker.process.send_signal(18)  # type: ignore[union-attr]


@on_loop
async def test_a_message_that_is_too_large_harms_no_other(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        small = [asyncio.create_task(client.publish(name, b"small")) for _ in range(10)]
        for size in (2 << 20, 5 << 20, 20 << 20):
            with pytest.raises(errors.RecordTooLarge):
                await client.publish(name, bytes(size))
        await asyncio.gather(*small)
        result = await client.publish_many(name, [b"1", bytes(5 << 20), b"2", b"3"], raise_errors=False)
        assert result.offsets == [10, -1, 11, 12]
        assert [type(error) for error in result.errors.values()] == [errors.RecordTooLarge]
        async with client.publisher(name, on_error=lambda _: None) as publisher:
            futures = [await publisher.send(value) for value in (b"4", bytes(5 << 20), b"5")]
        assert isinstance(futures[1].exception(), errors.RecordTooLarge)
        assert [futures[place].result().offset for place in (0, 2)] == [13, 14]


@on_loop
async def test_large_messages_keep_their_place(start_broker: StartBroker, name: str) -> None:
    broker = start_broker({"clustering.replication.max.bytes": 4 << 20}, embedded=True)
    async with bascule.connect(broker.address, timeout=60) as client:
        await client.create_stream(name)
        values = [b"a", b"b" * (3 << 20), b"c", b"d" * (3 << 20), b"e"]
        assert (await client.publish_many(name, values)).offsets == [0, 1, 2, 3, 4]
        async with client.publisher(name) as publisher:
            futures = [await publisher.send(value) for value in values]
        assert [future.result().offset for future in futures] == [5, 6, 7, 8, 9]
        found = [message.value async for message in client.subscribe(name, start="earliest", stop="latest")]
        assert found == values + values


@on_loop
async def test_a_full_window_makes_who_sends_wait(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        publisher = client.publisher(name, window=4, timeout=3, on_error=lambda _: None)
        await client.publish(name, b"0")
        broker.process.send_signal(19)  # type: ignore[union-attr]
        try:
            futures = [await soon(publisher.send(b"%d" % number)) for number in range(4)]
            await asyncio.sleep(1.5)  # so that their time is up well before its own
            began = time.monotonic()
            waiting = asyncio.create_task(publisher.send(b"late"))
            await asyncio.sleep(0.1)
            assert not waiting.done() or futures[0].done(), "there was no room yet"
            for future in futures:
                with pytest.raises(bascule.OutcomeUnknown):
                    await soon(future)
            try:
                futures = [await soon(waiting)]  # room, since the others were given up
            except bascule.DeadlineExceeded:
                assert time.monotonic() - began > 4.0, "there was room in time"
                futures = []  # this machine stood still until all had to be given up at once
        finally:
            broker.process.send_signal(18)  # type: ignore[union-attr]
        await asyncio.gather(*futures, return_exceptions=True)
        await publisher.close()
