"""Publishing straight to NATS: envelopes out, acks in, the same face as through a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import bascule
from bascule import errors
from bascule.client.publish.publisher import NatsPublisher
from tests.support.api_client import Api
from tests.support.broker_fixtures import StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.nats_server import NatsServer
from tests.support.on_loop import on_loop, soon


@on_loop
async def test_messages_and_their_acks(broker: BrokerProcess, api: Api, name: str) -> None:
    async with bascule.connect(broker.address, nats=broker.nats_url) as client:
        await client.create_stream(name, f"{name}.s", partitions=2)
        async with client.nats_publisher(name, partitioner="round-robin") as publisher:
            futures = [
                await publisher.send(f"{number}", key=b"k", headers={"n": b"%d" % number}) for number in range(1000)
            ]
            await publisher.flush()
            acks = [future.result() for future in futures]
            assert [ack.offset for ack in acks] == [number // 2 for number in range(1000)]
            assert {ack.message_subject for ack in acks} == {f"{name}.s", f"{name}.s.1"}
            with pytest.raises(errors.InvalidOption, match="`partition` is 2"):
                await publisher.send(b"", partition=2)
        first = api.read(name, 1)[0]
        assert (first.key, first.value, dict(first.headers)["n"]) == (b"k", b"1", b"1")
        async with client.nats_publisher(name, ack="none") as publisher:
            await (await publisher.send(b"unacked"))
        await asyncio.to_thread(lambda: api.publish(name, b"behind"))
        assert [message.value for message in api.read(name)][-2:] == [b"unacked", b"behind"]


@on_loop
async def test_refusals(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name, optimistic_concurrency_control=True)
        with pytest.raises(errors.InvalidOption, match="`nats` is None"):
            client.nats_publisher(name)
        publisher = client.nats_publisher(name, nats=broker.nats_url, on_error=lambda _: None)
        assert (await (await publisher.send(b"0", expected_offset=0))).offset == 0
        with pytest.raises(errors.IncorrectOffset):
            await (await publisher.send(b"0", expected_offset=0))
        with pytest.raises(errors.RecordTooLarge):
            await publisher.send(bytes(64 << 20))
        await publisher.close()
        wild = f"{name}-wild"
        await client.create_stream(wild, f"{wild}.*")
        with pytest.raises(bascule.CallerError, match="wildcard"):
            await client.nats_publisher(wild, nats=broker.nats_url).connect()
        with pytest.raises(errors.StreamNotFound):
            await client.nats_publisher("nobody", nats=broker.nats_url).connect()


@on_loop
async def test_no_nats_server_is_told(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        with pytest.raises(bascule.Unavailable, match=r"127\.0\.0\.1:1"):
            await soon(client.nats_publisher(name, nats="nats://127.0.0.1:1").connect())


@on_loop
async def test_no_ack_is_an_unknown_outcome(broker: BrokerProcess, name: str) -> None:
    async with bascule.connect(broker.address) as client:
        await client.create_stream(name)
        async with client.nats_publisher(name, nats=broker.nats_url, timeout=0.3) as publisher:
            await _send_until_acked(publisher, b"0")  # a busy machine may need longer
            await client.pause_stream(name)  # over NATS nobody is there to wake it
            with pytest.raises(bascule.OutcomeUnknown):
                await soon(await publisher.send(b"1"))
            with pytest.raises(bascule.OutcomeUnknown):
                await publisher.flush()


@pytest.mark.disturbs
@on_loop
async def test_a_nats_server_that_comes_back(start_broker: StartBroker, tmp_path: Path, name: str) -> None:
    with NatsServer(tmp_path / "nats") as server:
        broker = start_broker(nats_url=server.url)
        async with bascule.connect(broker.address, timeout=20) as client:
            await client.create_stream(name)
            async with client.nats_publisher(name, nats=server.url, timeout=20, on_error=lambda _: None) as publisher:
                await (await publisher.send(b"0"))
                server.stop()
                future = await asyncio.wait_for(_sent_or_not(publisher, b"1"), 30)
                server.start()
                if future is not None:
                    with pytest.raises(bascule.OutcomeUnknown):
                        await soon(future)
                ack = await soon(await _send_until_acked(publisher, b"2"))
                assert ack.offset in (1, 2)


async def _sent_or_not(publisher: NatsPublisher, value: bytes) -> asyncio.Future[bascule.Ack] | None:
    """Sent into a connection that is about to be found dead, or refused because it is known to be."""
    send = asyncio.create_task(publisher.send(value))
    done, _ = await asyncio.wait([send], timeout=0.2)
    if done:
        return send.result()
    send.cancel()
    await asyncio.gather(send, return_exceptions=True)
    return None


async def _send_until_acked(publisher: NatsPublisher, value: bytes) -> asyncio.Future[bascule.Ack]:
    while True:
        future: asyncio.Future[bascule.Ack] = await publisher.send(value)
        await asyncio.wait([future])
        if future.exception() is None:
            return future
