"""HTTP/2 by hand over a blocking socket: a gRPC client that stalls, hoards streams or opens its windows as a test wants."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from typing import Any, Final

from hpack import Decoder, Encoder

from tests.support.waiting import PATIENCE_SECONDS

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
ACK: Final = 0x1
INITIAL_WINDOW_SIZE: Final = 4
WINDOW_MAX: Final = 2**31 - 1
FRAME_BYTES: Final = 16_384


class RawGrpc:
    """One connection. Reads only when told to. `window` is what each stream may receive before it is given more."""

    def __init__(self, address: str, window: int = 65_535) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self._encoder, self._decoder = Encoder(), Decoder()
        self.headers: dict[int, dict[str, str]] = {}
        self._input = b""
        self._next_stream = 1
        self.send_window = 65_535
        self.stream_windows: dict[int, int] = {}
        self._initial_send_window = 65_535
        self.received: Counter[int] = Counter()
        self.ended: set[int] = set()
        self.goaway: bytes | None = None
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        more = struct.pack(">I", WINDOW_MAX - 65_535)
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + raw_frame(SETTINGS, 0, 0, settings)
            + raw_frame(WINDOW_UPDATE, 0, 0, more)
        )

    def open(self, path: str, **more: str) -> int:
        """A call whose request is still to be sent; `more` headers have underscores for dashes."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        head = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
        head += [("content-type", "application/grpc"), ("te", "trailers")]
        head += [(name.replace("_", "-"), value) for name, value in more.items()]
        block = self._encoder.encode(head)
        self.stream_windows[stream] = self._initial_send_window
        self.socket.sendall(raw_frame(HEADERS, END_HEADERS, stream, block))
        return stream

    def encode(self, fields: list[tuple[str, str]]) -> bytes:
        """A header block, after all that were sent before."""
        block: bytes = self._encoder.encode(fields)
        return block

    def send_message(self, stream: int, message: bytes, *, end: bool = False) -> None:
        """Without a look at windows."""
        framed = b"\0" + struct.pack(">I", len(message)) + message
        self.send_data(stream, framed, end=end)

    def send_data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        self.send_window -= len(data)
        self.stream_windows[stream] -= len(data)
        out = b""
        for start in range(0, len(data) or 1, FRAME_BYTES):
            part = data[start : start + FRAME_BYTES]
            last = start + FRAME_BYTES >= len(data)
            out += raw_frame(DATA, END_STREAM if end and last else 0, stream, part)
        self.socket.sendall(out)

    def call(self, path: str, message: bytes, **more: str) -> int:
        """A call whose one request is sent."""
        stream = self.open(path, **more)
        self.send_message(stream, message, end=True)
        return stream

    def room(self, stream: int) -> int:
        """How much may be sent now."""
        return min(self.send_window, self.stream_windows[stream])

    def pump(self, seconds: float) -> bool:
        """Read what is there or comes in time, and answer what has to be answered. False when nothing came."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return False
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server hung up")
        self._input += data
        while len(self._input) >= 9:
            size = int.from_bytes(self._input[:3], "big")
            if len(self._input) < 9 + size:
                break
            kind, flags = self._input[3], self._input[4]
            stream = int.from_bytes(self._input[5:9], "big") & 0x7FFFFFFF
            payload, self._input = self._input[9 : 9 + size], self._input[9 + size :]
            self._take(kind, flags, stream, payload)
        return True

    def pump_until(self, done: Any, seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"nothing more came within {seconds:g} s"
            self.pump(0.05)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self.received[stream] += len(payload)
        elif kind == HEADERS:
            found = {str(name): str(value) for name, value in self._decoder.decode(payload)}
            self.headers[stream] = {**self.headers.get(stream, {}), **found}
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
            self.socket.sendall(raw_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(raw_frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream:
                self.stream_windows[stream] = self.stream_windows.get(stream, 0) + more
            else:
                self.send_window += more
        elif kind == GOAWAY:
            self.goaway = payload
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.add(stream)

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == INITIAL_WINDOW_SIZE:
                for stream in self.stream_windows:
                    self.stream_windows[stream] += value - self._initial_send_window
                self._initial_send_window = value

    def close(self) -> None:
        self.socket.close()


def raw_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
