"""A small HTTP/1.1 server on asyncio; h11 parses the requests.

    server = HttpServer(answer)                       # async def answer(request, peer) -> Response
    port = await server.start("127.0.0.1", 0)

The server takes GET and HEAD without a body, and answers the requests of one connection in their order. Every resource has a bound:
the number of connections, the bytes of a request, the time to receive it, to answer it and to send the response. When the number of
connections is at its maximum, the server closes the connection that has waited longest without a complete request, so that slow or
silent clients cannot keep other clients out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import h11

from bascule import limits
from bascule.errors import BasculeError, PermissionDenied, Unauthenticated, Unavailable
from bascule.net.grpc.protocol import address_text
from bascule.net.grpc.server import Peer
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.tls import common_name

TEXT: Final = "text/plain; charset=utf-8"
METHODS: Final = ("GET", "HEAD")
READ_BYTES: Final = 16 * limits.KIB
CLOSE_SECONDS: Final = 1.0
"""Maximum time that a client has to read the last response before the server closes the connection."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """Decoded, without the query."""
    authorization: str | None = None
    """The header of that name."""


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


class BadRequest(Exception):
    """The bytes are not a request that this server answers. The connection ends after `response`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        headers = (("Allow", ", ".join(METHODS)),) if status == HTTPStatus.METHOD_NOT_ALLOWED else ()
        self.response = Response(status, f"{text}\n".encode(), headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBounds:
    connections_max: int = limits.HTTP_CONNECTIONS_MAX
    request_seconds: float = limits.HTTP_REQUEST_SECONDS
    idle_seconds: float = limits.HTTP_IDLE_SECONDS
    answer_seconds: float = limits.HTTP_ANSWER_SECONDS
    write_seconds: float = limits.HTTP_WRITE_SECONDS


class HttpServer:
    def __init__(self, answer: Answer, *, bounds: HttpBounds | None = None, tls: ReloadableTls | None = None) -> None:
        self.answer = answer
        self.bounds = bounds or HttpBounds()
        self.connections: dict[_HttpConnection, asyncio.Task[None]] = {}
        """Open connections; the one that has been silent longest comes first."""
        self.connections_dropped = 0
        """Connections that were closed to make room for a new one, or refused because all others were being answered."""
        self.answered: Counter[int] = Counter()
        """Responses by status."""
        self.stopping = False
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, sock: socket.socket | None = None) -> int:
        """Listen on an address, or on a socket that is bound already. Returns the port."""
        where: dict[str, Any] = {"host": host, "port": port} if sock is None else {"sock": sock}
        if self._tls is not None:
            where |= {
                "ssl": self._tls.context,
                "ssl_handshake_timeout": self.bounds.request_seconds,
                "ssl_shutdown_timeout": CLOSE_SECONDS,
            }
        self._server = await asyncio.start_server(
            self._connected, limit=READ_BYTES, backlog=limits.LISTEN_BACKLOG, **where
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Accept no more requests. Responses that have begun may finish within the grace period."""
        if self._server is None:
            return
        self.stopping = True
        self._server.close()
        for connection in list(self.connections):
            if not connection.is_answering:
                connection.abort()
        await self._wait_for_connections(grace_seconds)
        for connection in list(self.connections):
            connection.abort()
        await self._wait_for_connections(CLOSE_SECONDS)
        await self._server.wait_closed()
        self._server = None

    def judge_connections(self) -> int:
        """End the connections whose certificates were refused since they were made. Returns how many."""
        refused = [one for one in self.connections if self._is_refused(one.writer)]
        for connection in refused:
            connection.abort()
        return len(refused)

    def _is_refused(self, writer: asyncio.StreamWriter) -> bool:
        tls = writer.get_extra_info("ssl_object")
        return self._tls is not None and tls is not None and self._tls.fault(tls) is not None

    async def _wait_for_connections(self, seconds: float) -> None:
        if self.connections:
            await asyncio.wait(self.connections.values(), timeout=seconds)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.stopping or self._is_refused(writer) or not self._make_room():
            writer.transport.abort()
            return
        connection = _HttpConnection(self, reader, writer)
        self.connections[connection] = asyncio.get_running_loop().create_task(connection.run())

    def _make_room(self) -> bool:
        """Return whether the server can accept one more connection."""
        if len(self.connections) < self.bounds.connections_max:
            return True
        self.connections_dropped += 1
        for connection in self.connections:
            if not connection.is_answering:
                connection.abort()
                del self.connections[connection]
                return True
        return False

    def is_silent(self, connection: _HttpConnection) -> None:
        """Move a connection to the end of those that are closed when a new one needs room."""
        if connection in self.connections:
            self.connections[connection] = self.connections.pop(connection)


class _HttpConnection:
    """One client's connection."""

    def __init__(self, server: HttpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.is_answering = False
        self._server = server
        self._reader = reader
        self.writer = writer
        self._received = b""
        """Bytes after the last request."""
        self._is_head = False
        self._is_last = False
        """The connection ends after the current response."""
        self._peer = Peer(
            address_text(writer.get_extra_info("peername")), common_name(writer.get_extra_info("peercert"))
        )
        writer.transport.set_write_buffer_limits(high=0)  # `drain` returns when the kernel has everything

    def abort(self) -> None:
        self.writer.transport.abort()

    async def run(self) -> None:
        try:
            await self._serve()
        except (OSError, TimeoutError):
            pass  # the client disconnected, or does not read
        except Exception:
            _log.exception("the connection of %s failed", self._peer.address)
        finally:
            self._server.connections.pop(self, None)
            self.abort()

    async def _serve(self) -> None:
        """Answer requests until the client or a request ends the connection."""
        silence_seconds = self._server.bounds.request_seconds
        while await self._has_begun(silence_seconds):
            try:
                request = await self._receive()
            except BadRequest as refusal:
                self._is_last = True
                await self._send(refusal.response)
            else:
                self.is_answering = True
                await self._send(await self._answer(request))
                self.is_answering = False
            if self._is_last:
                await self._hang_up()
                return
            self._server.is_silent(self)
            await asyncio.sleep(0)  # a client that pipelines many requests must not starve the others
            silence_seconds = self._server.bounds.idle_seconds

    async def _has_begun(self, silence_seconds: float) -> bool:
        """Wait for the first byte of a request. Return False if the client closes its side or sends nothing."""
        if not self._received:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(silence_seconds):
                    self._received = await self._reader.read(READ_BYTES)
        return bool(self._received)

    async def _receive(self) -> Request:
        """Receive a request. Its time counts from the first byte: a client that sends byte by byte gains nothing."""
        self._is_head = False
        # A parser for each request, which never learns of the response: framing that by h11 would double the cost of a request.
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.HTTP_HEAD_BYTES_MAX)
        parser.receive_data(self._received)
        try:
            async with asyncio.timeout(self._server.bounds.request_seconds):
                while (event := parser.next_event()) is h11.NEED_DATA:
                    data = await self._reader.read(READ_BYTES)
                    if not data:
                        raise ConnectionResetError("the client closed its side within a request")
                    parser.receive_data(data)
        except TimeoutError:
            raise BadRequest(408, "the request took too long") from None
        except h11.RemoteProtocolError as error:
            is_long_line = error.error_status_hint == 431 and b"\n" not in parser.trailing_data[0]
            raise BadRequest(414 if is_long_line else error.error_status_hint, str(error)) from None
        assert isinstance(event, h11.Request), event
        self._is_head = event.method == b"HEAD"
        request = _checked(event)
        parser.next_event()  # the end of the request, since it has no body
        self._is_last = parser.their_state is not h11.DONE
        self._received = parser.trailing_data[0]
        return request

    async def _answer(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(self._server.bounds.answer_seconds):
                return await self._server.answer(request, self._peer)
        except TimeoutError:
            return Response.text(503, "the answer took too long")
        except Unauthenticated as error:
            return Response(401, f"{error.message}\n".encode(), headers=(("WWW-Authenticate", "Bearer"),))
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

    async def _send(self, response: Response) -> None:
        self._is_last |= self._server.stopping
        self._server.answered[response.status] += 1
        lines = [
            f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
            f"Date: {formatdate(usegmt=True)}",
            f"Content-Type: {response.content_type}",
            f"Content-Length: {len(response.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            f"Connection: {'close' if self._is_last else 'keep-alive'}",
            *(f"{name}: {value}" for name, value in response.headers),
        ]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if not self._is_head:
            self.writer.write(response.body)
        async with asyncio.timeout(self._server.bounds.write_seconds):
            await self.writer.drain()

    async def _hang_up(self) -> None:
        """Close the connection after the client has read the response: a close with bytes unread would discard it."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if self.writer.can_write_eof():
                    self.writer.write_eof()
                    while await self._reader.read(READ_BYTES):
                        pass
                self.writer.close()
                await self.writer.wait_closed()


def _checked(event: h11.Request) -> Request:
    """Return a request that this server answers. Raises BadRequest for any other."""
    if not event.http_version.startswith(b"1."):
        raise BadRequest(505, "this port speaks HTTP/1.1")
    method = event.method.decode("ascii")
    if method not in METHODS:
        raise BadRequest(405, f"{method} is not allowed; use {' or '.join(METHODS)}")
    authorization = None
    for name, value in event.headers:
        if name == b"authorization":
            authorization = value.decode("latin-1")
        if name == b"transfer-encoding" or (name == b"content-length" and int(value)):
            raise BadRequest(413, "send the request without a body")
    target = event.target.decode("ascii")
    try:
        path = target.partition("?")[0] if target.startswith("/") else urlsplit(target).path or "/"
    except ValueError:
        raise BadRequest(400, "the request target is neither a path nor a URL") from None
    return Request(method, unquote(path), authorization)
