"""What a hostile client can try: each attempt ends in the right error, costs bounded memory, and others are served meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from tests.conformance.conftest import ServerThread
from tests.support.http2_client import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Closed,
    Http2Client,
    frame,
    grpc_message,
    request,
    settings,
)
from tests.support.waiting import eventually

MakeServer = Callable[..., ServerThread]


def others_are_served(port: int) -> None:
    with Http2Client(port) as client:
        client.call(1, "/test/Unary", b"alive")
        assert client.response(1).messages == [b"alive"]


def rapid_reset(client: Http2Client) -> bytes:
    block = client.encoder.encode(request("/test/Hello"))
    again = client.encoder.encode(request("/test/Hello"))
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, block if stream == 1 else again)
        + frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))
        for stream in range(1, 6001, 2)
    )


def made_you_reset(client: Http2Client) -> bytes:
    block = client.encoder.encode(request("/test/Hello"))
    again = client.encoder.encode(request("/test/Hello"))
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, block if stream == 1 else again) + frame(WINDOW_UPDATE, 0, stream, bytes(4))
        for stream in range(1, 6001, 2)
    )


def malformed(_: Http2Client) -> bytes:
    return b"".join(frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x82") for stream in range(1, 6001, 2))


def empty_data(client: Http2Client) -> bytes:
    return frame(HEADERS, END_HEADERS, 1, client.encoder.encode(request())) + frame(DATA, 0, 1) * 30_000


def padded_data(client: Http2Client) -> bytes:
    return (
        frame(HEADERS, END_HEADERS, 1, client.encoder.encode(request()))
        + frame(DATA, PADDED, 1, b"\x03\0\0\0") * 30_000
    )


def endless_headers(_: Http2Client) -> bytes:
    return frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1, b"") * 5000


def large_headers(_: Http2Client) -> bytes:
    return frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 3000) * 10


@pytest.mark.parametrize(
    "flood",
    [
        rapid_reset,
        made_you_reset,
        malformed,
        empty_data,
        padded_data,
        endless_headers,
        large_headers,
        lambda _: settings({INITIAL_WINDOW_SIZE: 1}) * 1000,
        lambda _: frame(PING, 0, 0, bytes(8)) * 5000,
        lambda _: frame(PRIORITY, 0, 9, bytes(5)) * 30_000,
        lambda _: frame(0xFA, 0, 9, bytes(5)) * 30_000,
    ],
    ids=[
        "rapid-reset",
        "made-you-reset",
        "malformed-requests",
        "empty-data",
        "padding-only",
        "continuation-empty",
        "continuation-large",
        "settings",
        "ping",
        "priority",
        "unknown-frames",
    ],
)
def test_a_flood_is_told_to_calm_down(port: int, flood: Callable[[Http2Client], bytes]) -> None:
    with Http2Client(port) as client:
        client.send(flood(client))
        assert client.goaway() == ENHANCE_YOUR_CALM
    others_are_served(port)


def test_cancelling_now_and_then_is_no_flood(small_server: MakeServer) -> None:
    served = small_server(resets_burst=5, resets_per_second=1000)
    with Http2Client(served.port) as client:
        for stream in range(1, 61, 2):
            client.headers(stream, request("/test/Echo"))
            client.frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))
            client.ping()
            time.sleep(0.002)


def test_pings_of_a_client_that_is_being_answered_are_no_flood(small_server: MakeServer) -> None:
    served = small_server(pings_burst=3, pings_per_second=0)
    with Http2Client(served.port) as client:
        for stream in range(1, 41, 2):
            client.call(stream, "/test/Unary", b"x")
            assert client.response(stream).messages == [b"x"]
            client.ping()


def test_headers_beyond_the_announced_list_size_cost_the_call(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(
            1, request("/test/Unary", *((f"x-{number}", "0" * 1000) for number in range(20))), END_HEADERS | END_STREAM
        )
        response = client.response(1)
        assert response.status == 8
        client.call(3, "/test/Unary", b"alive")
        assert client.response(3).messages == [b"alive"]


def test_a_silent_connection_is_closed(small_server: MakeServer) -> None:
    served = small_server(preface_seconds=0.2)
    with Http2Client(served.port, preface=b"") as client, pytest.raises(Closed):
        while True:
            client.read()
    served = small_server(preface_seconds=0.5)
    with eventually(lambda: greeted(served.port), "a client was not too late with its preface") as client:
        time.sleep(0.8)
        client.ping()


def greeted(port: int) -> Http2Client | None:
    """None if this thread stood still before the preface was sent."""
    client = Http2Client(port)
    try:
        client.ping()
    except Closed:
        client.sock.close()
        return None
    return client


def test_connections_beyond_the_limit_are_closed_at_once(small_server: MakeServer) -> None:
    served = small_server(connections_max=2)
    with Http2Client(served.port) as first, Http2Client(served.port) as second:
        first.ping()
        second.ping()
        with Http2Client(served.port) as third, pytest.raises(Closed):
            while True:
                third.read()
        first.ping()
        assert served.server.connections_refused == 1


def test_who_reads_nothing_costs_bounded_memory(small_server: MakeServer) -> None:
    """Windows are wide open, and the socket is full."""
    served = small_server(output_bytes_max=100_000)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", served.port))
    with Http2Client(served.port, sock=sock, first={INITIAL_WINDOW_SIZE: 2**31 - 1}) as client:
        client.frame(WINDOW_UPDATE, 0, 0, (2**31 - 1 - 65_535).to_bytes(4, "big"))
        for stream in range(1, 41, 2):
            client.headers(stream, request("/test/Count"))
            client.data(stream, grpc_message(b"1000000000"), END_STREAM)

        def waiting() -> int:
            return sum(len(one.connection.output) + one.connection.unsent for one in list(served.server.connections))

        largest = eventually(waiting, "something is sent that nobody reads")
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            largest = max(largest, waiting())
            time.sleep(0.01)
        assert largest < 100_000 + 3 * 65_536
        others_are_served(served.port)


def test_who_asks_and_never_reads_is_not_read_from(small_server: MakeServer) -> None:
    """Answers that no window holds back: pings and refusals."""
    served = small_server(output_bytes_max=50_000, pings_burst=10_000_000, resets_burst=10_000_000)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", served.port))
    with Http2Client(served.port, sock=sock) as client:
        client.sock.settimeout(0.5)
        block = client.encoder.encode(request("/test/Nowhere"))
        again = client.encoder.encode(request("/test/Nowhere"))
        stream = 1
        sent = 0
        try:
            while sent < 50_000_000:
                piece = b"".join(
                    frame(PING, 0, 0, bytes(8))
                    + frame(HEADERS, END_HEADERS | END_STREAM, one, block if one == 1 else again)
                    for one in range(stream, stream + 2000, 2)
                )
                stream += 2000
                client.sock.sendall(piece)
                sent += len(piece)
        except TimeoutError:
            pass
        else:
            raise AssertionError("the server went on reading")
        for one in list(served.server.connections):
            assert len(one.connection.output) + one.connection.unsent < 10_000_000
        others_are_served(served.port)


def test_windows_of_one_byte(port: int) -> None:
    with Http2Client(port, first={INITIAL_WINDOW_SIZE: 1}) as client:
        client.call(1, "/test/Unary", b"slowly")
        assert client.response(1).messages == [b"slowly"]
        assert all(len(one.payload) == 1 for one in client.seen if one.kind == DATA)


def test_windows_that_never_open(small_server: MakeServer) -> None:
    served = small_server()
    with Http2Client(served.port, first={INITIAL_WINDOW_SIZE: 0}) as client:
        for stream in range(1, 401, 2):
            client.headers(stream, request("/test/Count"))
            client.data(stream, grpc_message(b"1000000"), END_STREAM)
        client.ping()
        assert not any(one.kind == DATA for one in client.seen)
        others_are_served(served.port)


def test_unfinished_messages_of_many_calls_are_bounded_together(small_server: MakeServer) -> None:
    served = small_server(assembly_bytes_max=100_000)
    with Http2Client(served.port) as client:
        for stream in range(1, 41, 2):
            client.headers(stream, request("/test/Echo"))
            client.data(stream, b"\0" + (50_000).to_bytes(4, "big") + bytes(10_000))
        client.ping()
        refused = [one for one in client.seen if one.kind == HEADERS and one.flags & END_STREAM]
        assert 10 <= len(refused) <= 12
        for stream in range(3, 19, 2):
            client.frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))
        client.data(1, bytes(40_000 - 16_384 * 2))
        client.data(1, bytes(16_384))
        client.data(1, bytes(16_384), END_STREAM)
        assert client.response(1).messages == [bytes(50_000)]


def test_connections_that_vanish_leave_nothing_behind(small_server: MakeServer) -> None:
    served = small_server()
    for _ in range(20):
        client = Http2Client(served.port)
        client.headers(1, request("/test/Echo"))
        client.data(1, grpc_message(b"half a message")[:7])
        client.call(3, "/test/Hello", b"sleep")
        client.ping()
        client.sock.close()
    eventually(lambda: not served.server.connections, "nobody is connected")


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_frames_cut_off_at_any_byte(port: int, cut: int) -> None:
    with Http2Client(port) as client:
        whole = frame(HEADERS, END_HEADERS, 1, client.encoder.encode(request())) + frame(
            DATA, END_STREAM, 1, grpc_message(b"x")
        )
        client.send(whole[:cut])
        client.sock.shutdown(socket.SHUT_WR)
        with pytest.raises(Closed):
            while True:
                got = client.read()
                assert got.kind in (SETTINGS, WINDOW_UPDATE, GOAWAY, HEADERS, DATA)
    others_are_served(port)
