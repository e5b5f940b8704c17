"""A small HTTP/1.1 server on asyncio: requests in, one answer each, in their order. What a request is stands in `http1`.

    server = HttpServer(answer)                       # async def answer(request, peer) -> Response
    port = await server.start("127.0.0.1", 0)

Everything has a bound: connections, the bytes and the seconds of a request, the seconds of an answer and of a client that does not read
it. When there are too many connections, the one that has waited longest without a whole request makes room: who holds connections
open and says little, or nothing, keeps nobody else out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, TypeAlias, cast

from bascule import limits
from bascule.errors import BasculeError, PermissionDenied, Unavailable
from bascule.net.grpc.protocol import address_text
from bascule.net.grpc.server import Peer
from bascule.net.http.http1 import ALLOWED, HttpFault, Request, RequestReader
from bascule.net.tls import common_name

TEXT: Final = "text/plain; charset=utf-8"
PIECE_BYTES: Final = 256 * limits.KIB
"""Handed to the transport at once; the next piece when it has gone."""
CLOSE_SECONDS: Final = 1.0
"""How long a client may take to read why it was refused."""
STOP_POLL_SECONDS: Final = 0.005

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def text(cls, status: int, text: str) -> Response:
        return cls(status, f"{text}\n".encode())


Answer: TypeAlias = Callable[[Request, Peer], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBounds:
    connections_max: int = limits.HTTP_CONNECTIONS_MAX
    request_seconds: float = limits.HTTP_REQUEST_SECONDS
    idle_seconds: float = limits.HTTP_IDLE_SECONDS
    answer_seconds: float = limits.HTTP_ANSWER_SECONDS
    write_seconds: float = limits.HTTP_WRITE_SECONDS


class HttpServer:
    def __init__(
        self, answer: Answer, *, bounds: HttpBounds | None = None, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.bounds = bounds or HttpBounds()
        self.connections: dict[_Connection, None] = {}
        """The one that has been silent longest comes first."""
        self.connections_dropped = 0
        """Made room for others, or were refused because nobody could."""
        self.answered: Counter[int] = Counter()
        """Answers by their status."""
        self.stopping = False
        self._ssl_context = ssl_context
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, sock: socket.socket | None = None) -> int:
        """Listen on an address, or on a socket that is bound already. Returns the port."""
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"host": host, "port": port} if sock is None else {"sock": sock}
        if self._ssl_context is not None:
            where |= {
                "ssl": self._ssl_context,
                "ssl_handshake_timeout": self.bounds.request_seconds,
                "ssl_shutdown_timeout": CLOSE_SECONDS,
            }
        self._server = await loop.create_server(lambda: _Connection(self, loop), backlog=limits.LISTEN_BACKLOG, **where)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """No more requests. Answers that are under way may be finished within the time given."""
        if self._server is None:
            return
        self.stopping = True
        self._server.close()
        for connection in list(self.connections):
            connection.leave_when_idle()
        end = time.monotonic() + grace_seconds
        while self.connections and time.monotonic() < end:
            await asyncio.sleep(STOP_POLL_SECONDS)
        for connection in list(self.connections):
            connection.abort()
        end = time.monotonic() + CLOSE_SECONDS
        while self.connections and time.monotonic() < end:
            await asyncio.sleep(STOP_POLL_SECONDS)
        await self._server.wait_closed()
        self._server = None

    def make_room(self) -> bool:
        """Whether one more connection may come."""
        if len(self.connections) < self.bounds.connections_max:
            return True
        self.connections_dropped += 1
        for connection in self.connections:
            if not connection.is_answering:
                connection.abort()
                del self.connections[connection]
                return True
        return False


class _Connection(asyncio.Protocol):
    """One client. A timer runs as long as something is expected of it."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._peer = Peer("")
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request_began = False
        self._leaving = False
        self._reading_paused = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    @property
    def is_answering(self) -> bool:
        return self._task is not None

    # ── asyncio calls these ──────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server, self._transport = self._server, cast(asyncio.Transport, transport)
        if server.stopping or not server.make_room():
            self._transport.abort()
            self._transport = None
            return
        server.connections[self] = None
        self._peer = Peer(
            address_text(transport.get_extra_info("peername")), common_name(transport.get_extra_info("peercert"))
        )
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=PIECE_BYTES)
        self._arm(server.bounds.request_seconds, self.abort)  # who comes has something to say

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return  # said after the last word
        self._reader.feed(data)
        if self._task is None:
            self._look()
        elif self._reader.waiting_bytes > limits.HTTP_HEAD_BYTES_MAX and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """A client that only asks one thing may close its side at once. TLS has no half of a connection."""
        is_plain = self._transport is not None and self._transport.can_write_eof()
        if is_plain and self._task is not None:
            self._leaving = True
            return True
        return False

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._server.connections.pop(self, None)
        self._disarm()
        self._has_room.set()
        if self._task is not None:
            self._task.cancel()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """For the next request in what has come."""
        request = self._next()
        if request is not None:
            self._disarm()
            self._request_began = False
            self._task = self._loop.create_task(self._serve(request))
        elif not self._leaving and self._reader.has_begun and not self._request_began:
            # From its first byte, not from its last: byte by byte would take for ever.
            self._request_began = True
            self._arm(self._server.bounds.request_seconds, self._too_slow)

    def _next(self) -> Request | None:
        if self._leaving:
            return None
        try:
            return self._reader.next()
        except HttpFault as fault:
            self._refuse(fault)
            return None

    async def _serve(self, request: Request | None) -> None:
        """This request, and those that wait behind it."""
        try:
            while request is not None:
                response = await self._answer(request)
                keeps_alive = request.keeps_alive and not self._leaving and not self._server.stopping
                await self._write(_encode(response, keeps_alive=keeps_alive, with_body=request.method != "HEAD"))
                self._server.answered[response.status] += 1
                if not keeps_alive:
                    self._close()
                    return
                await asyncio.sleep(0)  # who asks a hundred things at once is not the only one
                request = self._next()
        finally:
            self._task = None
        self._rest()

    def _rest(self) -> None:
        """Until the next request comes."""
        if self._leaving or self._transport is None:
            return
        connections = self._server.connections
        if self in connections:
            connections[self] = connections.pop(self)  # the last one to have been silent
        self._arm(self._server.bounds.idle_seconds, self._close)
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
        self._look()

    async def _answer(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(self._server.bounds.answer_seconds):
                return await self._server.answer(request, self._peer)
        except TimeoutError:
            return Response.text(503, "the answer took too long")
        except PermissionDenied as error:
            return Response.text(403, error.message)
        except Unavailable as error:
            return Response.text(503, error.message)
        except BasculeError as error:
            _log.error("%s %s failed: %s", request.method, request.path, error.message)
            return Response.text(500, error.message)
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return Response.text(500, "internal error")

    async def _write(self, data: tuple[bytes, bytes]) -> None:
        try:
            async with asyncio.timeout(self._server.bounds.write_seconds):
                for part in data:
                    for start in range(0, len(part), PIECE_BYTES):
                        if self._transport is None:
                            return
                        self._transport.write(part[start : start + PIECE_BYTES])
                        await self._has_room.wait()
        except TimeoutError:
            self.abort()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _too_slow(self) -> None:
        self._refuse(HttpFault(408, "the request took too long"))

    def _refuse(self, fault: HttpFault) -> None:
        """The last thing that is said on this connection."""
        self._server.answered[fault.status] += 1
        headers = (("Allow", ", ".join(ALLOWED)),) if fault.status == 405 else ()
        response = Response(fault.status, f"{fault.text}\n".encode(), headers=headers)
        if self._transport is not None:
            self._transport.write(b"".join(_encode(response, keeps_alive=False, with_body=True)))
        self._close()

    def leave_when_idle(self) -> None:
        if self._task is None:
            self._close()

    def _close(self) -> None:
        """Closing with bytes unread would make the kernel take back what was said: the client gets a moment to hear it."""
        self._leaving = True
        transport = self._transport
        if transport is None:
            return
        self._arm(CLOSE_SECONDS, self.abort)
        if transport.can_write_eof():
            with contextlib.suppress(OSError, RuntimeError):
                transport.write_eof()
        else:
            transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        self._disarm()
        self._timer = self._loop.call_later(seconds, then)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _encode(response: Response, *, keeps_alive: bool, with_body: bool) -> tuple[bytes, bytes]:
    lines = [
        f"HTTP/1.1 {response.status} {_reason(response.status)}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if keeps_alive else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1"), response.body if with_body else b""


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
