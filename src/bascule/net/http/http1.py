"""HTTP/1.1 requests out of bytes, after RFC 9112: strict, bounded, and nothing but a function of the bytes.

    reader = RequestReader()
    reader.feed(data)
    while (request := reader.next()) is not None: …

Requests have no bodies: there is nothing to send here yet. What is not a request, or too large for one, is a HttpFault with the status
to answer with; where the next request would begin is then anybody's guess, so the connection is over. How the bytes were cut into
pieces on their way makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from bascule import limits

ALLOWED: Final = ("GET", "HEAD")
_OTHERS: Final = frozenset({"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"})

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VERSION: Final = re.compile(rb"HTTP/([0-9])\.([0-9])")
_TARGET: Final = re.compile(rb"[\x21\x22\x24-\x7e]+")
_ABSOLUTE: Final = re.compile(rb"https?://[^/?]+", re.IGNORECASE)
_BAD_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_SINGLE: Final = frozenset({"host", "content-length", "transfer-encoding"})
"""Two of these mean that somebody on the way may have understood another request than we do."""


class HttpFault(Exception):
    """What came is not a request that can be answered; `status` says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """Decoded; begins with a slash."""
    query: str
    """As it came, without the question mark."""
    headers: Mapping[str, str]
    """By their names in lower case; what was said twice stands behind a comma."""
    keeps_alive: bool


class RequestReader:
    """One connection's bytes."""

    def __init__(
        self,
        *,
        line_bytes_max: int = limits.HTTP_LINE_BYTES_MAX,
        head_bytes_max: int = limits.HTTP_HEAD_BYTES_MAX,
        headers_max: int = limits.HTTP_HEADERS_MAX,
    ) -> None:
        self._line_bytes_max = line_bytes_max
        self._head_bytes_max = head_bytes_max
        self._headers_max = headers_max
        self._waiting = bytearray()
        self._begin()

    def _begin(self) -> None:
        self._line: _RequestLine | None = None
        self._headers: dict[str, str] = {}
        self._header_count = 0
        self._head_bytes = 0
        self._empty_lines = 0
        self._looked_at = 0

    @property
    def has_begun(self) -> bool:
        """A part of a request is there."""
        return self._line is not None or self._empty_lines > 0 or len(self._waiting) > 0

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)

    def feed(self, data: bytes) -> None:
        self._waiting += data

    def next(self) -> Request | None:
        """The next request; None while its end has not come. Raises HttpFault, and then nothing that follows means anything."""
        while (line := self._next_line()) is not None:
            if self._line is None:
                self._take_first(line)
            elif line:
                self._take_header(line)
            else:
                request = _request(self._line, self._headers)
                self._begin()
                return request
        return None

    def _next_line(self) -> bytes | None:
        end = self._waiting.find(b"\n", self._looked_at)
        self._check_room(len(self._waiting) if end < 0 else end + 1)
        if end < 0:
            self._looked_at = len(self._waiting)
            return None
        line = bytes(self._waiting[: end + 1])
        del self._waiting[: end + 1]
        self._looked_at = 0
        self._head_bytes += len(line)
        # A line feed alone, or a carriage return inside, is read in two ways by two programs: that is how requests are smuggled.
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise HttpFault(400, "lines end with CR LF")
        return line[:-2]

    def _check_room(self, line_bytes: int) -> None:
        if self._line is None and line_bytes > self._line_bytes_max:
            raise HttpFault(414, f"the request line has more than {self._line_bytes_max} bytes")
        if self._line is not None and self._head_bytes + line_bytes > self._head_bytes_max:
            raise HttpFault(431, f"request line and headers have more than {self._head_bytes_max} bytes")

    def _take_first(self, line: bytes) -> None:
        if line:
            self._line = _request_line(line)
            return
        # Section 2.2: an empty line in front of a request is somebody's old mistake. One.
        self._empty_lines += 1
        if self._empty_lines > 1:
            raise HttpFault(400, "there is no request line")

    def _take_header(self, line: bytes) -> None:
        self._header_count += 1
        if self._header_count > self._headers_max:
            raise HttpFault(431, f"there are more than {self._headers_max} headers")
        raw_name, colon, raw_value = line.partition(b":")
        # Also a line that goes on from the one before, and a space before the colon: both are forbidden for what they were abused for.
        if not colon or _TOKEN.fullmatch(raw_name) is None:
            raise HttpFault(400, "a header line is `name: value`")
        if _VALUE.fullmatch(raw_value) is None:
            raise HttpFault(400, "a header has a control character")
        name, value = raw_name.decode().lower(), raw_value.strip(b" \t").decode("latin-1")
        before = self._headers.get(name)
        if before is not None and name in _SINGLE:
            raise HttpFault(400, f"there are two headers `{name}`")
        self._headers[name] = value if before is None else f"{before}, {value}"


# ── the request line ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _RequestLine:
    method: str
    path: str
    query: str
    minor_version: int


def _request_line(line: bytes) -> _RequestLine:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise HttpFault(400, "a request line is `method target version`")
    method, target, version = parts
    if _TOKEN.fullmatch(method) is None:
        raise HttpFault(400, "the method is no word")
    found = _VERSION.fullmatch(version)
    if found is None:
        raise HttpFault(400, "the version is not `HTTP/1.1`")
    if found[1] != b"1":
        raise HttpFault(505, "this port speaks HTTP/1.1")
    path, query = _target(target)
    return _RequestLine(method.decode(), path, query, int(found[2]))


def _target(target: bytes) -> tuple[str, str]:
    if _TARGET.fullmatch(target) is None:
        raise HttpFault(400, "the target has characters that cannot stand in one")
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        target = target[absolute.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    if not target.startswith(b"/"):
        raise HttpFault(400, "the target is no path")
    path, _, query = target.partition(b"?")
    if _BAD_PERCENT.search(path) is not None:
        raise HttpFault(400, "behind a percent sign stand two hexadecimal digits")
    try:
        decoded = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise HttpFault(400, "the path is not UTF-8") from None
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in decoded):
        raise HttpFault(400, "the path has a control character")
    return decoded, query.decode()


# ── the whole ────────────────────────────────────────────────────────────────────────────────────


def _request(line: _RequestLine, headers: dict[str, str]) -> Request:
    if line.minor_version >= 1 and "host" not in headers:
        raise HttpFault(400, "there is no header `host`")
    _must_have_no_body(line.method, headers)
    return Request(line.method, line.path, line.query, headers, _keeps_alive(line.minor_version, headers))


def _must_have_no_body(method: str, headers: dict[str, str]) -> None:
    length = headers.get("content-length")
    if length is not None and not (length.isascii() and length.isdigit()):
        raise HttpFault(400, "`content-length` is no number")
    if length is not None and "transfer-encoding" in headers:
        raise HttpFault(400, "`content-length` and `transfer-encoding` contradict each other")
    if method not in ALLOWED:
        if method in _OTHERS:
            raise HttpFault(405, f"{method} is not allowed, {' and '.join(ALLOWED)} are")
        raise HttpFault(501, "there is no such method")
    if "transfer-encoding" in headers:
        raise HttpFault(501, "requests have no bodies here")
    if length is not None and length.strip("0"):
        raise HttpFault(413, "requests have no bodies here")


def _keeps_alive(minor_version: int, headers: dict[str, str]) -> bool:
    said = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    if "close" in said:
        return False
    return minor_version >= 1 or "keep-alive" in said
