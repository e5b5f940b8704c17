"""grpcio's asyncio client, and calls with compression. Its blocking client is what all other tests use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest

from tests.support.api_client import Api, Status, grpc, pb
from tests.support.broker_fixtures import MakeStream
from tests.support.broker_process import BrokerProcess

aio: Any = import_module("grpc.aio")


def methods(channel: Any) -> Any:
    def method(kind: str, name: str) -> Any:
        return getattr(channel, kind)(
            f"/proto.API/{name}",
            request_serializer=Api.input(name).SerializeToString,
            response_deserializer=Api.output(name).FromString,
        )

    return method


def test_publish_and_subscribe_on_one_loop(broker: BrokerProcess, make_stream: MakeStream) -> None:
    stream, count = make_stream(), 2000

    async def scenario() -> None:
        async with aio.insecure_channel(broker.address) as channel:
            method = methods(channel)
            subscription = method("unary_stream", "Subscribe")(pb.SubscribeRequest(stream=stream.name))
            assert await subscription.read() == pb.Message()

            async def requests() -> AsyncIterator[Any]:
                for number in range(count):
                    yield pb.PublishRequest(stream=stream.name, value=b"%d" % number, correlationId=str(number))

            session = method("stream_stream", "PublishAsync")(requests())
            acks = [answer.ack.offset async for answer in session]
            assert acks == list(range(count))
            assert await session.code() is Status.OK
            values = [(await subscription.read()).value for _ in range(count)]
            assert values == [b"%d" % number for number in range(count)]
            subscription.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_thousand_calls_at_once(broker: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream()

    async def scenario() -> None:
        async with aio.insecure_channel(broker.address) as channel:
            publish = methods(channel)("unary_unary", "Publish")
            request = pb.PublishRequest(stream=stream.name, value=b"x")
            answers = await asyncio.gather(*(publish(request, timeout=60) for _ in range(1000)))
            assert sorted(answer.ack.offset for answer in answers) == list(range(1000))

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_errors_have_code_and_text(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with aio.insecure_channel(broker.address) as channel:
            call = methods(channel)("unary_stream", "Subscribe")(pb.SubscribeRequest(stream="never-was"))
            with pytest.raises(aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is Status.NOT_FOUND
            assert "No such partition" in caught.value.details()

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize("algorithm", ["Gzip", "Deflate"])
def test_a_compressed_request_is_understood_or_refused_as_grpc_says(
    broker: BrokerProcess, make_stream: MakeStream, algorithm: str
) -> None:
    stream = make_stream()
    channel = grpc.insecure_channel(broker.address, compression=getattr(grpc.Compression, algorithm))
    publish = channel.unary_unary(
        "/proto.API/Publish",
        request_serializer=pb.PublishRequest.SerializeToString,
        response_deserializer=pb.PublishResponse.FromString,
    )
    call = publish.future(pb.PublishRequest(stream=stream.name, value=b"x" * 5000), timeout=60)
    assert call.code() in (Status.OK, Status.UNIMPLEMENTED), call.details()
    channel.close()


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "Bearer x" * 50)],
        [("x-many", "1"), ("x-many", "2"), ("x-empty", "")],
        *([("grpc-trace-bin", bytes(range(size)))] for size in (0, 1, 2, 3, 16, 255)),
    ],
)
def test_metadata_of_a_call_is_tolerated(api: Api, metadata: list[tuple[str, str | bytes]]) -> None:
    """Tracing sends binary headers with every call; grpcio leaves the padding of base64 out, as the protocol allows."""
    call = api.channel.unary_unary("/proto.API/FetchMetadata")
    assert call(b"", timeout=30, metadata=metadata)
