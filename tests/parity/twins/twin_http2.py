"""The receiving half of an HTTP/2 server in plain Python, from the text of RFC 9113. Nothing here answers a call.

`events` is what a server would see (opened, message, half-closed, closed), `frames` what it would send, as tuples.
Windows for the sending half are kept only as far as they can be violated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tests.parity.twins import twin_hpack

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST: Final = 2**31 - 1
FRAME_BYTES: Final = 16_384
CONNECTION_SPECIFIC: Final = (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
PSEUDO: Final = (b":method", b":scheme", b":path", b":authority")

Event = tuple[object, ...]


class ConnectionFault(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class StreamFault(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Stream:
    send_window: int
    receive_window: int
    length: int | None = None
    half_closed: bool = False
    consumed: int = 0
    body: bytes = b""


@dataclass
class Twin:
    stream_window: int
    connection_window: int
    streams_max: int
    message_bytes_max: int
    known_paths: frozenset[bytes]
    list_bytes_max: int
    events: list[Event] = field(default_factory=list)
    frames: list[Event] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.input = b""
        self.preface = False
        self.settings = False
        self.decoder = twin_hpack.Decoder(4096, self.list_bytes_max)
        self.streams: dict[int, Stream] = {}
        self.last = 0
        self.window = 65_535
        self.peer_window = 65_535
        self.consumed = 0
        self.resets: list[int] = []
        self.block: tuple[int, bool, bytes] | None = None

    def feed(self, data: bytes) -> None:
        self.input += data
        try:
            if not self.preface:
                head = self.input[: len(PREFACE)]
                if not PREFACE.startswith(head):
                    raise ConnectionFault(1)
                if len(head) < len(PREFACE):
                    return
                self.preface, self.input = True, self.input[len(PREFACE) :]
            while not self.closed and len(self.input) >= 9:
                size = int.from_bytes(self.input[:3], "big")
                if size > FRAME_BYTES:
                    raise ConnectionFault(6)
                if len(self.input) < 9 + size:
                    return
                whole, self.input = self.input[: 9 + size], self.input[9 + size :]
                self.frame(whole[3], whole[4], int.from_bytes(whole[5:9], "big") & LARGEST, whole[9:])
        except ConnectionFault as fault:
            self.closed = True
            self.frames.append(("goaway", self.last, fault.code))
            for stream in list(self.streams):
                self.close(stream)

    def frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if not self.settings and (kind != 4 or flags & 1):
            raise ConnectionFault(1)
        if self.block and (kind != 9 or stream != self.block[0]):
            raise ConnectionFault(1)
        names = ["data", "headers", "priority", "rst", "set", "push", "ping", "goaway", "update", "continuation"]
        if kind < len(names):
            try:
                getattr(self, "frame_" + names[kind])(flags, stream, payload)
            except StreamFault as fault:
                self.reset(stream, fault.code)

    def reset(self, stream: int, code: int) -> None:
        self.resets.append(stream)
        self.frames.append(("rst", stream, code))
        if stream in self.streams:
            self.close(stream)

    def close(self, stream: int) -> None:
        del self.streams[stream]
        self.events.append(("closed", stream))

    # ── streams ──

    def is_idle(self, stream: int) -> bool:
        return stream > self.last or stream % 2 == 0

    def in_flight(self, stream: int) -> bool:
        return stream in self.resets[-64:]

    def frame_data(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionFault(1)
        body = self.unpad(flags, payload, short=1)
        self.consumed += len(payload)
        if self.consumed >= self.connection_window // 2:
            self.frames.append(("window", 0, self.consumed))
            self.consumed = 0
        if number not in self.streams:
            if self.is_idle(number):
                raise ConnectionFault(1)
            if not self.in_flight(number):
                self.frames.append(("rst", number, 5))
            return
        stream = self.streams[number]
        if stream.half_closed:
            raise StreamFault(5)
        stream.receive_window -= len(payload)
        if stream.receive_window < 0:
            raise StreamFault(3)
        if stream.length is not None:
            stream.length -= len(body)
            if stream.length < 0:
                raise StreamFault(1)
        stream.consumed += len(payload)
        self.messages(number, stream, body)
        if number not in self.streams:
            return
        if flags & 1:
            self.end(number, stream)
        elif stream.consumed >= (self.stream_window + 1) // 2:
            self.frames.append(("window", number, stream.consumed))
            stream.receive_window += stream.consumed
            stream.consumed = 0

    def messages(self, number: int, stream: Stream, body: bytes) -> None:
        stream.body += body
        while len(stream.body) >= 5:
            size = int.from_bytes(stream.body[1:5], "big")
            if size > self.message_bytes_max:
                return self.finish(number, 8)
            if len(stream.body) < 5 + size:
                return None
            if stream.body[0]:
                return self.finish(number, 13)
            self.events.append(("message", number, stream.body[5 : 5 + size]))
            stream.body = stream.body[5 + size :]
        return None

    def finish(self, number: int, status: int) -> None:
        """The call is answered with a status; a client that is not done is reset."""
        self.frames.append(("status", number, status))
        if not self.streams[number].half_closed:
            self.resets.append(number)
            self.frames.append(("rst", number, 0))
        self.close(number)

    def end(self, number: int, stream: Stream) -> None:
        if stream.length:
            raise StreamFault(1)
        stream.half_closed = True
        if stream.body:
            self.finish(number, 13)
        else:
            self.events.append(("half-closed", number))

    def unpad(self, flags: int, payload: bytes, short: int) -> bytes:
        if not flags & 8:
            return payload
        if not payload:
            raise ConnectionFault(short)
        padding = payload[0]
        if padding > len(payload) - 1:
            raise ConnectionFault(1)
        return payload[1 : len(payload) - padding]

    def frame_headers(self, flags: int, number: int, payload: bytes) -> None:
        if number % 2 == 0:
            raise ConnectionFault(1)
        padding = 0
        if flags & 8:
            if not payload:
                raise ConnectionFault(6)
            padding, payload = payload[0], payload[1:]
        if flags & 0x20:
            if len(payload) < 5:
                raise ConnectionFault(6)
            payload = payload[5:]
        if padding > len(payload):
            raise ConnectionFault(1)
        self.block = (number, bool(flags & 1), b"")
        self.frame_continuation(flags, number, payload[: len(payload) - padding])

    def frame_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self.block is None:
            raise ConnectionFault(1)
        number, ends, block = self.block
        self.block = (number, ends, block + payload)
        if flags & 4:
            self.block = None
            self.headers(number, ends, block + payload)

    def headers(self, number: int, ends: bool, block: bytes) -> None:
        try:
            fields, complete = self.decoder.decode(block)
        except twin_hpack.Malformed:
            if number > self.last:
                self.last = number
            raise ConnectionFault(9) from None
        if number <= self.last:
            self.trailers(number, ends, fields, complete)
            return
        self.last = number
        if len(self.streams) >= self.streams_max:
            raise StreamFault(7)
        length = self.check_request(fields) if complete else None
        if ends and length:
            raise StreamFault(1)
        headers = dict(fields)
        if not complete:
            self.refuse(number, ends, 8)
        elif headers.get(b":method") != b"POST" or headers.get(b"content-type") != b"application/grpc":
            self.refuse(number, ends, 13)
        elif headers[b":path"] not in self.known_paths:
            self.refuse(number, ends, 12)
        else:
            self.streams[number] = stream = Stream(self.peer_window, self.stream_window, length)
            self.events.append(("opened", number, headers[b":path"]))
            if ends:
                self.end(number, stream)

    def refuse(self, number: int, ends: bool, status: int) -> None:
        self.frames.append(("status", number, status))
        if not ends:
            self.resets.append(number)
            self.frames.append(("rst", number, 0))

    def trailers(self, number: int, ends: bool, fields: list[twin_hpack.Field], complete: bool) -> None:
        if number not in self.streams:
            if not self.in_flight(number):
                raise ConnectionFault(5)
            return
        if self.streams[number].half_closed:
            raise StreamFault(5)
        if (
            not ends
            or not complete
            or any(name.startswith(b":") or not is_valid(name, value) for name, value in fields)
        ):
            raise StreamFault(1)
        self.end(number, self.streams[number])

    def check_request(self, fields: list[twin_hpack.Field]) -> int | None:
        """§8.3; returns the content-length."""
        pseudo = [name for name, _ in fields if name.startswith(b":")]
        lengths = [value for name, value in fields if name == b"content-length"]
        values = dict(fields)
        wrong = (
            [name for name, _ in fields[: len(pseudo)]] != pseudo
            or len(set(pseudo)) != len(pseudo)
            or not set(pseudo) <= set(PSEUDO)
            or not all(is_valid(name, value) for name, value in fields)
            or any(value != b"trailers" for name, value in fields if name == b"te")
            or not all(value.isdigit() and value.isascii() for value in lengths)
            or len({int(value) for value in lengths}) > 1
        )
        if values.get(b":method") == b"CONNECT":
            wrong = wrong or b":path" in values or b":scheme" in values or b":authority" not in values
        else:
            wrong = wrong or not {b":method", b":scheme", b":path"} <= set(values) or not values[b":path"]
        if wrong:
            raise StreamFault(1)
        return int(lengths[0]) if lengths else None

    def frame_priority(self, _: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionFault(1)
        if len(payload) != 5:
            raise StreamFault(6) if number in self.streams else ConnectionFault(6)

    def frame_rst(self, _: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(6)
        if number == 0 or self.is_idle(number):
            raise ConnectionFault(1)
        if number in self.streams:
            self.close(number)

    # ── the connection ──

    def frame_set(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(1)
        if len(payload) % 6 or (flags & 1 and payload):
            raise ConnectionFault(6)
        if flags & 1:
            return
        window = self.peer_window
        for at in range(0, len(payload), 6):
            name, value = int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")
            self.check_setting(name, value)
            window = value if name == 4 else window
        self.move_windows(window)
        self.settings = True
        self.frames.append(("settings-ack",))

    def check_setting(self, name: int, value: int) -> None:
        if name == 2 and value > 1:
            raise ConnectionFault(1)
        if name == 5 and not FRAME_BYTES <= value < 2**24:
            raise ConnectionFault(1)
        if name == 4 and value > LARGEST:
            raise ConnectionFault(3)

    def move_windows(self, value: int) -> None:
        """Of many values in one frame, the last counts."""
        difference = value - self.peer_window
        self.peer_window = value
        for stream in self.streams.values():
            stream.send_window += difference
            if stream.send_window > LARGEST:
                raise ConnectionFault(3)

    def frame_push(self, _: int, __: int, ___: bytes) -> None:
        raise ConnectionFault(1)

    def frame_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(1)
        if len(payload) != 8:
            raise ConnectionFault(6)
        if not flags & 1:
            self.frames.append(("ping-ack", payload))

    def frame_goaway(self, _: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(1)
        if len(payload) < 8:
            raise ConnectionFault(6)

    def frame_update(self, _: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(6)
        increment = int.from_bytes(payload, "big") & LARGEST
        if number == 0:
            self.window += increment
            if increment == 0:
                raise ConnectionFault(1)
            if self.window > LARGEST:
                raise ConnectionFault(3)
            return
        if self.is_idle(number):
            raise ConnectionFault(1)
        if number in self.streams:
            self.streams[number].send_window += increment
            if increment == 0:
                raise StreamFault(1)
            if self.streams[number].send_window > LARGEST:
                raise StreamFault(3)


def is_valid(name: bytes, value: bytes) -> bool:
    """§8.2.1 and §8.2.2"""
    bare = name.removeprefix(b":")
    if not name or (
        not name.startswith(b":") and any(byte <= 0x20 or byte >= 0x7F or 0x41 <= byte <= 0x5A for byte in bare)
    ):
        return False
    if not name.startswith(b":") and b":" in name:
        return False
    return name not in CONNECTION_SPECIFIC and not set(value) & {0, 10, 13} and value == value.strip(b" \t")
