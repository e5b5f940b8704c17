"""The HTTP server on real sockets: answers in order, and everything that wants to hold it up is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from bascule.errors import PermissionDenied, Unavailable
from bascule.net.grpc.server import Peer
from bascule.net.http.server import HttpBounds, HttpServer, Request, Response

ASK = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n"


async def echo(request: Request, _peer: Peer) -> Response:
    return Response.text(200, request.path)


@contextlib.asynccontextmanager
async def serving(
    answer: Callable[[Request, Peer], Awaitable[Response]] = echo, **bounds: Any
) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(answer, bounds=HttpBounds(**bounds))
    port = await server.start()
    try:
        yield server, port
    finally:
        await server.stop()


async def ask(port: int, data: bytes, *, ends: bool = False) -> bytes:
    """Everything that is said until the server hangs up, or has been silent for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if ends:
            writer.write_eof()
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"^HTTP/1\.1 (\d{3}) ", answer, re.MULTILINE)]


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(60):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, body


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    async def run() -> None:
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"".join(ASK % b"/%d" % number for number in range(50)))
            for number in range(50):
                status, headers, body = await read_answer(reader)
                assert (status, body) == (200, b"/%d\n" % number)
                assert headers["connection"] == "keep-alive"
                assert headers["date"].endswith(" gmt")
            writer.close()

    asyncio.run(run())


def test_head_gets_the_head_alone() -> None:
    async def run() -> None:
        async with serving() as (_, port):
            answer = await ask(port, b"HEAD /abc HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert b"Content-Length: 5\r\n" in answer
            assert answer.endswith(b"\r\n\r\n")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000, 405),
        (b"GET /" + b"a" * 100_000, 414),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
def test_what_is_no_request_is_told_so_and_ended(data: bytes, status: int) -> None:
    async def run() -> None:
        async with serving() as (server, port):
            answer = await ask(port, ASK % b"/good" + data)
            assert statuses(answer) == [200, status]
            assert b"Connection: close" in answer
            assert (b"Allow: GET, HEAD" in answer) == (status == 405)
            await wait_for(lambda: not server.connections)
            assert server.answered == {200: 1, status: 1}

    asyncio.run(run())


def test_a_client_that_closes_its_side_at_once_is_answered() -> None:
    async def slowly(request: Request, peer: Peer) -> Response:
        await asyncio.sleep(0.05)
        return await echo(request, peer)

    async def run() -> None:
        async with serving(slowly) as (_, port):
            assert statuses(await ask(port, ASK % b"/", ends=True)) == [200]

    asyncio.run(run())


def test_half_a_request_and_a_closed_side_is_the_end() -> None:
    async def run() -> None:
        async with serving() as (server, port):
            assert await ask(port, b"GET / HT", ends=True) == b""
            await wait_for(lambda: not server.connections)

    asyncio.run(run())


def test_who_says_nothing_is_hung_up_on() -> None:
    async def run() -> None:
        async with serving(request_seconds=0.1) as (server, port):
            assert await ask(port, b"") == b""
            assert not server.connections

    asyncio.run(run())


def test_a_request_byte_by_byte_has_a_deadline() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for byte in b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x: y\r\n" * 1000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.01)

    async def run() -> None:
        answer = b""
        async with serving(request_seconds=0.3) as (_, port):
            while not answer:  # who was late with the first byte is hung up on without a word
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                dripping = asyncio.create_task(drip(writer))
                with contextlib.suppress(ConnectionError):
                    async with asyncio.timeout(40):  # it would drip for a minute
                        answer = await reader.read()
                dripping.cancel()
                writer.close()
            assert statuses(answer) == [408]

    asyncio.run(run())


async def asked_in_time(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose first request was answered: who was late with it is hung up on."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK % b"/")
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await read_answer(reader)
            return reader, writer
        writer.close()


def test_a_connection_between_requests_may_rest_but_not_for_ever() -> None:
    async def run() -> None:
        async with serving(request_seconds=0.1, idle_seconds=120) as (_, port):
            reader, writer = await asked_in_time(port)
            for _ in range(2):
                await asyncio.sleep(0.2)  # longer than a request may take
                writer.write(ASK % b"/")
                await read_answer(reader)
            writer.close()
        async with serving(request_seconds=120, idle_seconds=0.1) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASK % b"/")
            await read_answer(reader)
            async with asyncio.timeout(40):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


def test_slow_clients_keep_nobody_out() -> None:
    """Slowloris: as many connections as there may be, each with half a request."""

    async def run() -> None:
        async with serving(connections_max=8) as (server, port):
            slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for _, writer in slow:
                with contextlib.suppress(OSError):
                    writer.write(b"GET / HTTP/1.1\r\nHost")
            for number in range(20):
                answer = await ask(port, b"GET /%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % number)
                assert statuses(answer) == [200]
            assert len(server.connections) <= 8
            assert server.connections_dropped >= 12
            for _, writer in slow:
                writer.close()

    asyncio.run(run())


def test_while_all_connections_are_being_answered_one_more_is_refused() -> None:
    async def run() -> None:
        released = asyncio.Event()

        async def wait(request: Request, peer: Peer) -> Response:
            await released.wait()
            return await echo(request, peer)

        async with serving(wait, connections_max=2) as (server, port):
            asking = [asyncio.create_task(ask(port, ASK % b"/", ends=True)) for _ in range(2)]
            await wait_for(lambda: sum(one.is_answering for one in server.connections) == 2)
            with contextlib.suppress(ConnectionError):
                assert await ask(port, ASK % b"/") == b""
            released.set()
            assert [statuses(await one) for one in asking] == [[200], [200]]

    asyncio.run(run())


def test_who_does_not_read_its_answer_is_cut_off() -> None:
    async def large(_request: Request, _peer: Peer) -> Response:
        return Response(200, b"x" * 64_000_000)

    async def run() -> None:
        async with serving(large, write_seconds=0.3) as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as unread:
                unread.sendall(ASK % b"/")
                await wait_for(lambda: bool(server.connections))
                await wait_for(lambda: not server.connections)

    asyncio.run(run())


def test_who_reads_slowly_gets_all_of_it() -> None:
    body = bytes(range(256)) * 20_000

    async def large(_request: Request, _peer: Peer) -> Response:
        return Response(200, body)

    async def run() -> None:
        async with serving(large) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(ASK % b"/" + ASK % b"/")
            for _ in range(2):
                assert (await read_answer(reader))[2] == body
            writer.close()

    asyncio.run(run())


def test_failures_of_an_answer_have_their_status() -> None:
    async def fail(request: Request, _peer: Peer) -> Response:
        match request.path:
            case "/denied":
                raise PermissionDenied("no")
            case "/later":
                raise Unavailable("not now")
            case "/slow":
                await asyncio.sleep(60)
        raise RuntimeError("a bug")

    async def run() -> None:
        async with serving(fail, answer_seconds=0.2) as (_, port):
            asked = b"".join(ASK % path for path in (b"/denied", b"/later", b"/slow", b"/bug"))
            answer = await ask(port, asked + b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert statuses(answer) == [403, 503, 503, 500, 500]
            assert b"a bug" not in answer

    asyncio.run(run())


def test_stopping_lets_answers_finish_and_nobody_in() -> None:
    async def run() -> None:
        released = asyncio.Event()

        async def wait(request: Request, peer: Peer) -> Response:
            await released.wait()
            return await echo(request, peer)

        async with serving(wait) as (server, port):
            asking = asyncio.create_task(ask(port, ASK % b"/"))
            await wait_for(lambda: any(one.is_answering for one in server.connections))
            idle = await asyncio.open_connection("127.0.0.1", port)
            await wait_for(lambda: len(server.connections) == 2)
            stopping = asyncio.create_task(server.stop(grace_seconds=60))
            async with asyncio.timeout(60):
                assert await idle[0].read() == b""
            released.set()
            answer = await asking
            assert statuses(answer) == [200]
            assert b"Connection: close" in answer
            await stopping
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", port)
            idle[1].close()

    asyncio.run(run())
