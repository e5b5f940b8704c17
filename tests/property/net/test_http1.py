"""Requests out of bytes: what was written is read, whatever the pieces; what is no request is a fault, and never anything else."""

from __future__ import annotations

from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bascule import limits
from bascule.net.http.http1 import HttpFault, Request, RequestReader

Outcome = tuple[list[Request], tuple[int, str] | None, int]
"""The requests, the fault behind them, and the bytes that wait for their end."""


def read(pieces: list[bytes]) -> Outcome:
    reader = RequestReader()
    found: list[Request] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (request := reader.next()) is not None:
                found.append(request)
            assert reader.waiting_bytes <= limits.HTTP_HEAD_BYTES_MAX
    except HttpFault as fault:
        assert 400 <= fault.status < 600
        return found, (fault.status, fault.text), 0
    return found, None, reader.waiting_bytes


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


TOKENS = st.text("abcXYZ09!#$%&'*+-.^_`|~", min_size=1, max_size=12)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30).map(
    lambda text: text.strip(" \t")
)
FREE_NAMES = TOKENS.filter(
    lambda name: name.lower() not in ("host", "content-length", "transfer-encoding", "connection")
)
PATHS = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=30)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, Request]:
    method = draw(st.sampled_from(["GET", "HEAD"]))
    path, query = "/" + draw(PATHS), draw(st.text("abc=&%/?", max_size=10))
    headers = draw(st.lists(st.tuples(FREE_NAMES, VALUES), max_size=8))
    keeps = draw(st.booleans())
    minor = draw(st.sampled_from([0, 1]))
    said = {(1, False): "close", (0, True): "keep-alive"}.get((minor, keeps))
    given = [("Host", "example"), *headers, *([("Connection", said)] if said else [])]
    head = f"{method} {quote(path)}{'?' + query if query else ''} HTTP/1.{minor}\r\n"
    padding = draw(st.sampled_from(["", " ", "\t "]))
    data = head + "".join(f"{name}:{padding}{value}{padding}\r\n" for name, value in given) + "\r\n"
    expected: dict[str, str] = {}
    for name, value in given:
        key = name.lower()
        expected[key] = f"{expected[key]}, {value}" if key in expected else value
    return data.encode("latin-1"), Request(method, path, query, expected, keeps)


@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 10_000), max_size=12))
def test_what_was_written_is_read_whatever_the_pieces(written: list[tuple[bytes, Request]], places: list[int]) -> None:
    data = b"".join(raw for raw, _ in written)
    assert read(cut(data, places)) == ([request for _, request in written], None, 0)


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


@given(NOISE, st.lists(st.integers(0, 100_000), max_size=20))
@example(b"GET / HTTP/1.1\nHost: a\n\n", [])
@example(b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", [1, 2, 3])
def test_any_bytes_are_requests_or_a_fault_and_pieces_make_no_difference(data: bytes, places: list[int]) -> None:
    whole = read([data])
    assert read(cut(data, places)) == whole
    assert read([bytes([byte]) for byte in data[:2_000]]) == read([data[:2_000]])


@given(requests(), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_request_with_bytes_changed_is_another_request_or_a_fault(
    written: tuple[bytes, Request], changes: list[tuple[int, int]]
) -> None:
    data = bytearray(written[0])
    for place, byte in changes:
        data[place % len(data)] = byte
    assert read([bytes(data)]) == read([bytes([byte]) for byte in data])


GOOD = b"GET / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\rHost: a\r\r", None),
        (b"GET /  HTTP/1.1\r\n", 400),
        (b"GET /\r\n", 400),
        (b"G(T / HTTP/1.1\r\n", 400),
        (b"GET x HTTP/1.1\r\n", 400),
        (b"GET * HTTP/1.1\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\n", 400),
        (b"GET /a#b HTTP/1.1\r\n", 400),
        (b"GET /%zz HTTP/1.1\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\n", 400),
        (b"GET /%00 HTTP/1.1\r\n", 400),
        (b"GET /\x80 HTTP/1.1\r\n", 400),
        (b"GET / http/1.1\r\n", 400),
        (b"GET / HTTP/2.0\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (GOOD + b"Host: b\r\n\r\n", 400),
        (GOOD + b"a : b\r\n\r\n", 400),
        (GOOD + b" folded\r\n\r\n", 400),
        (GOOD + b"no colon\r\n\r\n", 400),
        (GOOD + b": b\r\n\r\n", 400),
        (GOOD + b"a: \x00\r\n\r\n", 400),
        (GOOD + b"a: b\rc\r\n\r\n", 400),
        (GOOD + b"Content-Length: x\r\n\r\n", 400),
        (GOOD + b"Content-Length: +1\r\n\r\n", 400),
        (GOOD + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
        (GOOD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (GOOD + b"Content-Length: 1\r\n\r\n", 413),
        (GOOD + b"Transfer-Encoding: chunked\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", 405),
        (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"GET /" + b"a" * limits.HTTP_LINE_BYTES_MAX, 414),
        (GOOD + b"a: " + b"b" * limits.HTTP_HEAD_BYTES_MAX, 431),
        (GOOD + b"a: b\r\n" * (limits.HTTP_HEADERS_MAX + 1), 431),
        (b"\r\n\r\n", 400),
    ],
)
def test_what_is_refused_and_how(data: bytes, status: int | None) -> None:
    _, fault, _ = read([data])
    assert (fault[0] if fault else None) == status


def test_a_target_may_name_the_server_too() -> None:
    found, fault, _ = read(
        [b"GET http://a.example:80/x%20y?q HTTP/1.1\r\nHost: a\r\n\r\nGET HTTPS://a HTTP/1.1\r\nHost: a\r\n\r\n"]
    )
    assert fault is None
    assert [(one.path, one.query) for one in found] == [("/x y", "q"), ("/", "")]


def test_a_body_of_no_bytes_is_none() -> None:
    assert len(read([GOOD + b"Content-Length: 000\r\n\r\n"])[0]) == 1
