"""The HTTP/2 kernel as a client, against its twin: the same events, the same frames, the same error, however the bytes are cut."""

from __future__ import annotations

import random

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.grpc.client import ClientConnection
from bascule.net.grpc.protocol import connection_limits
from tests.parity.guards.guard_pages import Guarded
from tests.parity.http2.test_http2_parity import BOUNDS, CALM, LIST_BYTES, Traffic, mutated
from tests.parity.twins.twin_http2_client import Event, new_client_twin
from tests.support.http2_client import PREFACE, frame, settings
from tests.support.kernels.probes import PyClientStream
from tests.support.seeds import try_new_seeds, try_seeds

CALLS = 5
STREAMS_MAX = 2**31 - 1


class Listening(PyClientStream):
    """Hears everything."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.heard = 0
        self.done = 0

    def headers_received(self) -> None:
        self.events.append(("headers", self.id))

    def message(self, message: bytes) -> None:
        self.heard += 1
        self.events.append(("message", self.id, message))

    def messages_done(self) -> None:
        assert self.heard > self.done
        self.done = self.heard

    def ended(self, status: int, text: str) -> None:
        self.events.append(("ended", self.id, status))
        assert self.done == self.heard == self.received
        assert self.finished and self.closed and self.status == status and self.status_text == text
        assert status == 0 or text or status <= 16


class Kernel:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.faults: list[Exception] = []
        bounds = connection_limits(
            **{**BOUNDS, "streams_max": STREAMS_MAX}, **CALM, header_list_bytes_max=LIST_BYTES, continuations_max=1000
        )
        self.connection = ClientConnection(bounds, frame_bytes_max=16_384)
        self.connection.on_fault = self.faults.append
        self.decoder = hpack.Decoder()
        begin = bytes(self.connection.output)
        assert begin.startswith(PREFACE)
        self.connection.output.clear()
        for index in range(CALLS):
            call = Listening(self.events)
            self.connection.open(call, b"/test/A")
            if index % 2 == 0:
                call.half_close()

    def frames(self) -> list[Event]:
        self.connection.flush()
        data, at, found = bytes(self.connection.output), 0, list[Event]()
        while at < len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            kind, flags = data[at + 3], data[at + 4]
            stream, payload = int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : at + 9 + size]
            at += 9 + size
            found.append(self.one(kind, flags, stream, payload))
        assert at == len(data)
        return found

    def one(self, kind: int, flags: int, stream: int, payload: bytes) -> Event:
        if kind == 0:
            assert flags == 1 and not payload
            return "end", stream
        if kind == 1:
            fields = dict(self.decoder.decode(payload, raw=True))
            assert flags == 4 and fields[b":path"] == b"/test/A" and fields[b"te"] == b"trailers"
            return "begin", stream
        if kind == 3:
            return "rst", stream, int.from_bytes(payload, "big")
        if kind == 4 and flags == 1:
            return ("settings-ack",)
        if kind == 6 and flags == 1:
            return "ping-ack", payload
        if kind == 7:
            return "goaway", int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")
        assert kind == 8, kind
        return "window", stream, int.from_bytes(payload, "big")


def split(frames: list[Event]) -> tuple[list[Event], set[object]]:
    """A half-close waits for the next flush, other frames do not: their order among each other says nothing."""
    return [one for one in frames if one[0] != "end"], {one[1] for one in frames if one[0] == "end"}


def agree(data: bytes, cuts: list[int], guarded: Guarded | None = None) -> None:
    kernel = Kernel()
    twin = new_client_twin(
        BOUNDS["stream_window_bytes"], BOUNDS["connection_window_bytes"], BOUNDS["message_bytes_max"], LIST_BYTES, CALLS
    )
    start = 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        piece = data[start:cut]
        kernel.connection.feed(piece if guarded is None else guarded.at_end(piece))
        start = cut
    twin.feed(data)
    assert kernel.faults == []
    assert kernel.connection.closing == twin.closed
    frames, ends = split(kernel.frames())
    twin_frames, twin_ends = split(twin.frames)
    assert frames == twin_frames
    assert ends <= twin_ends  # of calls that were over before the flush, nothing is said any more
    if not twin.closed:
        assert twin_ends & set(twin.streams) <= ends
    assert kernel.events == twin.events
    assert kernel.connection.open_streams == (0 if twin.closed else len(twin.streams))
    kernel.connection.lost()
    assert kernel.connection.open_calls == 0
    assert len([event for event in kernel.events if event[0] == "ended"]) == CALLS


class Answers(Traffic):
    """What a server might send, more or less: mostly right, sometimes not."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.answered: set[int] = set()

    def stream(self) -> int:
        rng = self.rng
        return rng.randrange(0, 14) if self.strange() else rng.choice([1, 1, 3, 5, 7, 9])

    def first(self) -> list[tuple[bytes, bytes]]:
        rng = self.rng
        if rng.random() < 0.1:
            http = rng.choice([b"100", b"101", b"103", b"204", b"404", b"503", b"999", b"099", b"20"])
            return [(b":status", http), (b"content-type", b"text/html")][: rng.randint(1, 2)]
        return [(b":status", b"200"), (b"content-type", rng.choice([b"application/grpc", b"application/grpc+proto"]))]

    def last(self) -> list[tuple[bytes, bytes]]:
        rng = self.rng
        status = rng.choice([b"0", b"0", b"5", b"14", b"16", b"17", b"99999999999", b"x", b""])
        text = rng.choice([b"", b"n%C3%B6", b"%", b"%4", b"%zz 100%25"])
        return [(b"grpc-status", status), (b"grpc-message", text), (b"x-more-bin", b"AAE")][
            : rng.choice([0, 1, 2, 3, 3])
        ]

    def headers(self) -> bytes:
        rng = self.rng
        number = self.stream()
        is_last = number in self.answered and rng.random() < 0.4
        if number in self.answered and not is_last and not self.strange():
            return self.data()
        self.answered.add(number)
        fields = self.last() if is_last else self.first()
        flags = 1 if is_last else 0
        if not is_last and rng.random() < 0.15:
            fields, flags = fields + self.last(), 1
        if self.strange():
            name = rng.choice(
                [b"x-a", b"Bad", b":status", b":path", b"connection", b"content-length", b"grpc-encoding", b""]
            )
            value = rng.choice(
                [b"1", b"200", b"", b" a", b"a\0", b"12", b"0", b"gzip", b"zstd", b"x" * rng.randrange(1000)]
            )
            fields.insert(rng.randrange(len(fields) + 1), (name, value))
        if self.strange():
            flags ^= 1
        block = self.encoder.encode(fields, huffman=rng.random() < 0.5)
        if rng.random() < 0.3:
            cut = rng.randrange(len(block) + 1)
            return frame(1, flags, number, block[:cut]) + frame(9, 4, number, block[cut:])
        return frame(1, flags | 4, number, block)

    def other(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.15:
            return rng.choice(
                [
                    settings({3: rng.choice([0, 1, 2, 100])}),
                    frame(3, 0, self.stream(), rng.randrange(15).to_bytes(4, "big")),
                    frame(7, 0, 0, rng.choice([0, 1, 3, 7, 2**31 - 1]).to_bytes(4, "big") + bytes(4) + b"enough"),
                ]
            )
        return super().other()

    def bytes(self) -> bytes:
        rng = self.rng
        kinds = [self.headers, self.headers, self.data, self.data, self.other]
        begin = settings(rng.choice([{}, {3: 2}, {3: 1}, {4: 100}]))
        return begin + b"".join(rng.choice(kinds)() for _ in range(rng.randrange(60)))


def one_case(seed: int, guarded: Guarded | None = None) -> None:
    rng = random.Random(seed)
    data = Answers(rng).bytes()
    if rng.random() < 0.4:
        data = mutated(rng, data)
    cuts = [rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 1, 5, 40]))]
    agree(data, cuts, guarded)


@pytest.mark.parametrize("first", range(0, 4000, 500))
def test_answers_right_and_wrong(first: int) -> None:
    try_seeds(one_case, range(first, first + 500))


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_behind_the_settings(data: bytes, cuts: list[int]) -> None:
    agree(settings({}) + data, cuts)


@given(st.binary(max_size=60))
def test_any_bytes_at_all(data: bytes) -> None:
    agree(data, list(range(0, 60, 7)))


@given(
    st.lists(
        st.builds(frame, st.integers(0, 12), st.integers(0, 63), st.integers(0, 9), st.binary(max_size=20)),
        max_size=12,
    )
)
def test_any_frames(frames: list[bytes]) -> None:
    agree(settings({}) + b"".join(frames), [])


def test_every_cut_of_one_conversation() -> None:
    data = Answers(random.Random(9113)).bytes()
    for cut in range(len(data)):
        agree(data, [cut])
    agree(data, list(range(len(data))))


def test_no_byte_behind_a_read_is_read() -> None:
    guarded = Guarded()
    for seed in range(10_000, 10_400):
        one_case(seed, guarded)


@pytest.mark.soak
def test_soak_answers(soak_seconds: float) -> None:
    try_new_seeds(one_case, soak_seconds)
