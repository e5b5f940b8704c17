"""RFC 9113 §3–§6: what a server must do about frames, settings and the connection as a whole."""

from __future__ import annotations

import socket

import pytest

from tests.support.http2_client import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
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


def still_works(client: Http2Client, stream: int = 1001) -> None:
    client.call(stream, "/test/Unary", b"alive")
    assert client.response(stream).messages == [b"alive"]


def test_3_4_the_server_begins_with_settings(port: int) -> None:
    with Http2Client(port) as client:
        first = client.read()
        assert (first.kind, first.flags, first.stream) == (SETTINGS, 0, 0)
        assert client.settings[MAX_CONCURRENT_STREAMS] >= 100
        assert client.settings[MAX_HEADER_LIST_SIZE] == 16384
        assert INITIAL_WINDOW_SIZE in client.settings


def test_3_4_settings_may_come_before_anything_was_sent(port: int) -> None:
    with Http2Client(port, preface=b"") as client:
        assert client.read().kind == SETTINGS


@pytest.mark.parametrize(
    "wrong", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", PREFACE[:-1] + b"x" + settings({}), b"\0" * 30]
)
def test_3_4_another_preface_is_a_protocol_error(port: int, wrong: bytes) -> None:
    with Http2Client(port, preface=b"") as client:
        client.send(wrong)
        assert client.goaway() == PROTOCOL_ERROR


@pytest.mark.parametrize(
    "first", [frame(PING, 0, 0, bytes(8)), frame(SETTINGS, ACK), frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")]
)
def test_3_4_the_preface_ends_with_settings(port: int, first: bytes) -> None:
    with Http2Client(port, preface=b"") as client:
        client.send(PREFACE + first)
        assert client.goaway() == PROTOCOL_ERROR


def test_3_4_the_preface_may_arrive_byte_by_byte(port: int) -> None:
    with Http2Client(port, preface=b"") as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in PREFACE + settings({}):
            client.send(bytes((byte,)))
        still_works(client)


def test_4_1_unknown_frames_and_flags_are_ignored(port: int) -> None:
    with Http2Client(port) as client:
        client.frame(0xBE, 0xFF, 0, b"anything")
        client.frame(0x0A, 0, 77, b"")
        client.frame(PING, 0xFE, 0, bytes(8))
        still_works(client)


def test_4_1_the_reserved_bit_is_ignored(port: int) -> None:
    with Http2Client(port) as client:
        block = client.encoder.encode(request("/test/Unary"))
        client.frame(HEADERS, END_HEADERS, 1 | 1 << 31, block)
        client.frame(DATA, END_STREAM, 1 | 1 << 31, grpc_message(b"x"))
        assert client.response(1).messages == [b"x"]


@pytest.mark.parametrize("kind", [DATA, HEADERS, PING, 0xBE])
def test_4_2_a_frame_above_the_maximum_is_a_size_error(port: int, kind: int) -> None:
    with Http2Client(port) as client:
        client.send((16385).to_bytes(3, "big") + bytes((kind, 0)) + (1).to_bytes(4, "big"))
        assert client.goaway() == FRAME_SIZE_ERROR


def test_4_2_frames_of_the_default_maximum_are_taken(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Echo"))
        client.data(1, grpc_message(b"x" * (16384 - 5)), END_STREAM)
        assert client.response(1).messages == [b"x" * (16384 - 5)]


def test_4_3_a_block_that_cannot_be_decoded_is_a_compression_error(port: int) -> None:
    with Http2Client(port) as client:
        client.frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff\xff\xff\xff\xff\x7f")
        assert client.goaway() == COMPRESSION_ERROR


def test_4_3_blocks_of_refused_streams_are_decoded(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, [("x-first", "1"), *request("/test/Nowhere")], END_HEADERS | END_STREAM)
        assert client.reset_of(1) == PROTOCOL_ERROR
        client.headers(3, request("/test/Unary", ("x-first", "1")))
        client.data(3, grpc_message(b"indexed"), END_STREAM)
        assert client.response(3).messages == [b"indexed"]


@pytest.mark.parametrize(
    "between",
    [
        frame(DATA, 0, 1, b""),
        frame(PING, 0, 0, bytes(8)),
        frame(0xBE, 0, 0, b""),
        frame(CONTINUATION, END_HEADERS, 3, b""),
        frame(HEADERS, END_HEADERS, 3, b"\x82"),
        frame(SETTINGS, 0, 0, b""),
    ],
)
def test_6_10_a_header_block_is_not_interrupted(port: int, between: bytes) -> None:
    with Http2Client(port) as client:
        client.headers(1, request(), flags=0)
        client.send(between)
        assert client.goaway() == PROTOCOL_ERROR


def test_6_10_continuation_without_headers(port: int) -> None:
    with Http2Client(port) as client:
        client.frame(CONTINUATION, END_HEADERS, 1, b"\x82")
        assert client.goaway() == PROTOCOL_ERROR


def test_6_10_continuation_after_the_end_of_headers(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request())
        client.frame(CONTINUATION, END_HEADERS, 1, b"\x82")
        assert client.goaway() == PROTOCOL_ERROR


def test_6_10_a_block_may_be_cut_anywhere(port: int) -> None:
    with Http2Client(port) as client:
        block = client.encoder.encode(request("/test/Unary"))
        client.frame(HEADERS, 0, 1, block[:1])
        for at in range(1, 10):
            client.frame(CONTINUATION, 0, 1, block[at : at + 1])
        client.frame(CONTINUATION, 0, 1, b"")
        client.frame(CONTINUATION, END_HEADERS, 1, block[10:])
        client.data(1, grpc_message(b"cut"), END_STREAM)
        assert client.response(1).messages == [b"cut"]


def test_6_2_padding_and_priority_of_headers_are_skipped(port: int) -> None:
    with Http2Client(port) as client:
        block = client.encoder.encode(request("/test/Unary"))
        payload = b"\x07" + b"\0\0\0\0\x10" + block + bytes(7)
        client.frame(HEADERS, END_HEADERS | PADDED | HAS_PRIORITY, 1, payload)
        client.data(1, b"\x03" + grpc_message(b"padded") + bytes(3), END_STREAM | PADDED)
        assert client.response(1).messages == [b"padded"]


@pytest.mark.parametrize(
    ("flags", "payload", "code"),
    [
        (END_HEADERS | PADDED, b"\x05\x82\x86\x84", PROTOCOL_ERROR),
        (END_HEADERS | PADDED, b"", FRAME_SIZE_ERROR),
        (END_HEADERS | HAS_PRIORITY, b"\0\0\0", FRAME_SIZE_ERROR),
        (END_HEADERS | HAS_PRIORITY | PADDED, b"\x01\0\0\0\0\x10", PROTOCOL_ERROR),
    ],
)
def test_6_2_padding_longer_than_headers(port: int, flags: int, payload: bytes, code: int) -> None:
    with Http2Client(port) as client:
        client.frame(HEADERS, flags, 1, payload)
        assert client.goaway() == code


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x06abcde"])
def test_6_1_padding_longer_than_data(port: int, payload: bytes) -> None:
    with Http2Client(port) as client:
        client.headers(1, request())
        client.frame(DATA, PADDED, 1, payload)
        assert client.goaway() == PROTOCOL_ERROR


@pytest.mark.parametrize("kind", [DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION])
def test_6_frames_of_streams_are_not_for_the_connection(port: int, kind: int) -> None:
    payload = {PRIORITY: bytes(5), RST_STREAM: bytes(4)}.get(kind, b"\x82")
    with Http2Client(port) as client:
        client.frame(kind, END_HEADERS, 0, payload)
        assert client.goaway() == PROTOCOL_ERROR


@pytest.mark.parametrize(("kind", "payload"), [(SETTINGS, b""), (PING, bytes(8)), (GOAWAY, bytes(8))])
def test_6_frames_of_the_connection_are_not_for_streams(port: int, kind: int, payload: bytes) -> None:
    with Http2Client(port) as client:
        client.frame(kind, 0, 1, payload)
        assert client.goaway() == PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("kind", "stream", "payload"),
    [
        (RST_STREAM, 1, b"\0\0\0"),
        (RST_STREAM, 1, bytes(5)),
        (SETTINGS, 0, bytes(5)),
        (PING, 0, bytes(7)),
        (PING, 0, bytes(9)),
        (GOAWAY, 0, bytes(7)),
        (WINDOW_UPDATE, 0, bytes(3)),
        (WINDOW_UPDATE, 1, bytes(5)),
    ],
)
def test_6_frames_of_a_wrong_size(port: int, kind: int, stream: int, payload: bytes) -> None:
    with Http2Client(port) as client:
        client.headers(1, request())
        client.frame(kind, 0, stream, payload)
        assert client.goaway() == FRAME_SIZE_ERROR


def test_6_3_a_priority_of_a_wrong_size_costs_its_stream(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request())
        client.frame(PRIORITY, 0, 1, bytes(4))
        assert client.reset_of(1) == FRAME_SIZE_ERROR
        still_works(client)


def test_6_3_priority_is_allowed_on_any_stream(port: int) -> None:
    with Http2Client(port) as client:
        client.frame(PRIORITY, 0, 99, bytes(5))
        still_works(client, 101)
        client.frame(PRIORITY, 0, 101, bytes(5))
        client.frame(PRIORITY, 0, 2, bytes(5))
        still_works(client, 103)


def test_6_5_settings_are_acknowledged_in_order(port: int) -> None:
    with Http2Client(port) as client:
        client.send(settings({INITIAL_WINDOW_SIZE: 10}) + settings({}))
        acknowledged = 0
        while acknowledged < 3:
            got = client.read_until([SETTINGS])
            acknowledged += got.flags & ACK


def test_6_5_an_acknowledgement_has_no_payload(port: int) -> None:
    with Http2Client(port) as client:
        client.frame(SETTINGS, ACK, 0, bytes(6))
        assert client.goaway() == FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (2, 2, PROTOCOL_ERROR),
        (INITIAL_WINDOW_SIZE, 1 << 31, FLOW_CONTROL_ERROR),
        (MAX_FRAME_SIZE, 16383, PROTOCOL_ERROR),
        (MAX_FRAME_SIZE, 1 << 24, PROTOCOL_ERROR),
    ],
)
def test_6_5_2_values_out_of_range(port: int, name: int, value: int, code: int) -> None:
    with Http2Client(port) as client:
        client.send(settings({name: value}))
        assert client.goaway() == code


def test_6_5_2_unknown_settings_are_ignored(port: int) -> None:
    with Http2Client(port) as client:
        client.send(settings({0xABCD: 7, 2: 0, MAX_CONCURRENT_STREAMS: 0, MAX_HEADER_LIST_SIZE: 1}))
        still_works(client)


def test_6_5_2_a_peer_without_a_header_table_gets_blocks_it_can_read(port: int) -> None:
    with Http2Client(port, first={1: 0}) as client:
        client.decoder.max_allowed_table_size = 0
        still_works(client)
        still_works(client, 1003)


def test_6_7_ping_is_answered_with_the_same_bytes(port: int) -> None:
    with Http2Client(port) as client:
        client.frame(PING, ACK, 0, b"unasked!")
        client.frame(PING, 0, 0, b"\1\2\3\4\5\6\7\x08")
        got = client.read_until([PING])
        assert (got.flags, got.payload) == (ACK, b"\1\2\3\4\5\6\7\x08")


def test_6_8_a_client_that_goes_away_is_still_answered(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Echo"))
        client.frame(GOAWAY, 0, 0, bytes(8) + b"bye")
        client.data(1, grpc_message(b"last words"), END_STREAM)
        assert client.response(1).messages == [b"last words"]


def test_6_8_goaway_names_the_last_stream(port: int) -> None:
    with Http2Client(port) as client:
        still_works(client, 7)
        client.frame(PUSH_PROMISE, END_HEADERS, 7, b"\0\0\0\2\x82")
        got = client.read_until([GOAWAY])
        assert got.code == PROTOCOL_ERROR
        assert int.from_bytes(got.payload[:4], "big") == 7


def test_8_4_a_client_cannot_push(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request())
        client.frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2\x82")
        assert client.goaway() == PROTOCOL_ERROR


def test_the_connection_is_closed_after_goaway(port: int) -> None:
    with Http2Client(port) as client:
        client.frame(PING, 0, 0, b"")
        with pytest.raises(Closed):
            while True:
                client.read()
