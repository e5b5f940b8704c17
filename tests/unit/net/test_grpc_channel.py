"""The channel as its users see it: against our own server and grpcio's, with and without TLS, on both event loops."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
import uvloop

from bascule.errors import InvalidConfig
from bascule.kernels.grpc.client import UnaryCall
from bascule.kernels.grpc.server import CallStream, UnaryStream
from bascule.net.grpc.channel import Channel, GrpcStatusError, split_address
from bascule.net.grpc.server import Call, GrpcServer, Route, unary
from bascule.net.grpc.status import GrpcError, Status
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.tls import client_tls, server_tls
from tests.support.certificates import Authority
from tests.support.kernels.probes import PyClientStream

SECONDS = 120.0
Scenario = Callable[[], Awaitable[None]]
RUNNERS: dict[str, Callable[[Any], None]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    return lambda scenario: RUNNERS[request.param](scenario())


class Echo(CallStream):
    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.last_seen = False

    def received(self, message: bytes) -> None:
        self.waiting.append(message)
        self.writable()

    def client_finished(self) -> None:
        self.last_seen = True
        self.writable()

    def writable(self) -> None:
        while self.waiting and self.room_bytes:
            self.send(self.waiting.pop(0))
        if self.last_seen and not self.waiting:
            self.finish(Status.OK)


class Answers:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.cancelled = 0

    async def hello(self, request: bytes, call: Call) -> bytes:
        self.calls.append(call)
        match request:
            case b"refused":
                raise GrpcError(Status.NOT_FOUND, "nöthing, 100 %\n")
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
            b"/test/Unary": lambda: UnaryStream(lambda stream, request: stream.reply(request)),
        }


@asynccontextmanager
async def our_server(**options: Any) -> AsyncIterator[tuple[str, Answers]]:
    answers = Answers()
    server = GrpcServer(answers.routes(), **options)
    port = await server.start("127.0.0.1")
    try:
        yield f"127.0.0.1:{port}", answers
    finally:
        await server.stop()


@asynccontextmanager
async def grpcio_server(credentials: Any = None) -> AsyncIterator[str]:
    async def hello(request: bytes, context: Any) -> bytes:
        if request == b"refused":
            await context.abort(grpc.StatusCode.NOT_FOUND, "nöthing, 100 %\n")
        if request == b"sleep":
            await asyncio.sleep(60)
        context.set_trailing_metadata((("x-end", "1"), ("x-raw-bin", b"\0\xff")))
        return b"hello " + request

    async def echo(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def count(request: bytes, _: Any) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number

    methods = {
        "Hello": grpc.unary_unary_rpc_method_handler(hello),
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
        "Count": grpc.unary_stream_rpc_method_handler(count),
    }
    size = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=size, compression=grpc.Compression.Gzip)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    where = "127.0.0.1:0"
    port = server.add_insecure_port(where) if credentials is None else server.add_secure_port(where, credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected(address: str, **options: Any) -> AsyncIterator[Channel]:
    channel = Channel(address, **{"connect_timeout": SECONDS, **options})
    try:
        await channel.connect()
        yield channel
    finally:
        await channel.close()


async def refusal(call: Awaitable[object]) -> tuple[Status, str]:
    with pytest.raises(GrpcStatusError) as refused:
        await call
    return refused.value.status, refused.value.text


class Talk(PyClientStream):
    """Sends all it is given as there is room, and collects what comes."""

    def __init__(self, messages: list[bytes]) -> None:
        self.to_send = list(messages)
        self.heard: list[bytes] = []
        self.batches: list[int] = []
        self.over: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    def writable(self) -> None:
        while self.to_send and self.room_bytes:
            self.send(self.to_send.pop(0))
        if not self.to_send:
            self.half_close()

    def message(self, message: bytes) -> None:
        self.heard.append(message)

    def messages_done(self) -> None:
        self.batches.append(len(self.heard))

    def ended(self, status: int, text: str) -> None:
        self.over.set_result((status, text))


def test_calls_to_our_own_server(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with (
            our_server() as (address, answers),
            connected(address, metadata=[("authorization", "me")]) as channel,
        ):
            metadata = (("x-text", "a"), ("x-raw-bin", b"\0\xff\x80"))
            assert await channel.call(b"/test/Hello", b"you", timeout=30, metadata=metadata) == b"hello you"
            (call,) = answers.calls
            assert call.timeout is not None and 15 < call.timeout < 31
            assert {(b"authorization", b"me"), (b"x-text", b"a"), (b"x-raw-bin", b"\0\xff\x80")} <= set(call.metadata)
            assert await channel.call(b"/test/Hello", b"again") == b"hello again"
            assert answers.calls[-1].timeout is None
            assert await refusal(channel.call(b"/test/Hello", b"refused")) == (Status.NOT_FOUND, "nöthing, 100 %\n")
            assert (await refusal(channel.call(b"/no/where", b"")))[0] == Status.UNIMPLEMENTED
            for size in (0, 1, 16_379, 65_536, 1 << 20, (4 << 20) - 5):
                assert await channel.call(b"/test/Unary", bytes(size)) == bytes(size)
            assert (await refusal(channel.call(b"/test/Unary", bytes(5 << 20))))[0] == Status.RESOURCE_EXHAUSTED
            assert await asyncio.gather(*(channel.call(b"/test/Unary", b"%d" % n) for n in range(2000))) == [
                b"%d" % number for number in range(2000)
            ]
            assert channel.open_calls == 0

    run(scenario)


def test_calls_to_grpcio(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with grpcio_server() as address, connected(address) as channel:
            assert await channel.call(b"/test/Hello", b"you", timeout=30) == b"hello you"
            large = bytes(range(256)) * 40_000
            assert await channel.call(b"/test/Hello", large) == b"hello " + large
            assert await refusal(channel.call(b"/test/Hello", b"refused")) == (Status.NOT_FOUND, "nöthing, 100 %\n")
            assert (await refusal(channel.call(b"/test/Hello", b"sleep", timeout=0.1)))[0] == Status.DEADLINE_EXCEEDED
            assert (await refusal(channel.call(b"/no/where", b"")))[0] == Status.UNIMPLEMENTED
            done: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
            call = UnaryCall(done.set_result)
            channel.start(call, b"/test/Hello")
            call.send(b"you")
            call.half_close()
            await done
            assert call.trailers is not None and set(call.trailers) == {(b"x-end", b"1"), (b"x-raw-bin", b"\0\xff")}

    run(scenario)


@pytest.mark.parametrize("server", ["ours", "grpcio"])
def test_messages_both_ways_at_once(run: Callable[[Scenario], None], server: str) -> None:
    async def talk(address: str) -> None:
        messages = [bytes([number % 256]) * (number * 37 % 5000) for number in range(2000)] + [bytes(3 << 20)]
        async with connected(address) as channel, asyncio.timeout(SECONDS):
            talks = [Talk(messages) for _ in range(3)]
            for one in talks:
                channel.start(one, b"/test/Echo", timeout=SECONDS)
            for one in talks:
                assert await one.over == (0, "")
                assert one.heard == messages
                assert one.batches[-1] == len(messages)

    async def scenario() -> None:
        if server == "ours":
            async with our_server() as (address, _):
                await talk(address)
        else:
            async with grpcio_server() as address:
                await talk(address)

    run(scenario)


def test_a_stream_of_messages_of_grpcio(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with grpcio_server() as address, connected(address) as channel:
            talk = Talk([b"5000"])
            channel.start(talk, b"/test/Count")
            assert await talk.over == (0, "")
            assert talk.heard == [b"%d" % number for number in range(5000)]

    run(scenario)


def test_tls_with_a_client_certificate(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue(None), authority.issue("alice")
    context = server_tls(server.cert, server.key, client_ca=authority.file, requires_client=True)

    async def scenario() -> None:
        async with our_server(tls=ReloadableTls(lambda: context)) as (address, answers):
            trusted = client_tls(authority.file, client.cert, client.key)
            async with connected(address, tls=trusted) as channel:
                assert await channel.call(b"/test/Hello", b"you") == b"hello you"
                assert answers.calls[0].peer.common_name == "alice"
                large = bytes(3 << 20)
                replies = await asyncio.gather(*(channel.call(b"/test/Unary", large) for _ in range(5)))
                assert replies == [large] * 5
            async with connected(address.replace("127.0.0.1", "localhost"), tls=trusted) as channel:
                assert await channel.call(b"/test/Hello", b"you") == b"hello you"
            nameless = Channel(address, tls=client_tls(authority.file), connect_timeout=SECONDS)
            with pytest.raises(GrpcStatusError) as refused:
                await nameless.connect()
            assert refused.value.status == Status.UNAVAILABLE
            assert "certificate" in refused.value.text.lower()
            await nameless.close()

    run(scenario)


def test_tls_of_grpcio(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue(None), authority.issue("alice")
    pairs = [(server.key.read_bytes(), server.cert.read_bytes())]
    credentials = grpc.ssl_server_credentials(pairs, authority.file.read_bytes(), require_client_auth=True)

    async def scenario() -> None:
        async with grpcio_server(credentials) as address:
            trusted = client_tls(authority.file, client.cert, client.key)
            async with connected(address, tls=trusted) as channel:
                large = bytes(1 << 20)
                assert await channel.call(b"/test/Hello", large) == b"hello " + large

    run(scenario)


def test_a_server_that_cannot_be_trusted_is_not_spoken_to(run: Callable[[Scenario], None], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "other authority")
    server = authority.issue(None)
    context = server_tls(server.cert, server.key)

    async def scenario() -> None:
        async with our_server(tls=ReloadableTls(lambda: context)) as (address, _):
            for options, text in (
                ({"tls": client_tls(stranger.file)}, "TLS failed"),
                ({"tls": client_tls()}, "TLS failed"),
                ({"tls": client_tls(authority.file), "tls_name": "elsewhere"}, "TLS failed"),
                ({}, "cannot reach"),
            ):
                channel = Channel(address, connect_timeout=SECONDS, **options)
                with pytest.raises(GrpcStatusError, match=text) as refused:
                    await channel.connect()
                assert refused.value.unprocessed
                await channel.close()
        async with our_server() as (address, _):
            channel = Channel(address, tls=client_tls(authority.file), connect_timeout=5)
            with pytest.raises(GrpcStatusError, match="cannot reach"):
                await channel.connect()
            await channel.close()

    run(scenario)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for arguments in ((wrong,), (tmp_path / "missing",), (None, wrong), (None, None, wrong)):
        with pytest.raises(InvalidConfig, match=str(tmp_path)):
            client_tls(*arguments)
    assert client_tls().verify_mode == ssl.CERT_REQUIRED


def test_a_deadline_reaches_the_server(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with our_server() as (address, answers), connected(address) as channel:
            while not answers.calls:  # it may be over before it was heard
                sleeping = channel.call(b"/test/Hello", b"sleep", timeout=0.1)
                assert (await refusal(sleeping))[0] == Status.DEADLINE_EXCEEDED
            begun = len(answers.calls)
            waiting = asyncio.create_task(channel.call(b"/test/Hello", b"sleep", timeout=SECONDS))
            async with asyncio.timeout(SECONDS):
                while len(answers.calls) == begun:
                    await asyncio.sleep(0.01)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                while answers.cancelled < len(answers.calls):
                    await asyncio.sleep(0.01)
            assert await channel.call(b"/test/Hello", b"still") == b"hello still"

    run(scenario)


def test_a_server_that_stops_and_one_that_is_back(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        lost: list[str] = []
        answers = Answers()
        server = GrpcServer(answers.routes())
        port = await server.start("127.0.0.1")
        channel = Channel(f"127.0.0.1:{port}", connect_timeout=SECONDS, on_lost=lost.append)
        with pytest.raises(GrpcStatusError, match="not connected") as refused:
            await channel.call(b"/test/Hello", b"")
        assert refused.value.unprocessed
        await channel.connect()
        await channel.connect()
        waiting = asyncio.create_task(channel.call(b"/test/Hello", b"sleep"))
        while not answers.calls:
            await asyncio.sleep(0.01)
        await server.stop()
        assert await refusal(waiting) == (Status.UNAVAILABLE, "the server is shutting down")
        assert len(lost) == 1
        assert not channel.is_connected
        with pytest.raises(GrpcStatusError, match="connection refused"):
            await channel.connect()
        server = GrpcServer(answers.routes())
        await server.start("127.0.0.1", port)
        await channel.connect()
        assert await channel.call(b"/test/Hello", b"you") == b"hello you"
        waiting = asyncio.create_task(channel.call(b"/test/Hello", b"sleep"))
        await asyncio.sleep(0.05)
        await channel.close()
        assert await refusal(waiting) == (Status.CANCELLED, "the channel was closed")
        assert len(lost) == 1
        await server.stop()

    run(scenario)


def test_calls_leave_nothing_behind() -> None:
    async def scenario() -> None:
        async with our_server() as (address, _), connected(address) as channel:
            talk = Talk([b"a", b"b"])
            channel.start(talk, b"/test/Echo", timeout=SECONDS)
            await talk.over
            watched = weakref.ref(talk)
            del talk
            gc.collect()
            assert watched() is None

    asyncio.run(scenario())


def test_what_no_call_can_have_is_refused() -> None:
    async def scenario() -> None:
        async with our_server() as (address, _), connected(address) as channel:
            for name in ("Upper", "grpc-timeout", ":path", "te", "a b", "", "connection"):
                with pytest.raises(ValueError, match="metadata cannot be named"):
                    await channel.call(b"/test/Hello", b"", metadata=[(name, "x")])
            for value in ("a\nb", " a", "a\0"):
                with pytest.raises(ValueError, match="no header can have"):
                    await channel.call(b"/test/Hello", b"", metadata=[("x", value)])
            for path in (b"test", b"", b"/a\nb"):
                with pytest.raises(ValueError, match="path of a call"):
                    await channel.call(path, b"")
            with pytest.raises(ValueError, match="can be sent"):
                await channel.call(b"/test/Hello", b"", metadata=[("x", "y" * 20_000)])
            talk = Talk([])
            talk.send(b"before it is made, which goes nowhere")
            talk.half_close()
            assert talk.room_bytes == 0
            channel.start(talk, b"/test/Echo")
            with pytest.raises(ValueError, match="made once"):
                channel.start(talk, b"/test/Echo")
            assert await talk.over == (0, "")
            assert talk.heard == []
            with pytest.raises(ValueError, match="made once"):
                channel.start(talk, b"/test/Echo")
            assert channel.open_calls == 0

    asyncio.run(scenario())


def test_a_hook_that_fails_ends_its_call_only(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Talk):
        def message(self, message: bytes) -> None:
            raise RuntimeError(f"planted: {message!r}")

    async def scenario() -> None:
        async with our_server() as (address, _), connected(address) as channel:
            broken = Broken([b"a"])
            channel.start(broken, b"/test/Echo")
            status, text = await broken.over
            assert status == Status.INTERNAL
            assert "planted" in text
            assert await channel.call(b"/test/Hello", b"you") == b"hello you"

    asyncio.run(scenario())
    assert "planted" in caplog.text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9292", ("127.0.0.1", 9292)),
        ("broker", ("broker", 9292)),
        ("broker.example:1", ("broker.example", 1)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 9292)),
    ],
)
def test_an_address(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["", ":1", "host:", "host:0", "host:65536", "host:x", "::1", "[x]:1", "a:b:c"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        Channel(text)
