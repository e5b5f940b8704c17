"""Counts the bytes of unfinished requests on a connection of HTTP/2, from the frames that a client sends.

pyarrow has no limit for the size of a request, and assembles it in memory. Requests of this service are tickets and commands of at most
64 KiB, so more than that is an attack or a mistake. Only frame headers are read (RFC 9113 §4.1):

    length u24 · type u8 · flags u8 · stream u31, big-endian
"""

from __future__ import annotations

from typing import Final

from bascule import limits

PREFACE_BYTES: Final = 24
FRAME_HEADER_BYTES: Final = 9
DATA, HEADERS, RST_STREAM = 0, 1, 3
END_STREAM: Final = 1
ENTRY_BYTES: Final = 64
"""Counted for each stream besides its data, so that many empty ones are bounded too."""


class RequestMeter:
    def __init__(self) -> None:
        self._skip = PREFACE_BYTES
        self._header = b""
        self._unfinished: dict[int, int] = {}
        self.unfinished_bytes = 0

    @property
    def is_excessive(self) -> bool:
        return self.unfinished_bytes > limits.FLIGHT_UNFINISHED_BYTES_MAX

    def feed(self, data: bytes) -> None:
        """Count the next bytes of the client, cut anywhere."""
        position, size = 0, len(data)
        while position < size:
            if self._skip:
                step = min(self._skip, size - position)
                self._skip -= step
                position += step
                continue
            piece = data[position : position + FRAME_HEADER_BYTES - len(self._header)]
            self._header += piece
            position += len(piece)
            if len(self._header) == FRAME_HEADER_BYTES:
                self._frame(self._header)
                self._header = b""

    def _frame(self, header: bytes) -> None:
        length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        stream = int.from_bytes(header[5:], "big") & 0x7FFF_FFFF
        self._skip = length
        if kind == DATA and not flags & END_STREAM:
            self.unfinished_bytes += length + (0 if stream in self._unfinished else ENTRY_BYTES)
            self._unfinished[stream] = self._unfinished.get(stream, ENTRY_BYTES) + length
        elif kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.unfinished_bytes -= self._unfinished.pop(stream, 0)
            if kind == DATA and length > limits.FLIGHT_UNFINISHED_BYTES_MAX:
                self.unfinished_bytes += length  # one frame with a whole request
