"""Both kernels face to face, with calls that do anything, over a line that may damage bytes: everything arrives, or every call ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from bascule.kernels.grpc.client import ClientConnection, ClientStream, UnaryCall
from bascule.kernels.grpc.server import CallStream, GrpcConnection
from bascule.net.grpc.protocol import connection_limits
from tests.parity.guards.guard_pages import Guarded
from tests.support.kernels.probes import PyClientStream
from tests.support.seeds import try_new_seeds, try_seeds

SIZES = (0, 1, 100, 5_000, 70_000, 300_000)


class Mirror(CallStream):
    """Sends everything back, as far as there is room."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.last_seen = False

    def received(self, message: bytes) -> None:
        self.waiting.append(message)
        self.writable()

    def client_finished(self) -> None:
        self.last_seen = True
        self.writable()

    def writable(self) -> None:
        while self.waiting and self.room_bytes:
            self.send(self.waiting.pop(0))
        if self.last_seen and not self.waiting:
            self.finish(0, "all of it")


class Talker(PyClientStream):
    """Sends messages as there is room, and expects them back."""

    def __init__(self, rng: random.Random, messages: int) -> None:
        self.rng = rng
        self.to_send = [rng.randbytes(rng.choice(SIZES)) for _ in range(messages)]
        self.expected = list(self.to_send)
        self.heard: list[bytes] = []
        self.result: tuple[int, str] | None = None

    def writable(self) -> None:
        while self.to_send and self.room_bytes:
            self.send(self.to_send.pop(0))
        if not self.to_send:
            self.half_close()

    def message(self, message: bytes) -> None:
        self.heard.append(message)

    def messages_done(self) -> None:
        self.withhold(self.rng.random() < 0.3)

    def ended(self, status: int, text: str) -> None:
        assert self.result is None
        self.result = status, text


class Restless(PyClientStream):
    """Writes, ends, fails and ends others, at any moment."""

    def __init__(self, rng: random.Random, calls: list[ClientStream], connection: ClientConnection) -> None:
        self.rng = rng
        self.calls = calls
        self.through = connection
        self.endings = 0
        calls.append(self)

    def anything(self) -> None:
        rng = self.rng
        match rng.randrange(16):
            case 0:
                self.cancel()
            case 1:
                rng.choice(self.calls).cancel()
            case 2:
                raise RuntimeError("planted")
            case 3:
                self.withhold(rng.random() < 0.5)
            case 4:
                self.half_close()
            case 5:
                self.send(bytes(rng.choice(SIZES)))
            case 6 if rng.random() < 0.05:
                self.through.close()
            case 7 if rng.random() < 0.05:
                self.through.lost("because")
            case 8:
                self.through.flush()
            case 9:
                self.through.ping()
            case 10 if len(self.calls) < 40:
                self.through.open(
                    Restless(rng, self.calls, self.through), b"/test/Mirror", timeout=rng.choice([-1, 0, 60])
                )
            case 11 if rng.random() < 0.1:
                self.through.expire(float("inf"))
            case _:
                self.send(rng.randbytes(rng.randrange(100)))

    def headers_received(self) -> None:
        self.anything()

    def message(self, message: bytes) -> None:
        assert isinstance(message, bytes)
        self.anything()

    def messages_done(self) -> None:
        self.anything()

    def writable(self) -> None:
        if self.rng.random() < 0.3:
            self.anything()

    def ended(self, status: int, text: str) -> None:
        assert self.endings == 0 and 0 <= status <= 16 and isinstance(text, str)
        self.endings += 1
        self.anything()


class Line:
    """Bytes between the two, in pieces."""

    def __init__(self, rng: random.Random, client: ClientConnection, server: GrpcConnection) -> None:
        self.rng = rng
        self.client = client
        self.server = server
        self.damage: Callable[[bytes], bytes] = lambda data: data
        self.guarded: Guarded | None = None

    def carry(self, source: Any, target: Any, most: int) -> bool:
        source.flush()
        data = bytes(source.output)[:most]
        source.output.drop(len(data))
        if target is self.client:
            data = self.damage(data)
            if self.guarded is not None:
                data = self.guarded.at_end(data)  # type: ignore[assignment]
        target.feed(data)
        return bool(data)

    def run(self, turns_max: int = 100_000) -> None:
        for _ in range(turns_max):
            most = self.rng.choice([1, 9, 1_000, 60_000, 60_000])
            moved = self.carry(self.client, self.server, most)
            if not self.carry(self.server, self.client, most) and not moved:
                return
        raise AssertionError("they do not stop talking")


def pair(rng: random.Random, **changed: int) -> tuple[ClientConnection, GrpcConnection, Line]:
    bounds = connection_limits(
        output_bytes_max=rng.choice([2_000, 100_000]),
        stream_window_bytes=rng.choice([10, 70_000, 1 << 20]),
        connection_window_bytes=rng.choice([65_535, 1 << 20]),
    )
    served = connection_limits(streams_max=rng.choice([1, 3, 100]), **changed)
    client = ClientConnection(bounds, frame_bytes_max=rng.choice([16_384, 65_536]))
    server = GrpcConnection(served, None, {b"/test/Mirror": Mirror})
    return client, server, Line(rng, client, server)


@pytest.mark.parametrize("seed", range(40))
def test_everything_arrives_in_order_within_any_windows(seed: int) -> None:
    rng = random.Random(seed)
    client, server, line = pair(rng)
    line.run()  # until the server's limits are known
    talkers = [Talker(rng, rng.randrange(6)) for _ in range(rng.choice([1, 3, 12]))]
    for talker in talkers:
        client.open(talker, b"/test/Mirror")
    line.run()
    for _ in range(1000):
        if all(talker.finished for talker in talkers):
            break
        for talker in talkers:
            talker.withhold(False)
        line.run()
    assert [talker.result for talker in talkers] == [(0, "all of it")] * len(talkers)
    assert all(talker.heard == talker.expected for talker in talkers)
    assert client.open_calls == server.open_streams == 0
    assert not client.closing


def one_case(seed: int, guarded: Guarded | None = None) -> None:
    rng = random.Random(seed)
    client, server, line = pair(rng, resets_burst=10**6, idle_frames_burst=10**6, pings_burst=10**6)
    line.guarded = guarded
    faults: list[Exception] = []
    calls: list[ClientStream] = []
    client.on_fault = faults.append
    client.on_output = lambda: None
    wildness = rng.choice([0, 0.01, 0.2])

    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        if changed and rng.random() < wildness:
            at = rng.randrange(len(changed))
            match rng.randrange(3):
                case 0:
                    changed[at] = rng.randrange(256)
                case 1:
                    del changed[at : at + rng.randrange(30)]
                case _:
                    changed[at:at] = rng.randbytes(rng.randrange(20))
        return bytes(changed)

    line.damage = damage
    unary: list[int] = []

    def answered(call: UnaryCall) -> None:
        assert (call.reply is not None) == (call.status == 0)
        unary.append(call.status)

    for _ in range(rng.randrange(1, 8)):
        if rng.random() < 0.3:
            calls.append(UnaryCall(answered))
            client.open(calls[-1], b"/test/Mirror", timeout=5)
            calls[-1].send(b"once")
            calls[-1].half_close()
        else:
            call = Restless(rng, calls, client)
            client.open(call, b"/test/Mirror")
            call.send(b"begin")
    for _ in range(rng.choice([5, 50, 200])):
        most = rng.choice([1, 9, 50, 300, 60_000])
        line.carry(client, server, most)
        line.carry(server, client, most)
        if rng.random() < 0.02:
            server.go_away()
        if rng.random() < 0.02:
            client.expire(float("inf"))
    client.lost()
    assert client.open_calls == 0
    assert all(str(fault) == "planted" for fault in faults)
    assert all(
        call.finished and call.connection is None for call in calls if not isinstance(call, Restless) or call.endings
    )
    assert all(call.endings == 1 for call in calls if isinstance(call, Restless) and call.path)
    assert len(unary) == len([call for call in calls if isinstance(call, UnaryCall)])


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_calls_that_do_anything_over_a_line_that_damages(first: int) -> None:
    try_seeds(one_case, range(first, first + 500))


def test_no_byte_behind_a_read_is_read() -> None:
    guarded = Guarded()
    for seed in range(50_000, 50_200):
        one_case(seed, guarded)


@pytest.mark.soak
def test_soak_anything(soak_seconds: float) -> None:
    try_new_seeds(one_case, soak_seconds)
