"""Damaged traffic of a real client, and calls that do anything while it comes: never a crash, a hang, or an exception of ours."""

from __future__ import annotations

import random

import pytest

from bascule.kernels.grpc.server import CallStream, GrpcConnection, GrpcStream, UnaryStream
from bascule.kernels.memory.account import MemoryAccount
from bascule.net.grpc.protocol import connection_limits
from tests.parity.guards.guard_pages import Guarded
from tests.parity.inputs.grpcio_traffic import TRAFFIC
from tests.support.http2_client import PREFACE
from tests.support.seeds import try_new_seeds, try_seeds


class Restless(CallStream):
    """Answers, ends, fails and ends others, at any moment."""

    def __init__(self, rng: random.Random, calls: list[GrpcStream]) -> None:
        self.rng = rng
        self.calls = calls
        self.endings = 0
        calls.append(self)

    def anything(self) -> None:
        rng = self.rng
        match rng.randrange(14):
            case 0:
                self.finish(rng.randrange(17), "text" * rng.randrange(3))
            case 1:
                rng.choice(self.calls).finish(14, "by another")
            case 2:
                raise RuntimeError("planted")
            case 3:
                self.withhold(rng.random() < 0.5)
            case 4:
                self.send_headers()
            case 5:
                self.send(bytes(rng.choice([0, 10, 70_000, 300_000])))
            case 6 if self.connection is not None and rng.random() < 0.1:
                self.connection.close()
            case 7 if self.connection is not None and rng.random() < 0.1:
                self.connection.go_away()
            case 8 if self.connection is not None:
                self.connection.flush()
            case 9 if self.connection is not None and rng.random() < 0.1:
                self.connection.lost()
            case _:
                self.send(rng.randbytes(rng.randrange(100)))

    def opened(self) -> None:
        self.anything()

    def received(self, message: bytes) -> None:
        assert isinstance(message, bytes)
        self.anything()

    def client_finished(self) -> None:
        self.anything()

    def writable(self) -> None:
        if self.rng.random() < 0.3:
            self.anything()

    def ended(self) -> None:
        self.endings += 1
        self.anything()


def one_case(seed: int, guarded: Guarded | None = None) -> None:
    rng = random.Random(seed)
    data = bytearray(TRAFFIC)
    for _ in range(rng.choice([0, 1, 3, 10])):
        at = rng.randrange(len(PREFACE), len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                del data[at : at + rng.randrange(30)]
            case _:
                begin = rng.randrange(len(data))
                data[at:at] = data[begin : begin + rng.randrange(60)]
    calls: list[GrpcStream] = []
    faults: list[Exception] = []

    def reply(stream: UnaryStream, request: bytes) -> None:
        if rng.random() < 0.2:
            raise RuntimeError("planted")
        stream.reply(request)
        stream.reply(b"twice")

    def unary() -> UnaryStream:
        calls.append(UnaryStream(reply))
        return calls[-1]  # type: ignore[return-value]

    memory = MemoryAccount(rng.choice([20_000, 1 << 30]), MemoryAccount(1 << 30))
    connection = GrpcConnection(
        connection_limits(output_bytes_max=rng.choice([100, 100_000])),
        None,
        {
            b"/test/Hello": unary,
            b"/test/Unary": unary,
            b"/test/Echo": lambda: Restless(rng, calls),
            b"/test/Numbers": lambda: Restless(rng, calls),
        },
        memory=memory,
    )
    connection.on_fault = faults.append
    connection.on_output = lambda: None
    at = 0
    while at < len(data):
        piece = bytes(data[at : at + rng.choice([1, 9, 50, 300, 10_000])])
        at += len(piece)
        connection.feed(piece if guarded is None else guarded.at_end(piece))
        connection.flush()
        if rng.random() < 0.5:
            connection.output.clear()
        if rng.random() < 0.05:
            connection.expire(float("inf"))
    connection.lost()
    assert connection.open_streams == 0
    assert memory.used == 0 and memory.whole is not None and memory.whole.used == 0
    assert all(str(fault) == "planted" for fault in faults)
    assert all(call.closed and call.connection is None for call in calls if call.id)
    assert all(call.endings == 1 for call in calls if isinstance(call, Restless))


@pytest.mark.parametrize("first", range(0, 3000, 500))
def test_damaged_traffic_of_a_real_client(first: int) -> None:
    try_seeds(one_case, range(first, first + 500))


def test_no_byte_behind_a_read_is_read() -> None:
    guarded = Guarded()
    for seed in range(50_000, 50_300):
        one_case(seed, guarded)


@pytest.mark.soak
def test_soak_damaged_traffic(soak_seconds: float) -> None:
    try_new_seeds(one_case, soak_seconds)
