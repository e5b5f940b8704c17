"""A client that speaks HTTP/2 frame by frame and lets a test do what no good client would."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import hpack

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED = range(6)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(6, 12)
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

Fields = Sequence[tuple[str | bytes, str | bytes]]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", name, value) for name, value in values.items()))


def grpc_message(data: bytes, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(data).to_bytes(4, "big") + data


def request(path: str = "/test/Echo", *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    ]


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[:4] if self.kind == RST_STREAM else self.payload[4:8], "big")


@dataclass(slots=True)
class Response:
    """What came back on one stream until it ended."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    trailers: list[tuple[str, str]] = field(default_factory=list)
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(dict(self.trailers or self.headers)["grpc-status"])

    @property
    def text(self) -> str:
        return dict(self.trailers or self.headers).get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.body):
            size = int.from_bytes(self.body[at + 1 : at + 5], "big")
            found.append(self.body[at + 5 : at + 5 + size])
            assert len(found[-1]) == size
            at += 5 + size
        return found


class Closed(Exception):
    """The server has closed the connection."""


class Http2Client:
    def __init__(
        self,
        port: int,
        *,
        preface: bytes = PREFACE,
        first: dict[int, int] | None = None,
        sock: socket.socket | None = None,
    ):
        self.sock = sock or socket.create_connection(("127.0.0.1", port), timeout=60)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.buffer = b""
        self.settings: dict[int, int] = {}
        self.seen: list[Frame] = []
        if preface:
            self.send(preface + settings(first or {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    # ── out ──

    def send(self, data: bytes) -> None:
        with contextlib.suppress(
            ConnectionError
        ):  # the server may have had enough already; what it said is still to be read
            self.sock.sendall(data)

    def frame(self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> None:
        self.send(frame(kind, flags, stream, payload))

    def headers(self, stream: int, fields: Fields, flags: int = END_HEADERS) -> None:
        self.frame(HEADERS, flags, stream, self.encoder.encode(fields))

    def data(self, stream: int, payload: bytes, flags: int = 0) -> None:
        self.frame(DATA, flags, stream, payload)

    def call(self, stream: int, path: str, message: bytes) -> None:
        """A whole unary call."""
        self.headers(stream, request(path))
        self.data(stream, grpc_message(message), END_STREAM)

    # ── in ──

    def read(self, seconds: float = 60) -> Frame:
        """The next frame. SETTINGS of the server are acknowledged."""
        deadline = time.monotonic() + seconds
        while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], "big"):
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                more = self.sock.recv(1 << 20)
            except ConnectionError:
                raise Closed from None
            if not more:
                raise Closed
            self.buffer += more
        size = int.from_bytes(self.buffer[:3], "big")
        got = Frame(self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], "big"), self.buffer[9 : 9 + size])
        self.buffer = self.buffer[9 + size :]
        if got.kind == SETTINGS and not got.flags & ACK:
            for at in range(0, size, 6):
                name, value = struct.unpack(">HI", got.payload[at : at + 6])
                self.settings[name] = value
            self.frame(SETTINGS, ACK)
        self.seen.append(got)
        return got

    def read_until(self, kinds: Iterable[int], stream: int | None = None, seconds: float = 60) -> Frame:
        wanted = set(kinds)
        deadline = time.monotonic() + seconds
        while True:
            got = self.read(deadline - time.monotonic())
            if got.kind in wanted and stream in (None, got.stream):
                return got

    def response(self, stream: int, *, credit: bool = True) -> Response:
        """Everything of one stream until it ends, other streams dropped. Gives window for what it reads unless told not to."""
        response = Response()
        while True:
            got = self.read()
            if got.kind == HEADERS:
                fields = [(str(name), str(value)) for name, value in self.decoder.decode(got.payload)]
                if got.stream == stream:
                    if response.headers:
                        response.trailers = fields
                    else:
                        response.headers = fields
            elif got.kind == DATA and got.stream == stream:
                response.body += got.payload
                if credit and got.payload:
                    grant = len(got.payload).to_bytes(4, "big")
                    self.send(frame(WINDOW_UPDATE, 0, 0, grant) + frame(WINDOW_UPDATE, 0, stream, grant))
            elif got.kind == RST_STREAM and got.stream == stream:
                response.reset = got.code
                return response
            elif got.kind == GOAWAY and got.code != NO_ERROR:
                raise AssertionError(f"GOAWAY {got.code}: {got.payload[8:]!r}")
            if got.stream == stream and got.kind in (HEADERS, DATA) and got.flags & END_STREAM:
                return response

    def goaway(self) -> int:
        """The code the server ends the connection with. It must close it, too."""
        got = self.read_until([GOAWAY])
        with contextlib.suppress(Closed):
            while True:
                self.read()
        return got.code

    def reset_of(self, stream: int) -> int:
        return self.read_until([RST_STREAM], stream).code

    def ping(self) -> None:
        """Returns when the server has answered, and so has dealt with all that came before."""
        self.frame(PING, 0, 0, b"conforms")
        while True:
            got = self.read_until([PING, GOAWAY])
            assert got.kind == PING, f"GOAWAY {got.code}: {got.payload[8:]!r}"
            if got.flags & ACK and got.payload == b"conforms":
                return
