"""Any bytes against the HTTP server on a real socket: it answers or refuses them, and never crashes, hangs or stays silent."""

from __future__ import annotations

import asyncio
import logging
import re
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bascule import limits
from bascule.net.grpc.server import Peer
from bascule.net.http.server import HttpBounds, HttpServer, Request, Response
from tests.support.waiting import PATIENCE_SECONDS

SEEN_HEADER = "Seen"


async def echo(request: Request, _peer: Peer) -> Response:
    return Response(200, b"", headers=((SEEN_HEADER, f"{request.method} {quote(request.path)}"),))


def answers(pieces: list[bytes], *, ends: bool = True, request_seconds: float = PATIENCE_SECONDS) -> bytes:
    """Everything that the server sends for these pieces until it closes the connection.

    Fails if an exception reaches the log or the loop, or if the server does not answer a new connection afterwards.
    """
    problems: list[object] = []

    class Problems(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            problems.append(record.getMessage())

    async def ask(port: int, pieces: list[bytes], *, ends: bool) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)  # the transport sends each piece by itself
            if ends:
                writer.write_eof()
            return await reader.read()
        except ConnectionError:
            return b""  # the server had closed the connection before all was sent
        finally:
            writer.close()

    async def run() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        server = HttpServer(echo, bounds=HttpBounds(request_seconds=request_seconds))
        port = await server.start()
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            answer = await ask(port, pieces, ends=ends)
            assert statuses(await ask(port, [GOOD + b"\r\n"], ends=True)) == [200]
        await server.stop()
        assert not server.connections
        return answer

    handler, logger = Problems(logging.ERROR), logging.getLogger("bascule.net.http")
    logger.addHandler(handler)
    try:
        answer = asyncio.run(run())
    finally:
        logger.removeHandler(handler)
    assert not problems, problems
    return answer


def statuses(answer: bytes) -> list[int]:
    """The statuses of an answer, whose form is checked: nothing follows the first refusal, and that closes the connection."""
    found = [int(status) for status in re.findall(rb"^HTTP/1\.1 (\d{3}) ", answer, re.MULTILINE)]
    assert bool(found) == bool(answer)
    assert answer.startswith(b"HTTP/1.1 ") or not answer
    assert all(status == 200 for status in found[:-1])
    if found and found[-1] != 200:
        assert 400 <= found[-1] < 600
        assert b"Connection: close\r\n" in answer
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


TOKENS = st.text("abcXYZ09!#$%&'*+-.^_`|~", min_size=1, max_size=12)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30)
NAMES = TOKENS.filter(lambda name: name.lower() not in ("host", "content-length", "transfer-encoding", "connection"))
PATHS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, str]:
    """A request that keeps the connection open, and what the server must understand."""
    method, path = draw(st.sampled_from(["GET", "HEAD"])), quote("/" + draw(PATHS))
    query = draw(st.text("abc=&%/?", max_size=10))
    headers = [("Host", "example"), *draw(st.lists(st.tuples(NAMES, VALUES), max_size=8))]
    head = f"{method} {draw(st.sampled_from(['', 'http://a.example:80']))}{path}{'?' + query if query else ''} HTTP/1.1\r\n"
    padding = draw(st.sampled_from(["", " ", "\t "]))
    data = head + "".join(f"{name}:{padding}{value.strip()}{padding}\r\n" for name, value in headers) + "\r\n"
    return data.encode("latin-1"), f"{method} {path}"


@settings(max_examples=60)
@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 10_000), max_size=12))
@example([(b"GET //x HTTP/1.1\r\nHost: a\r\n\r\n", "GET //x")], [])
def test_well_formed_requests_are_answered_in_order_whatever_the_pieces(
    written: list[tuple[bytes, str]], places: list[int]
) -> None:
    answer = answers(cut(b"".join(raw for raw, _ in written), places))
    assert statuses(answer) == [200] * len(written)
    seen = re.findall(rf"^{SEEN_HEADER}: (.*)\r$".encode(), answer, re.MULTILINE)
    assert [one.decode() for one in seen] == [understood for _, understood in written]


NOISE = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"GET / HTTP/1.1\r\n",
                b"HEAD /metrics?a=b HTTP/1.0\r\n",
                b"Host: a\r\n",
                b"\r\n",
                b"\n",
                b"\r",
                b" ",
                b":",
                b"Content-Length: 5\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"Upgrade: h2c\r\n",
                b"Expect: 100-continue\r\n",
                b"Connection: close\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01",
                b"x" * 9000,
                b"a: b\r\n" * 120,
            ]
        ),
    ),
    max_size=12,
).map(b"".join)


@settings(max_examples=100)
@given(NOISE, st.lists(st.integers(0, 100_000), max_size=20))
@example(b"GET / HTTP/1.1\nHost: a\n\n", [])
@example(b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", [1, 2, 3])
def test_any_bytes_are_answered_or_refused_whatever_the_pieces(data: bytes, places: list[int]) -> None:
    whole = statuses(answers([data]))
    if len(data) <= limits.HTTP_HEAD_BYTES_MAX:
        assert statuses(answers(cut(data, places))) == whole
    else:  # the pieces decide when the server sees that the head is too large
        statuses(answers(cut(data, places)))


@settings(max_examples=60)
@given(requests(), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_request_with_bytes_changed_is_answered_or_refused(
    written: tuple[bytes, str], changes: list[tuple[int, int]]
) -> None:
    data = bytearray(written[0])
    for place, byte in changes:
        data[place % len(data)] = byte
    assert statuses(answers([bytes(data)])) == statuses(answers([bytes([byte]) for byte in data]))


@settings(max_examples=15)
@given(NOISE.filter(len))
@example(b"GET / HTTP/1.1\r\nHost: a\r\n")
def test_a_client_that_waits_gets_at_least_one_answer(data: bytes) -> None:
    assert statuses(answers([data], ends=False, request_seconds=0.1))


GOOD = b"GET / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /  HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"G(T / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\x80 HTTP/1.1\r\n\r\n", 400),
        (b"GET / http/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (GOOD + b"Host: b\r\n\r\n", 400),
        (GOOD + b"a : b\r\n\r\n", 400),
        (GOOD + b"no colon\r\n\r\n", 400),
        (GOOD + b": b\r\n\r\n", 400),
        (GOOD + b"a: \x00\r\n\r\n", 400),
        (GOOD + b"Content-Length: x\r\n\r\n", 400),
        (GOOD + b"Content-Length: +1\r\n\r\n", 400),
        (GOOD + b"Content-Length: 0\r\nContent-Length: 1\r\n\r\n", 400),
        (GOOD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (GOOD + b"Content-Length: 1\r\n\r\n", 413),
        (GOOD + b"Content-Length: 000\r\n\r\n", 200),
        (GOOD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (GOOD + b"Upgrade: h2c\r\nConnection: upgrade\r\n\r\n", 200),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", 405),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET /" + b"a" * limits.HTTP_HEAD_BYTES_MAX, 414),
        (GOOD + b"a: " + b"b" * limits.HTTP_HEAD_BYTES_MAX, 431),
        (b"\r\n\r\n", 400),
    ],
)
def test_the_status_says_why_a_request_is_refused(data: bytes, status: int) -> None:
    assert statuses(answers([GOOD + b"\r\n" + data])) == [200, status]
