"""Servers of one process that answer the control plane: real controllers, real logs, and a bus that is a dictionary.

What takes messages is a stand-in: a publish appends to the log of the partition's leader, wherever that is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.broker.api.cursors import CursorApi
from bascule.broker.api.groups import GroupApi
from bascule.broker.api.metadata import MetadataApi
from bascule.broker.api.streams import StreamApi
from bascule.config.sections.cluster import ClusterConfig, CursorStream
from bascule.config.sections.server import ServerConfig
from bascule.errors import BasculeError, EncryptionKeyError
from bascule.log import LogStore, PartitionLog, new_batch
from bascule.log.disk.master_keys import master_keys_from_environment
from bascule.log.disk.operations import PosixDisk
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.changes import Change
from bascule.metadata.core.model.ops import RestartServer
from bascule.metadata.core.model.streams import EventTimestamps
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.internal_streams import InternalStreams
from bascule.metadata.partition_starts import PartitionStarts, PartitionStatus
from bascule.metadata.server_directory import ServerDirectory, ServerInfo
from bascule.metadata.start import ControllerStart, start_controller
from bascule.metadata.stream_options import settings_of
from bascule.net.grpc.server import Call
from bascule.net.grpc.status import GrpcError, Status
from bascule.net.nats.subjects import ControlSubjects
from bascule.operations.activity_stream import ActivityPublisher
from bascule.proto import api_pb2 as api
from bascule.readers.cursors import CursorStore
from bascule.readers.groups import GroupCoordinator
from bascule.security.audit.log import AuditLog
from bascule.security.authorization import Authorizer
from tests.support.memory_bus import MemoryBus
from tests.support.waiting import PATIENCE_SECONDS

SUBJECTS = ControlSubjects("ns")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 180))


async def refused(call: Coroutine[Any, Any, Any]) -> tuple[str, str]:
    """Name of the status and text."""
    with pytest.raises(GrpcError) as error:
        await call
    return error.value.status.name, error.value.text


class ManualTimers:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._waiting: list[tuple[float, Callable[..., None], Any, list[bool]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], /, key: Any) -> Any:
        alive = [True]
        self._waiting.append((self.now + delay, callback, key, alive))
        return SimpleNamespace(cancel=lambda: alive.__setitem__(0, False))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self._waiting if each[0] <= self.now]
        self._waiting = [each for each in self._waiting if each[0] > self.now]
        for _, callback, key, alive in due:
            if alive[0]:
                callback(key)


@dataclass
class FakeCall:
    timeout: float | None = None
    peer: Any = None
    metadata: list[tuple[bytes, bytes]] = field(default_factory=list)


@dataclass
class FakePartition:
    stream: str
    number: int
    stream_id: int
    subject: str
    leader_epoch: int
    store: LogStore
    options: Any
    received_times: EventTimestamps
    is_leader: bool = True
    is_open: bool = False

    @property
    def log(self) -> PartitionLog:
        self.is_open = True
        log = self.store.log(self.stream, self.number, self.options)
        log.open()
        return log

    def append(self, key: bytes, value: bytes) -> api.Ack:
        batch = new_batch()
        batch.add(key or None, value)
        landed = self.log.append(batch, leader_epoch=self.leader_epoch)
        self.log.advance_high_watermark(landed.last_offset)
        self.received_times.note(time.time_ns())
        return api.Ack(stream=self.stream, offset=landed.base_offset)


class FakePartitions:
    """Follows the metadata like the real thing, only at once."""

    def __init__(self, server_id: str, store: LogStore) -> None:
        self.server_id = server_id
        self.store = store
        self.controller: Controller | None = None
        self.running: dict[tuple[str, int], FakePartition] = {}
        self.received: dict[tuple[str, int, int], EventTimestamps] = {}
        self.is_slow = False

    def follow(self) -> None:
        if self.controller is None or self.is_slow:
            return
        streams = self.controller.metadata.streams
        wanted = {
            (stream.name, partition.id): (stream, partition)
            for stream in streams.values()
            for partition in stream.partitions
            if partition.leader == self.server_id and not partition.paused
        }
        for key in [key for key in self.running if key not in wanted]:
            del self.running[key]
            if key[0] in streams:
                self.store.close_log(*key)
            else:
                self.store.delete_log(*key)
        for key, (stream, partition) in wanted.items():
            if key not in self.running:
                times = self.received.setdefault((*key, stream.id), EventTimestamps())
                options = settings_of(stream).log_options
                self.running[key] = FakePartition(
                    *key, stream.id, stream.subject, partition.leader_epoch, self.store, options, times
                )

    def get(self, stream: str, number: int) -> FakePartition | None:
        return self.running.get((stream, number))

    def last_known(self, stream: str, number: int) -> None:
        """No log of these partitions is ever closed."""

    def status(self, stream: str, number: int) -> PartitionStatus:
        found = self.get(stream, number)
        return PartitionStatus(found is not None, found is not None, stream_id=0 if found is None else found.stream_id)

    async def settled(self, _index: int) -> None:
        await asyncio.sleep(0)


class FakePublisher:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.failures: list[GrpcError] = []
        """Each fails one publish."""
        self.waits: list[GrpcError] = []
        """Each fails one wait for a leader."""
        self.is_down = False
        self.published: list[tuple[str, int, bytes, bytes]] = []

    async def wait_for_leader(self, _stream: str, _partition: int) -> None:
        if self.waits:
            raise self.waits.pop(0)

    async def publish(
        self, stream: str, partition: int, *, key: bytes = b"", value: bytes = b"", **_more: Any
    ) -> api.Ack | None:
        if self.is_down:
            # The test's naps take no time. Without this wait the retries would keep the loop from everything else.
            await asyncio.sleep(0.01)
            raise GrpcError(Status.UNKNOWN, "down")
        await asyncio.sleep(0)  # an ack takes a while: others may act meanwhile
        if self.failures:
            raise self.failures.pop(0)
        found = self.server.controller.metadata.streams.get(stream)
        known = None if found is None else found.partition(partition)
        if known is None:
            raise GrpcError(Status.NOT_FOUND, "No such partition")
        if known.readonly:
            raise GrpcError(Status.FAILED_PRECONDITION, "partition is readonly")
        if known.paused:
            await self.server.starts.resume(stream, partition)
        leader = self.server.cluster.servers[known.leader]
        local = leader.partitions.get(stream, partition)
        if local is None:
            raise GrpcError(Status.DEADLINE_EXCEEDED, "no ack")
        self.published.append((stream, partition, key, value))
        return local.append(key, value)


class Server:
    """One server, and its RPCs by their names."""

    def __init__(self, cluster: Cluster, name: str, config: ServerConfig, authorizer: Authorizer) -> None:
        self.cluster = cluster
        self.name = name
        self.config = config
        self.authorizer = authorizer
        self.store = LogStore(cluster.directory / name / "logs")
        self.partitions = FakePartitions(name, self.store)
        self.publisher = FakePublisher(self)
        self.naps: list[float] = []
        self.routes: dict[bytes, Any] = {}

    async def start(self, options: ControllerStart) -> None:
        bus = self.cluster.bus
        feed = MetadataFeed()
        feed.subscribe(self)
        directory = str(self.cluster.directory / self.name)
        self.controller = await start_controller(bus, PosixDisk(), directory, options, feed=feed)
        self.partitions.controller = self.controller
        own = ServerInfo(self.name, f"{self.name}.example", 9292)
        self.directory = ServerDirectory(bus, SUBJECTS, own)
        self.starts = PartitionStarts(bus, SUBJECTS, self.controller, self.partitions)
        cluster = self.config.cluster
        self.cursors = CursorStore(
            bus,
            SUBJECTS,
            self.controller,
            cast(Any, self.partitions),
            cast(Any, self.publisher),
            self.starts,
            waits_for_stream=cluster.cursors.stream_partitions > 0,
        )
        self.groups = GroupCoordinator(self.controller, feed, cluster.groups.consumer_timeout_ns, self.cluster.timers)
        self.internal = InternalStreams(self.controller, self.directory, cluster)
        self.activity = ActivityPublisher(self.controller, feed, cast(Any, self.publisher), cluster.activity, self._nap)
        self.calls = _calls(self)
        for part in (self.directory, self.starts, self.cursors):
            await part.start()
        self.groups.start()
        self.partitions.follow()

    async def _nap(self, seconds: float) -> None:
        self.naps.append(seconds)
        await asyncio.sleep(0)

    async def begin_internals(self) -> None:
        assert await self.controller.submit(RestartServer(self.name, intact=True)) is None
        self.internal.start()
        self.activity.start()

    def on_changes(self, _index: int, _changes: tuple[Change, ...]) -> None:
        self.partitions.follow()

    def reload(self) -> None:
        self.partitions.follow()

    async def stop(self) -> None:
        await self.internal.stop()
        await self.activity.stop()
        await self.groups.stop()
        await self.controller.stop()
        self.store.close()

    async def call(self, name: str, timeout: float | None = 10.0, peer: Any = None, /, **fields: Any) -> Any:
        request = getattr(api, f"{name}Request")(**fields)
        call = cast(Call, FakeCall(timeout, peer))
        answer = await self.calls[name](request, call)
        return getattr(api, f"{name}Response").FromString(answer.SerializeToString())

    async def publish(self, stream: str, number: int = 0, value: bytes = b"x", key: bytes = b"") -> Any:
        return await self.publisher.publish(stream, number, key=key, value=value)


def require_keys() -> None:
    """The keys of the environment, looked up at each call."""
    found = master_keys_from_environment()
    if found is None:
        raise EncryptionKeyError("invalid AES key size: there is no master key", hint="set BASCULE_ENCRYPTION_KEY")


def _calls(server: Server) -> dict[str, Any]:
    cluster, partitions = server.config.cluster, cast(Any, server.partitions)
    audit = AuditLog()
    streams = StreamApi(
        server.controller, server.directory, server.starts, server.authorizer, cluster, require_keys, audit
    )
    metadata = MetadataApi(
        server.controller,
        server.directory,
        partitions,
        server.authorizer,
        cluster,
        lambda: False,
        server.config.metadata.cache_max_age_ns,
        uses_tls=False,
    )
    cursors = CursorApi(server.cursors, server.authorizer)
    groups = GroupApi(server.controller, server.directory, server.groups, server.authorizer, cluster.groups)
    server.routes = {**streams.routes(), **metadata.routes(), **cursors.routes(), **groups.routes()}
    return {
        "CreateStream": streams.create_stream,
        "DeleteStream": streams.delete_stream,
        "PauseStream": streams.pause_stream,
        "SetStreamReadonly": streams.set_stream_readonly,
        "FetchMetadata": metadata.fetch_metadata,
        "FetchPartitionMetadata": metadata.fetch_partition_metadata,
        "SetCursor": cursors.set_cursor,
        "FetchCursor": cursors.fetch_cursor,
        "JoinConsumerGroup": groups.join,
        "LeaveConsumerGroup": groups.leave,
        "FetchConsumerGroupAssignments": groups.fetch_assignments,
        "ReportConsumerGroupCoordinator": groups.report_coordinator,
    }


class Cluster:
    def __init__(self, directory: Path, config: ServerConfig, authorizer: Authorizer) -> None:
        self.directory = directory
        self.config = config
        self.authorizer = authorizer
        self.bus = MemoryBus()
        self.timers = ManualTimers()
        self.servers: dict[str, Server] = {}

    async def start(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            server = self.servers[name] = Server(self, name, self.config, self.authorizer)
            peers = tuple(other for other in names if other != name)
            await server.start(ControllerStart("ns", name, is_seed=not peers, peers=peers))

    async def restart(self) -> Server:
        """The only server, from what it left on disk."""
        (server,) = self.servers.values()
        await server.stop()
        self.bus = MemoryBus()
        await self.start([server.name])
        await self.leader()
        await self.alone.begin_internals()
        return self.alone

    @property
    def alone(self) -> Server:
        (server,) = self.servers.values()
        return server

    async def leader(self) -> Server:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for server in self.servers.values():
                    if server.controller.is_leader and all(
                        other.controller.leader == server.name for other in self.servers.values()
                    ):
                        await server.controller.fresh_metadata()
                        return server
                await asyncio.sleep(0.01)

    async def transfer_leadership(self, to: Server) -> None:
        """Also when a slow machine has the servers elect another leader in the meantime."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (leader := await self.leader()) is not to:
                with suppress(BasculeError):
                    await leader.controller.driver.transfer_leadership(to.name, timeout=PATIENCE_SECONDS)

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.stop()


def configured(**cluster: Any) -> ServerConfig:
    """Sections of the cluster's configuration by name. Without cursors unless they are given: most tests count the streams."""
    replication = replace(ClusterConfig().replication, namespace="ns")
    sections = {"cursors": CursorStream(stream_partitions=0), **cluster}
    return ServerConfig(cluster=ClusterConfig(replication=replication, **sections))


@asynccontextmanager
async def running(
    directory: Path,
    names: str = "a",
    config: ServerConfig | None = None,
    authorizer: Authorizer | None = None,
) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory, config or configured(), authorizer or Authorizer.disabled())
    try:
        await cluster.start(names)
        await cluster.leader()
        for server in cluster.servers.values():
            await server.begin_internals()
        yield cluster
    finally:
        await cluster.stop()


async def until(condition: Any, timeout: float = PATIENCE_SECONDS) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)
