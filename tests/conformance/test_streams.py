"""RFC 9113 §5 and §8: the life of a stream, and which requests are malformed."""

from __future__ import annotations

import pytest

from tests.support.http2_client import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    NO_ERROR,
    PRIORITY,
    PROTOCOL_ERROR,
    RST_STREAM,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Fields,
    Http2Client,
    grpc_message,
    request,
)


def still_works(client: Http2Client, stream: int = 1001) -> None:
    client.call(stream, "/test/Unary", b"alive")
    assert client.response(stream).messages == [b"alive"]


# ── §5.1: states ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "payload"), [(DATA, b"x"), (RST_STREAM, bytes(4)), (WINDOW_UPDATE, b"\0\0\0\1")])
def test_5_1_idle_streams_get_headers_first(port: int, kind: int, payload: bytes) -> None:
    with Http2Client(port) as client:
        still_works(client, 1)
        client.frame(kind, 0, 3, payload)
        assert client.goaway() == PROTOCOL_ERROR


@pytest.mark.parametrize("kind", [DATA, HEADERS])
def test_5_1_nothing_follows_the_end_of_a_stream_that_is_being_answered(port: int, kind: int) -> None:
    with Http2Client(port) as client:
        client.call(1, "/test/Hello", b"sleep")
        if kind == DATA:
            client.data(1, b"more")
        else:
            client.headers(1, [("x-late", "1")], END_HEADERS | END_STREAM)
        assert client.reset_of(1) == STREAM_CLOSED
        still_works(client)


def test_5_1_half_closed_streams_take_window_updates_priorities_and_resets(port: int) -> None:
    with Http2Client(port) as client:
        client.call(1, "/test/Hello", b"sleep")
        client.frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1")
        client.frame(PRIORITY, 0, 1, bytes(5))
        client.frame(RST_STREAM, 0, 1, CANCEL.to_bytes(4, "big"))
        still_works(client, 3)


def test_5_1_data_of_a_stream_that_ended_is_an_error_of_that_stream(port: int) -> None:
    with Http2Client(port) as client:
        still_works(client, 1)
        client.data(1, b"late")
        assert client.reset_of(1) == STREAM_CLOSED
        still_works(client)


def test_5_1_headers_of_a_stream_that_ended_are_an_error_of_the_connection(port: int) -> None:
    with Http2Client(port) as client:
        still_works(client, 1)
        client.headers(1, request())
        assert client.goaway() == STREAM_CLOSED


def test_5_1_window_updates_and_resets_of_streams_that_ended_are_ignored(port: int) -> None:
    with Http2Client(port) as client:
        still_works(client, 1)
        client.frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1")
        client.frame(RST_STREAM, 0, 1, bytes(4))
        still_works(client, 3)


def test_5_1_what_was_on_its_way_when_we_reset_a_stream_is_dropped(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Early"))
        client.data(1, grpc_message(b"in flight"))
        client.headers(1, [("x-trailer", "in flight")], END_HEADERS | END_STREAM)
        response = client.response(1)
        assert response.messages == [b"enough"]
        assert response.status == 9
        still_works(client, 3)
        assert {one.code for one in client.seen if one.kind == RST_STREAM} <= {NO_ERROR}


def test_8_1_a_client_that_is_answered_early_is_told_to_stop(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, request("/test/Early"))
        assert client.response(1).status == 9
        assert client.reset_of(1) == NO_ERROR


# ── §5.1.1: identifiers ──────────────────────────────────────────────────────────────────────────


def test_5_1_1_clients_use_odd_numbers(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(2, request())
        assert client.goaway() == PROTOCOL_ERROR


def test_5_1_1_numbers_rise_and_skipped_ones_are_closed(port: int) -> None:
    with Http2Client(port) as client:
        still_works(client, 5)
        client.headers(3, request())
        assert client.goaway() == STREAM_CLOSED


def test_5_1_1_the_largest_number(port: int) -> None:
    with Http2Client(port) as client:
        still_works(client, 2**31 - 1)


# ── §8: malformed requests ───────────────────────────────────────────────────────────────────────

GOOD = request("/test/Unary")


def without(*names: str) -> Fields:
    return [one for one in GOOD if one[0] not in names]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(without(":method"), id="8.3.1-no-method"),
        pytest.param(without(":scheme"), id="8.3.1-no-scheme"),
        pytest.param(without(":path"), id="8.3.1-no-path"),
        pytest.param([(":path", ""), *without(":path")], id="8.3.1-empty-path"),
        pytest.param([(":method", "POST"), *GOOD], id="8.3.1-two-methods"),
        pytest.param([(":scheme", "http"), *GOOD], id="8.3.1-two-schemes"),
        pytest.param([(":path", "/x"), *GOOD], id="8.3.1-two-paths"),
        pytest.param([(":authority", "x"), *GOOD], id="8.3.1-two-authorities"),
        pytest.param([(":unknown", "x"), *GOOD], id="8.3-unknown-pseudo-header"),
        pytest.param([(":status", "200"), *GOOD], id="8.3-pseudo-header-of-responses"),
        pytest.param([*without(":path"), (":path", "/test/Unary")], id="8.3-pseudo-header-behind-others"),
        pytest.param([*GOOD, ("X-Upper", "1")], id="8.2-upper-case-name"),
        pytest.param([*GOOD, (b"x bad", b"1")], id="8.2.1-space-in-name"),
        pytest.param([*GOOD, (b"x:y", b"1")], id="8.2.1-colon-in-name"),
        pytest.param([*GOOD, (b"x\x80", b"1")], id="8.2.1-high-byte-in-name"),
        pytest.param([*GOOD, (b"", b"1")], id="8.2.1-empty-name"),
        pytest.param([*GOOD, (b"x", b"a\r\nb")], id="8.2.1-line-end-in-value"),
        pytest.param([*GOOD, (b"x", b"a\0b")], id="8.2.1-nul-in-value"),
        pytest.param([*GOOD, (b"x", b" a")], id="8.2.1-leading-space"),
        pytest.param([*GOOD, (b"x", b"a\t")], id="8.2.1-trailing-tab"),
        pytest.param([*GOOD, ("connection", "close")], id="8.2.2-connection"),
        pytest.param([*GOOD, ("proxy-connection", "x")], id="8.2.2-proxy-connection"),
        pytest.param([*GOOD, ("keep-alive", "x")], id="8.2.2-keep-alive"),
        pytest.param([*GOOD, ("transfer-encoding", "chunked")], id="8.2.2-transfer-encoding"),
        pytest.param([*GOOD, ("upgrade", "h2c")], id="8.2.2-upgrade"),
        pytest.param([*without("te"), ("te", "gzip")], id="8.2.2-te"),
        pytest.param([(":method", "CONNECT"), *without(":method")], id="8.5-connect-with-path"),
        pytest.param([*GOOD, ("content-length", "x")], id="8.1.1-content-length-no-number"),
        pytest.param([*GOOD, ("content-length", "-1")], id="8.1.1-content-length-negative"),
        pytest.param([*GOOD, ("content-length", "6"), ("content-length", "7")], id="8.1.1-two-lengths"),
    ],
)
def test_malformed_requests_are_reset(port: int, fields: Fields) -> None:
    with Http2Client(port) as client:
        client.headers(1, fields)
        client.data(1, grpc_message(b"x"), END_STREAM)
        assert client.reset_of(1) == PROTOCOL_ERROR
        still_works(client)


@pytest.mark.parametrize(("announced", "sent"), [(5, 6), (7, 6), (0, 6)])
def test_8_1_1_a_body_is_as_long_as_announced(port: int, announced: int, sent: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, [*GOOD, ("content-length", str(announced))])
        client.data(1, grpc_message(b"x" * (sent - 5)), END_STREAM)
        assert client.reset_of(1) == PROTOCOL_ERROR
        still_works(client)


def test_8_1_1_a_length_without_a_body(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, [*GOOD, ("content-length", "1")], END_HEADERS | END_STREAM)
        assert client.reset_of(1) == PROTOCOL_ERROR


def test_8_1_1_a_right_length_is_fine_and_padding_is_not_counted(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, [*GOOD, ("content-length", "6"), ("content-length", "6")])
        client.data(1, b"\x02" + grpc_message(b"x") + bytes(2), END_STREAM | 8)
        assert client.response(1).messages == [b"x"]


def test_8_1_trailers_end_a_request(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, GOOD)
        client.data(1, grpc_message(b"x"))
        client.headers(1, [("x-checksum", "1")], END_HEADERS | END_STREAM)
        assert client.response(1).messages == [b"x"]


def test_8_1_trailers_in_two_frames(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, GOOD)
        client.data(1, grpc_message(b"x"))
        block = client.encoder.encode([("x-checksum", "1")])
        client.frame(HEADERS, END_STREAM, 1, block[:2])
        client.frame(CONTINUATION, END_HEADERS, 1, block[2:])
        assert client.response(1).messages == [b"x"]


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ([("x-checksum", "1")], END_HEADERS),
        ([(":path", "/")], END_HEADERS | END_STREAM),
        ([("Upper", "1")], END_HEADERS | END_STREAM),
        ([("connection", "close")], END_HEADERS | END_STREAM),
    ],
)
def test_8_1_malformed_trailers(port: int, fields: Fields, flags: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, GOOD)
        client.data(1, grpc_message(b"x"))
        client.headers(1, fields, flags)
        assert client.reset_of(1) == PROTOCOL_ERROR
        still_works(client)


def test_8_3_1_the_authority_is_optional_and_host_will_do(port: int) -> None:
    with Http2Client(port) as client:
        client.headers(1, [*without(":authority"), ("host", "localhost")])
        client.data(1, grpc_message(b"x"), END_STREAM)
        assert client.response(1).messages == [b"x"]


def test_5_1_2_streams_beyond_the_announced_number_are_refused(small_server: object) -> None:
    served = small_server(streams_max=2)  # type: ignore[operator]
    with Http2Client(served.port) as client:
        for stream in (1, 3, 5):
            client.headers(stream, request("/test/Echo"))
        assert client.reset_of(5) == 7
        assert client.settings[3] == 2
        client.data(1, grpc_message(b"first"), END_STREAM)
        assert client.response(1).messages == [b"first"]
        client.call(7, "/test/Unary", b"room again")
        assert client.response(7).messages == [b"room again"]


def test_a_cancelled_call_is_forgotten(small_server: object) -> None:
    served = small_server()  # type: ignore[operator]
    with Http2Client(served.port) as client:
        client.call(1, "/test/Hello", b"sleep")
        client.headers(3, request("/test/Echo"))
        client.ping()
        (protocol,) = served.server.connections
        assert protocol.connection.open_streams == 2
        client.frame(RST_STREAM, 0, 1, CANCEL.to_bytes(4, "big"))
        client.frame(RST_STREAM, 0, 3, CANCEL.to_bytes(4, "big"))
        client.ping()
        assert protocol.connection.open_streams == 0
