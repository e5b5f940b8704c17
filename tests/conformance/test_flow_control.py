"""RFC 9113 §5.2 and §6.9: windows, both ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.conftest import ServerThread
from tests.support.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Client,
    frame,
    grpc_message,
    request,
    settings,
)

MakeServer = Callable[..., ServerThread]


def window(client: Http2Client, stream: int, increment: int) -> None:
    client.frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def data_until_quiet(client: Http2Client, stream: int) -> bytes:
    """All DATA that comes before the answer to a PING."""
    before = len(client.seen)
    client.ping()
    client.ping()  # what the first one made the server flush
    return b"".join(one.payload for one in client.seen[before:] if one.kind == DATA and one.stream == stream)


def ask(client: Http2Client, stream: int, count: int) -> None:
    client.headers(stream, request("/test/Count"))
    client.data(stream, grpc_message(b"%d" % count), END_STREAM)


def test_6_9_1_no_more_is_sent_than_the_streams_window(port: int) -> None:
    with Http2Client(port, first={INITIAL_WINDOW_SIZE: 100}) as client:
        ask(client, 1, 5)
        assert len(data_until_quiet(client, 1)) == 100
        window(client, 1, 1)
        assert len(data_until_quiet(client, 1)) == 1
        window(client, 1, 10_000)
        assert client.response(1, credit=False).status == 0


def test_6_9_1_no_more_is_sent_than_the_connections_window(port: int) -> None:
    with Http2Client(port, first={INITIAL_WINDOW_SIZE: 1 << 20}) as client:
        ask(client, 1, 100)
        assert len(data_until_quiet(client, 1)) == 65_535
        ask(client, 3, 1)
        assert data_until_quiet(client, 3) == b""
        window(client, 0, 1_000_000)
        assert client.response(1, credit=False).status == 0
        assert sum(len(one.payload) for one in client.seen if one.kind == DATA) >= 100 * 1005


def test_6_9_trailers_need_no_window(port: int) -> None:
    with Http2Client(port, first={INITIAL_WINDOW_SIZE: 0}) as client:
        client.headers(1, request("/test/Nowhere"), END_HEADERS | END_STREAM)
        assert client.response(1).status == 12
        ask(client, 3, 0)
        assert client.response(3).status == 0


def test_6_9_2_a_changed_initial_window_changes_open_streams(port: int) -> None:
    with Http2Client(port, first={INITIAL_WINDOW_SIZE: 0}) as client:
        ask(client, 1, 3)
        assert data_until_quiet(client, 1) == b""
        client.send(settings({INITIAL_WINDOW_SIZE: 50}))
        assert len(data_until_quiet(client, 1)) == 50
        client.send(settings({INITIAL_WINDOW_SIZE: 20}))
        window(client, 1, 29)
        assert data_until_quiet(client, 1) == b""
        window(client, 1, 3)
        assert len(data_until_quiet(client, 1)) == 2
        client.send(settings({INITIAL_WINDOW_SIZE: 10_000}))
        assert client.response(1, credit=False).status == 0


def test_6_9_2_a_window_that_grows_too_large_by_settings(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request())
        window(client, 1, 2**31 - 1 - 65_535)
        client.send(settings({INITIAL_WINDOW_SIZE: 65_536}))
        assert client.goaway() == FLOW_CONTROL_ERROR


def test_6_9_1_a_connection_window_above_31_bits(port: int) -> None:
    with Http2Client(port) as client:
        window(client, 0, 2**31 - 1)
        assert client.goaway() == FLOW_CONTROL_ERROR


def test_6_9_1_a_stream_window_above_31_bits(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request())
        window(client, 1, 2**31 - 1)
        assert client.reset_of(1) == FLOW_CONTROL_ERROR
        client.ping()


@pytest.mark.parametrize("stream", [0, 1])
def test_6_9_window_updates_by_nothing(port: int, stream: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request())
        window(client, stream, 0)
        if stream:
            assert client.reset_of(1) == PROTOCOL_ERROR
            client.ping()
        else:
            assert client.goaway() == PROTOCOL_ERROR


def test_6_9_the_reserved_bit_of_an_increment_is_ignored(port: int) -> None:
    with Http2Client(port, first={INITIAL_WINDOW_SIZE: 0}) as client:
        ask(client, 1, 1)
        window(client, 1, 1 << 31 | 1005)
        assert client.response(1, credit=False).status == 0


def test_5_2_the_server_gives_window_back_for_what_it_reads(small_server: MakeServer) -> None:
    served = small_server(stream_window_bytes=20_000, connection_window_bytes=70_000)
    with Http2Client(served.port) as client:
        assert client.read().kind == SETTINGS
        client.headers(1, request("/test/Echo"))
        stream_window, connection_window, sent = 20_000, 70_000, 0
        while sent < 400_000:
            while stream_window < 1000 or connection_window < 1000:
                got = client.read()
                if got.kind == WINDOW_UPDATE:
                    grant = int.from_bytes(got.payload, "big")
                    stream_window += grant if got.stream else 0
                    connection_window += 0 if got.stream else grant
                elif got.kind == DATA:
                    size = len(got.payload).to_bytes(4, "big")
                    client.send(frame(WINDOW_UPDATE, 0, 0, size) + frame(WINDOW_UPDATE, 0, 1, size))
            # one message of 990 bytes, half of the frame padding
            client.data(1, b"\xff" + grpc_message(b"x" * 739) + bytes(255), PADDED)
            stream_window -= 1000
            connection_window -= 1000
            sent += 1000


def test_6_9_more_than_the_streams_window_costs_the_stream(small_server: MakeServer) -> None:
    served = small_server(stream_window_bytes=1000)
    with Http2Client(served.port) as client:
        client.headers(1, request("/test/Withheld"))
        client.data(1, grpc_message(b"x" * 994))
        client.ping()
        assert not any(one.kind == WINDOW_UPDATE and one.stream == 1 for one in client.seen)
        client.data(1, b"xx")
        assert client.reset_of(1) == FLOW_CONTROL_ERROR
        client.ping()


def test_5_2_the_connections_window_comes_back_whatever_a_call_does(small_server: MakeServer) -> None:
    served = small_server(stream_window_bytes=1 << 20, connection_window_bytes=65_535)
    with Http2Client(served.port) as client:
        client.headers(1, request("/test/Withheld"))
        for _ in range(64):
            client.data(1, bytes(16_384))
        client.ping()
        grants = sum(
            int.from_bytes(one.payload, "big") for one in client.seen if one.kind == WINDOW_UPDATE and one.stream == 0
        )
        assert grants >= 64 * 16_384 - 65_535


def test_5_2_withheld_window_stops_a_client_and_only_that_call(small_server: MakeServer) -> None:
    served = small_server(stream_window_bytes=5000)
    with Http2Client(served.port) as client:
        client.headers(1, request("/test/Withheld"))
        client.data(1, grpc_message(b"x" * 4000))
        client.ping()
        assert not any(one.kind == WINDOW_UPDATE and one.stream == 1 for one in client.seen)
        client.call(3, "/test/Unary", b"x" * 3000)
        assert client.response(3).messages == [b"x" * 3000]


def test_4_2_frames_fit_what_the_client_takes(port: int) -> None:
    for largest, expected in ((16_384, 16_384), (20_000, 20_000), (1 << 20, 65_535)):
        with Http2Client(port, first={MAX_FRAME_SIZE: largest, INITIAL_WINDOW_SIZE: 1 << 20}) as client:
            ask(client, 1, 200)
            assert client.response(1).status == 0
            assert max(len(one.payload) for one in client.seen if one.kind == DATA) <= min(largest, 65_536)
            assert len(next(one.payload for one in client.seen if one.kind == DATA)) == expected


def test_streams_take_turns(port: int) -> None:
    with Http2Client(port, first={INITIAL_WINDOW_SIZE: 1 << 30}) as client:
        window(client, 0, 1 << 30)
        question = grpc_message(b"1000")
        client.send(
            b"".join(
                frame(HEADERS, END_HEADERS, stream, client.encoder.encode(request("/test/Count")))
                + frame(DATA, END_STREAM, stream, question)
                for stream in (1, 3, 5)
            )
        )
        ended: list[int] = []
        order: list[int] = []
        while len(ended) < 3:
            got = client.read()
            if got.kind == DATA:
                order.append(got.stream)
            if got.kind == HEADERS and got.flags & END_STREAM:
                ended.append(got.stream)
        firsts = [order.index(stream) for stream in (1, 3, 5)]
        assert max(firsts) < len(order) // 3
        assert not any(one.kind == RST_STREAM for one in client.seen)
