"""One broker: its parts, in the order in which they are built and started. They stop in the reverse order.

start   data directory · identity · HTTP (answers "starting") · nats-server, if embedded · NATS · controller · partitions · API
drain   leaderships go to other servers, while clients are still served
stop    API (subscribers reconnect elsewhere) · partitions (received messages are written) · controller · NATS · HTTP · logs, synced
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bascule import __version__, limits
from bascule.broker.api.routes import all_routes
from bascule.broker.embedded_nats import EmbeddedNats, EmbeddedNatsOptions
from bascule.broker.ending import BrokerEnding, Closing
from bascule.broker.flight.directory import TableSources
from bascule.broker.flight.service import FlightService
from bascule.broker.http.service import HttpService
from bascule.broker.metrics.cursors import KnownCursors
from bascule.broker.metrics.sources import Sources
from bascule.broker.nats_options import link_options, nats_login, nats_tls
from bascule.config.sections.server import ServerConfig
from bascule.config.values.address import Address
from bascule.errors import BasculeError, EncryptionKeyError, OperatorError
from bascule.log import LogStore
from bascule.log.disk.encryption import MasterKeys, master_keys_from_environment
from bascule.log.disk.operations import PosixDisk
from bascule.metadata.controller import Controller
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.identity import server_id
from bascule.metadata.internal_streams import InternalStreams
from bascule.metadata.run_marker import RunMarker
from bascule.metadata.server_directory import ServerDirectory, ServerInfo
from bascule.metadata.start import ControllerStart, start_controller
from bascule.net.grpc.health import HealthState
from bascule.net.grpc.server import GrpcServer
from bascule.net.nats.bus import NatsBus
from bascule.net.nats.link import NatsLink
from bascule.net.nats.subjects import ControlSubjects
from bascule.net.sockets import listening_socket
from bascule.net.tls import server_tls
from bascule.operations.activity_stream import ActivityPublisher
from bascule.operations.administration import Administration
from bascule.operations.arrival import Arrival
from bascule.operations.drain import Drain
from bascule.operations.membership import MembershipWatch
from bascule.operations.quiet import PublishersAtWork
from bascule.operations.server_life import ServerLife
from bascule.partition.data_plane import DataPlane
from bascule.partition.registry import Partitions
from bascule.readers.cursor_tables import CursorTables
from bascule.readers.cursors import CursorStore
from bascule.readers.groups import GroupCoordinator
from bascule.security.authorization import Authorizer

_logger = logging.getLogger(__name__)

ADDRESSES_FILE: Final = "addresses.json"
SERVICE: Final = "proto.API"


async def start_broker(config: ServerConfig, ending: BrokerEnding) -> RunningBroker:
    """A broker that serves clients. When the start fails, or is cancelled, everything that had started is stopped."""
    closing = Closing()
    store = _open_store(config, closing)
    (config.data_dir / ADDRESSES_FILE).unlink(missing_ok=True)
    try:
        marker = RunMarker(PosixDisk(), str(config.data_dir))
        identity = server_id(PosixDisk(), str(config.data_dir), config.node.server_id)
    except BaseException:
        await closing.run()
        raise
    try:
        return await _start(config, ending, closing, store, marker, identity)
    except BaseException:
        await stop_broker(closing, marker)
        raise


async def _start(
    config: ServerConfig, ending: BrokerEnding, closing: Closing, store: LogStore, marker: RunMarker, identity: str
) -> RunningBroker:
    listening = _bind(config, closing)
    authorizer = Authorizer.from_config(config.tls)
    http = await HttpService.start(config)
    if http is not None:
        closing.add(http.stop)
    flight = await FlightService.start(config)
    if flight is not None:
        closing.add(flight.stop)
    nats = await _connect_nats(config, closing, identity)
    subjects = ControlSubjects(config.cluster.replication.namespace)

    feed = MetadataFeed()
    controller = await _start_controller(config, ending, closing, nats.bus, feed, identity)
    address = config.listener.advertise(bound_port=listening.getsockname()[1], machine_name=socket.gethostname())
    own = ServerInfo(identity, address.host, address.port, flight_port=0 if flight is None else flight.port)
    age_max_seconds = config.metadata.cache_max_age_ns / 1e9
    directory = ServerDirectory(nats.bus, subjects, own, age_max_seconds=age_max_seconds)

    plane = DataPlane(config, nats.streams, nats.replication, nats.bus, store, authorizer, controller, feed)
    closing.add(plane.stop)

    cursors = CursorStore(
        nats.bus,
        subjects,
        controller,
        plane.partitions,
        plane.publisher,
        plane.starts,
        waits_for_stream=config.cluster.cursors.stream_partitions > 0,
    )
    cursor_tables = CursorTables(controller, plane.partitions, plane.starts)
    groups = GroupCoordinator(controller, feed, config.cluster.groups.consumer_timeout_ns)

    life = ServerLife(ending.requested.set)
    administration = Administration(nats.bus, subjects, controller, directory, plane.partitions, cursor_tables, life)
    internal = InternalStreams(controller, directory, config.cluster)
    activity = ActivityPublisher(controller, feed, plane.publisher, config.cluster.activity)
    arrival = Arrival(controller, plane.partitions, marker, (groups, internal, activity))
    membership = MembershipWatch(
        nats.bus,
        subjects,
        controller,
        lambda: ending.on_removed(identity, config.data_dir, was_running=arrival.is_complete),
    )
    for part in (administration, membership, arrival):
        closing.add(part.stop)
    for answering in (directory, plane.starts, cursors, administration, membership):
        await answering.start()
    await arrival.start(ending.fail, wait_seconds=limits.START_CATCH_UP_SECONDS)

    health = HealthState()
    routes = all_routes(config, authorizer, controller, directory, plane, cursors, groups, administration, health)
    tls = _tls(config)
    grpc = GrpcServer(routes, ssl_context=tls)
    closing.add(lambda: _stop_serving(grpc, health, plane))
    await grpc.start(sock=listening)
    if flight is not None:
        closing.add(flight.stop)  # before the gRPC port: readers of tables go to another server
        flight.serve(
            TableSources(
                controller=controller,
                servers=directory,
                partitions=plane.partitions,
                starts=plane.starts,
                publishing=plane.gate,
                authorizer=authorizer,
                uses_tls=config.tls.is_on,
            )
        )
    health.set(SERVICE, True)
    if http is not None:
        http.serve(
            Sources(
                data_directory=config.data_dir,
                life=life,
                authorizer=authorizer,
                controller=controller,
                members=administration.members,
                cursors=KnownCursors(controller, cursor_tables, administration.switchboard),
                data_plane=plane,
                store=store,
                links={"streams": nats.streams, "replication": nats.replication, "control": nats.bus.link},
                bus=nats.bus,
                grpc=grpc,
                http=http.server,
                flight_load=None if flight is None else lambda: flight.load,
            )
        )
        closing.add(http.begin_stop)  # before the rest: metrics read no part that is stopping
    closing.add(arrival.stop)  # first of all: no part begins new work during the stop
    _write_addresses(config, closing, address, nats.url, flight, http)
    _logger.info(
        "bascule %s, server %s, serves on %s, NATS at %s, data in %s",
        __version__,
        identity,
        address,
        nats.url,
        config.data_dir,
    )
    return RunningBroker(
        address=address,
        nats_url=nats.url,
        partitions=plane.partitions,
        ending=ending,
        closing=closing,
        marker=marker,
        authorizer=authorizer,
        certificates=Certificates(config, tls, flight, http),
        health=health,
        life=life,
        leaderships=administration.drain,
        drain_seconds=config.shutdown.drain_timeout_ns / 1e9,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    address: Address
    nats_url: str
    partitions: Partitions
    ending: BrokerEnding
    closing: Closing
    marker: RunMarker
    authorizer: Authorizer
    certificates: Certificates
    health: HealthState
    life: ServerLife
    leaderships: Drain
    drain_seconds: float

    def reload(self) -> None:
        """SIGHUP: read the policy and the certificate again. The present ones stay in force when a file cannot be used."""
        self.authorizer.reload()
        self.certificates.reload()

    async def drain(self) -> None:
        """Before `stop`, while clients are still served: hand leaderships over, within `shutdown.drain.timeout`."""
        if not self.ending.hands_over or not self.drain_seconds:
            return
        self.health.set(SERVICE, False)
        self.life.is_draining = True
        try:
            async with asyncio.timeout(self.drain_seconds):
                await self.leaderships.leave(timeout=self.drain_seconds)
        except TimeoutError:
            seconds = self.drain_seconds
            _logger.warning("not all leaderships were handed over within %g s: the server stops anyway", seconds)

    async def stop(self) -> None:
        await stop_broker(self.closing, self.marker)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class NatsConnections:
    """Messages of publishers, replication and control have a connection each, so that none of them delays the others."""

    streams: NatsLink
    replication: NatsLink
    bus: NatsBus
    url: str


async def _connect_nats(config: ServerConfig, closing: Closing, identity: str) -> NatsConnections:
    nats = config.nats
    servers = (await _start_nats(config, closing),) if nats.runs_embedded else nats.servers
    name = f"{config.cluster.replication.namespace}.{identity}"
    streams, replication = [
        NatsLink(link_options(nats, f"{name}.{purpose}", servers)) for purpose in ("streams", "replication")
    ]
    for link in (streams, replication):
        closing.add(link.close)
        await link.connect()
    bus = await NatsBus.connect(servers, f"{name}.control", login=nats_login(nats), tls=nats_tls(nats))
    closing.add(bus.close)
    return NatsConnections(streams, replication, bus, ",".join(servers))


async def _start_nats(config: ServerConfig, closing: Closing) -> str:
    """Start the embedded nats-server; its URL."""
    options = EmbeddedNatsOptions(
        directory=config.data_dir / "nats",
        host=config.nats.embedded_host,
        port=config.nats.embedded_port,
        payload_bytes_max=config.cluster.replication.replication_max_bytes,
        config=config.nats.embedded_config,
        logs=config.logging.nats,
    )
    embedded = EmbeddedNats(options, _log_restart)
    closing.add(embedded.stop)
    await embedded.start()
    return embedded.url


async def _start_controller(
    config: ServerConfig, ending: BrokerEnding, closing: Closing, bus: NatsBus, feed: MetadataFeed, identity: str
) -> Controller:
    replication = config.cluster.replication
    controller = await start_controller(
        bus,
        PosixDisk(),
        str(config.data_dir),
        ControllerStart(
            namespace=replication.namespace,
            server_id=identity,
            is_seed=config.node.raft_bootstrap_seed,
            peers=config.node.raft_bootstrap_peers,
            voters_max=replication.raft_max_quorum_size,
            snapshot_entries=config.node.raft_snapshot_threshold,
            leader_timeout_ns=replication.replica_max_leader_timeout_ns,
            coordinator_timeout_ns=config.cluster.groups.coordinator_timeout_ns,
        ),
        feed=feed,
        on_rival_seed=ending.on_rival_seed,
        on_failure=ending.on_metadata_failure,
    )
    closing.add(controller.stop)
    return controller


def _open_store(config: ServerConfig, closing: Closing) -> LogStore:
    store = LogStore(
        config.data_dir,
        keys=_master_keys(),
        on_cleaned=_log_cleaning,
    )
    closing.add(lambda: asyncio.to_thread(store.close))
    return store


def _bind(config: ServerConfig, closing: Closing) -> socket.socket:
    """Take the gRPC port before anything else is started: a broker is of no use without it."""
    wanted = config.listener.bind()
    try:
        listening = listening_socket(wanted.host, wanted.port)
    except OSError as error:
        raise OperatorError(
            f"cannot listen on {wanted}: {os.strerror(error.errno or 0)}",
            hint="stop the program that uses the port, or set another port with `listen` or --port",
        ) from None

    async def close() -> None:
        listening.close()

    closing.add(close)
    return listening


def _tls(config: ServerConfig) -> ssl.SSLContext | None:
    tls = config.tls
    if not tls.is_on:
        return None
    return server_tls(tls.cert, tls.key, client_ca=tls.client_auth_ca, requires_client=tls.client_auth_enabled)


class Certificates:
    """The certificate of all ports; each port exists or not, by the configuration."""

    def __init__(
        self,
        config: ServerConfig,
        grpc: ssl.SSLContext | None,
        flight: FlightService | None,
        http: HttpService | None,
    ) -> None:
        self._files = config.tls
        self._grpc = grpc
        self._ports = [port for port in (flight, http) if port is not None]

    def reload(self) -> None:
        certificate, key = self._files.cert, self._files.key
        if self._grpc is None or certificate is None or key is None:
            return
        try:
            server_tls(certificate, key)  # tried on a context of its own first
            self._grpc.load_cert_chain(certificate, key)
            for port in self._ports:
                port.reload_certificate(certificate, key)
        except (BasculeError, OSError) as error:
            _logger.error("the certificate was not changed: %s", getattr(error, "message", error))
        else:
            _logger.info("the certificate was read again: new connections see it")


def _write_addresses(
    config: ServerConfig,
    closing: Closing,
    address: Address,
    nats_url: str,
    flight: FlightService | None,
    http: HttpService | None,
) -> None:
    """For scripts and tests that let the system choose ports."""
    addresses = {"grpc": str(address), "nats": nats_url}
    if flight is not None:
        addresses["flight"] = str(Address(address.host, flight.port))
    if http is not None:
        addresses["http"] = str(Address(address.host, http.port))
    path: Path = config.data_dir / ADDRESSES_FILE
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(addresses) + "\n")
    temporary.rename(path)

    async def remove() -> None:
        path.unlink(missing_ok=True)

    closing.add(remove)


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────


async def _stop_serving(grpc: GrpcServer, health: HealthState, plane: DataPlane) -> None:
    health.set(SERVICE, False)
    await grpc.stop(limits.STOP_GRACE_SECONDS, PublishersAtWork(plane.gate))


async def stop_broker(closing: Closing, marker: RunMarker) -> None:
    """Close all parts; the run counts as clean if none of them reported an error."""
    if await closing.run():
        try:
            marker.write_stopped()
        except BasculeError as error:
            # The next start treats this run as killed, which is safe. An earlier error that stops the server is the better message.
            _logger.error("while stopping: %s", error.message)


# ── logging ──────────────────────────────────────────────────────────────────────────────────────


def _master_keys() -> MasterKeys | None:
    """A bad key only matters to encrypted streams: creating one reports it."""
    try:
        return master_keys_from_environment()
    except EncryptionKeyError as error:
        _logger.error("%s: encrypted streams cannot be used", error.message)
        return None


def _log_cleaning(log: object, report: object) -> None:
    if isinstance(report, BasculeError):
        _logger.error("cleaning %s failed: %s", getattr(log, "directory", log), report.message)


def _log_restart(reason: str) -> None:
    _logger.error("the embedded nats-server was started again: %s", reason)
