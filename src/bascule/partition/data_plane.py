"""Everything that messages flow through, put together: the NATS link, ingest, acks, publishing, the partitions."""

from __future__ import annotations

import asyncio
import logging
import time

from bascule import limits
from bascule.config.sections.server import ServerConfig
from bascule.errors import StateError
from bascule.kernels.calls.publish import PublishGate, Targets
from bascule.kernels.ingest.acks import AckRouter, AckSink, AckWriter
from bascule.kernels.ingest.sink import BatchPool, PartitionSink
from bascule.kernels.nats.protocol import MessageSink
from bascule.log import LogStore, new_batch
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import PauseStream
from bascule.metadata.core.model.streams import Stream
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.partition_starts import PartitionStarts
from bascule.metadata.stream_options import StreamSettings
from bascule.net.nats.link import NatsLink
from bascule.net.nats.subjects import ControlSubjects
from bascule.partition.auto_pause import AutoPause
from bascule.partition.ingest import Ingest
from bascule.partition.publisher import InFlight, Publisher, PublishShell
from bascule.partition.registry import Partitions
from bascule.partition.replication.link import ReplicationLink
from bascule.partition.replication.replicator import Replicator
from bascule.partition.stream_data import StreamData
from bascule.raft.transport import Bus
from bascule.security.authorization import Authorizer

_logger = logging.getLogger(__name__)


class DataPlane:
    def __init__(
        self,
        config: ServerConfig,
        link: NatsLink,
        replication: NatsLink,
        bus: Bus,
        store: LogStore,
        authorizer: Authorizer,
        controller: Controller,
        feed: MetadataFeed,
    ) -> None:
        self._config = config
        self._controller = controller
        server_id = controller.server_id
        self._link = link
        self._received_bytes = 0
        self._lost_at: float | None = None
        self._patience = config.cluster.replication.replica_max_leader_timeout_ns / 1e9
        self._stopping = False
        inbox_prefix = f"{config.cluster.replication.namespace}.ack.{server_id}.".encode()
        self.router = AckRouter(inbox_prefix)
        self.router.on_fault = _report
        self.acks = AckWriter(link.reader, self.router)
        self.targets = Targets()
        self._pool = BatchPool(new_batch, bytes_max=limits.INGEST_POOL_BYTES_MAX)
        self.ingest = Ingest(link, self.acks, linger_seconds=config.batch.max_time_ns / 1e9)
        self.auto_pause = AutoPause(self._pause)
        self._replication = ReplicationLink(replication, config.cluster.replication.namespace, server_id)
        self.replicator = Replicator(self._replication, server_id)
        self._replication.start()
        self.partitions = Partitions(
            server_id,
            StreamData(store),
            link,
            self.ingest,
            self.acks,
            self.targets,
            self._new_sink,
            self.auto_pause,
            config.cluster,
            self.replicator,
        )
        self.partitions.connect(controller)
        feed.subscribe(self.partitions)
        subjects = ControlSubjects(config.cluster.replication.namespace)
        self.starts = PartitionStarts(bus, subjects, controller, self.partitions)
        self._shell = PublishShell(link, authorizer)
        self.gate = PublishGate(
            targets=self.targets,
            nats=link.reader,
            receivers=self.router.receivers,
            inbox_prefix=inbox_prefix,
            shell=self._shell,
            payload_bytes_max=config.cluster.replication.replication_max_bytes,
            output_bytes_max=limits.PUBLISH_OUTPUT_BYTES_MAX,
            unread_bytes_max=limits.PUBLISH_UNREAD_ACKS_BYTES_MAX,
        )
        self.gate.checks_authorization = authorizer.is_enabled
        self._shell.gate = self.gate
        self.publisher = Publisher(self.gate, self.starts.resume)
        self.in_flight = InFlight(self.gate, link)
        self._shell.resume_partition = self.starts.resume
        link.on_read = self._on_read
        link.on_state = self._on_state
        link.on_error = _on_error
        link.subscribe(inbox_prefix + b">", AckSink(self.router))

    def _new_sink(self, stream: Stream, number: int, settings: StreamSettings) -> PartitionSink:
        return PartitionSink(
            self._pool,
            stream=stream.name.encode(),
            partition=number,
            base_subject=stream.subject.encode(),
            payload_bytes_max=self._config.cluster.replication.replication_max_bytes,
            batch_records_max=self._config.batch.max_messages,
            batch_bytes_max=limits.INGEST_BATCH_BYTES_MAX,
            concurrency_control=settings.concurrency_control,
        )

    # ── what the link tells ──────────────────────────────────────────────────────────────────────

    def _on_read(self, sinks: list[MessageSink]) -> None:
        received = self._link.reader.message_bytes
        arrived, self._received_bytes = received - self._received_bytes, received
        self.ingest.on_read([sink for sink in sinks if isinstance(sink, PartitionSink)], arrived)

    def _on_state(self, connected: bool, what: str) -> None:
        if connected:
            _logger.info("connected to NATS at %s", what)
            self._lost_at = None
        elif not self._stopping:
            _logger.error("the connection to NATS was lost: %s. What is published meanwhile is not received", what)
            self.gate.connection_lost()
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                asyncio.get_running_loop().call_later(self._patience, self._look_for_others)

    @property
    def is_cut_off(self) -> bool:
        """Without NATS for so long that the others have taken over by now what this server believes to lead."""
        if self._lost_at is None or len(self._controller.members) < 2:
            return False
        return time.monotonic() - self._lost_at >= self._patience

    def _look_for_others(self) -> None:
        """Again and again until the line is back: a reader may have come just before."""
        if self._lost_at is None or self._stopping:
            return
        asyncio.get_running_loop().call_later(self._patience, self._look_for_others)
        if self.is_cut_off:
            _logger.warning("cut off from the other servers: readers are sent to them")
            self.partitions.end_replicated_readers("the server is cut off from the others")

    # ── pausing and resuming ─────────────────────────────────────────────────────────────────────

    async def _pause(self, name: str, number: int) -> None:
        stream = self._controller.metadata.streams.get(name)
        if stream is None:
            return
        op = PauseStream(name, time.time_ns(), (number,), stream.resume_all)
        refusal = await self._controller.submit(op)
        if refusal is not None:
            raise StateError(refusal.text)

    async def stop(self) -> None:
        self._stopping = True
        self.auto_pause.close()
        await self.partitions.stop()
        self.replicator.close()
        self.ingest.close()
        self._shell.close()


def _on_error(text: str) -> None:
    _logger.error("NATS: %s", text)


def _report(error: BaseException) -> None:
    _logger.error("an ack could not be delivered: %r", error)
