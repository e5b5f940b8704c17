"""The HTTP/2 kernel against its twin: the same events, the same frames, the same error, however the bytes are cut."""

from __future__ import annotations

import random
from typing import Final

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.kernels.grpc.server import CallStream, GrpcConnection
from bascule.net.grpc.protocol import connection_limits
from tests.parity.guards.guard_pages import Guarded
from tests.parity.twins.twin_http2 import Event, Twin
from tests.support.http2_client import PREFACE, frame, grpc_message, request, settings
from tests.support.seeds import try_new_seeds, try_seeds

PATHS: Final = frozenset({b"/test/A", b"/test/B"})
BOUNDS: Final = {
    "stream_window_bytes": 3000,
    "connection_window_bytes": 70_000,
    "streams_max": 3,
    "message_bytes_max": 400,
}
CALM: Final = {
    name: 10**9
    for kind in ("resets", "pings", "settings", "idle_frames")
    for name in (f"{kind}_burst", f"{kind}_per_second")
}
LIST_BYTES: Final = 900


class Silent(CallStream):
    """Hears everything, says nothing."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events

    def opened(self) -> None:
        self.events.append(("opened", self.id, self.path))

    def received(self, message: bytes) -> None:
        self.events.append(("message", self.id, message))

    def client_finished(self) -> None:
        self.events.append(("half-closed", self.id))

    def ended(self) -> None:
        self.events.append(("closed", self.id))
        assert self.closed and self.finished


class Kernel:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.faults: list[Exception] = []
        bounds = connection_limits(**BOUNDS, **CALM, header_list_bytes_max=LIST_BYTES, continuations_max=1000)
        self.connection = GrpcConnection(bounds, None, {path: lambda: Silent(self.events) for path in PATHS})
        self.connection.on_fault = self.faults.append
        self.decoder = hpack.Decoder()
        self.connection.output.clear()  # our own SETTINGS

    def frames(self) -> list[Event]:
        self.connection.flush()
        data, at, found = bytes(self.connection.output), 0, list[Event]()
        while at < len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            kind, flags = data[at + 3], data[at + 4]
            stream, payload = int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == 1:
                fields = dict(self.decoder.decode(payload, raw=True))
                assert flags == 5
                found.append(("status", stream, int(fields[b"grpc-status"])))
            else:
                found.append(self.control(kind, flags, stream, payload))
        assert at == len(data)
        return found

    @staticmethod
    def control(kind: int, flags: int, stream: int, payload: bytes) -> Event:
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


def new_twin() -> Twin:
    return Twin(
        BOUNDS["stream_window_bytes"],
        BOUNDS["connection_window_bytes"],
        BOUNDS["streams_max"],
        BOUNDS["message_bytes_max"],
        PATHS,
        LIST_BYTES,
    )


def agree(data: bytes, cuts: list[int], guarded: Guarded | None = None) -> None:
    kernel, twin = Kernel(), new_twin()
    start = 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        piece = data[start:cut]
        kernel.connection.feed(piece if guarded is None else guarded.at_end(piece))
        start = cut
    twin.feed(data)
    assert kernel.faults == []
    assert kernel.connection.closing == twin.closed
    assert kernel.frames() == twin.frames
    if twin.closed:
        order = {"closed": 1}
        ended = len(twin.events)
        while ended and twin.events[ended - 1][0] in order:
            ended -= 1
        assert kernel.events[:ended] == twin.events[:ended]
        assert sorted(map(repr, kernel.events[ended:])) == sorted(map(repr, twin.events[ended:]))
    else:
        assert kernel.events == twin.events
        assert kernel.connection.open_streams == len(twin.streams)
    kernel.connection.lost()
    assert kernel.connection.open_streams == 0
    opened = [event[1] for event in kernel.events if event[0] == "opened"]
    assert sorted(opened) == sorted(event[1] for event in kernel.events if event[0] == "closed")  # type: ignore[type-var]


class Traffic:
    """What a client might send, more or less: mostly right, sometimes not."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.encoder = hpack.Encoder()
        self.next = 1
        self.wildness = rng.choice([0.0, 0.02, 0.3])

    def strange(self) -> bool:
        return self.rng.random() < self.wildness

    def stream(self) -> int:
        rng = self.rng
        if self.next > 1 and not self.strange():
            return max(1, self.next - 2 * rng.randint(1, 4))
        return rng.randrange(0, 12) if self.strange() else 1

    def fields(self) -> list[tuple[bytes, bytes]]:
        rng = self.rng
        fields = [(name.encode(), value.encode()) for name, value in request("/test/A")]
        if self.strange():
            name = rng.choice(
                [b"x-a", b"te", b"Bad", b":path", b"connection", b"content-length", b"cookie", b":authority", b""]
            )
            value = rng.choice([b"1", b"trailers", b"", b" a", b"a\0", b"12", b"0", b"x" * rng.randrange(400)])
            fields.insert(rng.randrange(len(fields) + 1), (name, value))
        if self.strange():
            del fields[rng.randrange(len(fields))]
        if rng.random() < 0.1:
            fields[2] = (b":path", rng.choice([b"/test/B", b"/test/C", b"", b"*"]))
        if rng.random() < 0.05:
            fields[0] = (b":method", rng.choice([b"GET", b"CONNECT"]))
        return fields

    def headers(self) -> bytes:
        rng = self.rng
        number = self.next
        if rng.random() < 0.3 and self.next > 1:
            number = self.stream()
        else:
            self.next += 2
        trailers = number < self.next - 2 and not self.strange()
        block = self.encoder.encode([(b"x-t", b"1")] if trailers else self.fields(), huffman=rng.random() < 0.5)
        flags = rng.choice([0, 0, 0, 0x20, 0x21, 8, 9, 0x28])
        if trailers:
            flags |= 1
        head = bytes((rng.randrange(4),)) if flags & 8 else b""
        tail = bytes(head[0]) if head else b""
        head += b"\0\0\0\0\x10" if flags & 0x20 else b""
        if rng.random() < 0.3:
            cut = rng.randrange(len(block) + 1)
            parts = frame(1, flags, number, head + block[:cut] + tail)
            middle = rng.randrange(cut, len(block) + 1)
            return parts + frame(9, 0, number, block[cut:middle]) + frame(9, 4, number, block[middle:])
        return frame(1, flags | 4, number, head + block + tail)

    def data(self) -> bytes:
        rng = self.rng
        body = b"".join(
            grpc_message(rng.randbytes(rng.choice([0, 1, 50, 400, 401]) if rng.random() < 0.3 else rng.randrange(60)))
            for _ in range(rng.randrange(4))
        )
        if rng.random() < 0.2:
            body = b"".join(
                grpc_message(rng.randbytes(rng.randrange(300, 401))) for _ in range(rng.choice([1, 2, 2, 3, 30]))
            )
        if rng.random() < 0.3:
            body = body[: rng.randrange(len(body) + 1)]
        flags = rng.choice([0, 0, 0, 1, 8, 9])
        if flags & 8:
            padding = rng.randrange(8)
            body = bytes((padding,)) + body + bytes(padding)
        return frame(0, flags, self.stream(), body)

    def other(self) -> bytes:
        rng = self.rng
        number = self.stream()
        if self.strange():
            return rng.choice(
                [
                    frame(8, 0, rng.choice([0, number]), rng.choice([2**31 - 1, 0]).to_bytes(4, "big")),
                    settings({rng.choice([2, 4, 5]): rng.choice([0, 1, 2, 2**24, 2**31])}),
                    frame(2, 0, number, bytes(4)),
                    frame(rng.randrange(10), rng.randrange(256), number, rng.randbytes(rng.randrange(10))),
                ]
            )
        return rng.choice(
            [
                frame(8, 0, rng.choice([0, number]), rng.choice([1, 100, 10_000]).to_bytes(4, "big")),
                settings({rng.choice([1, 3, 4, 6, 9]): rng.choice([0, 1, 16_384, 65_535, 2**31 - 1])}),
                frame(4, 1),
                frame(6, rng.randrange(2), 0, rng.randbytes(8)),
                frame(3, 0, number, bytes(4)),
                frame(2, 0, number, bytes(5)),
                frame(7, 0, 0, bytes(8)),
                frame(rng.randrange(10, 256), rng.randrange(256), number, rng.randbytes(5)),
            ]
        )

    def bytes(self) -> bytes:
        rng = self.rng
        kinds = [self.headers, self.data, self.data, self.data, self.other]
        begin = PREFACE + settings({}) + self.headers()
        return begin + b"".join(rng.choice(kinds)() for _ in range(rng.randrange(60)))


def mutated(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(changed))
        match rng.randrange(3):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randrange(20)]
            case _:
                changed[at:at] = rng.randbytes(rng.randrange(12))
        if not changed:
            return b""
    return bytes(changed)


def one_case(seed: int, guarded: Guarded | None = None) -> None:
    rng = random.Random(seed)
    data = Traffic(rng).bytes()
    if rng.random() < 0.4:
        data = mutated(rng, data)
    cuts = [rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 1, 5, 40]))]
    agree(data, cuts, guarded)


@pytest.mark.parametrize("first", range(0, 4000, 500))
def test_traffic_right_and_wrong(first: int) -> None:
    try_seeds(one_case, range(first, first + 500))


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_behind_the_preface(data: bytes, cuts: list[int]) -> None:
    agree(PREFACE + settings({}) + data, cuts)


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
    agree(PREFACE + settings({}) + b"".join(frames), [])


def test_every_cut_of_one_conversation() -> None:
    rng = random.Random(9113)
    data = Traffic(rng).bytes()
    for cut in range(len(data)):
        agree(data, [cut])
    agree(data, list(range(len(data))))


def test_no_byte_behind_a_read_is_read() -> None:
    guarded = Guarded()
    for seed in range(10_000, 10_400):
        one_case(seed, guarded)


@pytest.mark.soak
def test_soak_traffic(soak_seconds: float) -> None:
    try_new_seeds(one_case, soak_seconds)
