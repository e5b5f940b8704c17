"""Our own gRPC client against a real broker, without the client library: calls, subscriptions, a broker that is killed."""

from __future__ import annotations

import asyncio

import pytest

from bascule.net.grpc.channel import Channel, GrpcStatusError
from bascule.net.grpc.status import Status
from tests.support.api_client import pb
from tests.support.broker_fixtures import StartBroker
from tests.support.kernels.probes import PyClientStream

SECONDS = 60.0


class Subscription(PyClientStream):
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.over: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    def message(self, message: bytes) -> None:
        if message:
            self.values.append(pb.Message.FromString(message).value)

    def ended(self, status: int, text: str) -> None:
        self.over.set_result((status, text))


async def until(condition: object) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


def test_publish_subscribe_and_a_broker_that_is_killed(start_broker: StartBroker) -> None:
    broker = start_broker()

    async def scenario() -> None:
        lost: list[str] = []
        channel = Channel(broker.address, on_lost=lost.append)
        await channel.connect()
        create = pb.CreateStreamRequest(name="s", subject="s").SerializeToString()
        await channel.call(b"/proto.API/CreateStream", create, timeout=SECONDS)
        with pytest.raises(GrpcStatusError) as refused:
            await channel.call(b"/proto.API/CreateStream", create, timeout=SECONDS)
        assert refused.value.status == Status.ALREADY_EXISTS
        subscription = Subscription()
        channel.start(subscription, b"/proto.API/Subscribe")
        subscription.send(pb.SubscribeRequest(stream="s", startPosition=pb.EARLIEST).SerializeToString())
        subscription.half_close()
        sent = [b"%d" % number * 100 for number in range(200)]
        for value in sent:
            request = pb.PublishRequest(stream="s", value=value, ackPolicy=pb.LEADER).SerializeToString()
            reply = await channel.call(b"/proto.API/Publish", request, timeout=SECONDS)
            assert pb.PublishResponse.FromString(reply).ack.stream == "s"
        await until(lambda: len(subscription.values) >= len(sent))
        assert subscription.values == sent
        broker.kill()
        status, text = await asyncio.wait_for(subscription.over, SECONDS)
        assert status == Status.UNAVAILABLE
        assert "lost" in text
        await until(lambda: not channel.is_connected)
        assert len(lost) == 1
        await channel.close()

    asyncio.run(scenario())
