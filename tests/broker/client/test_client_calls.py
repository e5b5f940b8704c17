"""The client's kernels against a real broker: columns out, batches in, refusals, a reader that is slow, a broker that dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from bascule.kernels.client.messages import Message
from bascule.kernels.client.streams import PublishAsyncClientStream, SubscribeClientStream
from bascule.kernels.envelope.messages import ALL, LEADER, NONE
from bascule.kernels.window.window import (
    FAILED,
    NOT_SENT,
    OUTCOME_UNKNOWN,
    SENT,
    STORED,
    Ack,
    PublishColumns,
    PublishTarget,
)
from bascule.net.grpc.channel import Channel
from tests.support.api_client import Api, pb
from tests.support.broker_fixtures import MakeStream, StartBroker
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import PATIENCE_SECONDS

BAD_REQUEST, NOT_FOUND, READONLY, INCORRECT_OFFSET = 1, 2, 4, 5
LARGE: Final = 1000

Scenario = Callable[[Channel], Awaitable[None]]


def with_channel(broker: BrokerProcess, scenario: Scenario) -> None:
    async def run() -> None:
        channel = Channel(broker.address, connect_timeout=PATIENCE_SECONDS)
        await channel.connect()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await scenario(channel)
        finally:
            await channel.close()

    asyncio.run(run())


def publisher(channel: Channel, window: int = 1024, **callbacks: Any) -> PublishAsyncClientStream:
    stream = PublishAsyncClientStream(window, **callbacks)
    channel.start(stream, b"/proto.API/PublishAsync")
    return stream


async def published(stream: PublishAsyncClientStream, target: PublishTarget, values: list[bytes]) -> PublishColumns:
    done: asyncio.Future[PublishColumns] = asyncio.get_running_loop().create_future()
    stream.publish_columns(PublishColumns(target, values, waiter=done))
    return await done


class Reader:
    def __init__(self, channel: Channel, stream: str, **options: int) -> None:
        self._news = asyncio.Event()
        request = pb.SubscribeRequest(stream=stream, startPosition=pb.EARLIEST)
        self.call = SubscribeClientStream(request.SerializeToString(), self._news.set, **options)
        channel.start(self.call, b"/proto.API/Subscribe")

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def take(self, count: int) -> list[Message]:
        found: list[Message] = []
        while len(found) < count:
            await self.until(lambda: self.call.waiting > 0 or self.call.finished)
            batch = self.call.take()
            assert batch is not None, self.call.status_text
            found += batch
        return found


@pytest.mark.parametrize("policy", [LEADER, ALL])
def test_columns_are_stored_in_order_and_each_row_knows_its_offset(
    broker: BrokerProcess, make_stream: MakeStream, policy: int
) -> None:
    stream = make_stream()
    values = [b"%d" % number for number in range(20_000)]

    async def scenario(channel: Channel) -> None:
        columns = await published(publisher(channel), PublishTarget(stream.name, 0, policy), values)
        assert columns.offsets.tolist() == list(range(20_000))
        assert columns.outcomes.tolist() == [STORED] * 20_000
        found = await Reader(channel, stream.name).take(20_000)
        assert [message.value for message in found] == values
        assert [message.offset for message in found] == list(range(20_000))

    with_channel(broker, scenario)


def test_a_message_comes_back_with_everything_it_had(broker: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream()

    async def scenario(channel: Channel) -> None:
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        room = asyncio.Event()
        out = publisher(channel, on_writable=room.set)
        if not out.has_room:
            await room.wait()
        assert out.publish(PublishTarget(stream.name), b"v", b"k", {"a": b"\xff", "größe": b""}, waiter=future) == 0
        ack = await future
        (message,) = await Reader(channel, stream.name).take(1)
        assert (ack.stream, ack.offset, ack.partition_subject) == (stream.name, 0, stream.subject)
        assert (message.stream, message.partition, message.subject, message.reply) == (
            stream.name,
            0,
            stream.subject,
            "",
        )
        assert (message.value, message.key, message.timestamp) == (b"v", b"k", ack.reception_timestamp)
        assert message.headers == {"a": b"\xff", "größe": b""}

    with_channel(broker, scenario)


def test_refusals_name_their_reason_and_the_call_goes_on(
    broker: BrokerProcess, api: Api, make_stream: MakeStream
) -> None:
    stream, frozen = make_stream(), make_stream()
    guarded = make_stream(optimisticConcurrencyControl=True)
    api.SetStreamReadonly(name=frozen.name, readonly=True)

    async def scenario(channel: Channel) -> None:
        refused: list[tuple[Any, int, int, str]] = []
        told = asyncio.Event()

        def failed(*what: Any) -> None:
            refused.append(what)
            told.set()

        out = publisher(channel, on_failed=failed)
        for name, code in ((frozen.name, READONLY), ("no-such-stream", NOT_FOUND), ("", NOT_FOUND)):
            columns = await published(out, PublishTarget(name), [b"a", b"b"])
            assert set(columns.outcomes.tolist()) <= {FAILED + code, FAILED + BAD_REQUEST}, name
            assert all(columns.texts.values())
        too_large = await published(out, PublishTarget(stream.name), [b"small", bytes(2 << 20)])
        assert too_large.outcomes.tolist() == [STORED, FAILED + BAD_REQUEST]
        assert out.publish(PublishTarget(guarded.name), b"v", expected_offset=5) >= 0
        await told.wait()
        assert refused[0][2:] == (INCORRECT_OFFSET, "incorrect expected offset")
        assert (await published(out, PublishTarget(stream.name), [b"after"])).outcomes.tolist() == [STORED]
        assert out.is_idle

    with_channel(broker, scenario)


def test_without_acks_messages_are_sent_and_stored(broker: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream()

    async def scenario(channel: Channel) -> None:
        columns = await published(publisher(channel, 1), PublishTarget(stream.name, 0, NONE), [b"v"] * 5000)
        assert columns.outcomes.tolist() == [SENT] * 5000
        assert len(await Reader(channel, stream.name).take(5000)) == 5000

    with_channel(broker, scenario)


def test_a_slow_reader_holds_the_broker_back_and_gets_everything(
    broker: BrokerProcess, make_stream: MakeStream
) -> None:
    stream = make_stream()
    count = 20_000

    async def scenario(channel: Channel) -> None:
        await published(publisher(channel), PublishTarget(stream.name), [bytes(LARGE)] * count)
        reader = Reader(channel, stream.name, batch_bytes=100_000, waiting_bytes_max=1 << 20)
        while not reader.call.is_held_back:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)
        assert reader.call.waiting < count / 2
        found = await reader.take(count)
        assert [message.offset for message in found] == list(range(count))

    with_channel(broker, scenario)


def test_half_close_lets_acks_come_and_ends_the_call(broker: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream()

    async def scenario(channel: Channel) -> None:
        ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        out = publisher(channel, on_ended=lambda *what: ended.set_result(what))
        columns = PublishColumns(PublishTarget(stream.name), [b"v"] * 100)
        await published(out, PublishTarget(stream.name), [b"first"])
        out.publish_columns(columns)
        out.half_close()
        assert await ended == (0, "")
        assert columns.outcomes.tolist() == [STORED] * 100

    with_channel(broker, scenario)


def test_when_the_broker_is_killed_every_row_knows_whether_it_may_be_stored(start_broker: StartBroker) -> None:
    broker = start_broker()
    api = broker.api()
    api.CreateStream(name="s", subject="s.subject")
    api.close()
    kept: list[PublishColumns] = []

    async def scenario(channel: Channel) -> None:
        done: asyncio.Future[PublishColumns] = asyncio.get_running_loop().create_future()
        columns = PublishColumns(PublishTarget("s"), [b"%d" % number for number in range(300_000)], waiter=done)
        publisher(channel).publish_columns(columns)
        while columns.answered < 20_000:
            await asyncio.sleep(0.001)
        # At once: while a thread gets ready to do it, all might be stored.
        os.kill(broker.pid, signal.SIGKILL)
        await asyncio.to_thread(broker.wait)
        await done
        kept.append(columns)

    async def read_back(channel: Channel) -> None:
        (columns,) = kept
        outcomes, offsets = columns.outcomes.tolist(), columns.offsets.tolist()
        assert set(outcomes) <= {STORED, OUTCOME_UNKNOWN, NOT_SENT}
        stored = [row for row, outcome in enumerate(outcomes) if outcome == STORED]
        assert 20_000 <= len(stored) < 300_000
        assert columns.sent == outcomes.index(NOT_SENT)
        found = await Reader(channel, "s").take(offsets[stored[-1]] + 1)
        values = {message.offset: message.value for message in found}
        assert all(values[offsets[row]] == b"%d" % row for row in stored)

    with_channel(broker, scenario)
    broker.start()
    with_channel(broker, read_back)
