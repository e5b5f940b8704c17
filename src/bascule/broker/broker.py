"""One broker: its parts, in the order in which they are built and started. They stop in the reverse order.

start   data directory · identity · HTTP (answers "starting") · nats-server, if embedded · NATS · controller · partitions · API
drain   leaderships go to other servers, while clients are still served
stop    API (subscribers reconnect elsewhere) · audit stream (its last records) · partitions (received messages are written) ·
        controller · NATS · HTTP · logs, synced
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bascule import __version__, limits
from bascule.broker.api.routes import all_routes
from bascule.broker.api.stream_calls import LocalLogs
from bascule.broker.auditing import Auditing
from bascule.broker.cluster_secret import ClusterSecret
from bascule.broker.embedded_nats import EmbeddedNats, EmbeddedNatsOptions
from bascule.broker.ending import BrokerEnding, Closing, PublishersAtWork
from bascule.broker.flight.directory import TableSources
from bascule.broker.flight.service import FlightService
from bascule.broker.foreign_cluster import ForeignWatch, refuse_foreign_namespace
from bascule.broker.handles import connections_for, raise_handle_limit
from bascule.broker.http.service import HttpService
from bascule.broker.keys import KeyCalls, key_source, load_keys
from bascule.broker.metrics.counts import CountCalls
from bascule.broker.metrics.cursors import KnownCursors
from bascule.broker.metrics.scrape import Scrape
from bascule.broker.metrics.sources import Sources
from bascule.broker.nats_options import BROKER_USER, link_options
from bascule.broker.policies import ClusterPolicies
from bascule.config.sections.security import PolicySource
from bascule.config.sections.server import ServerConfig
from bascule.config.unsafe import unsafe_settings
from bascule.config.values.address import Address
from bascule.errors import BasculeError
from bascule.liftbridge.directory import refuse_liftbridge_directory
from bascule.log import LogStore
from bascule.log.disk.operations import PosixDisk
from bascule.log.key_rotation import KeyRotation
from bascule.metadata.controller import Controller
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.identity import server_id
from bascule.metadata.internal_streams import InternalStreams
from bascule.metadata.namespace import store_namespace
from bascule.metadata.run_marker import RunMarker
from bascule.metadata.server_directory import ServerDirectory, ServerInfo
from bascule.metadata.start import ControllerStart, start_controller
from bascule.net.gate import Gate
from bascule.net.grpc.admission import AdmissionBounds
from bascule.net.grpc.health import HealthState
from bascule.net.grpc.server import GrpcServer
from bascule.net.nats.bus import NatsBus
from bascule.net.nats.link import NatsLink
from bascule.net.nats.subjects import ControlSubjects
from bascule.net.reloadable_tls import ReloadableTls
from bascule.operations.activity_stream import ActivityPublisher
from bascule.operations.administration import Administration
from bascule.operations.arrival import Arrival
from bascule.operations.drain import Drain
from bascule.operations.membership import MembershipWatch
from bascule.operations.server_life import ServerLife
from bascule.operations.switchboard import Handler
from bascule.partition.data_plane import DataPlane
from bascule.partition.registry import Partitions
from bascule.readers.cursor_tables import CursorTables
from bascule.readers.cursors import CursorStore
from bascule.readers.groups import GroupCoordinator
from bascule.security.audit.log import AuditLog
from bascule.security.authentication import Authenticator
from bascule.security.authorization import Authorizer
from bascule.security.certificates import Certificates, port_tls
from bascule.security.identities import Identities
from bascule.security.running_calls import RunningCalls

_logger = logging.getLogger(__name__)

ADDRESSES_FILE: Final = "addresses.json"
SERVICE: Final = "proto.API"


async def start_broker(config: ServerConfig, ending: BrokerEnding, listening: socket.socket) -> RunningBroker:
    """A broker that serves clients on a listening socket, which it closes. When the start fails, or is cancelled, everything that had
    started is stopped."""
    refuse_liftbridge_directory(config.data_dir)
    closing = Closing()
    _close_at_the_end(closing, listening)
    raise_handle_limit()
    store, keys = _open_store(config, closing)
    try:
        return await _start(config, ending, closing, store, keys, listening)
    except BaseException:
        await closing.run()
        raise


async def _start(
    config: ServerConfig,
    ending: BrokerEnding,
    closing: Closing,
    store: LogStore,
    keys: KeyRotation,
    listening: socket.socket,
) -> RunningBroker:
    (config.data_dir / ADDRESSES_FILE).unlink(missing_ok=True)
    identity = server_id(PosixDisk(), str(config.data_dir), config.node.server_id)
    marker = RunMarker(PosixDisk(), str(config.data_dir))
    closing.when_clean(marker.write_stopped)
    for one in unsafe_settings(config):
        _logger.warning("UNSAFE: %s (%s)", one.problem, one.next_step)
    secret = await asyncio.to_thread(ClusterSecret, config, identity)
    auditing = Auditing(config, identity, secret)
    closing.add(auditing.close)
    audit = auditing.log
    identities = Identities(Authenticator.from_config(config), audit.unauthenticated)
    closing.add(identities.close)
    is_current = identities.is_current if identities.are_required else None
    authorizer = Authorizer.from_config(config.tls, config.security, is_current, audit.refused)
    ports = await _take_ports(config, closing, identities, listening)
    nats = await _connect_nats(config, closing, identity, secret)
    store_namespace(PosixDisk(), str(config.data_dir), config.cluster.replication.namespace)
    running = RunningCalls(authorizer)
    parts = await _start_parts(config, ending, closing, store, keys, marker, authorizer, running, ports, nats, identity)
    auditing.start_stream(parts.plane.publisher)
    closing.add(auditing.stop_stream)
    if identities.are_required:
        _watch_credentials(running, closing)
    health, grpc = await _serve(config, closing, store, authorizer, identities, audit, running, ports, nats, parts)
    closing.add(parts.arrival.stop)  # first of all: no part begins new work during the stop
    _write_addresses(config, closing, ports, nats.url)
    _logger.info(
        "bascule %s, server %s, serves on %s, NATS at %s, namespace `%s`, data in %s",
        __version__,
        identity,
        ports.address,
        nats.url,
        config.cluster.replication.namespace,
        config.data_dir,
    )
    return RunningBroker(
        address=ports.address,
        nats_url=nats.url,
        partitions=parts.plane.partitions,
        ending=ending,
        closing=closing,
        authorizer=authorizer,
        identities=identities,
        auditing=auditing,
        running=running,
        secret=nats.secret,
        certificates=Certificates([port for port in (grpc, ports.flight, ports.http) if port is not None]),
        health=health,
        life=parts.life,
        leaderships=parts.administration.drain,
        drain_seconds=config.shutdown.drain_timeout_ns / 1e9,
    )


def _watch_credentials(running: RunningCalls, closing: Closing) -> None:
    """End calls in progress when their tokens expire."""
    watching = asyncio.create_task(running.watch_credentials(), name="judge running calls")

    async def stop() -> None:
        watching.cancel()

    closing.add(stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    address: Address
    nats_url: str
    partitions: Partitions
    ending: BrokerEnding
    closing: Closing
    authorizer: Authorizer
    identities: Identities
    auditing: Auditing
    running: RunningCalls
    secret: ClusterSecret
    certificates: Certificates
    health: HealthState
    life: ServerLife
    leaderships: Drain
    drain_seconds: float

    def reload(self) -> None:
        """SIGHUP: read policy, tokens, cluster secret and certificate again. A bad file leaves the present one in force."""
        self.auditing.reopen()
        read = {"policy": self.authorizer.reload(), "tokens": self.identities.reload()}
        self.running.judge_credentials()
        read["cluster secret"] = self.secret.reload()
        read["certificates"] = self.certificates.reload()
        failed = [name for name, is_fine in read.items() if not is_fine]
        self.auditing.reloaded(failed)

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
        await self.closing.run()


# ── the parts ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts that the ports give access to."""

    controller: Controller
    directory: ServerDirectory
    plane: DataPlane
    cursors: CursorStore
    cursor_tables: CursorTables
    groups: GroupCoordinator
    administration: Administration
    arrival: Arrival
    life: ServerLife
    keys: KeyRotation
    policies: ClusterPolicies | None
    """None if the cluster does not store the policy."""
    counting: Gate[Scrape]
    """Opens when the metrics can be collected."""


async def _start_parts(
    config: ServerConfig,
    ending: BrokerEnding,
    closing: Closing,
    store: LogStore,
    keys: KeyRotation,
    marker: RunMarker,
    authorizer: Authorizer,
    running: RunningCalls,
    ports: Ports,
    nats: NatsConnections,
    identity: str,
) -> BrokerParts:
    """Feed, controller, partitions, readers, operations: each takes the parts before it as arguments."""
    bus, subjects, cluster = nats.bus, ControlSubjects(config.cluster.replication.namespace), config.cluster
    feed = MetadataFeed()
    controller = await _start_controller(config, ending, closing, bus, feed, identity)
    own = ServerInfo(identity, ports.address.host, ports.address.port, flight_port=ports.flight_port)
    directory = ServerDirectory(bus, subjects, own, age_max_seconds=config.metadata.cache_max_age_ns / 1e9)
    plane = DataPlane(
        config, nats.streams, nats.replication, bus, nats.secret.channels, store, authorizer, controller, feed
    )
    closing.add(plane.stop)
    running.add_judge(plane.judge_publishers)
    policies = _follow_policies(config, closing, controller, feed, authorizer, running)
    partitions = plane.partitions

    has_cursors = cluster.cursors.stream_partitions > 0
    cursors = CursorStore(
        bus, subjects, controller, partitions, plane.publisher, plane.starts, waits_for_stream=has_cursors
    )
    cursor_tables = CursorTables(controller, partitions, plane.starts)
    groups = GroupCoordinator(controller, feed, cluster.groups.consumer_timeout_ns)

    life = ServerLife(ending.requested.set)
    counting = Gate[Scrape]()
    local_calls: dict[str, Handler] = {
        **KeyCalls(keys, identity).handlers(),
        "Counts": CountCalls(counting, identity).answer,
        "Logs": LocalLogs(partitions).answer,
    }
    administration = Administration(
        bus, subjects, controller, directory, partitions, cursor_tables, life, local_calls, store.space
    )
    internal = InternalStreams(controller, directory, cluster)
    activity = ActivityPublisher(controller, feed, plane.publisher, cluster.activity)
    arrival = Arrival(controller, partitions, marker, (groups, internal, activity))

    def on_removed() -> None:
        ending.on_removed(identity, config.data_dir, was_running=arrival.is_complete)

    membership = MembershipWatch(bus, subjects, controller, on_removed)
    for part in (administration, membership, arrival):
        closing.add(part.stop)
    for answering in (directory, plane.starts, plane.successions, cursors, administration, membership):
        await answering.start()
    nats.secret.on_control_accepted(directory.introduce)
    await arrival.start(ending.fail, wait_seconds=limits.START_CATCH_UP_SECONDS)
    if policies is not None and arrival.is_complete:
        await policies.known(timeout=limits.START_CATCH_UP_SECONDS)
    return BrokerParts(
        controller,
        directory,
        plane,
        cursors,
        cursor_tables,
        groups,
        administration,
        arrival,
        life,
        keys,
        policies,
        counting,
    )


def _follow_policies(
    config: ServerConfig,
    closing: Closing,
    controller: Controller,
    feed: MetadataFeed,
    authorizer: Authorizer,
    running: RunningCalls,
) -> ClusterPolicies | None:
    """None if the cluster does not store the policy."""
    if config.security.policies_source is not PolicySource.CLUSTER:
        return None
    policies = ClusterPolicies(controller, feed, authorizer, running, config.security.policies_admins)
    closing.add(policies.stop)
    policies.start()
    return policies


@dataclass(frozen=True, slots=True)
class NatsConnections:
    """Messages of publishers, replication and control have a connection each, so that none of them delays the others."""

    streams: NatsLink
    replication: NatsLink
    bus: NatsBus
    secret: ClusterSecret
    url: str


async def _connect_nats(
    config: ServerConfig, closing: Closing, identity: str, secret: ClusterSecret
) -> NatsConnections:
    nats, namespace = config.nats, config.cluster.replication.namespace
    servers = (await _start_nats(config, closing, secret),) if nats.runs_embedded else nats.servers
    links = {
        purpose: NatsLink(link_options(nats, f"{namespace}.{identity}.{purpose}", servers, secret.keys))
        for purpose in ("streams", "replication", "control")
    }
    channels = {purpose: secret.channel(purpose, link) for purpose, link in links.items()}
    secret.channel("internal", links["streams"])
    bus = NatsBus(links["control"], channels["control"], ControlSubjects(namespace).inbox)
    for purpose, link in links.items():
        closing.add(bus.close if purpose == "control" else link.close)
        await link.connect()
    await refuse_foreign_namespace(links["control"], namespace, identity)
    ForeignWatch(links["control"], namespace)
    await secret.introduce()
    return NatsConnections(links["streams"], links["replication"], bus, secret, ",".join(servers))


async def _start_nats(config: ServerConfig, closing: Closing, secret: ClusterSecret) -> str:
    """Start the embedded nats-server; its URL."""
    options = EmbeddedNatsOptions(
        directory=config.data_dir / "nats",
        host=config.nats.embedded_host,
        port=config.nats.embedded_port,
        payload_bytes_max=config.cluster.replication.replication_max_bytes,
        config=config.nats.embedded_config,
        namespace=config.cluster.replication.namespace,
        user=BROKER_USER,
        password=None if secret.keys is None or not config.nats.has_no_login else secret.keys.password(),
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


def _open_store(config: ServerConfig, closing: Closing) -> tuple[LogStore, KeyRotation]:
    source = key_source(config.encryption)
    keys = load_keys(source)
    store = LogStore(
        config.data_dir,
        keys=keys,
        on_cleaned=_log_cleaning,
    )
    rotation = KeyRotation(store, keys, source)
    closing.add(lambda: asyncio.to_thread(store.close))
    closing.add(lambda: asyncio.to_thread(rotation.stop))
    return store, rotation


# ── the ports ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ports:
    """Taken before anything else is started: without its gRPC port a broker is of no use, and probes need the HTTP port."""

    listening: socket.socket
    address: Address
    """Where clients reach the gRPC port."""
    tls: ReloadableTls | None
    http: HttpService | None
    flight: FlightService | None

    @property
    def flight_port(self) -> int:
        return 0 if self.flight is None else self.flight.port


async def _take_ports(
    config: ServerConfig, closing: Closing, identities: Identities, listening: socket.socket
) -> Ports:
    http = await HttpService.start(config, identities)
    if http is not None:
        closing.add(http.stop)
    flight = await FlightService.start(config, identities)
    if flight is not None:
        closing.add(flight.stop)
    address = config.listener.advertise(bound_port=listening.getsockname()[1], machine_name=socket.gethostname())
    return Ports(listening, address, port_tls(config.tls), http, flight)


def _close_at_the_end(closing: Closing, listening: socket.socket) -> None:
    async def close() -> None:
        listening.close()

    closing.add(close)


async def _serve(
    config: ServerConfig,
    closing: Closing,
    store: LogStore,
    authorizer: Authorizer,
    identities: Identities,
    audit: AuditLog,
    running: RunningCalls,
    ports: Ports,
    nats: NatsConnections,
    parts: BrokerParts,
) -> tuple[HealthState, GrpcServer]:
    """Open the ports for clients: gRPC, Arrow Flight, HTTP."""
    controller, directory = parts.controller, parts.directory
    plane, administration = parts.plane, parts.administration
    health = HealthState()
    routes = all_routes(
        config,
        authorizer,
        running,
        controller,
        directory,
        plane,
        parts.cursors,
        parts.groups,
        administration,
        None if parts.policies is None else parts.policies.put_in_force,
        health,
        parts.keys.must_have_keys,
        audit,
    )
    grpc = GrpcServer(routes, admission=_admission(config), tls=ports.tls, identify=identities.of_calls)

    async def stop_grpc() -> None:
        health.set(SERVICE, False)
        if len(controller.members) > 1:
            ports.listening.close()  # clients go to another server; those of a lone server wait for its next run
        await grpc.stop(limits.STOP_GRACE_SECONDS, PublishersAtWork(plane.gate))

    closing.add(stop_grpc)
    await grpc.start(sock=ports.listening.dup())
    flight = ports.flight
    if flight is not None:
        closing.add(flight.stop)  # before the gRPC port: readers of tables go to another server
        flight.serve(
            TableSources(
                controller=controller,
                servers=directory,
                partitions=plane.partitions,
                starts=plane.starts,
                authorizer=authorizer,
                uses_tls=config.tls.is_on,
            )
        )
    health.set(SERVICE, True)
    scrape = Scrape(
        Sources(
            data_directory=config.data_dir,
            unsafe=tuple(one.name for one in unsafe_settings(config)),
            life=parts.life,
            authorizer=authorizer,
            audit=audit,
            controller=controller,
            members=administration.members,
            cursors=KnownCursors(controller, parts.cursor_tables, administration.switchboard),
            data_plane=plane,
            store=store,
            links={"streams": nats.streams, "replication": nats.replication, "control": nats.bus.link},
            channels=nats.secret.channels,
            bus=nats.bus,
            grpc=grpc,
            http=None if ports.http is None else ports.http.server,
            flight_load=None if flight is None else lambda: flight.load,
        )
    )
    _serve_metrics(scrape, parts.counting, ports.http, closing)
    return health, grpc


def _serve_metrics(scrape: Scrape, counting: Gate[Scrape], http: HttpService | None, closing: Closing) -> None:
    """To other servers, and on the HTTP port; until the stop begins, so that metrics read no part that is stopping."""

    async def stop_counting() -> None:
        counting.close()

    counting.open(scrape)
    closing.add(stop_counting)
    if http is not None:
        http.serve(scrape)
        closing.add(http.begin_stop)


def _admission(config: ServerConfig) -> AdmissionBounds:
    return AdmissionBounds(
        connections_max=connections_for(raise_handle_limit(), config.listener.connections_max),
        per_address_max=config.listener.connections_per_address_max,
    )


def _write_addresses(config: ServerConfig, closing: Closing, ports: Ports, nats_url: str) -> None:
    """For scripts and tests that let the system choose ports."""
    addresses = {"grpc": str(ports.address), "nats": nats_url}
    if ports.flight is not None:
        addresses["flight"] = str(Address(ports.address.host, ports.flight.port))
    if ports.http is not None:
        addresses["http"] = str(Address(ports.address.host, ports.http.port))
    path: Path = config.data_dir / ADDRESSES_FILE
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(addresses) + "\n")
    temporary.rename(path)

    async def remove() -> None:
        path.unlink(missing_ok=True)

    closing.add(remove)


# ── logging ──────────────────────────────────────────────────────────────────────────────────────


def _log_cleaning(log: object, report: object) -> None:
    if isinstance(report, BasculeError):
        _logger.error("cleaning %s failed: %s", getattr(log, "directory", log), report.message)


def _log_restart(reason: str) -> None:
    _logger.error("the embedded nats-server was started again: %s", reason)
