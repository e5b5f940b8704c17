"""Calls to one server: sockets and timers for `kernels/grpc/client`.

    channel = Channel("127.0.0.1:9292")
    await channel.connect()
    reply = await channel.call(b"/proto.API/FetchMetadata", request, timeout=5.0)
    channel.start(stream, b"/proto.API/Subscribe")      # a ClientStream, of a kernel or of Python
    await channel.close()

A channel has one connection at a time and does not reconnect: it calls `on_lost`, and its owner calls `connect` again. After a
server's GOAWAY, new calls need a new connection, while the calls in progress continue on the old one.

Every failure is a GrpcStatusError. `unprocessed` is true when the server certainly did not process the call, so that a
retry cannot do it twice.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from bascule import limits
from bascule.kernels.grpc.client import ClientConnection, ClientStream, UnaryCall
from bascule.kernels.http2.connection import ReceiveBuffer
from bascule.net.grpc.protocol import CLOSE_SECONDS, Http2Protocol, address_text, connection_limits
from bascule.net.grpc.status import Status
from bascule.net.sockets import bracketed

Metadata: TypeAlias = Iterable[tuple[str | bytes, str | bytes]]
"""Names in lower case; a name that ends with `-bin` may have any bytes as its value."""

PORT_DEFAULT: Final = 9292

TIMER_SECONDS_MIN: Final = 0.001
"""Minimum delay of a deadline timer: a loop's clock may be a millisecond late, and a timer that fires too early is set again."""

_log = logging.getLogger(__name__)


class GrpcStatusError(Exception):
    """A call ended with a status other than OK."""

    def __init__(self, status: int, text: str, *, unprocessed: bool = False) -> None:
        super().__init__(status, text)
        self.status = Status(status)
        self.text = text
        self.unprocessed = unprocessed
        """The server certainly did not process the call."""

    def __str__(self) -> str:
        return f"{self.status.name}: {self.text}" if self.text else self.status.name


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[v6]:port`, or either without a port. Raises ValueError for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(PORT_DEFAULT)
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif ":" in host:
        raise ValueError(f"`{address}` is not an address: write an IPv6 address in brackets")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"`{address}` is not an address: write it like `127.0.0.1:9292`")
    return host, int(port)


class Channel:
    """One server, and the connection to it."""

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        tls_name: str | None = None,
        connect_timeout: float = limits.CHANNEL_CONNECT_SECONDS,
        keepalive_seconds: float = limits.CHANNEL_KEEPALIVE_SECONDS,
        keepalive_timeout: float = limits.CHANNEL_KEEPALIVE_TIMEOUT_SECONDS,
        stream_window_bytes: int = limits.CHANNEL_STREAM_WINDOW_BYTES,
        connection_window_bytes: int = limits.CHANNEL_CONNECTION_WINDOW_BYTES,
        message_bytes_max: int = limits.CHANNEL_MESSAGE_BYTES_MAX,
        metadata: Metadata = (),
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """`tls_name` is the name that the server's certificate must have, when it is not the host; `metadata` goes with every call."""
        self.address = address
        self.host, self.port = split_address(address)
        self.on_lost = on_lost
        self.connect_timeout = connect_timeout
        self.keepalive_seconds = keepalive_seconds
        self.keepalive_timeout = keepalive_timeout
        self.metadata = tuple(metadata)
        self._tls = tls
        self._tls_name = tls_name
        self._bounds = connection_limits(
            streams_max=limits.CHANNEL_STREAMS_MAX,
            stream_window_bytes=stream_window_bytes,
            connection_window_bytes=connection_window_bytes,
            message_bytes_max=message_bytes_max,
            assembly_bytes_max=max(message_bytes_max, limits.CHANNEL_ASSEMBLY_BYTES_MAX),
        )
        self._receive_buffer = ReceiveBuffer(limits.CHANNEL_RECEIVE_BUFFER_BYTES)
        self._receive_view = memoryview(self._receive_buffer)
        self._current: _ChannelProtocol | None = None
        self._protocols: set[_ChannelProtocol] = set()

    def keep_watch(self, seconds: float) -> None:
        """Send a PING after this time without received bytes, and close the connection after the same time without an answer."""
        if (self.keepalive_seconds, self.keepalive_timeout) != (seconds, seconds):
            self.keepalive_seconds = self.keepalive_timeout = seconds
            for protocol in self._protocols:
                protocol.watch()

    @property
    def is_connected(self) -> bool:
        """Calls can be made."""
        return self._current is not None

    @property
    def is_open(self) -> bool:
        """There is a connection, perhaps one that takes no new calls."""
        return bool(self._protocols)

    @property
    def uses_tls(self) -> bool:
        return self._tls is not None

    @property
    def open_calls(self) -> int:
        """Calls of this connection that are in progress or wait for a free stream."""
        return 0 if self._current is None else self._current.connection.open_calls

    async def connect(self) -> None:
        """Connect, and wait for the server's first HTTP/2 frame. Does nothing when connected. Raises GrpcStatusError."""
        if self._current is not None:
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout):
                protocol = await self._open(loop)
        except TimeoutError:
            raise self._unreachable(f"no answer within {self.connect_timeout:g} s") from None
        except OSError as error:
            raise self._unreachable(_reason_of(error)) from None
        if self._current is not None:
            protocol.connection.close()  # another task has connected meanwhile
        else:
            self._current = protocol

    async def _open(self, loop: asyncio.AbstractEventLoop) -> _ChannelProtocol:
        _transport, protocol = await loop.create_connection(
            lambda: _ChannelProtocol(self, loop),
            self.host,
            self.port,
            ssl=self._tls,
            server_hostname=None if self._tls is None else self._tls_name or self.host,
            ssl_shutdown_timeout=None if self._tls is None else CLOSE_SECONDS,
        )
        try:
            reason = await protocol.ready
        except asyncio.CancelledError:
            protocol.abort()
            raise
        if reason is not None:
            # The other end does not speak HTTP/2, and no other code would close the connection.
            protocol.abort()
            await asyncio.wait([protocol.gone])
            raise self._unreachable(reason)
        return protocol

    def _unreachable(self, reason: str) -> GrpcStatusError:
        return GrpcStatusError(Status.UNAVAILABLE, f"cannot reach {self.address}: {reason}", unprocessed=True)

    async def close(self) -> None:
        """End the calls in progress with CANCELLED, send RST_STREAM for each, and close the connection."""
        self._current = None
        for protocol in list(self._protocols):
            protocol.connection.close("the channel was closed")
            protocol.schedule_flush()
        waiting = [protocol.gone for protocol in self._protocols]
        if waiting:
            await asyncio.wait(waiting)

    # ── calls ──

    async def call(
        self, path: bytes, request: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> bytes:
        """Make a unary call and return its reply. Raises GrpcStatusError."""
        answered: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
        call = UnaryCall(partial(_resolve, answered))
        self.start(call, path, timeout=timeout, metadata=metadata)
        call.send(request)
        call.half_close()
        try:
            await answered
        except asyncio.CancelledError:
            call.cancel()
            raise
        if call.status or call.reply is None:
            raise GrpcStatusError(call.status, call.status_text, unprocessed=call.unprocessed)
        return call.reply

    def start(
        self, stream: ClientStream, path: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> None:
        """Start a call; `stream` handles its messages. Raises GrpcStatusError when there is no connection."""
        protocol = self._current
        if protocol is None:
            raise GrpcStatusError(Status.UNAVAILABLE, f"not connected to {self.address}", unprocessed=True)
        if self.metadata:
            metadata = (*self.metadata, *metadata)
        protocol.connection.open(stream, path, metadata, -1.0 if timeout is None else max(0.0, timeout))
        if timeout is not None:
            protocol.watch_deadlines()

    # ── from the connection ──

    def adopt(self, protocol: _ChannelProtocol) -> None:
        self._protocols.add(protocol)

    def forget(self, protocol: _ChannelProtocol) -> None:
        self._protocols.discard(protocol)

    def retire(self, protocol: _ChannelProtocol, reason: str) -> None:
        """Use this connection for no more calls."""
        if self._current is protocol:
            self._current = None
            if self.on_lost is not None:
                self.on_lost(reason)


def _resolve(answered: asyncio.Future[UnaryCall], call: UnaryCall) -> None:
    if not answered.done():
        answered.set_result(call)


class _ChannelProtocol(Http2Protocol):
    """One connection to a server."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        connection = ClientConnection(
            channel._bounds,
            channel._receive_buffer,
            authority=f"{bracketed(channel.host)}:{channel.port}".encode(),
            scheme=b"https" if channel.uses_tls else b"http",
            frame_bytes_max=limits.CHANNEL_FRAME_BYTES_MAX,
        )
        super().__init__(connection, channel._receive_view, loop)
        self.connection: ClientConnection = connection
        self.ready: asyncio.Future[str | None] = loop.create_future()
        """Resolves to None when the server has answered, else to the reason why it will not."""
        self.gone: asyncio.Future[None] = loop.create_future()
        self._channel = channel
        self._reads = 0
        self._reads_seen = 0
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadline_at = 0.0
        self._reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._channel.adopt(self)
        self.connection.peer = address_text(transport.get_extra_info("peername"))
        self.attach(transport, limits.CHANNEL_TCP_KEEPALIVE_SECONDS)
        self.watch()

    def watch(self) -> None:
        """Start the timer that checks whether bytes arrive."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(self._channel.keepalive_seconds, self._keep_alive)

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self._reads += 1
        connection = self.connection
        if connection.closing or connection.draining:
            self._retire(connection.error_text or connection.goaway_text or "the server is going away")
        elif connection.established and not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        reason = self._reason or ("" if error is None else _reason_of(error))
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.connection.lost(reason)
        super().connection_lost(error)
        self._channel.forget(self)
        self._retire(reason or self._why_closed())
        if not self.gone.done():
            self.gone.set_result(None)

    def report(self, error: Exception) -> None:
        _log.error("a call to %s failed", self._channel.address, exc_info=error)

    def _flush(self) -> None:
        connection = self.connection
        if connection.draining and not connection.closing and connection.open_calls == 0:
            connection.close()
        super()._flush()

    def _why_closed(self) -> str:
        if self.connection.established:
            return "the server closed the connection"
        if self._channel.uses_tls:
            return "the server closed the connection before it answered; it may want a certificate of the client"
        return "the server closed the connection before it answered; it may want TLS"

    def _retire(self, reason: str) -> None:
        if not self.ready.done():
            self.ready.set_result(f"it is no HTTP/2 server: {reason}" if self.connection.error_text else reason)
        self._channel.retire(self, reason)
        self.schedule_flush()

    # ── timers ──

    def watch_deadlines(self) -> None:
        """Set a timer for the earliest deadline."""
        earliest = self.connection.earliest_deadline
        if earliest < 0 or (self._deadline_timer is not None and self._deadline_at <= earliest):
            return
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_at = earliest
        seconds = max(TIMER_SECONDS_MIN, earliest - time.monotonic())
        self._deadline_timer = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._deadline_timer = None
        self.connection.expire(time.monotonic())
        self.watch_deadlines()

    def _keep_alive(self) -> None:
        """Send a PING if no bytes arrived since the last check; if one is unanswered already, give up."""
        channel = self._channel
        if self._reads == self._reads_seen and self.connection.open_calls:
            self.connection.ping()
            self.timer = self.loop.call_later(channel.keepalive_timeout, self._check_answer)
            return
        self._reads_seen = self._reads
        self.timer = self.loop.call_later(channel.keepalive_seconds, self._keep_alive)

    def _check_answer(self) -> None:
        if self._reads == self._reads_seen:
            self._reason = f"no answer to a PING within {self._channel.keepalive_timeout:g} s"
            self.abort()
            return
        self._reads_seen = self._reads
        self.timer = self.loop.call_later(self._channel.keepalive_seconds, self._keep_alive)


def _reason_of(error: Exception) -> str:
    """Return a connection error as text; asyncio's own text repeats the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, socket.gaierror):
        return f"the name is not known ({error.strerror})"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error)
