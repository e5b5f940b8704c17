"""The Flight service of a broker: takes its port early, answers calls while the broker runs, stops with it.

pyarrow serves calls on its own threads. They read logs without locks and run on the event loop what belongs to it. While the broker
starts or stops, calls fail with Unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bascule import limits
from bascule.broker.flight.relay import FlightRelay, InnerSocket
from bascule.config.sections.server import ServerConfig
from bascule.config.values.address import Address
from bascule.errors import MissingExtra, OperatorError, Unavailable
from bascule.flight import arrow
from bascule.net.gate import Gate
from bascule.net.reloadable_tls import ReloadableTls
from bascule.net.sockets import is_loopback, listening_socket
from bascule.security.certificates import port_tls
from bascule.security.identities import Identities

if TYPE_CHECKING:
    from bascule.broker.flight.directory import TableSources
    from bascule.broker.flight.local_reads import LocalReads

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FlightLoad:
    """Calls in progress; rows and bytes sent since the start."""

    calls: int
    rows: int
    bytes: int


class FlightService:
    def __init__(self, server: Any, gate: FlightGate) -> None:
        self._server = server
        self._gate = gate
        self._stopped = False
        self.port: int = server.port if gate.relay is None else gate.relay.port

    @classmethod
    async def start(cls, config: ServerConfig, identities: Identities) -> FlightService | None:
        """Take the port. Returns None when the service is off; if that is because pyarrow is missing, the log says so."""
        if config.flight.enabled is False:
            return None
        try:
            if not arrow.is_installed():
                raise MissingExtra("pyarrow is not installed", hint='pip install "bascule[server]"')
            return await asyncio.to_thread(_start, config, identities, asyncio.get_running_loop())
        except MissingExtra as error:
            if config.flight.enabled:
                raise OperatorError(
                    f"`flight.enabled` is true, but {error.message}", hint='pip install "bascule[server]"'
                ) from None
            _logger.info("streams are not served as Arrow tables: %s", error.message)
            return None

    @property
    def load(self) -> FlightLoad:
        return self._gate.load

    def serve(self, sources: TableSources) -> None:
        """Answer calls from now on."""
        self._gate.open(sources)
        _logger.info("streams are served as Arrow tables on port %d", self.port)

    @property
    def tls(self) -> ReloadableTls | None:
        return None if self._gate.relay is None else self._gate.relay.tls

    def judge_connections(self) -> int:
        """End the connections whose certificates were refused since they were made. Returns how many."""
        return 0 if self._gate.relay is None else self._gate.relay.judge_connections()

    async def stop(self) -> None:
        """End running reads with Unavailable, so that their readers continue at the next leader.

        A call whose client does not read cannot end: it waits in gRPC, and pyarrow has no way to cancel it. The end of the process
        closes its connection, see `exits.run_to_the_end`.
        """
        if self._stopped:
            return
        self._stopped = True
        self._gate.close()
        if self._gate.local_reads is not None:
            await asyncio.to_thread(self._gate.local_reads.stop)
        closing = threading.Thread(target=self._server.shutdown, name="flight stop", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, limits.FLIGHT_STOP_SECONDS)
        if self._gate.relay is not None:
            await asyncio.to_thread(self._gate.relay.stop)
            await asyncio.to_thread(closing.join, limits.FLIGHT_STOP_SECONDS)  # the relay has closed its connections
        if closing.is_alive():
            _logger.info(
                "%d Flight calls wait for clients that do not read; they end with the process", self.load.calls
            )


class FlightGate(Gate["TableSources"]):
    """The gate of the calls, which also counts them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, identities: Identities) -> None:
        super().__init__()
        self.loop = loop
        self.identities = identities
        self.relay: FlightRelay | None = None
        """The port, with TLS or beyond loopback; None if pyarrow listens itself."""
        self.local_reads: LocalReads | None = None
        self.describing = threading.BoundedSemaphore(limits.FLIGHT_DESCRIBING_MAX)
        """Held while an answer about many partitions is built, which runs Python for long."""
        self._lock = threading.Lock()
        self._calls = 0
        self._rows = 0
        self._bytes = 0

    def enter(self) -> None:
        """Count a call that sends much; `leave` ends it. Raises Unavailable when too many are in progress."""
        with self._lock:
            if self._calls >= limits.FLIGHT_CALLS_MAX:
                raise Unavailable(f"{self._calls} Flight calls are in progress", hint="retry in a moment")
            self._calls += 1

    def leave(self) -> None:
        with self._lock:
            self._calls -= 1

    def note_read(self, rows: int, nbytes: int) -> None:
        """Count a batch that is sent."""
        with self._lock:
            self._rows += rows
            self._bytes += nbytes

    @property
    def load(self) -> FlightLoad:
        with self._lock:
            return FlightLoad(self._calls, self._rows, self._bytes)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()


def _start(config: ServerConfig, identities: Identities, loop: asyncio.AbstractEventLoop) -> FlightService:
    from bascule.broker.flight.server import make_server

    gate = FlightGate(loop, identities)
    wanted = _free(config)
    try:
        tls = port_tls(config.tls)
        if tls is None:
            gate.local_reads = _local_reads(config, gate)
        if tls is None and is_loopback(wanted.host):
            return FlightService(make_server(f"grpc://{wanted}", gate), gate)
        inner = InnerSocket(config.data_dir)
        server = make_server(inner.location, gate)
        gate.relay = FlightRelay(wanted, tls, inner)
        gate.relay.start()
        return FlightService(server, gate)
    except OSError as error:
        raise OperatorError(
            f"cannot serve Arrow Flight on {wanted}: {error}", hint="set another address with `flight.listen`"
        ) from None


def _local_reads(config: ServerConfig, gate: FlightGate) -> LocalReads | None:
    """Return the short cut for readers on this machine, None where it is off or not possible: they get record batches then."""
    from bascule.broker.flight.local_reads import LocalReads, are_possible

    if not config.flight.local or gate.identities.are_required or not are_possible():
        return None
    try:
        return LocalReads(gate)
    except OSError as error:
        _logger.warning("readers on this machine get record batches instead of files: %s", error)
        return None


def _free(config: ServerConfig) -> Address:
    """The address to listen on. pyarrow would share a port that another program shares, so the port is tried first."""
    wanted = config.flight.bind(config.listener.bind())
    if not wanted.port:
        return wanted
    try:
        listening_socket(wanted.host, wanted.port).close()
    except OSError as error:
        if config.flight.listen is not None:
            raise OperatorError(
                f"cannot serve Arrow Flight on {wanted}: {os.strerror(error.errno or 0)}",
                hint="stop the program that uses the port, or set another port with `flight.listen`",
            ) from None
        _logger.info("port %d is in use: Arrow tables are served on another port", wanted.port)
        return Address(wanted.host, 0)
    return wanted
