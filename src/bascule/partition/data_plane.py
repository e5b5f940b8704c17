"""The data plane: constructs ingest, acks, partitions and publishing around the NATS links."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Final

from bascule import limits
from bascule.config.sections.server import ServerConfig
from bascule.errors import BasculeError, StateError
from bascule.kernels.batches.pool import BatchPool
from bascule.kernels.calls.internal import InternalGate
from bascule.kernels.calls.targets import Targets
from bascule.kernels.ingest.acks import AckRouter, AckSink, AckWriter
from bascule.kernels.ingest.sealed import SealedQueue
from bascule.kernels.ingest.sink import PartitionSink
from bascule.log import LogStore, new_batch
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import PauseStream
from bascule.metadata.core.model.streams import Stream
from bascule.metadata.feed import MetadataFeed
from bascule.metadata.partition_starts import PartitionStarts
from bascule.metadata.stream_options import RESERVED_STREAMS, StreamSettings
from bascule.net.nats.link import NatsLink
from bascule.net.nats.seal import SealedChannel
from bascule.net.nats.subjects import ControlSubjects
from bascule.partition.auto_pause import AutoPause
from bascule.partition.ingest import Ingest
from bascule.partition.publisher import InFlight, InternalPublisher, PublishShell
from bascule.partition.registry import Partitions
from bascule.partition.replica import nats_subject
from bascule.partition.replication.judgements import JudgedPartition
from bascule.partition.replication.link import ReplicationLink
from bascule.partition.stream_data import StreamData
from bascule.partition.succession_calls import SuccessionAnswers, SuccessionCalls
from bascule.raft.transport import Bus
from bascule.security.authorization import Authorizer

_logger = logging.getLogger(__name__)

CONFIRM_SECONDS: Final = 3.0
"""Time in which the metadata group confirms that this server leads; after it, refused publishers get UNKNOWN."""


class DataPlane:
    def __init__(
        self,
        config: ServerConfig,
        link: NatsLink,
        replication: NatsLink,
        bus: Bus,
        channels: Mapping[str, SealedChannel],
        store: LogStore,
        authorizer: Authorizer,
        controller: Controller,
        feed: MetadataFeed,
    ) -> None:
        """`channels` seal the messages of the links, by purpose; empty: they are not authenticated."""
        self._config = config
        self._controller = controller
        server_id = controller.server_id
        self._lost_at: float | None = None
        self._patience = config.cluster.replication.replica_max_leader_timeout_ns / 1e9
        self._stopping = False
        namespace = config.cluster.replication.namespace
        # Without a cluster secret a message on an inbox counts as acks of a leader: other processes must not be able to guess it.
        self.router = AckRouter(f"{namespace}.ack.{server_id}.{secrets.token_hex(16)}.".encode())
        self.router.on_fault = _report
        self.acks = AckWriter(link.reader, self.router, f"{namespace}.ack.".encode())
        acks_of_others = AckSink(self.router)
        channel = channels.get("streams")
        if channel is not None:
            self.acks.seal, acks_of_others.open = channel.seal, channel.open
        internal = channels.get("internal")
        self._internal = None if internal is None else SealedQueue(internal.open, server_id.encode())
        self.targets = Targets()
        self._pool = BatchPool(new_batch, bytes_max=limits.INGEST_POOL_BYTES_MAX)
        self.ingest = Ingest(
            link, self.acks, still_lead=self._still_lead, linger_seconds=config.batch.max_time_ns / 1e9
        )
        self.auto_pause = AutoPause(self._pause)
        replication_link = ReplicationLink(replication, namespace, server_id, channels.get("replication"))
        subjects = ControlSubjects(namespace)
        self.partitions = Partitions(
            server_id,
            controller,
            feed,
            StreamData(store),
            link,
            replication_link,
            self.ingest,
            self.acks,
            self.targets,
            self._new_sink,
            self.auto_pause,
            config.cluster,
            SuccessionCalls(bus, subjects, lambda: link.max_payload),
            seals_internal_streams=internal is not None,
        )
        replication_link.start()
        self.successions = SuccessionAnswers(bus, subjects, server_id, self.partitions.successions)
        self.starts = PartitionStarts(bus, subjects, controller, self.partitions)
        resume = self.starts.resume
        payload_bytes_max = config.cluster.replication.replication_max_bytes
        self._shell = PublishShell(
            link, authorizer, resume, self.targets, self.router, payload_bytes_max, namespace, self._leader_of
        )
        self.gate = self._shell.gate
        self.publisher = InternalPublisher(InternalGate(self.gate, None if internal is None else internal.seal), resume)
        self.in_flight = InFlight(self.gate, link)
        link.on_read = self.ingest.on_read
        link.on_state = self._on_state
        link.on_error = _on_error
        link.subscribe(self.router.prefix[:-1], acks_of_others)

    def _leader_of(self, stream: str, subject: str) -> str:
        """The leader of a partition as the text of an error names it."""
        found = self._controller.metadata.streams.get(stream)
        for partition in () if found is None else found.partitions:
            if found is not None and nats_subject(found.subject, partition.id) == subject:
                return f"server `{partition.leader}`"
        return "the partition's leader"

    def judge_publishers(self) -> int:
        """End the publishing sessions that the policy does not allow any more. Returns how many."""
        return self._shell.judge_again()

    def _new_sink(self, stream: Stream, number: int, settings: StreamSettings) -> PartitionSink:
        internal = self._internal
        new_sink = PartitionSink if internal is None or stream.name not in RESERVED_STREAMS else internal.sink
        return new_sink(
            self._pool,
            stream=stream.name.encode(),
            partition=number,
            base_subject=stream.subject.encode(),
            payload_bytes_max=self._config.cluster.replication.replication_max_bytes,
            batch_records_max=self._config.batch.max_messages,
            batch_bytes_max=limits.INGEST_BATCH_BYTES_MAX,
            concurrency_control=settings.concurrency_control,
        )

    # ── the connection ───────────────────────────────────────────────────────────────────────────

    def _on_state(self, connected: bool, what: str) -> None:
        if connected:
            _logger.info("connected to NATS at %s", what)
            self._lost_at = None
        elif not self._stopping:
            _logger.error(
                "the connection to NATS was lost: %s; messages published until it is back are not received", what
            )
            self.gate.connection_lost()
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                asyncio.get_running_loop().call_later(self._patience, self._look_for_others)

    @property
    def is_cut_off(self) -> bool:
        """Whether NATS has been away for longer than the leader timeout: other servers may lead the partitions of this one by now."""
        if self._lost_at is None or len(self._controller.members) < 2:
            return False
        return time.monotonic() - self._lost_at >= self._patience

    def _look_for_others(self) -> None:
        """Ends readers, repeatedly until the connection is back: a reader may have come since the last time."""
        if self._lost_at is None or self._stopping:
            return
        asyncio.get_running_loop().call_later(self._patience, self._look_for_others)
        if self.is_cut_off:
            _logger.warning("no connection to the other servers: readers are sent to them")
            self.partitions.end_replicated_readers("this server has no connection to the others")

    # ── leading ──────────────────────────────────────────────────────────────────────────────────

    async def _still_lead(self, partitions: list[JudgedPartition]) -> list[bool]:
        try:
            metadata = await self._controller.fresh_metadata(timeout=CONFIRM_SECONDS)
        except BasculeError:
            return [False] * len(partitions)
        found = (metadata.find(one.stream, one.number) for one in partitions)
        return [
            seen is not None and seen.leader == self._controller.server_id and seen.leader_epoch == one.leader_epoch
            for seen, one in zip(found, partitions, strict=True)
        ]

    # ── pausing ──────────────────────────────────────────────────────────────────────────────────

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
        self.ingest.close()
        self._shell.close()


def _on_error(text: str) -> None:
    _logger.error("NATS: %s", text)


def _report(error: BaseException) -> None:
    _logger.error("an ack could not be delivered: %r", error)
