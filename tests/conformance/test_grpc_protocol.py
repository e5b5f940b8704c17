"""PROTOCOL-HTTP2.md of gRPC: requests, prefixes, statuses and what is none of them."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable

import pytest

from tests.conformance.conftest import ServerThread
from tests.support.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    Http2Client,
    grpc_message,
    request,
)

MakeServer = Callable[..., ServerThread]


def test_a_response_is_headers_messages_trailers(port: int) -> None:
    with Http2Client(port) as client:
        client.call(1, "/test/Hello", b"you")
        response = client.response(1)
        assert response.headers == [(":status", "200"), ("content-type", "application/grpc")]
        assert response.messages == [b"hello you"]
        assert response.trailers == [("grpc-status", "0")]


def test_an_unknown_method_is_unimplemented_in_trailers_only(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Nowhere"))
        response = client.response(1)
        assert dict(response.headers)[":status"] == "200"
        assert (response.status, response.text) == (12, "unknown method /test/Nowhere")
        assert client.reset_of(1) == 0


def test_many_messages_in_one_frame_and_prefixes_split_anywhere(port: int) -> None:
    messages = [b"", b"a", b"bc" * 100, b"", b"d" * 5000]
    body = b"".join(map(grpc_message, messages))
    for size in (1, 2, 3, 4, 5, 6, 7, 100, 16_384):
        with Http2Client(port) as client:
            client.headers(1, request("/test/Echo"))
            pieces = [body[at : at + size] for at in range(0, min(len(body), 300 * size), size)]
            rest = body[300 * size :]
            client.send(b"".join(len(piece).to_bytes(3, "big") + b"\0\0\0\0\0\1" + piece for piece in pieces))
            client.data(1, rest, END_STREAM)
            assert client.response(1).messages == messages


@pytest.mark.parametrize(("method", "status"), [("GET", "405"), ("PUT", "405"), ("OPTIONS", "405")])
def test_calls_are_posts(port: int, method: str, status: str) -> None:
    with Http2Client(port) as client:
        fields = [(":method", method), *request("/test/Unary")[1:]]
        client.headers(1, fields, END_HEADERS | END_STREAM)
        assert dict(client.response(1).headers)[":status"] == status


@pytest.mark.parametrize("kind", ["", "text/html", "application/grpc-web", "application/json", "application/grpcx"])
def test_other_content_types_are_unsupported(port: int, kind: str) -> None:
    with Http2Client(port) as client:
        client.headers(1, [*request("/test/Unary")[:-1], ("content-type", kind)], END_HEADERS | END_STREAM)
        assert dict(client.response(1).headers)[":status"] == "415"


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
def test_content_types_of_grpc(port: int, kind: str) -> None:
    with Http2Client(port) as client:
        client.headers(1, [*request("/test/Unary")[:-1], ("content-type", kind)])
        client.data(1, grpc_message(b"x"), END_STREAM)
        assert client.response(1).messages == [b"x"]


def test_a_message_above_the_limit(small_server: MakeServer) -> None:
    served = small_server(message_bytes_max=100)
    with Http2Client(served.port) as client:
        client.call(1, "/test/Unary", bytes(100))
        assert client.response(1).messages == [bytes(100)]
        client.call(3, "/test/Unary", bytes(101))
        assert client.response(3).status == 8
        client.headers(5, request("/test/Unary"))
        client.data(5, b"\0\xff\xff\xff\xff")
        assert client.response(5).status == 8
        assert client.reset_of(5) == 0


def test_compressed_messages(port: int) -> None:
    packed = {"gzip": gzip.compress(b"z" * 1000), "deflate": zlib.compress(b"z" * 1000)}
    with Http2Client(port) as client:
        for stream, (name, data) in enumerate(packed.items()):
            client.headers(2 * stream + 1, request("/test/Unary", ("grpc-encoding", name)))
            client.data(2 * stream + 1, grpc_message(data, compressed=1), END_STREAM)
            assert client.response(2 * stream + 1).messages == [b"z" * 1000]


@pytest.mark.parametrize(
    ("encoding", "message", "status"),
    [
        (None, grpc_message(b"x", compressed=1), 13),
        ("identity", grpc_message(b"x", compressed=1), 13),
        ("gzip", grpc_message(b"x", compressed=1), 13),
        ("gzip", grpc_message(gzip.compress(b"x" * 50)[:-9], compressed=1), 13),
        ("gzip", grpc_message(gzip.compress(bytes(5 << 20)), compressed=1), 8),
        ("snappy", grpc_message(b"x", compressed=1), 12),
        (None, grpc_message(b"x", compressed=7), 13),
    ],
    ids=["none", "identity", "no-gzip", "cut-off", "bomb", "unknown", "no-flag"],
)
def test_messages_that_cannot_be_decompressed(port: int, encoding: str | None, message: bytes, status: int) -> None:
    with Http2Client(port) as client:
        more = [] if encoding is None else [("grpc-encoding", encoding)]
        client.headers(1, request("/test/Unary", *more))
        client.data(1, message, END_STREAM)
        response = client.response(1)
        assert response.status == status
        if status == 12:
            assert dict(response.headers)["grpc-accept-encoding"] == "identity,deflate,gzip"


def test_a_message_that_says_it_is_plain_is_plain_whatever_the_encoding(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Unary", ("grpc-encoding", "gzip")))
        client.data(1, grpc_message(b"plain"), END_STREAM)
        assert client.response(1).messages == [b"plain"]


@pytest.mark.parametrize(
    "body",
    [b"", grpc_message(b"a") + grpc_message(b"b"), grpc_message(b"abc")[:-1], b"\0\0\0"],
    ids=["none", "two", "cut-off", "half-a-prefix"],
)
def test_a_unary_call_has_one_whole_message(port: int, body: bytes) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Unary"))
        client.data(1, body, END_STREAM)
        assert client.response(1).status == 13


def test_a_unary_call_that_ends_with_its_headers(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Unary"), END_HEADERS | END_STREAM)
        assert client.response(1).status == 13


def test_an_exception_of_ours_is_internal_and_says_nothing(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Broken"))
        client.data(1, grpc_message(b"secret"))
        response = client.response(1)
        assert (response.status, response.text) == (13, "internal error")
        assert "planted" in caplog.text


def test_a_deadline_ends_a_call(port: int) -> None:
    with Http2Client(port) as client:
        began = time.monotonic()
        client.headers(1, request("/test/Hello", ("grpc-timeout", "150m")))
        client.data(1, grpc_message(b"sleep"), END_STREAM)
        assert client.response(1).status == 4
        assert 0.15 <= time.monotonic() - began < 40


@pytest.mark.parametrize("timeout", ["", "5", "S", "123456789S", "-1S", "1.5S", "1X", "1 S"])
def test_a_malformed_timeout(port: int, timeout: str) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Unary", ("grpc-timeout", timeout)), END_HEADERS | END_STREAM)
        assert client.response(1).status == 13


def test_binary_metadata_must_be_base64(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Unary", ("x-bin", "****")), END_HEADERS | END_STREAM)
        assert client.response(1).status == 13


def test_messages_after_the_end_are_dropped(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Early"))
        assert client.response(1).status == 9
        for _ in range(100):
            client.data(1, grpc_message(b"late"))
        client.data(1, b"", END_STREAM)
        client.ping()
        assert [one.code for one in client.seen if one.kind in (RST_STREAM, GOAWAY)] == [0]


def test_headers_may_come_before_the_first_message(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Withheld"))
        got = client.read_until([HEADERS])
        assert not got.flags & END_STREAM
        client.ping()
        assert not any(one.kind == DATA for one in client.seen)


def test_a_server_that_stops_ends_calls_as_unavailable(small_server: MakeServer) -> None:
    served = small_server()
    with Http2Client(served.port) as client:
        client.headers(1, request("/test/Echo"))
        client.data(1, grpc_message(b"x"))
        client.ping()
        served.loop.call_soon_threadsafe(lambda: served.loop.create_task(served.server.stop(0)))
        response = client.response(1)
        assert response.status == 14
        # The echo may have come before the answer to the ping, and been passed over with it.
        assert [one.payload for one in client.seen if one.kind == DATA and one.payload] == [grpc_message(b"x")]
        assert client.goaway() == 0


def test_a_call_may_end_within_the_grace_and_new_ones_are_not_looked_at(small_server: MakeServer) -> None:
    served = small_server()
    with Http2Client(served.port) as client:
        client.headers(1, request("/test/Echo"))
        client.ping()
        served.loop.call_soon_threadsafe(lambda: served.loop.create_task(served.server.stop(60)))
        got = client.read_until([GOAWAY])
        assert (got.code, int.from_bytes(got.payload[:4], "big")) == (0, 1)
        client.call(3, "/test/Unary", b"too late")
        client.data(1, grpc_message(b"in time"), END_STREAM)
        response = client.response(1)
        assert (response.messages, response.status) == ([b"in time"], 0)
        assert not any(one.stream == 3 for one in client.seen)
