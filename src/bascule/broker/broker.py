"""One broker: what it is made of, in which order that starts, and in which it stops.

start   data directory · identity · HTTP (says that it is starting) · nats-server, if it is ours · NATS · controller · partitions · API
drain   what is led here goes to others, while clients are still served
stop    API (subscribers go elsewhere) · partitions (what has arrived is written) · controller · NATS, nats-server · HTTP · logs, synced
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bascule import __version__, limits
from bascule.broker.api.routes import all_routes
from bascule.broker.api.streams import resume
from bascule.broker.embedded_nats import EmbeddedNats, EmbeddedNatsOptions
from bascule.broker.flight.service import FlightService
from bascule.broker.http.service import HttpService
from bascule.broker.metrics.sources import Sources
from bascule.broker.nats_options import link_options, nats_login, nats_tls
from bascule.broker.services import Services
from bascule.config.sections.server import ServerConfig
from bascule.config.values.address import Address
from bascule.errors import BasculeError, EncryptionKeyError, OperatorError, StorageError, Unavailable
from bascule.log import LogStore
from bascule.log.disk.encryption import MasterKeys, master_keys_from_environment
from bascule.log.disk.operations import PosixDisk
from bascule.metadata.controller import Controller
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.identity import server_id
from bascule.metadata.internal_streams import InternalStreams
from bascule.metadata.run_marker import RunMarker
from bascule.metadata.server_directory import ServerDirectory, ServerInfo
from bascule.metadata.start import StartOptions, start_controller
from bascule.net.grpc.health import HealthState
from bascule.net.grpc.server import GrpcServer
from bascule.net.nats.bus import NatsBus
from bascule.net.nats.link import NatsLink
from bascule.net.nats.subjects import ControlSubjects
from bascule.net.tls import server_tls
from bascule.operations.activity_stream import ActivityPublisher
from bascule.operations.administration import Administration
from bascule.operations.arrival import arrive
from bascule.operations.drain import leave
from bascule.operations.membership import MembershipWatch
from bascule.operations.quiet import PublishersAtWork
from bascule.partition.data_plane import DataPlane
from bascule.readers.cursors import CursorStore
from bascule.readers.groups import GroupCoordinator
from bascule.security.authorization import Authorizer

_logger = logging.getLogger(__name__)

ADDRESSES_FILE = "addresses.json"
SERVICE = "proto.API"


class Broker:
    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.authorizer = Authorizer.from_config(config.tls)
        self.health = HealthState()
        self._closing: list[Callable[[], Awaitable[Any]]] = []
        self._failure: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._feed = MetadataFeed()
        self._parts: list[InternalStreams | ActivityPublisher] = []
        self.services: Services | None = None
        self._marker: RunMarker | None = None
        self.stop_requested = asyncio.Event()
        """Whoever runs the broker is to drain and stop it."""
        self._was_removed = False
        self._tls: ssl.SSLContext | None = None
        self._flight: FlightService | None = None
        self._http: HttpService | None = None
        self.address: Address | None = None
        self.nats_url = ""

    # ── starting ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Returns when clients are served. What was started before something failed is stopped by `stop`."""
        config = self.config
        directory = config.data_dir
        self._failure = asyncio.get_running_loop().create_future()
        self._store = self._open_store(directory)
        (directory / ADDRESSES_FILE).unlink(missing_ok=True)
        self.server_id = server_id(PosixDisk(), str(directory), config.node.server_id)
        self._marker = RunMarker(PosixDisk(), str(directory))
        listening = self._bind()
        self._http = await HttpService.start(config)
        if self._http is not None:
            self._on_stop(self._http.stop)
        self._flight = await FlightService.start(config)
        if self._flight is not None:
            self._on_stop(self._flight.stop)
        servers = await self._start_nats(directory)
        link, replication, bus = await self._connect(servers)
        self.data_plane = DataPlane(config, self.server_id, link, replication, self._store, self.authorizer)
        controller = await self._start_controller(bus, directory)
        self._on_stop(self.data_plane.stop)
        services = await self._start_services(controller, bus, listening)
        grpc = await self._serve(services, listening)
        if self._http is not None:
            self._http.serve(self._sources(self._http, services, grpc, link, replication, bus))
            self._on_stop(self._http.begin_stop)  # before everything else: parts that stop are not looked at
        self._write_addresses(directory)
        _logger.info(
            "bascule %s, server %s, serves on %s, NATS at %s, data in %s",
            __version__,
            self.server_id,
            self.address,
            self.nats_url,
            directory,
        )

    def _sources(
        self,
        http: HttpService,
        services: Services,
        grpc: GrpcServer,
        link: NatsLink,
        replication: NatsLink,
        bus: NatsBus,
    ) -> Sources:
        return Sources(
            services=services,
            data_plane=self.data_plane,
            store=self._store,
            links={"streams": link, "replication": replication, "control": bus.link},
            bus=bus,
            grpc=grpc,
            http=http.server,
            flight=self._flight,
        )

    @property
    def _flight_port(self) -> int:
        return 0 if self._flight is None else self._flight.port

    def _on_stop(self, close: Callable[[], Awaitable[Any]]) -> None:
        self._closing.append(close)

    def _open_store(self, directory: Path) -> LogStore:
        store = LogStore(
            directory,
            keys=_master_keys(),
            on_cleaned=_log_cleaning,
        )
        self._on_stop(lambda: asyncio.to_thread(store.close))
        return store

    def _bind(self) -> socket.socket:
        """Take the port first: without it there is no use in starting anything else."""
        wanted = self.config.listener.bind()
        family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((wanted.host, wanted.port))
            listening.listen(limits.LISTEN_BACKLOG)
        except OSError as error:
            listening.close()
            raise OperatorError(
                f"cannot listen on {wanted}: {os.strerror(error.errno or 0)}",
                hint="stop whatever uses the port, or set another one with `listen` or --port",
            ) from None
        listening.setblocking(False)

        async def close() -> None:
            listening.close()

        self._on_stop(close)
        return listening

    async def _start_nats(self, directory: Path) -> tuple[str, ...]:
        if not self.config.nats.runs_embedded:
            return self.config.nats.servers
        nats = self.config.nats
        embedded = EmbeddedNats(
            EmbeddedNatsOptions(
                directory=directory / "nats",
                host=nats.embedded_host,
                port=nats.embedded_port,
                payload_bytes_max=self.config.cluster.replication.replication_max_bytes,
                config=nats.embedded_config,
                logs=self.config.logging.nats,
            )
        )
        embedded.on_restart = _log_restart
        self._on_stop(embedded.stop)
        await embedded.start()
        return (embedded.url,)

    async def _connect(self, servers: tuple[str, ...]) -> tuple[NatsLink, NatsLink, NatsBus]:
        """What publishers send, what replicas send each other, and what the cluster is run with do not wait for one another."""
        nats = self.config.nats
        name = f"{self.config.cluster.replication.namespace}.{self.server_id}"
        streams, replication = [
            NatsLink(link_options(nats, f"{name}.{purpose}", servers)) for purpose in ("streams", "replication")
        ]
        for link in (streams, replication):
            self._on_stop(link.close)
            await link.connect()
        bus = await NatsBus.connect(servers, f"{name}.control", login=nats_login(nats), tls=nats_tls(nats))
        self._on_stop(bus.close)
        self.nats_url = ",".join(servers)
        return streams, replication, bus

    async def _start_controller(self, bus: NatsBus, directory: Path) -> Controller:
        config = self.config
        self._feed.subscribe(self.data_plane.partitions)
        controller = await start_controller(
            bus,
            PosixDisk(),
            str(directory),
            StartOptions(
                namespace=config.cluster.replication.namespace,
                server_id=self.server_id,
                is_seed=config.node.raft_bootstrap_seed,
                peers=config.node.raft_bootstrap_peers,
                voters_max=config.cluster.replication.raft_max_quorum_size,
                snapshot_entries=config.node.raft_snapshot_threshold,
                leader_timeout_ns=config.cluster.replication.replica_max_leader_timeout_ns,
                coordinator_timeout_ns=config.cluster.groups.coordinator_timeout_ns,
            ),
            feed=self._feed,
            on_rival_seed=self._on_rival_seed,
        )
        controller.driver.on_failure = self._on_metadata_failure
        self._on_stop(controller.stop)
        return controller

    async def _start_services(self, controller: Controller, bus: NatsBus, listening: socket.socket) -> Services:
        subjects = ControlSubjects(self.config.cluster.replication.namespace)
        self.address = self.config.listener.advertise(
            bound_port=listening.getsockname()[1], machine_name=socket.gethostname()
        )
        plane = self.data_plane
        directory = ServerDirectory(
            bus,
            subjects,
            ServerInfo(self.server_id, self.address.host, self.address.port, flight_port=self._flight_port),
            plane.partitions.status,
            age_max_seconds=self.config.metadata.cache_max_age_ns / 1e9,
        )
        services = Services(
            config=self.config,
            server_id=self.server_id,
            controller=controller,
            directory=directory,
            bus=bus,
            partitions=plane.partitions,
            publisher=plane.publisher,
            in_flight=plane.in_flight,
            authorizer=self.authorizer,
            groups=GroupCoordinator(controller, self.config.cluster.groups.consumer_timeout_ns),
            cursors=CursorStore(bus, subjects, self.server_id),
            is_cut_off=lambda: plane.is_cut_off,
            administration=Administration(bus, subjects, self.server_id, self.stop_requested.set),
        )
        self.services = services
        self._feed.subscribe(services.groups)
        plane.connect(controller, lambda name, number: resume(services, name, number))
        await directory.start()
        await services.cursors.start(services)
        await self._start_operations(services, MembershipWatch(bus, subjects, controller, self._on_removed))
        await self._follow_metadata(services)
        return services

    async def _start_operations(self, services: Services, membership: MembershipWatch) -> None:
        for part in (services.administration, membership):
            self._on_stop(part.stop)
        await services.administration.start(services)
        await membership.start()

    async def _follow_metadata(self, services: Services) -> None:
        """Run partitions once the metadata is known to be the cluster's of now, not of some time ago."""
        controller = services.controller
        caught_up = asyncio.create_task(self._catch_up(services))
        self._tasks.append(caught_up)
        caught_up.add_done_callback(self._look_at_arrival)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(caught_up), limits.START_CATCH_UP_SECONDS)
        if not caught_up.done():
            _logger.warning(
                "no quorum of %s answers yet: partitions start when one does", ", ".join(controller.members)
            )

    def _look_at_arrival(self, caught_up: asyncio.Task[None]) -> None:
        """A server that must not run says so also when a quorum is late to tell."""
        error = None if caught_up.cancelled() else caught_up.exception()
        if isinstance(error, OperatorError) and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _catch_up(self, services: Services) -> None:
        while True:
            try:
                await services.controller.fresh_metadata()
                break
            except Unavailable:
                continue
        assert self._marker is not None
        await arrive(services, self._marker)
        services.partitions.begin(lambda: services.controller.metadata)
        await services.partitions.settled(services.controller.metadata.applied_index)
        cluster = self.config.cluster
        internal = InternalStreams(services.controller, services.directory, cluster)
        activity = ActivityPublisher(services.controller, services.publisher, cluster.activity)
        self._feed.subscribe(activity)
        for part in (services.groups, internal, activity):
            part.start()
        self._parts += [activity, internal]

    async def _serve(self, services: Services, listening: socket.socket) -> GrpcServer:
        tls = self.config.tls
        if tls.is_on:
            self._tls = server_tls(
                tls.cert, tls.key, client_ca=tls.client_auth_ca, requires_client=tls.client_auth_enabled
            )
        server = GrpcServer(all_routes(services, self.data_plane.gate, self.health), ssl_context=self._tls)
        self._on_stop(lambda: self._stop_serving(server))
        await server.start(sock=listening)
        if self._flight is not None:
            self._on_stop(self._flight.stop)  # also before everything else: whoever reads a table goes elsewhere
            self._flight.serve(services, self.data_plane.gate)
        self.health.set(SERVICE, True)
        return server

    async def _stop_serving(self, server: GrpcServer) -> None:
        self.health.set(SERVICE, False)
        await server.stop(limits.STOP_GRACE_SECONDS, PublishersAtWork(self.data_plane.gate))

    def _write_addresses(self, directory: Path) -> None:
        """For scripts and tests that let the system choose ports."""
        path = directory / ADDRESSES_FILE
        temporary = path.with_suffix(".new")
        addresses = {"grpc": str(self.address), "nats": self.nats_url}
        if self.address is not None and self._flight_port:
            addresses["flight"] = str(Address(self.address.host, self._flight_port))
        if self.address is not None and self._http is not None:
            addresses["http"] = str(Address(self.address.host, self._http.port))
        temporary.write_text(json.dumps(addresses) + "\n")
        temporary.rename(path)

        async def remove() -> None:
            path.unlink(missing_ok=True)

        self._on_stop(remove)

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def _on_rival_seed(self, rival: str, give_way: bool) -> None:
        message = f"server {rival} was started as seed too: there would be two clusters in one namespace"
        if not give_way:
            _logger.error("%s; it has to stop", message)
        elif self._failure is not None and not self._failure.done():
            self._failure.set_exception(
                OperatorError(
                    message, hint="start all but one server without --raft-bootstrap-seed, and with an empty directory"
                )
            )

    def _on_metadata_failure(self, error: BaseException) -> None:
        """It hears nothing of the cluster any more, and would do harm with what it knows; from what is on the disk it can go on."""
        assert self._failure is not None
        if not self._failure.done():
            self._failure.set_exception(
                StorageError(
                    f"the metadata log of this server has failed: {error}",
                    hint="make room on the disk if it is full, then start the server again",
                )
            )

    def _on_removed(self) -> None:
        assert self._failure is not None
        message = f"server {self.server_id} was removed from the cluster"
        if self._parts:
            _logger.warning("%s while it was running: it stops", message)
            self._was_removed = True
            self.stop_requested.set()
        elif not self._failure.done():
            hint = f"to have it join anew, start it with another data directory than {self.config.data_dir}, or empty this one"
            self._failure.set_exception(OperatorError(f"{message}, or never was part of it", hint=hint))

    async def failed(self) -> None:
        """Raises when something went wrong that a broker cannot live without; waits until then."""
        assert self._failure is not None
        await self._failure

    def reload(self) -> None:
        """SIGHUP: read what can change while running. A file that cannot be used leaves what was in force."""
        self.authorizer.reload()
        tls = self.config.tls
        if self._tls is None or tls.cert is None or tls.key is None:
            return
        try:
            server_tls(tls.cert, tls.key)  # tried on a context of its own first
            self._tls.load_cert_chain(tls.cert, tls.key)
            if self._flight is not None:
                self._flight.reload_certificate(tls.cert, tls.key)
            if self._http is not None:
                self._http.reload_certificate(tls.cert, tls.key)
        except (BasculeError, OSError) as error:
            _logger.error("the certificate was not changed: %s", getattr(error, "message", error))
        else:
            _logger.info("the certificate was read again: new connections see it")

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────

    async def drain(self) -> None:
        """Before `stop`, while clients are still served: what this server leads goes to others, as far as there is time for it."""
        seconds = self.config.shutdown.drain_timeout_ns / 1e9
        if self.services is None or self._was_removed or not seconds:
            return
        self.health.set(SERVICE, False)
        self.services.administration.is_draining = True
        try:
            async with asyncio.timeout(seconds):
                await leave(self.services, timeout=seconds)
        except TimeoutError:
            _logger.warning("not everything was handed over within %g s: the server stops anyway", seconds)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(part.stop() for part in self._parts))
        if self.services is not None:
            self.services.groups.stop()
        failures = 0
        while self._closing:
            close = self._closing.pop()
            try:
                await close()
            except BasculeError as error:
                failures += 1
                _logger.error("while stopping: %s", error.message)
        if self._marker is not None and not failures:
            try:
                self._marker.write_stopped()
            except BasculeError as error:
                # The next run takes this one for killed, which is safe. Why the server stops, if it had to, is the better message.
                _logger.error("while stopping: %s", error.message)


def _master_keys() -> MasterKeys | None:
    """A bad key is told to whoever creates an encrypted stream; streams in the clear need none."""
    try:
        return master_keys_from_environment()
    except EncryptionKeyError as error:
        _logger.error("%s: encrypted streams cannot be used", error.message)
        return None


def _log_cleaning(log: object, report: object) -> None:
    if isinstance(report, BasculeError):
        _logger.error("cleaning %s failed: %s", getattr(log, "directory", log), report.message)


def _log_restart(reason: str) -> None:
    _logger.error("the embedded nats-server had to be started again: %s", reason)
