"""Calls whose client is not known yet: they wait, keep their messages within bounds, and begin or end when it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bascule import limits
from bascule.errors import Unauthenticated
from bascule.kernels.grpc.server import CallStream, GrpcStream
from bascule.net.grpc.channel import Channel, GrpcStatusError
from bascule.net.grpc.server import Call, GrpcServer, Peer, unary
from bascule.net.grpc.status import Status
from tests.support.kernels.probes import PyClientStream

SECONDS = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, SECONDS))


ALICE = Peer("x:1", "alice", ("writers",))


class Answers(PyClientStream):
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def message(self, message: bytes) -> None:
        self.messages.append(message)

    def ended(self, status: int, _text: str) -> None:
        self.end.set_result(status)


class Recorder(CallStream):
    """Notes all hooks, and answers when the client has finished."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def opened(self) -> None:
        self.events.append(("opened", self.peer))
        self.send_headers()

    def received(self, message: bytes) -> None:
        self.events.append(message)

    def client_finished(self) -> None:
        self.send(b"%d" % len(self.events))
        self.finish(int(Status.OK))

    def ended(self) -> None:
        self.events.append("ended")


@asynccontextmanager
async def server(identify: Callable[[Peer, GrpcStream], Any], events: list[Any]) -> AsyncIterator[Channel]:
    async def who(_request: bytes, call: Call) -> bytes:
        return repr((call.peer.common_name, call.peer.roles)).encode()

    running = GrpcServer({b"/who": unary(who), b"/talk": lambda: Recorder(events)}, identify=identify)
    port = await running.start()
    channel = Channel(f"127.0.0.1:{port}")
    await channel.connect()
    try:
        yield channel
    finally:
        await channel.close()
        await running.stop()


def test_calls_wait_until_their_client_is_known_and_keep_their_order() -> None:
    async def work() -> None:
        known = asyncio.Event()
        events: list[Any] = []

        async def later() -> Peer:
            await known.wait()
            return ALICE

        async with server(lambda _peer, _stream: later(), events) as channel:
            answers = Answers()
            channel.start(answers, b"/talk")
            for number in range(50):
                answers.send(b"%d" % number)
            answers.half_close()
            asked = asyncio.create_task(channel.call(b"/who", b"?"))
            await asyncio.sleep(0.1)
            assert not events and not asked.done()
            known.set()
            assert await asked == b"('alice', ('writers',))"
            assert await answers.end == Status.OK
            assert answers.messages == [b"51"]
            assert events == [("opened", ALICE), *(b"%d" % number for number in range(50)), "ended"]

    run(work())


def test_a_known_client_does_not_wait_and_metadata_is_seen() -> None:
    async def work() -> None:
        def identify(peer: Peer, stream: GrpcStream) -> Peer:
            return Peer(peer.address, dict(stream.metadata)[b"authorization"].decode())

        async with server(identify, []) as channel:
            for name in ("a", "b", "a"):
                got = await channel.call(b"/who", b"?", metadata=(("authorization", name),))
                assert got == f"('{name}', ())".encode()

    run(work())


@pytest.mark.parametrize("is_late", [True, False])
def test_an_unknown_client_is_refused_and_the_call_never_begins(is_late: bool) -> None:
    async def work() -> None:
        events: list[Any] = []

        async def refuse() -> Peer:
            raise Unauthenticated("no")

        def identify(_peer: Peer, _stream: GrpcStream) -> Any:
            if is_late:
                return refuse()
            raise Unauthenticated("no")

        async with server(identify, events) as channel:
            with pytest.raises(GrpcStatusError) as caught:
                await channel.call(b"/who", b"?")
            assert (caught.value.status, caught.value.text) == (Status.UNAUTHENTICATED, "no")
            answers = Answers()
            channel.start(answers, b"/talk")
            answers.send(b"x")
            assert await answers.end == Status.UNAUTHENTICATED
            assert not events

    run(work())


def test_a_call_that_ends_while_it_waits_never_begins() -> None:
    async def work() -> None:
        known = asyncio.Event()
        events: list[Any] = []

        async def later() -> Peer:
            await known.wait()
            return ALICE

        async with server(lambda _peer, _stream: later(), events) as channel:
            answers = Answers()
            channel.start(answers, b"/talk")
            answers.send(b"x")
            await asyncio.sleep(0.05)
            answers.cancel()
            with pytest.raises(GrpcStatusError) as caught:
                await channel.call(b"/who", b"?", timeout=0.2)
            assert caught.value.status == Status.DEADLINE_EXCEEDED
            known.set()
            await asyncio.sleep(0.05)
            assert not events

    run(work())


def test_messages_that_wait_are_bounded() -> None:
    async def work() -> None:
        async def never() -> Peer:
            await asyncio.Event().wait()
            return ALICE

        async with server(lambda _peer, _stream: never(), []) as channel:
            calls = [Answers() for _ in range(40)]
            for one in calls:
                channel.start(one, b"/talk")
                one.send(bytes(limits.GRPC_MESSAGE_BYTES_DEFAULT - 100))
            done, waiting = await asyncio.wait(
                [one.end for one in calls], timeout=SECONDS / 2, return_when=asyncio.FIRST_COMPLETED
            )
            assert done and waiting
            assert {one.result() for one in done} == {Status.RESOURCE_EXHAUSTED}

    run(work())
