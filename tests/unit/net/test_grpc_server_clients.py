"""The gRPC server as real clients see it: grpcio, blocking and asyncio, with and without TLS, on both event loops."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import grpc  # type: ignore[import-untyped]
import pytest
import uvloop

from bascule.errors import InvalidConfig, LogDeleted, Unavailable
from bascule.kernels.grpc.server import CallStream, UnaryStream
from bascule.net.grpc.server import Call, GrpcServer, Route, unary
from bascule.net.grpc.status import GrpcError, Status
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.tls import server_tls
from tests.support.certificates import Authority
from tests.support.http2_client import END_HEADERS, END_STREAM, Http2Client, request

Scenario = Callable[[], Awaitable[None]]
RUNNERS: dict[str, Callable[[Any], None]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    return lambda scenario: RUNNERS[request.param](scenario())


class Echo(CallStream):
    def received(self, message: bytes) -> None:
        self.send(message)

    def client_finished(self) -> None:
        self.finish(Status.OK)


class Numbers(CallStream):
    """Counts for ever, as fast as the client reads."""

    alive: ClassVar[weakref.WeakSet[Numbers]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.next = 0
        self.lasting = True
        self.alive.add(self)

    def client_finished(self) -> None:
        self.writable()

    def writable(self) -> None:
        while self.room_bytes:
            self.send(b"%01000d" % self.next)
            self.next += 1


class Answers:
    """What handlers saw."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.cancelled = 0

    async def hello(self, request: bytes, call: Call) -> bytes:
        self.calls.append(call)
        match request:
            case b"refused":
                raise GrpcError(Status.NOT_FOUND, "nöthing, 100 %\n")
            case b"ours":
                raise LogDeleted("it is gone", hint="look elsewhere")
            case b"later":
                raise Unavailable("not now")
            case b"bug":
                raise RuntimeError("planted")
            case b"wrong":
                return "text"  # type: ignore[return-value]
            case b"sleep":
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
        return b"hello " + request

    def routes(self) -> dict[bytes, Route]:
        return {
            b"/test/Hello": unary(self.hello),
            b"/test/Echo": Echo,
            b"/test/Numbers": Numbers,
            b"/test/Unary": lambda: UnaryStream(lambda stream, request: stream.reply(request)),
        }


class Serving:
    def __init__(self, **options: Any) -> None:
        self.answers = Answers()
        self.server = GrpcServer(self.answers.routes(), **options)

    async def __aenter__(self) -> Serving:
        self.address = f"localhost:{await self.server.start('127.0.0.1')}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    def channel(self) -> Any:
        return grpc.aio.insecure_channel(self.address)


async def refusal(call: Awaitable[object]) -> tuple[Any, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details()


def test_a_unary_call(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:
            hello = channel.unary_unary("/test/Hello")
            metadata = (("x-text", "a"), ("x-raw-bin", b"\0\xff\x80"))
            assert await hello(b"you", timeout=30, metadata=metadata) == b"hello you"
            (call,) = serving.answers.calls
            assert call.path == b"/test/Hello"
            assert call.timeout is not None and 15 < call.timeout < 31
            assert call.peer.address.startswith("127.0.0.1:")
            assert call.peer.common_name is None
            assert (b"x-text", b"a") in call.metadata
            assert (b"x-raw-bin", b"\0\xff\x80") in call.metadata
            assert not any(name.startswith((b":", b"grpc-")) for name, _ in call.metadata)
            await hello(b"again")
            assert serving.answers.calls[-1].timeout is None

    run(scenario)


def test_binary_metadata_of_any_length(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:
            hello = channel.unary_unary("/test/Hello")
            sent = tuple(("x-raw-bin", bytes(255 - number for number in range(size))) for size in range(7))
            assert await hello(b"you", metadata=sent) == b"hello you"
            got = [value for name, value in serving.answers.calls[0].metadata if name == b"x-raw-bin"]
            assert got == [value for _, value in sent]

    run(scenario)


def test_errors_are_statuses(run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:
            hello = channel.unary_unary("/test/Hello")
            assert await refusal(hello(b"refused")) == (grpc.StatusCode.NOT_FOUND, "nöthing, 100 %\n")
            assert await refusal(hello(b"ours")) == (grpc.StatusCode.NOT_FOUND, "it is gone")
            assert await refusal(hello(b"later")) == (grpc.StatusCode.UNAVAILABLE, "not now")
            for fault in (b"bug", b"wrong"):
                assert await refusal(hello(fault)) == (grpc.StatusCode.INTERNAL, "internal error")
            assert (await refusal(hello(bytes(4 << 20 | 1))))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await refusal(channel.unary_unary("/no/where")(b"")))[0] == grpc.StatusCode.UNIMPLEMENTED
            assert await hello(b"still") == b"hello still"
        assert "planted" in caplog.text

    run(scenario)


def test_messages_up_to_the_limit_in_every_size(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:
            echo = channel.unary_unary("/test/Unary")
            for size in (0, 1, 16_379, 16_380, 65_535, 65_536, 1 << 20, (4 << 20) - 5):
                assert await echo(bytes(size)) == bytes(size)
            for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                assert await echo(bytes(100_000), compression=compression) == bytes(100_000)

    run(scenario)


def test_both_ways_at_the_same_time(run: Callable[[Scenario], None]) -> None:
    messages = [b"%d" % number * (number % 300) for number in range(3000)]

    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:

            async def requests() -> AsyncIterator[bytes]:
                for message in messages:
                    yield message

            assert [one async for one in channel.stream_stream("/test/Echo")(requests())] == messages

    run(scenario)


def test_many_calls_at_once(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:
            hello = channel.unary_unary("/test/Hello")
            answers = await asyncio.gather(*(hello(b"%d" % number) for number in range(500)))
            assert answers == [b"hello %d" % number for number in range(500)]

    run(scenario)


def test_a_client_that_gives_up_cancels_the_handler(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:
            hello = channel.unary_unary("/test/Hello")
            call = hello(b"sleep")
            while not serving.answers.calls:
                await asyncio.sleep(0.001)
            call.cancel()
            while not serving.answers.cancelled:
                await asyncio.sleep(0.001)
            while len(serving.answers.calls) < 2:  # it may be over before it was heard
                assert (await refusal(hello(b"sleep", timeout=0.2)))[0] == grpc.StatusCode.DEADLINE_EXCEEDED
            while serving.answers.cancelled < len(serving.answers.calls):
                await asyncio.sleep(0.001)

    run(scenario)


def test_a_subscription_that_is_dropped_leaves_nothing(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving:
            async with serving.channel() as channel:
                for _ in range(10):
                    numbers = channel.unary_stream("/test/Numbers")(b"")
                    assert [int(await numbers.read()) for _ in range(100)] == list(range(100))
                    numbers.cancel()
                abandoned = channel.unary_stream("/test/Numbers")(b"")
                await abandoned.read()
            while any(one.connection.open_streams for one in serving.server.connections):
                await asyncio.sleep(0.001)
        gc.collect()
        assert not Numbers.alive

    run(scenario)


def test_stopping_tells_subscribers_to_come_back(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:
            numbers = channel.unary_stream("/test/Numbers")(b"")
            await numbers.read()
            stopping = asyncio.ensure_future(serving.server.stop(120))

            async def read_on() -> None:
                while True:
                    await numbers.read()

            assert (await refusal(read_on()))[0] == grpc.StatusCode.UNAVAILABLE
            await asyncio.wait_for(stopping, 60)

    run(scenario)


def test_a_call_in_progress_may_end_while_the_server_stops(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving, serving.channel() as channel:
            call = channel.stream_stream("/test/Echo")()
            await call.write(b"a")
            assert await call.read() == b"a"
            stopping = asyncio.ensure_future(serving.server.stop(120))
            await asyncio.sleep(0.05)
            await call.write(b"b")
            assert await call.read() == b"b"
            await call.done_writing()
            assert await call.code() == grpc.StatusCode.OK
            await asyncio.wait_for(stopping, 60)

    run(scenario)


def test_a_blocking_client(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Serving() as serving:

            def ask() -> None:
                with grpc.insecure_channel(serving.address) as channel:
                    assert channel.unary_unary("/test/Hello")(b"you", timeout=60) == b"hello you"
                    echoed: Iterator[bytes] = channel.stream_stream("/test/Echo")(iter([b"1", b"2"]))
                    assert list(echoed) == [b"1", b"2"]

            await asyncio.to_thread(ask)

    run(scenario)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def test_tls(run: Callable[[Scenario], None], authority: Authority) -> None:
    own = authority.issue("localhost")

    async def scenario() -> None:
        async with (
            Serving(tls=ReloadableTls(lambda: server_tls(own.cert, own.key))) as serving,
            grpc.aio.secure_channel(serving.address, authority.credentials()) as channel,
        ):
            assert await channel.unary_unary("/test/Hello")(b"you") == b"hello you"
            big = bytes(3_000_000)
            assert await channel.unary_unary("/test/Unary")(big) == big
            numbers = channel.unary_stream("/test/Numbers")(b"")
            assert [int(await numbers.read()) for _ in range(5000)] == list(range(5000))
            assert serving.answers.calls[0].peer.common_name is None

    run(scenario)


def test_tls_with_certificates_of_clients(run: Callable[[Scenario], None], authority: Authority) -> None:
    own, client = authority.issue("localhost"), authority.issue("client-7")
    context = server_tls(own.cert, own.key, client_ca=authority.file, requires_client=True)

    async def scenario() -> None:
        async with Serving(tls=ReloadableTls(lambda: context)) as serving:
            async with grpc.aio.secure_channel(serving.address, authority.credentials(client)) as channel:
                assert await channel.unary_unary("/test/Hello")(b"you") == b"hello you"
                assert serving.answers.calls[0].peer.common_name == "client-7"
            async with grpc.aio.secure_channel(serving.address, authority.credentials()) as channel:
                assert (await refusal(channel.unary_unary("/test/Hello")(b"you")))[0] == grpc.StatusCode.UNAVAILABLE

    run(scenario)


def test_tls_offers_http2_and_nothing_else(authority: Authority) -> None:
    own = authority.issue("localhost")

    async def scenario() -> None:
        async with Serving(tls=ReloadableTls(lambda: server_tls(own.cert, own.key))) as serving:
            context = ssl.create_default_context(cafile=str(authority.file))
            context.set_alpn_protocols(["http/1.1", "h2"])
            host, port = serving.address.split(":")
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            writer.close()

    asyncio.run(scenario())


def test_unusable_certificates_are_named(tmp_path: Path, authority: Authority) -> None:
    own, other = authority.issue("localhost"), authority.issue("other")
    for certificate, key in ((own.cert, None), (tmp_path / "missing.pem", own.key), (own.cert, other.key)):
        with pytest.raises(InvalidConfig):
            server_tls(certificate, key)
    with pytest.raises(InvalidConfig):
        server_tls(own.cert, own.key, client_ca=tmp_path / "missing.pem", requires_client=True)


def test_a_connection_is_gone_as_soon_as_it_is_lost() -> None:
    """Nothing waits for the collector of cycles."""

    async def scenario() -> None:
        async with Serving() as serving:
            host, port = serving.address.split(":")
            gone: list[weakref.ref[object]] = []
            Numbers.alive.clear()  # those of other tests may wait for it
            gc.disable()
            try:
                for number in range(5):
                    with Http2Client(
                        int(port), sock=await asyncio.to_thread(socket.create_connection, (host, int(port)))
                    ) as client:
                        client.headers(1, request("/test/Numbers"), END_HEADERS | END_STREAM)
                        client.headers(3, request("/test/Echo"))
                        client.call(5, "/test/Hello", b"sleep" if number % 2 else b"you")
                        client.data(99 if number % 3 == 0 else 3, b"x")
                        await asyncio.to_thread(client.read)
                        gone += [weakref.ref(one) for one in serving.server.connections]
                assert len(gone) >= 5
                async with asyncio.timeout(60):
                    while serving.server.connections or Numbers.alive or any(one() is not None for one in gone):
                        await asyncio.sleep(0.001)
            finally:
                gc.enable()

    asyncio.run(scenario())
