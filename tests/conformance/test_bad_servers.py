"""What a server may do to our client, and what it may not: each fault has a status and names itself, and nothing hangs or grows."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from bascule import limits
from bascule.net.grpc.channel import Channel, GrpcStatusError
from bascule.net.grpc.status import Status
from tests.support.http2_client import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    grpc_message,
    settings,
)
from tests.support.kernels.probes import PyClientStream
from tests.support.scripted_server import HEAD, Peer, Script, scripted

SECONDS = 60.0
Scenario = Callable[[], Awaitable[None]]
RUNNERS: dict[str, Callable[[Any], None]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


async def failure_of(script: Script, *, timeout: float = SECONDS, **options: Any) -> GrpcStatusError:
    """How one call ends."""
    async with scripted(script) as address, asyncio.timeout(2 * SECONDS):
        channel = Channel(address, connect_timeout=SECONDS, **options)
        try:
            await channel.connect()
            with pytest.raises(GrpcStatusError) as failed:
                await channel.call(b"/test/Call", b"request", timeout=timeout)
        finally:
            await channel.close()
    return failed.value


def answer_with(*frames: Callable[[Peer, int], object]) -> Script:
    """Reads one call, does this, and waits for the client to leave."""

    async def script(peer: Peer) -> None:
        await peer.begin()
        stream = await peer.whole_request()
        for one in frames:
            one(peer, stream)
        await peer.until(GOAWAY)

    return script


def raw(data: bytes) -> Callable[[Peer, int], None]:
    return lambda peer, _: peer.send(data)


def head(peer: Peer, stream: int) -> None:
    peer.headers(stream, HEAD)


def fields(*given: tuple[str, str], ends: bool = True) -> Callable[[Peer, int], None]:
    return lambda peer, stream: peer.headers(stream, list(given), ends=ends)


def data(payload: bytes, flags: int = 0) -> Callable[[Peer, int], None]:
    return lambda peer, stream: peer.send(frame(DATA, flags, stream, payload))


NOT_GRPC = (":status", "200"), ("content-type", "text/html")
RESPONSES: dict[str, tuple[list[Callable[[Peer, int], object]], Status, str]] = {
    "trailers only": ([fields(*HEAD, ("grpc-status", "5"), ("grpc-message", "n%C3%B6 %25"))], Status.NOT_FOUND, "nö %"),
    "trailers": (
        [head, fields(("grpc-status", "9"), ("grpc-message", "not %zz"))],
        Status.FAILED_PRECONDITION,
        "not %zz",
    ),
    "status and no text": ([fields(*HEAD, ("grpc-status", "8"))], Status.RESOURCE_EXHAUSTED, ""),
    "HTTP 503": ([fields((":status", "503"))], Status.UNAVAILABLE, "HTTP status 503"),
    "HTTP 404": ([fields((":status", "404"), ends=False)], Status.UNIMPLEMENTED, "HTTP status 404"),
    "HTTP 401": ([fields((":status", "401"))], Status.UNAUTHENTICATED, "HTTP status 401"),
    "HTTP 403": ([fields((":status", "403"))], Status.PERMISSION_DENIED, "HTTP status 403"),
    "HTTP 400": ([fields((":status", "400"))], Status.INTERNAL, "HTTP status 400"),
    "HTTP 302": ([fields((":status", "302"))], Status.UNKNOWN, "HTTP status 302"),
    "a web page": ([fields(*NOT_GRPC, ends=False)], Status.UNKNOWN, "content-type text/html"),
    "503 with a status": ([fields((":status", "503"), ("grpc-status", "4"))], Status.DEADLINE_EXCEEDED, ""),
    "no status": ([fields(*HEAD)], Status.UNKNOWN, "no status"),
    "no status in trailers": ([head, fields(("x", "y"))], Status.UNKNOWN, "no status"),
    "a status that gRPC lacks": ([fields(*HEAD, ("grpc-status", "77"))], Status.UNKNOWN, "status 77"),
    "a status of letters": ([fields(*HEAD, ("grpc-status", "OK"))], Status.UNKNOWN, "no number"),
    "OK without a message": ([fields(*HEAD, ("grpc-status", "0"))], Status.INTERNAL, "answered with none"),
    "two messages": ([head, data(grpc_message(b"a") * 2)], Status.INTERNAL, "answered with two"),
    "no trailers": ([head, data(grpc_message(b"a"), END_STREAM)], Status.INTERNAL, "without a status"),
    "half a message": (
        [head, data(b"\0\0\0\0\x09half"), fields(("grpc-status", "0"))],
        Status.INTERNAL,
        "within a message",
    ),
    "half a message, no trailers": ([head, data(b"\0\0", END_STREAM)], Status.INTERNAL, "within a message"),
    "a message of a kind unknown": ([head, data(b"\7\0\0\0\1x")], Status.INTERNAL, "0 or 1"),
    "compressed without saying how": ([head, data(grpc_message(b"x", 1))], Status.INTERNAL, "grpc-encoding"),
    "compressed with zstd": ([fields(*HEAD, ("grpc-encoding", "zstd"), ends=False)], Status.INTERNAL, "compresses"),
    "gzip that is none": (
        [fields(*HEAD, ("grpc-encoding", "gzip"), ends=False), data(grpc_message(b"no gzip", 1))],
        Status.INTERNAL,
        "decompressed",
    ),
    "a message of 4 GiB": ([head, data(b"\0\xff\xff\xff\xff")], Status.RESOURCE_EXHAUSTED, "4294967295 bytes"),
    "DATA first": ([data(grpc_message(b"a"))], Status.INTERNAL, "DATA before the headers"),
    "no :status": ([fields(("content-type", "application/grpc"))], Status.INTERNAL, "without :status"),
    ":status behind others": ([fields(("x", "y"), (":status", "200"))], Status.INTERNAL, "malformed headers"),
    "a pseudo header of requests": ([fields(*HEAD[:1], (":path", "/"))], Status.INTERNAL, "malformed headers"),
    "upper case": ([fields(*HEAD, ("Upper", "x"))], Status.INTERNAL, "malformed headers"),
    "connection": ([fields(*HEAD, ("connection", "close"))], Status.INTERNAL, "malformed headers"),
    "two heads": ([head, head], Status.INTERNAL, "in the middle"),
    "101": ([fields((":status", "101"), ends=False)], Status.INTERNAL, "status 101"),
    "100 that ends": ([fields((":status", "100"))], Status.INTERNAL, "status 100"),
    "more than content-length": (
        [fields(*HEAD, ("content-length", "3"), ends=False), data(b"12345")],
        Status.INTERNAL,
        "more was sent than content-length",
    ),
    "less than content-length": (
        [fields(*HEAD, ("content-length", "9"), ends=False), fields(("grpc-status", "0"))],
        Status.INTERNAL,
        "less was sent than content-length",
    ),
    "headers of 20 KiB": ([fields(*HEAD, ("x", "y" * 20_000))], Status.RESOURCE_EXHAUSTED, "headers of the response"),
    "WINDOW_UPDATE by nothing": (
        [lambda peer, stream: peer.send(frame(WINDOW_UPDATE, 0, stream, bytes(4)))],
        Status.INTERNAL,
        "by nothing",
    ),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_and_its_status(name: str) -> None:
    frames, status, text = RESPONSES[name]

    async def scenario() -> None:
        error = await failure_of(answer_with(*frames))
        assert (error.status, error.unprocessed) == (status, False)
        assert text in error.text

    asyncio.run(scenario())


RESETS = {
    NO_ERROR: Status.INTERNAL,
    FLOW_CONTROL_ERROR: Status.INTERNAL,
    7: Status.UNAVAILABLE,
    CANCEL: Status.CANCELLED,
    11: Status.RESOURCE_EXHAUSTED,
    12: Status.PERMISSION_DENIED,
    13: Status.INTERNAL,
    12345: Status.INTERNAL,
}


@pytest.mark.parametrize("code", RESETS)
def test_a_reset_and_its_status(code: int) -> None:
    async def scenario() -> None:
        error = await failure_of(answer_with(lambda peer, stream: peer.reset(stream, code)))
        assert error.status == RESETS[code]
        assert error.unprocessed == (code == 7)

    asyncio.run(scenario())


CONNECTION_FAULTS = {
    "an oversize frame": (frame(DATA, 0, 1, b"")[3:].rjust(9, b"\xff"), "larger than the largest"),
    "PUSH_PROMISE": (frame(PUSH_PROMISE, 4, 1, bytes(8)), "PUSH_PROMISE is not allowed"),
    "DATA of nobody": (frame(DATA, 0, 99, b"x"), "never opened"),
    "HEADERS of nobody": (frame(HEADERS, 4, 99, b"\x88"), "never opened"),
    "HEADERS of an even stream": (frame(HEADERS, 4, 2, b"\x88"), "cannot open"),
    "RST_STREAM of nobody": (frame(RST_STREAM, 0, 99, bytes(4)), "never opened"),
    "broken compression": (frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"), "cannot be decoded"),
    "SETTINGS of seven bytes": (frame(SETTINGS, 0, 0, bytes(7)), "six bytes"),
    "a server that wants promises": (settings({2: 1}), "ENABLE_PUSH"),
    "a window too large": (settings({4: 2**31}), "too large"),
    "PING of three bytes": (frame(PING, 0, 0, bytes(3)), "eight bytes"),
    "GOAWAY of three bytes": (frame(GOAWAY, 0, 0, bytes(3)), "eight bytes"),
    "an interrupted block": (frame(HEADERS, 0, 1, b"\x88") + frame(PING, 0, 0, bytes(8)), "interrupted"),
    "CONTINUATION of nothing": (frame(CONTINUATION, 4, 1, b"\x88"), "of nothing"),
    "an endless block": (frame(HEADERS, 0, 1, b"\x88") + frame(CONTINUATION, 0, 1, bytes(9000)) * 20, "does not end"),
    "a flood of PINGs": (frame(PING, 0, 0, bytes(8)) * 1_000, "too_many_pings"),
    "a flood of SETTINGS": (settings({4: 1}) * 1_000, "SETTINGS"),
    "a flood of PRIORITY": (frame(PRIORITY, 0, 1, bytes(5)) * 30_000, "PRIORITY"),
    "a flood of GOAWAY": (frame(GOAWAY, 0, 0, b"\x7f\xff\xff\xff" + bytes(4)) * 30_000, "GOAWAY"),
    "a flood of interim responses": (frame(HEADERS, 4, 1, b"\x08\x03100") * 30_000, "interim"),
    "a flood of empty DATA": (
        frame(HEADERS, 4, 1, b"\x88\x5f\x10application/grpc") + frame(DATA, 0, 1) * 30_000,
        "empty DATA",
    ),
}


@pytest.mark.parametrize("name", CONNECTION_FAULTS)
def test_a_fault_that_ends_the_connection(name: str) -> None:
    sent, text = CONNECTION_FAULTS[name]

    async def scenario() -> None:
        error = await failure_of(answer_with(raw(sent)))
        assert error.status == Status.UNAVAILABLE
        assert "the server broke HTTP/2" in error.text
        assert text in error.text

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "it is no HTTP/2 server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it is no HTTP/2 server"),
        (bytes(100), "first frame must be SETTINGS"),
        (frame(PING, 0, 0, bytes(8)), "first frame must be SETTINGS"),
        (b"\0", "closed the connection"),
        (b"", "closed the connection"),
    ],
)
def test_what_is_no_http2_server_cannot_be_connected_to(first: bytes, text: str) -> None:
    async def speak(peer: Peer) -> None:
        peer.send(first)
        await asyncio.sleep(0.05)

    async def scenario() -> None:
        async with scripted(speak) as address:
            channel = Channel(address, connect_timeout=SECONDS)
            with pytest.raises(GrpcStatusError) as failed:
                await channel.connect()
            assert failed.value.status == Status.UNAVAILABLE
            assert failed.value.unprocessed
            assert text in failed.value.text
            assert not channel.is_connected
            await channel.close()

    asyncio.run(scenario())


def test_nothing_is_left_of_a_connection_that_cannot_be_used() -> None:
    """The server answers and never hangs up: it is the client that has to."""

    async def scenario(listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        channel = Channel(f"127.0.0.1:{listening.getsockname()[1]}", connect_timeout=SECONDS)
        connecting = loop.create_task(channel.connect())
        peer, _ = await loop.sock_accept(listening)
        accepted.append(peer)
        await loop.sock_sendall(peer, b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(GrpcStatusError):
            await connecting

    accepted: list[socket.socket] = []
    gc.collect()  # what other tests have left is none of ours
    with socket.create_server(("127.0.0.1", 0)) as listening, warnings.catch_warnings(record=True) as caught:
        listening.setblocking(False)
        warnings.simplefilter("always")
        asyncio.run(scenario(listening))
        gc.collect()
    accepted[0].close()
    assert [warning for warning in caught if issubclass(warning.category, ResourceWarning)] == []


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async def silent(peer: Peer) -> None:
        await peer.reader.read(-1)

    async def scenario() -> None:
        async with scripted(silent) as address:
            channel = Channel(address, connect_timeout=0.2)
            with pytest.raises(GrpcStatusError, match=r"no answer within 0\.2 s"):
                await channel.connect()
            await channel.close()

    asyncio.run(scenario())


def test_interim_responses_are_not_the_answer() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        stream = await peer.whole_request()
        for _ in range(3):
            peer.headers(stream, [(":status", "103"), ("link", "x")])
        peer.answer(stream, b"reply")
        await peer.until(GOAWAY)

    async def scenario() -> None:
        async with scripted(script) as address:
            channel = Channel(address, connect_timeout=SECONDS)
            await channel.connect()
            assert await channel.call(b"/test/Call", b"") == b"reply"
            await channel.close()

    asyncio.run(scenario())


def test_calls_that_a_leaving_server_has_not_seen_may_be_repeated() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        first = await peer.whole_request()
        await peer.whole_request()
        peer.go_away(first, 0, b"restarting")
        await asyncio.sleep(0.05)
        peer.answer(first, b"last one")
        await peer.until(GOAWAY)

    async def scenario() -> None:
        lost: list[str] = []
        async with scripted(script) as address:
            channel = Channel(address, connect_timeout=SECONDS, on_lost=lost.append)
            await channel.connect()
            calls = [asyncio.create_task(channel.call(b"/test/Call", b"")) for _ in range(2)]
            assert await calls[0] == b"last one"
            with pytest.raises(GrpcStatusError, match="restarting") as failed:
                await calls[1]
            assert failed.value.status == Status.UNAVAILABLE
            assert failed.value.unprocessed
            assert not channel.is_connected
            assert lost == ["restarting"]
            with pytest.raises(GrpcStatusError) as refused:
                await channel.call(b"/test/Call", b"")
            assert refused.value.unprocessed
            await channel.connect()  # a new one
            assert channel.is_connected
            await channel.close()

    asyncio.run(scenario())


def test_a_lost_connection_leaves_the_outcome_of_calls_unknown() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.whole_request()

    async def scenario() -> None:
        error = await failure_of(script)
        assert error.status == Status.UNAVAILABLE
        assert not error.unprocessed
        assert "lost" in error.text

    asyncio.run(scenario())


def test_the_reason_a_server_gives_when_it_hangs_up_is_told() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        stream = await peer.whole_request()
        peer.go_away(stream, 11, b"too_many_pings")

    async def scenario() -> None:
        error = await failure_of(script)
        assert error.status == Status.UNAVAILABLE
        assert "ENHANCE_YOUR_CALM" in error.text
        assert "too_many_pings" in error.text

    asyncio.run(scenario())


def test_no_more_calls_at_a_time_than_the_server_takes() -> None:
    most = 0

    async def script(peer: Peer) -> None:
        nonlocal most
        await peer.begin(setting_3=2)
        open_streams: list[int] = []
        for _ in range(10):
            open_streams.append(await peer.whole_request())
            most = max(most, len(open_streams))
            if len(open_streams) == 2:
                await asyncio.sleep(0.01)
                peer.answer(open_streams.pop(0), b"reply")
        for stream in open_streams:
            peer.answer(stream, b"reply")
        await peer.until(GOAWAY)

    async def scenario() -> None:
        async with scripted(script) as address:
            channel = Channel(address, connect_timeout=SECONDS)
            await channel.connect()
            replies = await asyncio.gather(*(channel.call(b"/test/Call", b"", timeout=SECONDS) for _ in range(10)))
            assert replies == [b"reply"] * 10
            assert channel.open_calls == 0
            await channel.close()

    asyncio.run(scenario())
    assert most == 2


def test_a_call_that_never_had_its_turn_is_surely_not_done() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin(setting_3=0)
        await peer.until(GOAWAY)
        assert not any(seen.kind == HEADERS for seen in peer.seen)

    async def scenario() -> None:
        error = await failure_of(script, timeout=0.1)
        assert error.status == Status.DEADLINE_EXCEEDED
        assert error.unprocessed

    asyncio.run(scenario())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_deadline_ends_the_call_and_tells_the_server(runner: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        stream, head = await peer.request()
        assert head["grpc-timeout"] == "100000u"
        reset = await peer.until(RST_STREAM, stream)
        assert reset.code == CANCEL
        peer.answer(stream, b"too late")
        stream = await peer.whole_request()
        peer.answer(stream, b"reply")
        await peer.until(GOAWAY)

    async def scenario() -> None:
        async with scripted(script) as address:
            channel = Channel(address, connect_timeout=SECONDS)
            await channel.connect()
            loop = asyncio.get_running_loop()
            begin = loop.time()
            with pytest.raises(GrpcStatusError, match=r"no answer within 0\.1 s") as failed:
                await channel.call(b"/test/Call", b"", timeout=0.1)
            assert failed.value.status == Status.DEADLINE_EXCEEDED
            assert not failed.value.unprocessed
            assert 0.09 < loop.time() - begin < 40
            assert await channel.call(b"/test/Call", b"", timeout=SECONDS) == b"reply"
            await channel.close()

    RUNNERS[runner](scenario())


def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    resets: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        stream = await peer.whole_request()
        resets.append((await peer.until(RST_STREAM, stream)).code)
        await peer.until(GOAWAY)

    async def scenario() -> None:
        async with scripted(script) as address:
            channel = Channel(address, connect_timeout=SECONDS)
            await channel.connect()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(channel.call(b"/test/Call", b""), 0.05)
            assert channel.open_calls == 0
            await channel.close()

    asyncio.run(scenario())
    assert resets == [CANCEL]


def test_a_ping_is_answered_and_silence_is_noticed() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.whole_request()
        peer.send(frame(PING, 0, 0, b"question"))
        while not (answer := await peer.until(PING)).flags:  # its own may come first
            peer.send(frame(PING, 1, 0, answer.payload))
        assert answer.payload == b"question"
        ours = await peer.until(PING)
        peer.send(frame(PING, 1, 0, ours.payload))
        await peer.until(PING)
        await asyncio.sleep(SECONDS)  # not a word

    async def scenario() -> None:
        error = await failure_of(script, keepalive_seconds=0.1, keepalive_timeout=0.2)
        assert error.status == Status.UNAVAILABLE
        assert "no answer to a PING within 0.2 s" in error.text

    asyncio.run(scenario())


class Slow(PyClientStream):
    """Takes what comes and asks for no more."""

    def __init__(self) -> None:
        self.bytes = 0
        self.over: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    def message(self, message: bytes) -> None:
        self.bytes += len(message)
        self.withhold(True)

    def ended(self, status: int, text: str) -> None:
        self.over.set_result((status, text))


def test_a_slow_reader_stops_its_server_and_nobody_else() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        slow = await peer.whole_request()
        peer.headers(slow, HEAD)
        body = grpc_message(bytes(1019)) * 16
        for _ in range(limits.CHANNEL_STREAM_WINDOW_BYTES // len(body)):
            peer.send(frame(DATA, 0, slow, body))
        await peer.writer.drain()
        other = await peer.whole_request()
        assert not any(seen.kind == WINDOW_UPDATE and seen.stream == slow for seen in peer.seen)
        peer.answer(other, b"reply")
        update = await peer.until(WINDOW_UPDATE, slow)
        assert int.from_bytes(update.payload, "big") == limits.CHANNEL_STREAM_WINDOW_BYTES
        peer.headers(slow, [("grpc-status", "0")], ends=True)
        await peer.until(GOAWAY)

    async def scenario() -> None:
        async with scripted(script) as address, asyncio.timeout(2 * SECONDS):
            channel = Channel(address, connect_timeout=SECONDS)
            await channel.connect()
            slow = Slow()
            channel.start(slow, b"/test/Slow")
            slow.half_close()
            while slow.bytes < limits.CHANNEL_STREAM_WINDOW_BYTES * 1019 // 1024:
                await asyncio.sleep(0.01)
            assert await channel.call(b"/test/Call", b"", timeout=SECONDS) == b"reply"
            slow.withhold(False)
            assert await slow.over == (0, "")
            await channel.close()

    asyncio.run(scenario())


def test_more_than_the_window_is_refused() -> None:
    resets: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        slow = await peer.whole_request()
        peer.headers(slow, HEAD)
        body = grpc_message(bytes(16_379))
        for _ in range(limits.CHANNEL_STREAM_WINDOW_BYTES // len(body) + 1):
            peer.send(frame(DATA, 0, slow, body))
        resets.append((await peer.until(RST_STREAM, slow)).code)
        await peer.until(GOAWAY)

    async def scenario() -> None:
        async with scripted(script) as address, asyncio.timeout(2 * SECONDS):
            channel = Channel(address, connect_timeout=SECONDS)
            await channel.connect()
            slow = Slow()
            channel.start(slow, b"/test/Slow")
            slow.half_close()
            status, text = await slow.over
            assert status == Status.INTERNAL
            assert "window" in text
            await channel.close()

    asyncio.run(scenario())
    assert resets == [FLOW_CONTROL_ERROR]


def test_a_message_that_is_announced_and_does_not_come_costs_what_has_come() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        stream = await peer.whole_request()
        peer.headers(stream, HEAD)
        peer.send(frame(DATA, 0, stream, b"\0\x03\xff\xff\xff" + bytes(1000)))
        await peer.until(GOAWAY)

    async def scenario() -> None:
        tracemalloc.start()
        try:
            error = await failure_of(script, timeout=0.3)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        assert error.status == Status.DEADLINE_EXCEEDED

    asyncio.run(scenario())
