"""The asyncio skin of the gRPC kernels: sockets, timers and tasks.

A connection is read into one buffer that all share, and flushed once at the end of the loop turn in which something was written:
straight to the file descriptor as long as the transport holds nothing, through the transport otherwise and with TLS. What the
transport holds is bounded by `WRITE_BYTES`; the rest waits in the kernel's output buffer, where it is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from bascule import limits
from bascule.errors import BasculeError
from bascule.kernels.grpc import GrpcConnection, GrpcStream, UnaryStream
from bascule.kernels.http2 import ReceiveBuffer
from bascule.kernels.http2_sender import ConnectionLimits
from bascule.net.status import GrpcError, Status, status_of
from bascule.net.tls import common_name

Route: TypeAlias = Callable[[], GrpcStream]
"""Makes the stream that answers one call."""

Answer: TypeAlias = Callable[[bytes, "Call"], Awaitable[bytes]]

WRITE_BYTES: Final = 64 * limits.KIB
"""Handed to the transport at once; it says when they are gone."""

CLOSE_SECONDS: Final = 1.0
"""How long a connection that was told to go may take to do so."""

STOP_POLL_SECONDS: Final = 0.005

_log = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end."""

    address: str
    common_name: str | None = None
    """Of the client's certificate, when one was asked for and verified."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler may want to know about the call it answers."""

    path: bytes
    peer: Peer
    timeout: float | None
    """Seconds the client will wait, counted from the call's beginning; None when it set no deadline."""
    metadata: list[tuple[bytes, bytes]]


def unary(answer: Answer) -> Route:
    """A route for calls of one message each way.

    `answer` may raise GrpcError or one of our errors. It is cancelled when the client gives up, its deadline passes or the connection
    is lost.
    """

    def begin(stream: UnaryStream, request: bytes) -> None:
        stream.task = task = asyncio.get_running_loop().create_task(_answer(answer, stream, request))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    return lambda: UnaryStream(begin)


async def _answer(answer: Answer, stream: UnaryStream, request: bytes) -> None:
    connection = stream.connection
    if connection is None:
        return
    timeout = None if stream.timeout < 0 else stream.timeout
    call = Call(stream.path, cast(Peer, connection.peer), timeout, stream.metadata)
    try:
        reply = await answer(request, call)
        stream.task = None
        stream.reply(reply)
    except GrpcError as error:
        _end(stream, error.status, error.text)
    except BasculeError as error:
        _end(stream, status_of(error), error.message)
    except asyncio.CancelledError:
        _end(stream, Status.CANCELLED, "the call was cancelled")
        raise
    except Exception:
        _log.exception("%s failed", call.path.decode("utf-8", "replace"))
        _end(stream, Status.INTERNAL, "internal error")


def _end(stream: UnaryStream, status: Status, text: str) -> None:
    stream.task = None  # it is ending by itself
    stream.finish(status, text)


def connection_limits(**changed: int) -> ConnectionLimits:
    """The bounds of limits.py, some of them changed."""
    return ConnectionLimits(
        **{
            "streams_max": limits.HTTP2_STREAMS_MAX,
            "stream_window_bytes": limits.HTTP2_STREAM_WINDOW_BYTES,
            "connection_window_bytes": limits.HTTP2_CONNECTION_WINDOW_BYTES,
            "header_list_bytes_max": limits.HTTP2_HEADER_LIST_BYTES_MAX,
            "header_block_bytes_max": limits.HTTP2_HEADER_BLOCK_BYTES_MAX,
            "continuations_max": limits.HTTP2_CONTINUATIONS_MAX,
            "output_bytes_max": limits.HTTP2_OUTPUT_BYTES_MAX,
            "outgoing_bytes_max": limits.HTTP2_OUTGOING_BYTES_MAX,
            "message_bytes_max": limits.GRPC_MESSAGE_BYTES_DEFAULT,
            "assembly_bytes_max": limits.GRPC_ASSEMBLY_BYTES_MAX,
            "resets_burst": limits.HTTP2_RESETS_BURST,
            "resets_per_second": limits.HTTP2_RESETS_PER_SECOND,
            "pings_burst": limits.HTTP2_PINGS_BURST,
            "pings_per_second": limits.HTTP2_PINGS_PER_SECOND,
            "settings_burst": limits.HTTP2_SETTINGS_BURST,
            "settings_per_second": limits.HTTP2_SETTINGS_PER_SECOND,
            "idle_frames_burst": limits.HTTP2_IDLE_FRAMES_BURST,
            "idle_frames_per_second": limits.HTTP2_IDLE_FRAMES_PER_SECOND,
            **changed,
        }
    )


class GrpcServer:
    """Answers calls on one listening socket."""

    def __init__(
        self,
        routes: Mapping[bytes, Route],
        *,
        message_bytes_max: int = limits.GRPC_MESSAGE_BYTES_DEFAULT,
        connections_max: int = limits.GRPC_CONNECTIONS_MAX,
        preface_seconds: float = limits.GRPC_PREFACE_SECONDS,
        bounds: ConnectionLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if message_bytes_max > limits.GRPC_MESSAGE_BYTES_MAX:
            raise ValueError(f"messages have at most {limits.GRPC_MESSAGE_BYTES_MAX} bytes, not {message_bytes_max}")
        self.routes = dict(routes)
        self.bounds = bounds or connection_limits(message_bytes_max=message_bytes_max)
        self.connections_max = connections_max
        self.preface_seconds = preface_seconds
        self.receive_buffer = ReceiveBuffer(limits.GRPC_RECEIVE_BUFFER_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self.connections: set[_Protocol] = set()
        self.connections_refused = 0
        self.stopping = False
        self._ssl_context = ssl_context
        self._server: asyncio.Server | None = None
        self._timed: set[_Protocol] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, sock: socket.socket | None = None) -> int:
        """Listen on an address, or on a socket that is bound already. Returns the port."""
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"host": host, "port": port} if sock is None else {"sock": sock}
        if self._ssl_context is not None:
            where |= {
                "ssl": self._ssl_context,
                "ssl_handshake_timeout": self.preface_seconds,
                "ssl_shutdown_timeout": CLOSE_SECONDS,
            }
        self._server = await loop.create_server(lambda: _Protocol(self, loop), backlog=limits.LISTEN_BACKLOG, **where)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """No more calls. Those in progress may end within the time given; the others end as UNAVAILABLE, which clients retry."""
        server = self._server
        if server is None:
            return
        self.stopping = True
        server.close()
        for protocol in list(self.connections):
            protocol.connection.go_away()
        await self._wait(grace_seconds, lambda: any(one.connection.waiting_calls for one in self.connections))
        for protocol in list(self.connections):
            protocol.connection.end_calls(Status.UNAVAILABLE, "the server is shutting down")
        await self._wait(CLOSE_SECONDS, lambda: any(one.connection.open_streams for one in self.connections))
        for protocol in list(self.connections):
            protocol.connection.close()
        await self._wait(2 * CLOSE_SECONDS, lambda: bool(self.connections))
        for protocol in list(self.connections):
            protocol.abort()
        await self._wait(CLOSE_SECONDS, lambda: bool(self.connections))
        await server.wait_closed()
        self._server = None
        if self._sweep is not None:
            self._sweep.cancel()

    @staticmethod
    async def _wait(seconds: float, condition: Callable[[], bool]) -> None:
        """As long as the condition holds, but not longer than so many seconds."""
        end = time.monotonic() + seconds
        while condition() and time.monotonic() < end:
            await asyncio.sleep(STOP_POLL_SECONDS)

    def watch_deadlines(self, protocol: _Protocol) -> None:
        self._timed.add(protocol)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(limits.GRPC_DEADLINE_SWEEP_SECONDS, self._expire)

    def _expire(self) -> None:
        self._sweep = None
        now = time.monotonic()
        for protocol in list(self._timed):
            protocol.connection.expire(now)
            if protocol.connection.timed_calls == 0:
                self._timed.discard(protocol)
        if self._timed:
            self.watch_deadlines(self._timed.pop())

    def forget(self, protocol: _Protocol) -> None:
        self.connections.discard(protocol)
        self._timed.discard(protocol)


class _Protocol(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, server: GrpcServer, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = GrpcConnection(server.bounds, server.receive_buffer, server.routes)
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._flush_scheduled = False
        self._writing_paused = False
        self._reading_paused = False
        self._leaving = False
        self._timer: asyncio.TimerHandle | None = None

    # ── asyncio calls these ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast(asyncio.Transport, transport)
        is_plain = transport.get_extra_info("sslcontext") is None
        # A TLS transport counts "nothing waits" as full when the limit is 0, and then does not ask for more.
        self._transport.set_write_buffer_limits(high=0 if is_plain else WRITE_BYTES)
        if server.stopping or len(server.connections) >= server.connections_max:
            server.connections_refused += 1
            self._transport.abort()
            return
        server.connections.add(self)
        sock = transport.get_extra_info("socket")
        _keep_alive(sock)
        if is_plain:
            self._fd = sock.fileno()
        connection = self.connection
        connection.peer = Peer(
            _address(transport.get_extra_info("peername")), common_name(transport.get_extra_info("peercert"))
        )
        connection.on_fault = self._report
        connection.on_output = self._schedule_flush
        self._timer = self._loop.call_later(server.preface_seconds, self._check_preface)
        self._schedule_flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._server.receive_view

    def buffer_updated(self, nbytes: int) -> None:
        connection = self.connection
        connection.received(nbytes)
        if connection.timed_calls:
            self._server.watch_deadlines(self)
        if connection.congested and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.connection.unsent = 0
        self._flush()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._server.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.connection.lost()
        self.connection.on_output = self.connection.on_fault = None

    # ── sending ──

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # a descriptor that was closed may be somebody else's by now
        connection = self.connection
        connection.flush()
        if len(connection.output):
            self._send(transport)
        if self._reading_paused and not connection.congested:
            self._reading_paused = False
            transport.resume_reading()
        if connection.closing:
            self._leave(transport)
        elif connection.wants_flush and not self._writing_paused:
            self._schedule_flush()

    def _send(self, transport: asyncio.Transport) -> None:
        connection = self.connection
        output = connection.output
        if self._fd >= 0 and not self._writing_paused and transport.get_write_buffer_size() == 0:
            try:
                output.send(self._fd)
            except OSError:
                transport.abort()
                return
        while len(output) and not self._writing_paused and not transport.is_closing():
            with memoryview(output) as view:
                piece = bytes(view[:WRITE_BYTES])
            output.drop(len(piece))
            transport.write(piece)
        connection.unsent = transport.get_write_buffer_size()

    # ── the end ──

    def _check_preface(self) -> None:
        self._timer = None
        if not self.connection.established and self._transport is not None:
            self.abort()

    def _leave(self, transport: asyncio.Transport) -> None:
        """When everything was said, the peer gets a moment to hear it: closing with bytes unread would make the kernel take it back."""
        if not self._leaving:
            self._leaving = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(CLOSE_SECONDS, self.abort)
        if len(self.connection.output) or transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()  # TLS says goodbye by itself, and waits for the answer
            return
        with contextlib.suppress(OSError, RuntimeError):
            transport.write_eof()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _report(self, error: Exception) -> None:
        _log.error("a call from %s failed", self.connection.peer.address, exc_info=error)


def _keep_alive(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not a TCP socket, or gone already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.GRPC_TCP_KEEPALIVE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.GRPC_TCP_KEEPALIVE_SECONDS // 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _address(name: object) -> str:
    if isinstance(name, tuple) and len(name) >= 2:
        return f"[{name[0]}]:{name[1]}" if ":" in str(name[0]) else f"{name[0]}:{name[1]}"
    return str(name or "local")
