"""The receiving half of an HTTP/2 client in plain Python, from the text of RFC 9113 and of gRPC over HTTP/2.

Calls are there from the beginning, those with an even index with nothing more to send; as many as the server allows are in progress,
the others wait. `events` is what their makers would see (headers, message, ended with a status), `frames` what would be sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tests.parity.twins import twin_hpack
from tests.parity.twins.twin_http2 import ConnectionFault, Event, Stream, StreamFault, Twin, is_valid

HTTP: Final = {400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14}
RESET: Final = {7: 14, 8: 1, 11: 8, 12: 7}
BEFORE_SETTINGS: Final = 100


@dataclass
class Call(Stream):
    sends_more: bool = False
    headers_seen: bool = False


@dataclass
class ClientTwin(Twin):
    calls: int = 0
    allowed: int = BEFORE_SETTINGS
    waiting: list[int] = field(default_factory=list)
    leaving: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.preface = True
        self.waiting = list(range(self.calls))
        self.begin()

    def begin(self) -> None:
        while self.waiting and not self.closed and not self.leaving and len(self.streams) < self.allowed:
            index = self.waiting.pop(0)
            number = self.last + 2 if self.last else 1
            self.last = number
            self.streams[number] = Call(self.peer_window, self.stream_window, sends_more=index % 2 == 1)
            self.frames.append(("begin", number))
            if index % 2 == 0:
                self.frames.append(("end", number))

    def feed(self, data: bytes) -> None:
        super().feed(data)
        if self.closed:
            self.frames = [("goaway", 0, event[2]) if event[0] == "goaway" else event for event in self.frames]
            while self.waiting:
                self.waiting.pop(0)
                self.events.append(("ended", 0, 14))

    def close(self, stream: int) -> None:
        """Only ever by the end of the connection; everything else knows a status."""
        del self.streams[stream]
        self.events.append(("ended", stream, 14))

    def ended(self, number: int, status: int, code: int | None) -> None:
        call = self.call(number)
        if code is not None and (call.sends_more or not call.half_closed):
            self.resets.append(number)
            self.frames.append(("rst", number, code))
        del self.streams[number]
        self.events.append(("ended", number, status))
        self.begin()

    def call(self, number: int) -> Call:
        found = self.streams[number]
        assert isinstance(found, Call)
        return found

    def reset(self, stream: int, code: int) -> None:
        self.ended(stream, 13, code)

    def finish(self, number: int, status: int) -> None:
        self.ended(number, status, 0 if self.streams[number].half_closed else 8)

    # ── frames of streams ──

    def frame_data(self, flags: int, number: int, payload: bytes) -> None:
        if number and not self.is_idle(number) and number not in self.streams:
            self.resets.append(number)  # whatever comes for a call that has ended is dropped
        super().frame_data(flags, number, payload)

    def messages(self, number: int, stream: Stream, body: bytes) -> None:
        if body and not self.call(number).headers_seen:
            self.finish(number, 13)
        else:
            super().messages(number, stream, body)

    def end(self, number: int, stream: Stream) -> None:
        """DATA has ended a response that should have had trailers."""
        if stream.length:
            raise StreamFault(1)
        stream.half_closed = True
        self.finish(number, 13)

    def headers(self, number: int, ends: bool, block: bytes) -> None:
        try:
            fields, complete = self.decoder.decode(block)
        except twin_hpack.Malformed:
            raise ConnectionFault(9) from None
        if self.is_idle(number):
            raise ConnectionFault(1)
        if number not in self.streams:
            return
        call = self.call(number)
        if not complete:
            self.finish(number, 8)
            return
        self.check_response(fields)
        values = dict(fields)
        if call.headers_seen and (not ends or b":status" in values):
            raise StreamFault(1)
        if ends and call.length:
            raise StreamFault(1)
        call.half_closed = ends
        if call.headers_seen:
            self.status(number, values)
        else:
            self.response(number, call, ends, values)

    def response(self, number: int, call: Call, ends: bool, values: dict[bytes, bytes]) -> None:
        if b":status" not in values:
            raise StreamFault(1)
        http = int(values[b":status"])
        if http < 200:
            if ends or http == 101:
                raise StreamFault(1)
            return
        call.headers_seen = True
        kind = values.get(b"content-type", b"")
        is_grpc = kind == b"application/grpc" or kind.startswith((b"application/grpc+", b"application/grpc;"))
        encoding = values.get(b"grpc-encoding", b"identity")
        if ends or ((http != 200 or not is_grpc) and number_of(values.get(b"grpc-status")) is not None):
            self.status(number, values)
        elif http != 200 or not is_grpc:
            self.finish(number, HTTP.get(http, 2))
        elif encoding not in (b"identity", b"gzip", b"deflate"):
            self.finish(number, 13)
        else:
            call.length = int(values[b"content-length"]) if b"content-length" in values else None
            self.events.append(("headers", number))

    def status(self, number: int, values: dict[bytes, bytes]) -> None:
        text = values.get(b"grpc-status")
        http = int(values.get(b":status", b"200"))
        if text is None:
            status = HTTP.get(http, 2) if http != 200 else 2
        else:
            known = number_of(text)
            status = 2 if known is None or known > 16 else known
        if status == 0 and self.streams[number].body:
            status = 13
        self.finish(number, status)

    def check_response(self, fields: list[twin_hpack.Field]) -> None:
        """§8.3.2"""
        pseudo = [value for name, value in fields if name.startswith(b":")]
        lengths = [value for name, value in fields if name == b"content-length"]
        if (
            not all(is_valid(name, value) for name, value in fields)
            or any(name != b":status" for name, _ in fields if name.startswith(b":"))
            or len(pseudo) > 1
            or (pseudo and fields[0][0] != b":status")
            or not all(len(value) == 3 and value.isdigit() and int(value) >= 100 for value in pseudo)
            or not all(value.isdigit() and value.isascii() for value in lengths)
            or len({int(value) for value in lengths}) > 1
        ):
            raise StreamFault(1)

    def frame_rst(self, _: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(6)
        if number == 0 or self.is_idle(number):
            raise ConnectionFault(1)
        if number in self.streams:
            self.ended(number, RESET.get(int.from_bytes(payload, "big"), 13), None)

    # ── the connection ──

    def frame_set(self, flags: int, number: int, payload: bytes) -> None:
        if not self.settings:
            self.allowed = 2**31 - 1
        super().frame_set(flags, number, payload)
        self.begin()

    def check_setting(self, name: int, value: int) -> None:
        if name == 2 and value == 1:
            raise ConnectionFault(1)
        if name == 3:
            self.allowed = value
        super().check_setting(name, value)

    def frame_goaway(self, _: int, number: int, payload: bytes) -> None:
        super().frame_goaway(_, number, payload)
        self.leaving = True
        last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        for stream in [one for one in self.streams if one > last]:
            self.ended(stream, 14, None)
        while self.waiting:
            self.waiting.pop(0)
            self.events.append(("ended", 0, 14))


def number_of(text: bytes | None) -> int | None:
    """A status, if it is one that anybody could have meant."""
    return int(text) if text and text.isdigit() and len(text) < 10 else None


def new_client_twin(
    stream_window: int, connection_window: int, message_bytes: int, list_bytes: int, calls: int
) -> ClientTwin:
    return ClientTwin(stream_window, connection_window, 0, message_bytes, frozenset(), list_bytes, calls=calls)


__all__ = ["ClientTwin", "Event", "new_client_twin"]
