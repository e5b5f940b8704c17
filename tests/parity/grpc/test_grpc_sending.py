"""What a client gets is what was sent, in order, within its windows, whatever it does with them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import hpack
import pytest

from bascule.kernels.grpc.server import CallStream, GrpcConnection
from bascule.net.grpc.protocol import connection_limits
from tests.support.http2_client import PREFACE, frame, request, settings
from tests.support.seeds import try_seeds


class Talker(CallStream):
    def __init__(self, talkers: dict[int, Talker]) -> None:
        self.talkers = talkers
        self.said: list[bytes] = []
        self.rooms = 0

    def opened(self) -> None:
        self.talkers[self.id] = self

    def say(self, message: bytes) -> None:
        self.said.append(message)
        self.send(message)

    def writable(self) -> None:
        self.rooms += 1
        assert self.room_bytes > 0 or self.finished


@dataclass
class Reader:
    """The client's side of one stream."""

    window: int
    body: bytes = b""
    headers: int = 0
    status: int | None = None


@dataclass
class Client:
    connection: GrpcConnection
    window: int = 65_535
    initial: int = 65_535
    frame_bytes: int = 16_384
    readers: dict[int, Reader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.decoder = hpack.Decoder()
        self.encoder = hpack.Encoder()

    def take(self) -> None:
        data, at = bytes(self.connection.output), 0
        self.connection.output.clear()
        while at < len(data):
            size, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
            number, payload = int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == 0:
                reader = self.readers[number]
                assert reader.headers == 1 and reader.status is None
                assert 0 < size <= min(self.window, reader.window, self.frame_bytes)
                self.window -= size
                reader.window -= size
                reader.body += payload
            elif kind == 1:
                fields = dict(self.decoder.decode(payload, raw=True))
                self.readers[number].headers += 1
                if flags & 1:
                    self.readers[number].status = int(fields[b"grpc-status"])

    def grant(self, rng: random.Random) -> bytes:
        amount = rng.choice([1, 100, 5000, 100_000])
        number = rng.choice([0, *self.readers])
        if number == 0:
            self.window += amount
        else:
            self.readers[number].window += amount
        return frame(8, 0, number, amount.to_bytes(4, "big"))

    def change_initial(self, rng: random.Random) -> bytes:
        self.take()  # frames that were cut before keep to the windows of before
        value = rng.choice([0, 1, 1000, 65_535, 1 << 20])
        for reader in self.readers.values():
            if reader.status is None:
                reader.window += value - self.initial
        self.initial = value
        return settings({4: value})

    def open(self, number: int) -> bytes:
        self.readers[number] = Reader(self.initial)
        return frame(1, 5, number, self.encoder.encode(request("/test/Talk")))


def messages_of(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at + 1 : at + 5], "big")
        found.append(body[at + 5 : at + 5 + size])
        at += 5 + size
    return found


def one_case(seed: int) -> None:
    rng = random.Random(seed)
    talkers: dict[int, Talker] = {}
    bound = rng.choice([1000, 100_000])
    connection = GrpcConnection(
        connection_limits(output_bytes_max=bound), None, {b"/test/Talk": lambda: Talker(talkers)}
    )
    client = Client(connection)
    connection.feed(PREFACE + settings({}))
    connection.output.clear()
    for turn in range(rng.randrange(60)):
        match rng.randrange(6):
            case 0 if len(client.readers) < 8:
                connection.feed(client.open(2 * turn + 1))
            case 1 if client.readers:
                connection.feed(client.grant(rng))
            case 2:
                connection.feed(client.change_initial(rng))
            case 3 if talkers and rng.random() < 0.3:
                rng.choice(list(talkers.values())).finish(rng.randrange(17))
            case _ if talkers:
                talker = rng.choice(list(talkers.values()))
                if not talker.finished:
                    talker.say(rng.randbytes(rng.choice([0, 1, 300, 20_000, 100_000])))
        connection.flush()
        assert len(connection.output) < bound + 9 + 65_536 + 500
        if rng.random() < 0.8:
            client.take()
    finish_all(connection, client, talkers)


def finish_all(connection: GrpcConnection, client: Client, talkers: dict[int, Talker]) -> None:
    """Open all windows: everything that was said arrives, and the status behind it."""
    for talker in talkers.values():
        talker.finish(5)
    client.take()
    client.window += 1 << 30
    connection.feed(frame(8, 0, 0, (1 << 30).to_bytes(4, "big")))
    for number, reader in client.readers.items():
        if reader.status is None:
            reader.window += 1 << 30
            connection.feed(frame(8, 0, number, (1 << 30).to_bytes(4, "big")))
    while connection.open_streams:
        connection.flush()
        assert len(connection.output)
        client.take()
    client.take()
    assert not connection.closing
    for number, talker in talkers.items():
        assert messages_of(client.readers[number].body) == talker.said
        assert client.readers[number].status is not None
        assert talker.connection is None


@pytest.mark.parametrize("first", range(0, 1200, 300))
def test_everything_arrives_within_the_windows(first: int) -> None:
    try_seeds(one_case, range(first, first + 300))


def opened(**changed: int) -> tuple[GrpcConnection, Client, dict[int, Talker]]:
    talkers: dict[int, Talker] = {}
    connection = GrpcConnection(connection_limits(**changed), None, {b"/test/Talk": lambda: Talker(talkers)})
    client = Client(connection)
    connection.feed(PREFACE + settings({}))
    connection.feed(client.open(1))
    connection.flush()
    client.take()
    return connection, client, talkers


def test_a_call_is_asked_for_more_when_its_window_opens() -> None:
    connection, client, talkers = opened()
    talker = talkers[1]
    talker.say(bytes(65_530))
    connection.flush()
    client.take()
    before = talker.rooms
    assert talker.room_bytes == 0
    connection.flush()
    assert talker.rooms == before
    connection.feed(frame(8, 0, 1, (10).to_bytes(4, "big")))
    connection.flush()
    assert talker.rooms == before
    connection.feed(frame(8, 0, 0, (10).to_bytes(4, "big")))
    connection.flush()
    assert talker.rooms == before + 1
    assert talker.room_bytes > 0


def test_a_call_may_hold_less_when_there_are_many() -> None:
    connection, client, talkers = opened(outgoing_bytes_max=1 << 20)
    assert talkers[1].room_bytes == 256 * 1024
    for number in range(3, 21, 2):
        connection.feed(client.open(number))
    assert talkers[1].room_bytes == (1 << 20) // 10
    for number in range(21, 401, 2):
        connection.feed(client.open(number))
    assert talkers[1].room_bytes == 16 * 1024


def test_a_flush_is_asked_for_once() -> None:
    connection, _, talkers = opened()
    asked: list[int] = []
    connection.on_output = lambda: asked.append(1)
    for _ in range(5):
        talkers[1].say(b"x")
    assert asked == [1]
    connection.flush()
    assert asked == [1]
    talkers[1].finish(0)
    assert asked == [1, 1]


def test_what_is_sent_to_an_ended_call_goes_nowhere() -> None:
    connection, client, talkers = opened()
    talker = talkers[1]
    talker.finish(0)
    talker.send(b"late")
    talker.send_headers()
    talker.withhold(False)
    talker.finish(3)
    assert talker.room_bytes == 0
    connection.flush()
    client.take()
    assert client.readers[1].status == 0
    assert client.readers[1].body == b""
    never_opened = Talker({})
    never_opened.send(b"early")
    never_opened.send_headers()
    never_opened.finish(0)
