"""A gRPC server: sockets, timers and tasks for `kernels/grpc/server`. `protocol` reads and flushes the connections."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from bascule import limits
from bascule.errors import BasculeError, without_paths
from bascule.kernels.grpc.server import GrpcConnection, GrpcStream, UnaryStream
from bascule.kernels.http2.connection import ReceiveBuffer
from bascule.kernels.http2.sender import ConnectionLimits
from bascule.kernels.memory.account import MemoryAccount
from bascule.net.grpc.admission import SWEEP_SECONDS, Admission, AdmissionBounds
from bascule.net.grpc.protocol import CLOSE_SECONDS, Http2Protocol, address_text, connection_limits
from bascule.net.grpc.status import GrpcError, Status, status_of
from bascule.net.grpc.turns import CallTurns, ReadTurns
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.tls import common_name

Route: TypeAlias = Callable[[], GrpcStream]
"""Returns the stream that answers one call."""

Answer: TypeAlias = Callable[[bytes, "Call"], Awaitable[bytes]]

STOP_POLL_SECONDS: Final = 0.005

_log = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class Peer:
    """The client of a connection, or of a call."""

    address: str
    common_name: str | None = None
    """The user's name: that of the call's verified token, else the common name of the verified certificate; None without both."""
    roles: tuple[str, ...] = ()
    """Roles that the token grants."""
    credentials: object = None
    """The verified token, opaque here; None without one."""


Identify: TypeAlias = Callable[[Peer, GrpcStream], "Peer | Coroutine[Any, Any, Peer]"]
"""Returns the client of a call on a connection, or a coroutine that returns it. Either may raise one of our errors."""


@dataclass(frozen=True, slots=True)
class Call:
    """The call that a handler answers."""

    path: bytes
    peer: Peer
    timeout: float | None
    """Seconds from the start of the call to its deadline; None without one."""
    metadata: list[tuple[bytes, bytes]]


def unary(answer: Answer) -> Route:
    """Return a route for unary calls.

    `answer` may raise GrpcError or one of our errors. It is cancelled when the client gives up, its deadline passes or the connection
    is lost.
    """

    def begin(stream: UnaryStream, request: bytes) -> None:
        loop = asyncio.get_running_loop()

        def start() -> None:
            stream.task = task = loop.create_task(_answer(answer, stream, request))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)

        CallTurns.of(loop).begin(stream.connection, stream, start)

    return lambda: UnaryStream(begin)


async def _answer(answer: Answer, stream: UnaryStream, request: bytes) -> None:
    connection = stream.connection
    if connection is None:
        return
    timeout = None if stream.timeout < 0 else stream.timeout
    call = Call(stream.path, cast(Peer, stream.peer), timeout, stream.metadata)
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


async def _admit(stream: GrpcStream, identity: Coroutine[Any, Any, Peer]) -> None:
    """Begin a call once its client is known."""
    try:
        peer = await identity
    except BasculeError as error:
        stream.finish(status_of(error), error.message)
    except Exception:
        _log.exception("the client of %s could not be identified", stream.path.decode("utf-8", "replace"))
        stream.finish(Status.INTERNAL, "internal error")
    else:
        stream.admit(peer)


def _end(stream: UnaryStream, status: Status, text: str) -> None:
    stream.task = None  # it is ending by itself
    stream.finish(status, without_paths(text))


class GrpcServer:
    """Answers calls on one listening socket."""

    def __init__(
        self,
        routes: Mapping[bytes, Route],
        *,
        message_bytes_max: int = limits.GRPC_MESSAGE_BYTES_DEFAULT,
        admission: AdmissionBounds | None = None,
        memory_bytes_max: int = limits.GRPC_MEMORY_BYTES_MAX,
        connection_memory_bytes_max: int = limits.GRPC_CONNECTION_MEMORY_BYTES_MAX,
        preface_seconds: float = limits.GRPC_PREFACE_SECONDS,
        bounds: ConnectionLimits | None = None,
        tls: ReloadableTls | None = None,
        identify: Identify | None = None,
    ) -> None:
        """Without `identify`, every call has the client of its connection."""
        if message_bytes_max > limits.GRPC_MESSAGE_BYTES_MAX:
            raise ValueError(f"messages have at most {limits.GRPC_MESSAGE_BYTES_MAX} bytes, not {message_bytes_max}")
        self.routes = dict(routes)
        self.bounds = bounds or connection_limits(
            message_bytes_max=message_bytes_max, turn_us_max=round(limits.HTTP2_TURN_SECONDS * 1e6)
        )
        self.memory = MemoryAccount(memory_bytes_max)
        self.memory.on_exceeded = self._relieve
        self.connection_memory_bytes_max = connection_memory_bytes_max
        self.read_turns = ReadTurns()
        self.preface_seconds = preface_seconds
        self.receive_buffer = ReceiveBuffer(limits.GRPC_RECEIVE_BUFFER_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self.connections: Admission[_ServerProtocol] = Admission(admission or AdmissionBounds())
        self.connections_refused = 0
        self.connections_evicted = 0
        """Connections without calls that were closed, after a long time or to make room for new ones."""
        self.stopping = False
        self.identify = identify
        self.tls = tls
        self._server: asyncio.Server | None = None
        self._timed: set[_ServerProtocol] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._idle_sweep: asyncio.TimerHandle | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, sock: socket.socket | None = None) -> int:
        """Listen on an address, or on a socket that is bound already. Returns the port."""
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"host": host, "port": port} if sock is None else {"sock": sock}
        if self.tls is not None:
            where |= {
                "ssl": self.tls.context,
                "ssl_handshake_timeout": self.preface_seconds,
                "ssl_shutdown_timeout": CLOSE_SECONDS,
            }
        self._server = await loop.create_server(
            lambda: _ServerProtocol(self, loop), backlog=limits.LISTEN_BACKLOG, **where
        )
        self._idle_sweep = loop.call_later(SWEEP_SECONDS, self._close_idle)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_seconds: float = 0.0, is_busy: Callable[[], bool] = lambda: False) -> None:
        """Accept no more calls. Those in progress may end within the grace period, as long as a call is in progress or `is_busy`
        returns true; the others end with UNAVAILABLE, which clients retry."""
        server = self._server
        if server is None:
            return
        self.stopping = True
        server.close()
        for protocol in list(self.connections):
            protocol.connection.go_away()
        await self._wait(
            grace_seconds, lambda: is_busy() or any(one.connection.waiting_calls for one in self.connections)
        )
        for protocol in list(self.connections):
            protocol.connection.end_calls(Status.UNAVAILABLE, "the server is shutting down")
        await self._wait(CLOSE_SECONDS, lambda: any(one.connection.open_streams for one in self.connections))
        for protocol in list(self.connections):
            protocol.connection.close()
        await self._wait(2 * CLOSE_SECONDS, lambda: len(self.connections) > 0)
        for protocol in list(self.connections):
            protocol.abort()
        await self._wait(CLOSE_SECONDS, lambda: len(self.connections) > 0)
        await server.wait_closed()
        self._server = None
        for timer in (self._sweep, self._idle_sweep):
            if timer is not None:
                timer.cancel()

    @staticmethod
    async def _wait(seconds: float, condition: Callable[[], bool]) -> None:
        """Wait until the condition is false, at most this many seconds."""
        end = time.monotonic() + seconds
        while condition() and time.monotonic() < end:
            await asyncio.sleep(STOP_POLL_SECONDS)

    def judge_connections(self) -> int:
        """End the connections whose certificates were refused since they were made. Returns how many."""
        ended = 0
        for protocol in list(self.connections):
            if (fault := protocol.certificate_fault()) is not None:
                ended += 1
                protocol.connection.go_away()
                protocol.connection.end_calls(status_of(fault), fault.message)
                protocol.connection.close()
        return ended

    def watch_deadlines(self, protocol: _ServerProtocol) -> None:
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

    def admit(self, protocol: _ServerProtocol) -> bool:
        """Count a new connection. Return False when the server refuses it."""
        is_accepted, evicted = self.connections.make_room(protocol.host)
        if evicted is not None:
            self.connections_evicted += 1
            evicted.hang_up()
        if self.stopping or not is_accepted:
            self.connections_refused += 1
            return False
        self.connections.add(protocol, time.monotonic())
        return True

    def _close_idle(self) -> None:
        """Close connections that have been without calls for long; clients connect again for their next call."""
        self._idle_sweep = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._close_idle)
        for protocol in self.connections.sweep(time.monotonic()):
            self.connections_evicted += 1
            protocol.connection.close()

    def _relieve(self) -> None:
        """End the calls that hold most memory, on the connections that hold most, until an eighth of it is free."""
        accounts = [(one.connection.memory, one) for one in self.connections]
        held = sorted(((memory.used, one) for memory, one in accounts if memory is not None), key=lambda each: -each[0])
        for used, protocol in held:
            if self.memory.used <= self.memory.most // 8 * 7:
                return
            protocol.connection.shed(used // 2)

    def forget(self, protocol: _ServerProtocol) -> None:
        self.connections.discard(protocol)
        self._timed.discard(protocol)


class _ServerProtocol(Http2Protocol):
    """One connection of a client."""

    def __init__(self, server: GrpcServer, loop: asyncio.AbstractEventLoop) -> None:
        memory = MemoryAccount(server.connection_memory_bytes_max, server.memory)
        connection = GrpcConnection(server.bounds, server.receive_buffer, server.routes, memory=memory)
        super().__init__(connection, server.receive_view, loop)
        self.connection: GrpcConnection = connection
        self.host = ""
        self._server = server
        self._tls: ssl.SSLObject | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        address = transport.get_extra_info("peername")
        self.host = str(address[0]) if address else ""
        self._tls = transport.get_extra_info("ssl_object")
        if self.certificate_fault() is not None or not server.admit(self):
            cast(asyncio.Transport, transport).abort()
            return
        self.connection.peer = Peer(address_text(address), common_name(transport.get_extra_info("peercert")))
        if server.identify is not None:
            self.connection.identify = self._identify
        self.attach(transport, limits.GRPC_TCP_KEEPALIVE_SECONDS)
        self.timer = self.loop.call_later(server.preface_seconds, self._check_preface)

    def certificate_fault(self) -> BasculeError | None:
        """Why the client's certificate does not count any more; None if it does, or without TLS."""
        tls = self._server.tls
        return None if tls is None or self._tls is None else tls.fault(self._tls)

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        if self.connection.timed_calls:
            self._server.watch_deadlines(self)

    def _identify(self, stream: GrpcStream) -> Peer | None:
        """Return the client of a call; None while its credentials are being verified, or when it is refused."""
        assert self._server.identify is not None
        try:
            found = self._server.identify(self.connection.peer, stream)
        except BasculeError as error:
            stream.finish(status_of(error), error.message)
            return None
        if isinstance(found, Peer):
            return found
        task = self.loop.create_task(_admit(stream, found))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.connection.identify = None
        self._server.forget(self)
        super().connection_lost(error)

    @property
    def calls_begun(self) -> int:
        """A number that every new call increases."""
        return self.connection.last_stream_id

    @property
    def has_calls(self) -> bool:
        return self.connection.open_streams > 0

    def hang_up(self) -> None:
        """Send GOAWAY and give the file descriptor back at once."""
        self.connection.close()
        self._flush()
        self.abort()

    def wait_for_turn(self) -> None:
        self._server.read_turns.add(self)

    def _check_preface(self) -> None:
        self.timer = None
        if not self.connection.established:
            self.abort()

    def report(self, error: Exception) -> None:
        _log.error("a call from %s failed", self.connection.peer.address, exc_info=error)
