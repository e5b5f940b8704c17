"""What connections hold for their clients is counted, bounded, and given back; long reads are handled in turns."""

from __future__ import annotations

import random
import struct

import hpack
import pytest

from bascule.kernels.grpc.server import CallStream, GrpcConnection, UnaryStream
from bascule.kernels.http2.connection import ReceiveBuffer
from bascule.kernels.memory.account import MemoryAccount
from bascule.net.grpc.protocol import connection_limits
from tests.support.http2_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    grpc_message,
    request,
    settings,
)


class Echo(CallStream):
    def received(self, message: bytes) -> None:
        self.send(message)

    def client_finished(self) -> None:
        self.finish(0)


def never(_stream: UnaryStream, _request: bytes) -> None:
    """Leaves the call unanswered."""


ROUTES = {
    b"/test/Echo": Echo,
    b"/test/Unary": lambda: UnaryStream(lambda stream, request: stream.reply(request)),
    b"/test/Never": lambda: UnaryStream(never),
}


class Client:
    """The bytes of a client, and what the server sends."""

    def __init__(self, connection_bytes: int = 1 << 20, server_bytes: int = 1 << 30, window: int = 0) -> None:
        self.whole = MemoryAccount(server_bytes)
        self.account = MemoryAccount(connection_bytes, self.whole)
        self.connection = GrpcConnection(connection_limits(), None, ROUTES, memory=self.account)
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._read = 0
        self.statuses: dict[int, str] = {}
        self.resets: dict[int, int] = {}
        self.connection.feed(PREFACE + settings({INITIAL_WINDOW_SIZE: window}))

    def open(self, stream: int, path: str) -> None:
        self.connection.feed(frame(HEADERS, END_HEADERS, stream, self._encoder.encode(request(path))))

    def message(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        framed = grpc_message(data)
        pieces = [framed[at : at + 16_384] for at in range(0, len(framed), 16_384)]
        for piece in pieces:
            last = piece is pieces[-1]
            self.connection.feed(frame(DATA, END_STREAM if ends and last else 0, stream, piece))
        self.flush()

    def flush(self) -> None:
        self.connection.flush()
        output = bytes(self.connection.output)
        self.connection.output.clear()
        at = 0
        while at < len(output):
            size, kind, stream = int.from_bytes(output[at : at + 3], "big"), output[at + 3], output[at + 5 : at + 9]
            payload, number = output[at + 9 : at + 9 + size], int.from_bytes(stream, "big")
            if kind == HEADERS:
                found = {str(name): str(value) for name, value in self._decoder.decode(payload)}
                if "grpc-status" in found:
                    self.statuses[number] = found["grpc-status"]
            elif kind == RST_STREAM:
                self.resets[number] = int.from_bytes(payload, "big")
            at += 9 + size


def test_requests_that_are_kept_are_refused_beyond_the_bound() -> None:
    client = Client(connection_bytes=1 << 20)
    for number in range(20):
        client.open(2 * number + 1, "/test/Never")
        client.message(2 * number + 1, bytes(100_000))
    assert 5 <= client.connection.open_streams <= 10
    assert set(client.statuses.values()) == {"8"}
    assert client.account.used <= 1 << 20


def test_answers_that_the_client_does_not_read_are_given_up_beyond_the_bound() -> None:
    client = Client(connection_bytes=1 << 20)
    for number in range(40):
        client.open(2 * number + 1, "/test/Unary")
        client.message(2 * number + 1, bytes(100_000), ends=True)
        assert client.account.used <= (1 << 20) + 300_000
    assert client.connection.open_streams < 12
    assert set(client.statuses.values()) == {"8"}


def test_a_call_that_has_been_answered_in_part_is_reset() -> None:
    client = Client(connection_bytes=1 << 20, window=10)
    client.open(1, "/test/Echo")
    for _ in range(30):
        client.message(1, bytes(50_000))
    assert client.resets == {1: ENHANCE_YOUR_CALM}
    assert client.connection.open_streams == 0


def test_new_calls_are_refused_when_three_quarters_are_used() -> None:
    client = Client(connection_bytes=1 << 20)
    calls = 0
    while client.account.used <= 3 << 18:
        client.open(2 * calls + 1, "/test/Never")
        client.message(2 * calls + 1, bytes(15_000))
        calls += 1
    client.open(2 * calls + 1, "/test/Unary")
    client.flush()
    assert client.statuses == {2 * calls + 1: "8"}
    assert client.connection.open_streams == calls


def test_the_whole_is_told_when_all_connections_together_hold_too_much() -> None:
    client, told = Client(server_bytes=500_000), []
    client.whole.on_exceeded = lambda: told.append(client.whole.used)
    for number in range(40):
        assert bool(told) == (client.whole.used > 500_000)
        client.open(2 * number + 1, "/test/Never")
        client.message(2 * number + 1, bytes(15_000))
    client.connection.shed(100_000)
    client.flush()
    assert set(client.statuses.values()) == {"8"}
    assert client.whole.used <= 100_000


@pytest.mark.parametrize("seed", range(20))
def test_a_lost_connection_has_given_everything_back(seed: int) -> None:
    chance = random.Random(seed)
    client = Client(connection_bytes=chance.choice((50_000, 500_000, 1 << 24)), window=chance.choice((0, 100, 70_000)))
    for number in range(chance.randrange(1, 60)):
        client.open(2 * number + 1, chance.choice(("/test/Echo", "/test/Unary", "/test/Never")))
        client.message(2 * number + 1, bytes(chance.randrange(60_000)), ends=chance.random() < 0.5)
        if chance.random() < 0.2:
            client.connection.unsent = chance.randrange(100_000)
    client.connection.feed(chance.choice((b"", frame(HEADERS, 0, 999, b"\x82"), frame(DATA, 0, 1, bytes(9000))[:5000])))
    client.connection.lost()
    assert client.account.used == client.whole.used == 0


def traffic(seed: int) -> bytes:
    chance, encoder = random.Random(seed), hpack.Encoder()
    out = PREFACE + settings({INITIAL_WINDOW_SIZE: 1 << 20})
    for number in range(300):
        stream = 2 * number + 1
        path = chance.choice(("/test/Echo", "/test/Unary", "/test/Nowhere"))
        out += frame(HEADERS, END_HEADERS, stream, encoder.encode(request(path)))
        out += frame(DATA, END_STREAM, stream, grpc_message(bytes([number % 256]) * chance.randrange(300)))
    return out


@pytest.mark.parametrize("seed", range(5))
def test_reads_that_take_several_turns_come_to_the_same(seed: int) -> None:
    """However small the turns are, and however the bytes are cut."""
    data, buffer = traffic(seed), ReceiveBuffer(1 << 18)
    plain = GrpcConnection(connection_limits(), None, ROUTES)
    plain.feed(data)
    plain.flush()
    account = MemoryAccount(1 << 30)
    hurried = GrpcConnection(connection_limits(turn_us_max=1), buffer, ROUTES, memory=account)
    chance, at, backlogs = random.Random(seed), 0, 0
    while at < len(data):
        piece = data[at : at + chance.choice((1, 10, 1000, 20_000))]
        memoryview(buffer)[: len(piece)] = piece
        hurried.received(len(piece))
        at += len(piece)
        if chance.random() < 0.7:
            while hurried.has_backlog:
                backlogs += 1
                hurried.go_on()
    while hurried.has_backlog:
        hurried.go_on()
    while hurried.wants_flush:
        hurried.flush()
    assert backlogs > 10
    assert bytes(hurried.output) == bytes(plain.output)
    hurried.lost()
    assert account.used == 0


def test_of_many_window_values_in_one_frame_the_last_counts() -> None:
    client = Client(connection_bytes=1 << 24)
    client.open(1, "/test/Unary")
    client.message(1, bytes(100), ends=True)
    assert not client.statuses
    values = b"".join(struct.pack(">HI", INITIAL_WINDOW_SIZE, value) for value in (2**31 - 1, 5, 0, 1000))
    client.connection.feed(frame(SETTINGS, 0, 0, values))
    client.flush()
    assert client.statuses == {1: "0"}


def test_windows_of_many_calls_cost_more_than_one_settings_frame() -> None:
    client = Client(connection_bytes=1 << 30)
    for number in range(5000):
        client.open(2 * number + 1, "/test/Never")
    for number in range(30):
        client.connection.feed(settings({INITIAL_WINDOW_SIZE: number % 2}))
    assert client.connection.closing
    assert client.connection.error_code == ENHANCE_YOUR_CALM
