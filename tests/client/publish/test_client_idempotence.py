"""An idempotent publisher against a real broker: numbers, duplicates, fences, holes, and what may not be asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bascule
from bascule import errors
from bascule.client.publish.publisher import IdempotentPublisher
from bascule.producers import producer_headers
from tests.support.api_client import Api
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.on_loop import on_loop


def values(api: Api, name: str, partition: int = 0) -> list[bytes]:
    return [message.value for message in api.read(name, partition)]


@on_loop
async def test_messages_are_numbered_and_stored_in_order(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, partitions=2)
        async with client.publisher(name, idempotent=True, window=64) as publisher:
            assert isinstance(publisher, IdempotentPublisher)
            for number in range(500):
                await publisher.send(b"%d" % number, partition=number % 2, headers={"mine": b"1"})
        assert publisher.failed == 0
    for partition in (0, 1):
        found = api.read(name, partition)
        assert [message.value for message in found] == [b"%d" % number for number in range(partition, 500, 2)]
        assert [message.headers["bascule-sequence"] for message in found] == [b"%d" % number for number in range(250)]
        assert {message.headers["mine"] for message in found} == {b"1"}


@on_loop
async def test_work_that_is_done_again_under_its_epoch_is_not_stored_again(
    broker: BrokerProcess, api: Api, name: str
) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        for count in (3, 5):
            async with client.publisher(name, producer_id="job", epoch=4) as publisher:
                acks = [await one for one in await publisher.send_all([b"%d" % number for number in range(count)])]
        assert [(ack.offset, ack.duplicate) for ack in acks] == [(n, n < 3) for n in range(5)]
    assert values(api, name) == [b"0", b"1", b"2", b"3", b"4"]


@on_loop
async def test_the_three_headers_may_be_given_by_hand(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        for _ in range(2):
            ack = await client.publish(name, b"a", headers=producer_headers(b"me", 0, 0))
        assert ack is not None
        assert (ack.offset, ack.duplicate) == (0, True)
        with pytest.raises(errors.OutOfSequence):
            await client.publish(name, b"c", headers=producer_headers(b"me", 0, 2))
        with pytest.raises(errors.OutOfSequence):
            await client.publish(name, b"c", headers=producer_headers(b"me", 0, 2), correlation_id="alone")
        await client.publish(name, b"b", headers=producer_headers(b"me", 1, 0))
        for text in ("", "alone"):
            with pytest.raises(errors.ProducerFenced):
                await client.publish(name, b"x", headers=producer_headers(b"me", 0, 1), correlation_id=text)
        with pytest.raises(errors.CallerError):
            await client.publish(name, b"x", headers={"bascule-producer": b"me"})
        ack = await client.publish_to_subject(name, b"b", headers=producer_headers(b"me", 1, 0))
        assert ack is not None
        assert (ack.offset, ack.duplicate) == (1, True)
    assert values(api, name) == [b"a", b"b"]


@on_loop
async def test_a_publisher_that_begins_later_fences_the_one_before(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        old = client.publisher(name, producer_id="only-one", on_error=lambda _: None)
        await (await old.send(b"old"))
        new = client.publisher(name, producer_id="only-one")
        await (await new.send(b"new"))
        with pytest.raises(errors.ProducerFenced):
            await (await old.send(b"zombie"))
        with pytest.raises(errors.ProducerFenced):
            await old.send(b"zombie")
    assert values(api, name) == [b"old", b"new"]


@on_loop
async def test_what_is_refused_leaves_no_hole(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, optimistic_concurrency_control=True)
        failures: list[BaseException] = []
        async with client.publisher(name, idempotent=True, on_error=failures.append) as publisher:
            await publisher.send(b"0", expected_offset=0)
            await publisher.send(b"wrong", expected_offset=7)
            for number in range(1, 20):
                await publisher.send(b"%d" % number)
        assert [type(failure) for failure in failures] == [errors.IncorrectOffset]
    assert values(api, name) == [b"%d" % number for number in range(20)]


@on_loop
async def test_what_is_too_large_does_not_hold_up_the_others(broker: BrokerProcess, api: Api, name: str) -> None:
    failures: list[BaseException] = []
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        async with client.publisher(name, idempotent=True, on_error=failures.append) as publisher:
            await publisher.send(b"before")
            await publisher.send(b"L" * (1 << 20) + b"LL")
            await publisher.send(b"after")
    assert [type(failure) for failure in failures] == [errors.RecordTooLarge]
    assert values(api, name) == [b"before", b"after"]


@pytest.mark.disturbs
@on_loop
async def test_a_broker_that_is_killed_again_and_again_stores_everything_once(
    start_broker: StartBroker, name: str
) -> None:
    broker = start_broker()
    broker.config["listen"] = broker.address
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        async with client.publisher(name, idempotent=True, window=200, timeout=60) as publisher:
            for number in range(3000):
                await publisher.send(b"%d" % number)
                if number % 1000 == 500:
                    broker.kill()
                    await asyncio.to_thread(broker.restart)
        assert publisher.failed == 0
    api = broker.api()
    assert values(api, name) == [b"%d" % number for number in range(3000)]
    api.close()


@pytest.mark.parametrize(
    "choices",
    [
        {"idempotent": True, "ack": "none"},
        {"idempotent": True, "resend": False},
        {"idempotent": 1},
        {"producer_id": ""},
        {"producer_id": "x" * 65},
        {"producer_id": "p", "epoch": -1},
        {"producer_id": "p", "epoch": 10**18},
        {"epoch": 1},
    ],
)
@on_loop
async def test_what_may_not_be_asked_for(broker: BrokerProcess, choices: dict[str, Any]) -> None:
    async with bascule.connect(broker.address) as client:
        with pytest.raises(errors.InvalidOption):
            client.publisher("orders", **choices)
