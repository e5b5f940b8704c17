"""One TCP connection to a NATS server, which NatsLink replaces after each loss."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

from bascule import limits
from bascule.errors import Unavailable
from bascule.kernels.nats.protocol import Event, NatsReader


class Connection(asyncio.BufferedProtocol):
    """Feeds received bytes to the reader and sends the reader's output. Calls `on_lost` once, when the connection ends."""

    def __init__(
        self,
        reader: NatsReader,
        on_events: Callable[[tuple[Event, ...]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.lost = asyncio.Event()
        self.bytes_discarded = 0
        self.on_read: Callable[[], object] = _ignore
        self.on_room: Callable[[], None] = _ignore
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._on_events = on_events
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._is_tls = False
        self._is_over = False
        self._is_logged_in = False
        self._is_writable = True
        self._is_paused = False
        self._was_full = False
        self._flush_scheduled = False
        self._early_events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._pulse: asyncio.TimerHandle | None = None
        self._has_received = False
        self._pings_outstanding = 0
        self._reason = ""

    # ── logging in ──

    async def next_event(self) -> Event:
        """Return the next control line during the login."""
        while not self._early_events:
            if self._is_over:
                raise Unavailable(self._reason)
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._early_events.popleft()

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        assert self._transport is not None  # the handshake follows the server's INFO line
        self._is_tls = True
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=server_name)
        if transport is None or self._is_over:
            raise Unavailable(self._reason or "the connection was lost during the TLS handshake")
        self._use(transport)

    def log_in(self) -> None:
        """Pass control lines to `on_events` from now on. Raises Unavailable when the connection has ended already."""
        if self._is_over:
            raise Unavailable(self._reason)
        self._is_logged_in = True
        events, self._early_events = tuple(self._early_events), deque()
        self._on_events(events)

    # ── asyncio calls these ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(cast(asyncio.Transport, transport))
        if self._is_over:
            cast(asyncio.Transport, transport).abort()

    def _use(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._fd = -1 if self._is_tls else transport.get_extra_info("socket").fileno()
        # pause_writing is called as soon as the socket is full, resume_writing when all is sent: output waits in our own buffer.
        # One byte, not 0: asyncio's TLS transport compares with `>=` and would never call resume_writing.
        transport.set_write_buffer_limits(high=1, low=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        # The reader may already belong to the next connection.
        return memoryview(bytearray(1)) if self._is_over else self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over:
            return
        self._has_received = True
        self._pings_outstanding = 0
        try:
            events = self._reader.received(nbytes)
        except MemoryError as error:
            self._end(str(error))
            return
        try:
            self.on_read()
        except Exception as error:
            # A receiver that fails must not cost the connection.
            context = {"message": "messages from NATS were not handled", "exception": error}
            self._loop.call_exception_handler(context)
        if events:
            self._handle(events)
        if len(self._reader.output) and not self._is_over:
            self.schedule_flush()

    def _handle(self, events: tuple[Event, ...]) -> None:
        broken = events[-1][1] if events[-1][0] == "BROKEN" else None
        if self._is_logged_in:
            self._on_events(events)
        else:
            self._early_events.extend(event for event in events if event[0] != "BROKEN")
            self._wake()
        if broken is not None:
            self._end(f"the server's bytes make no sense: {broken.decode()}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the server closed the connection" if exc is None else str(exc) or type(exc).__name__)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._flush()

    # ── sending ──

    @property
    def unsent(self) -> int:
        """Bytes that the transport has not sent yet."""
        if self._transport is None or self._is_over:
            return 0
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._is_over:
            self._transport.write(data)

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        output, transport = self._reader.output, self._transport
        if self._is_over or transport is None or not len(output):
            return
        if not self._is_writable:
            self._was_full = True
            return
        if self._fd >= 0 and transport.get_write_buffer_size() == 0:
            try:
                output.send(self._fd)
            except OSError as error:
                self._end(error.strerror or str(error))
                return
        while len(output) and self._is_writable:
            with memoryview(output) as view:
                chunk = bytes(view[: limits.NATS_WRITE_BYTES_MAX])
            output.drop(len(chunk))
            transport.write(chunk)
        if len(output):
            self._was_full = True
        elif self._was_full:
            self._was_full = False
            self.on_room()

    # ── reading ──

    def pause_reading(self) -> None:
        if self._transport is not None and not self._is_paused and not self._is_over:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self._is_paused and not self._is_over:
            self._is_paused = False
            self._transport.resume_reading()

    def keep_alive(self, seconds: float, ping: Callable[[], None]) -> None:
        """Send a PING after this time without received bytes; end the connection when too many have no answer."""
        self._pulse = self._loop.call_later(seconds, self._beat, seconds, ping)

    def _beat(self, seconds: float, ping: Callable[[], None]) -> None:
        if self._is_over:
            return
        # No PONG can arrive while reading is paused.
        if not self._has_received and not self._is_paused:
            if self._pings_outstanding >= limits.NATS_PINGS_OUTSTANDING_MAX:
                self._end(f"the server has not answered for {seconds * (self._pings_outstanding + 1):g} s")
                return
            self._pings_outstanding += 1
            ping()
        self._has_received = False
        self.keep_alive(seconds, ping)

    # ── the end ──

    def abort(self, reason: str) -> None:
        """End the connection at once, without sending what waits."""
        if self._is_over:
            return
        self._reason = reason
        self.bytes_discarded = self.unsent
        self._is_over = True
        if self._pulse is not None:
            self._pulse.cancel()
        if self._transport is not None:
            self._transport.abort()
        self.lost.set()
        self._wake()

    def _end(self, reason: str) -> None:
        if not self._is_over:
            self.abort(reason)
            self._on_lost(reason)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _ignore() -> None:
    """Default callback."""
