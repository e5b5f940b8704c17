"""Ends TLS for Arrow Flight, with the context of the gRPC port, and knows the client of each connection.

pyarrow could end TLS itself, but gives only the first name in a client's certificate, while policies use the common name. The relay
runs in its own thread and connects to Flight's port on the loopback address. It remembers the common name by the local port of that
connection. Flight refuses connections that do not come from the relay.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final, cast

from bascule.config.values.address import LOOPBACK, Address
from bascule.net.tls import common_name

BUFFER_BYTES: Final = 1 << 20
"""Maximum buffered for a side that does not read; then the relay stops reading from the other side."""


class TlsRelay:
    def __init__(self, address: Address, context: ssl.SSLContext, inner_port: int) -> None:
        """`start` listens. Raises OSError when the address cannot be used."""
        self.context = context
        self._address = address
        self._inner_port = inner_port
        self._names: dict[int, str | None] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flight tls", daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[_Side] = set()
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except OSError:
            self.stop()
            raise

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(
            lambda: _Outside(self), self._address.host, self._address.port, ssl=self.context
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Close all connections at once."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for side in list(self._open):
            side.abort()
        await asyncio.sleep(0)

    def name_of(self, peer: str) -> str | None:
        """Return the common name of the client of a relayed connection, by an address such as `ipv4:127.0.0.1:40000`.

        Raises LookupError for a connection that the relay did not make.
        """
        return self._names[int(peer.rpartition(":")[2])]

    # ── in the relay's own loop ──────────────────────────────────────────────────────────────────

    def opened(self, side: _Side) -> None:
        self._open.add(side)

    def closed(self, side: _Side) -> None:
        self._open.discard(side)

    async def connect(self, outside: _Outside) -> None:
        inside = _Side(self)
        try:
            await self._loop.create_connection(lambda: inside, LOOPBACK, self._inner_port)
        except OSError:
            outside.abort()
            return
        port = inside.transport.get_extra_info("sockname")[1]
        self._names[port] = common_name(outside.transport.get_extra_info("peercert"))
        inside.on_lost = lambda: self._names.pop(port, None)
        outside.join(inside)

    def begin(self, outside: _Outside) -> None:
        outside.task = self._loop.create_task(self.connect(outside))


class _Side(asyncio.Protocol):
    """One end of a relayed connection. Passes received bytes to the other end, with backpressure."""

    def __init__(self, relay: TlsRelay) -> None:
        self._relay = relay
        self.other: _Side | None = None
        self.on_lost: Callable[[], Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(BUFFER_BYTES)
        self._relay.opened(self)

    def join(self, other: _Side) -> None:
        if self.transport.is_closing() or other.transport.is_closing():
            self.abort()
            other.abort()
            return
        self.other, other.other = other, self
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        self._relay.closed(self)
        if self.on_lost is not None:
            self.on_lost()
        if self.other is not None:
            self.other.transport.close()

    def abort(self) -> None:
        self.transport.abort()


class _Outside(_Side):
    """The client's end, after the TLS handshake."""

    task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()  # until the other end is connected
        self._relay.begin(self)
