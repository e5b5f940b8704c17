"""One HTTP/2 connection on asyncio, of a server or of a client.

All connections are read into one shared buffer. A connection is flushed once at the end of the loop turn in which it was written to:
straight to the file descriptor while the transport holds nothing, else through the transport, as always with TLS. The transport
holds at most `WRITE_BYTES`; the rest waits in the connection's output buffer, where it is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final, cast

from bascule import limits
from bascule.kernels.http2.connection import Http2Connection
from bascule.kernels.http2.sender import ConnectionLimits

WRITE_BYTES: Final = 64 * limits.KIB
"""Maximum handed to the transport before it has sent everything."""

CLOSE_SECONDS: Final = 1.0
"""Maximum time from closing a connection to aborting it."""


def connection_limits(**changed: int) -> ConnectionLimits:
    """Return the bounds of limits.py with some of them changed."""
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


class Http2Protocol(asyncio.BufferedProtocol):
    """One connection. A subclass calls `attach` with its transport."""

    def __init__(self, connection: Http2Connection, receive_view: memoryview, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        self.loop = loop
        self.timer: asyncio.TimerHandle | None = None
        self._receive_view = receive_view
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._flush_scheduled = False
        self._writing_paused = False
        self._reading_paused = False
        self._leaving = False

    def attach(self, transport: asyncio.BaseTransport, keepalive_seconds: int) -> None:
        self._transport = cast(asyncio.Transport, transport)
        is_plain = transport.get_extra_info("sslcontext") is None
        # With a limit of 0, a TLS transport counts an empty buffer as full and never calls resume_writing.
        self._transport.set_write_buffer_limits(high=0 if is_plain else WRITE_BYTES)
        sock = transport.get_extra_info("socket")
        _keep_alive(sock, keepalive_seconds)
        if is_plain:
            self._fd = sock.fileno()
        self.connection.on_fault = self.report
        self.connection.on_output = self.schedule_flush
        self.schedule_flush()

    def report(self, error: Exception) -> None:
        """Report an exception of one of our hooks."""

    # ── asyncio calls these ──

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._receive_view

    def buffer_updated(self, nbytes: int) -> None:
        connection = self.connection
        connection.received(nbytes)
        if connection.has_backlog:
            self._pause_reading()
            self.wait_for_turn()
        elif connection.congested:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def wait_for_turn(self) -> None:
        """Call `go_on` in a later turn of the loop: the frames of one read took too long."""
        self.loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """Handle more frames of the backlog, for one turn."""
        self.connection.go_on()
        if self.connection.has_backlog:
            self.wait_for_turn()
        else:
            self.schedule_flush()  # which resumes reading

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
        self._stop_timer()
        self.connection.lost()
        self.connection.on_output = self.connection.on_fault = None

    # ── sending ──

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # the descriptor may belong to another connection by now
        connection = self.connection
        connection.flush()
        if len(connection.output):
            self._send(transport)
        if self._reading_paused and not connection.congested and not connection.has_backlog:
            self._reading_paused = False
            transport.resume_reading()
        if connection.closing:
            self._leave(transport)
        elif connection.wants_flush and not self._writing_paused:
            self.schedule_flush()

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

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _leave(self, transport: asyncio.Transport) -> None:
        """Close after the peer had time to read the last frames: a close with bytes unread would discard them."""
        if not self._leaving:
            self._leaving = True
            self._stop_timer()
            self.timer = self.loop.call_later(CLOSE_SECONDS, self.abort)
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


def _keep_alive(sock: socket.socket, idle_seconds: int) -> None:
    with contextlib.suppress(OSError):  # not a TCP socket, or gone already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_seconds // 4))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def address_text(name: object) -> str:
    if isinstance(name, tuple) and len(name) >= 2:
        return f"[{name[0]}]:{name[1]}" if ":" in str(name[0]) else f"{name[0]}:{name[1]}"
    return str(name or "local")
