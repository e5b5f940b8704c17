"""The port of Arrow Flight beyond loopback: ends TLS, knows the client of each connection, bounds connections and requests.

pyarrow could end TLS itself, but gives only the first name in a client's certificate, while policies use the common name; and it bounds
neither connections nor requests. The relay runs in its own thread and connects to Flight over a Unix socket:

    client ── TCP, TLS ──► relay, bound to <folder>/<random name> ──► <folder>/flight, where pyarrow listens

The folder is `flight` in the data directory. It belongs to the broker's user and has mode 0700, so no other user can connect to Flight
or take a name in it. The kernel reports the random name to Flight as the peer of each call; the relay maps it to the client. Flight
refuses all other peers. On loopback without TLS pyarrow listens itself: the relay would cost half as much CPU again as a read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from bascule.broker.flight.request_meter import RequestMeter
from bascule.config.values.address import Address
from bascule.net.grpc.protocol import address_text
from bascule.net.grpc.server import Peer
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.tls import common_name

_logger = logging.getLogger(__name__)

BUFFER_BYTES: Final = 1 << 20
"""Maximum buffered for a side that does not read; then the relay stops reading from the other side."""

CONNECTIONS_MAX: Final = 1_024
"""Connections of clients; one more is closed."""
CONNECTIONS_PER_ADDRESS_MAX: Final = 512
"""Connections from one address; one more is closed. A Spark task has one or two."""
HANDSHAKE_SECONDS: Final = 10.0
"""Time for the TLS handshake of a client; then its connection is closed."""
FOLDER: Final = "flight"
"""Name of the socket's folder in the data directory."""


class InnerSocket:
    """The folder with the socket that Flight listens on behind the relay. Only this user can enter it."""

    def __init__(self, directory: Path) -> None:
        """Make the folder in the data directory, without what a killed broker left there. Raises OSError."""
        self._folder = directory / FOLDER
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(0o700)
        if not _holds_sockets(self._folder):
            self._folder = Path(tempfile.mkdtemp(prefix="bascule-flight-"))  # with mode 0700, whatever the umask
        self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._short = _short(self._handle)
        self.path = f"{self._short}/flight"

    @property
    def location(self) -> str:
        """The location for pyarrow."""
        return f"grpc+unix://{self.path}"

    def named_socket(self) -> tuple[socket.socket, str]:
        """Return a socket bound to a new random name in the folder, and the name."""
        name = secrets.token_hex(16)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.bind(f"{self._short}/{name}")
        except OSError:
            made.close()
            raise
        return made, name

    def forget(self, name: str) -> None:
        """Remove the file of a name. A connected socket keeps its name."""
        with contextlib.suppress(OSError):
            Path(self._folder, name).unlink()

    def remove(self) -> None:
        """Close and remove the folder."""
        os.close(self._handle)
        shutil.rmtree(self._folder, ignore_errors=True)


def _short(handle: int) -> str:
    """Return a path of an open folder that fits the address of a Unix socket, which has at most 107 bytes."""
    return f"/proc/self/fd/{handle}"


def _holds_sockets(folder: Path) -> bool:
    """Return False for a folder that a container shares with its host without support for Unix sockets."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.bind(f"{_short(handle)}/probe")
        (folder / "probe").unlink()
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


class FlightRelay:
    def __init__(self, address: Address, tls: ReloadableTls | None, inner: InnerSocket) -> None:
        """`start` listens. Raises OSError when the address cannot be used. `tls` is None for connections in the clear."""
        self.tls = tls
        self._address = address
        self._inner = inner
        self._peers: dict[str, Peer] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flight relay", daemon=True)
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
            lambda: _Outside(self),
            self._address.host,
            self._address.port,
            ssl=None if self.tls is None else self.tls.context,
            ssl_handshake_timeout=None if self.tls is None else HANDSHAKE_SECONDS,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Close all connections at once."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._inner.remove()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for side in list(self._open):
            side.abort()
        await asyncio.sleep(0)

    def peer_of(self, peer: str) -> Peer:
        """Return the client of a relayed connection, by a peer of Flight such as `unix:/proc/self/fd/9/4be0…`.

        Raises LookupError for a connection that the relay did not make.
        """
        return self._peers[peer.rpartition("/")[2]]

    def judge_connections(self) -> int:
        """End the connections whose certificates were refused since they were made. Returns how many."""
        return asyncio.run_coroutine_threadsafe(self._judge(), self._loop).result()

    async def _judge(self) -> int:
        refused = [side for side in self._open if isinstance(side, _Outside) and self.is_refused(side)]
        for side in refused:
            side.abort()
        return len(refused)

    # ── in the relay's own loop ──────────────────────────────────────────────────────────────────

    def opened(self, side: _Side) -> None:
        self._open.add(side)

    def closed(self, side: _Side) -> None:
        self._open.discard(side)

    def is_refused(self, outside: _Outside) -> bool:
        tls = outside.transport.get_extra_info("ssl_object")
        return self.tls is not None and tls is not None and self.tls.fault(tls) is not None

    async def connect(self, outside: _Outside) -> None:
        if self.is_refused(outside):
            outside.abort()
            return
        inside = _Side(self)
        try:
            made, name = self._inner.named_socket()
        except OSError:
            outside.abort()
            return
        info = outside.transport.get_extra_info
        self._peers[name] = Peer(address_text(info("peername")), common_name(info("peercert")))
        inside.on_lost = lambda: self._peers.pop(name, None)
        try:
            await self._loop.sock_connect(made, self._inner.path)
            await self._loop.create_unix_connection(lambda: inside, sock=made)
        except OSError:
            made.close()
            self._peers.pop(name, None)
            outside.abort()
            return
        finally:
            self._inner.forget(name)
        outside.join(inside)

    def begin(self, outside: _Outside) -> None:
        """Connect a new client to Flight, or refuse it when there are too many."""
        found = [side.host for side in self._open if isinstance(side, _Outside)]
        if len(found) > CONNECTIONS_MAX or found.count(outside.host) > CONNECTIONS_PER_ADDRESS_MAX:
            outside.abort()
            return
        outside.task = self._loop.create_task(self.connect(outside))


class _Side(asyncio.Protocol):
    """One end of a relayed connection. Passes received bytes to the other end, with backpressure."""

    def __init__(self, relay: FlightRelay) -> None:
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

    host = ""
    task: asyncio.Task[None] | None = None

    def __init__(self, relay: FlightRelay) -> None:
        super().__init__(relay)
        self._requests = RequestMeter()

    def data_received(self, data: bytes) -> None:
        self._requests.feed(data)
        if self._requests.is_excessive:
            _logger.warning("a Flight client was disconnected: its requests are larger than any that is served")
            self.abort()
            return
        super().data_received(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.host = str((transport.get_extra_info("peername") or ("",))[0])
        super().connection_made(transport)
        self.transport.pause_reading()  # until the other end is connected
        self._relay.begin(self)
