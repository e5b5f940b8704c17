"""A replica of a partition on this server: its log and its readers. The leader's replica also stores the messages that arrive."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Protocol

from bascule.config.sections.cluster import ClusterConfig
from bascule.errors import BasculeError, DiskFull, EncryptionKeyError
from bascule.kernels.ingest.acks import AckWriter
from bascule.kernels.ingest.sink import PartitionSink, PreparedBatch
from bascule.kernels.records.producers import ProducerTable
from bascule.log import PartitionLog, SyncPolicy
from bascule.log.partition.batches import Appended
from bascule.metadata.core.model.streams import EventTimestamps, Partition, Stream
from bascule.metadata.stream_options import StreamSettings
from bascule.net.grpc.status import Status
from bascule.partition.core.options import ReplicaOptions
from bascule.partition.replication.following import Following
from bascule.partition.replication.leading import Leading
from bascule.proto.api_pb2 import Ack

_logger = logging.getLogger(__name__)


OpenLog = Callable[[StreamSettings], PartitionLog]


class Subscriber(Protocol):
    """A reader of the partition. `end` ends it with a status."""

    @property
    def delivered(self) -> tuple[int, int]:
        """Messages and bytes that were delivered."""

    def end(self, status: Status, text: str) -> None: ...


class LocalPartition(ABC):
    """One role in one leader epoch. When either changes, another object takes over the same log."""

    is_leader = False

    def __init__(self, stream: Stream, partition: Partition, settings: StreamSettings, open_log: OpenLog) -> None:
        self.stream = stream.name
        self.number = partition.id
        self.stream_id = stream.id
        self.subject = stream.subject
        self.leader_epoch = partition.leader_epoch
        self.settings = settings
        self.readonly = partition.readonly
        self.received_times = EventTimestamps()
        self.subscribers: set[Subscriber] = set()
        self.group_subscribers: dict[str, tuple[int, Subscriber]] = {}
        """The reader of each consumer group, with the epoch of its group."""
        self._delivered_before = (0, 0)
        self._open_log = open_log
        self._log: PartitionLog | None = None
        self.is_open = False
        self._opening = threading.Lock()

    @property
    def subscriber_count(self) -> int:
        return len(self.subscribers)

    def subscriber_left(self, subscriber: Subscriber) -> None:
        if subscriber in self.subscribers:
            self.subscribers.remove(subscriber)
            self._delivered_before = _added(self._delivered_before, subscriber.delivered)

    @property
    def delivered(self) -> tuple[int, int]:
        """Messages and bytes delivered to all subscribers, past ones included."""
        return reduce(_added, [one.delivered for one in self.subscribers], self._delivered_before)

    # ── the log ──────────────────────────────────────────────────────────────────────────────────
    # Opened on first use: thousands of idle partitions cost next to nothing.

    @property
    def log(self) -> PartitionLog:
        if self._log is None:
            with self._opening:  # the writer thread and the event loop may both be first
                return self._log or self._open()
        return self._log

    def _open(self) -> PartitionLog:
        log = self._open_log(self.settings)
        log.open()
        log.set_readonly(self.readonly)
        self._opened(log)
        self._log = log
        self.is_open = True
        return log

    def _opened(self, log: PartitionLog) -> None:  # noqa: B027 - not every role has to do something
        """Called once, before anything else uses the log."""

    @property
    def expected_end_offset(self) -> int:
        """The log end once all messages that have arrived are written."""
        return self.log.log_end_offset

    def set_readonly(self, readonly: bool) -> None:
        self.readonly = readonly
        if self._log is not None:
            self._log.set_readonly(readonly)

    @abstractmethod
    def found_damage(self, reason: str) -> bool:
        """A reader has met damaged bytes. Returns whether another replica has them undamaged."""

    def end_subscribers(self, status: Status, text: str) -> None:
        for subscriber in list(self.subscribers):
            subscriber.end(status, text)


class FollowedPartition(LocalPartition):
    """A copy of what another server leads. In-sync copies may be read."""

    following: Following | None = None

    def found_damage(self, reason: str) -> bool:
        if self.following is not None:
            self.following.found_damage(reason)
        return True


class LedPartition(LocalPartition):
    is_leader = True

    def __init__(
        self,
        stream: Stream,
        partition: Partition,
        settings: StreamSettings,
        open_log: OpenLog,
        sink: PartitionSink,
        acks: AckWriter,
        lead: Callable[[PartitionLog], Leading],
    ) -> None:
        super().__init__(stream, partition, settings, open_log)
        self.sink = sink
        self.subscription_id = 0
        self.leading: Leading | None = None
        """None until the log is open."""
        self.in_flight_records = 0
        self.appending = False
        """The writer thread appends batches of the partition: the next ones have to wait."""
        self._acks = acks
        self._lead = lead

    @property
    def nats_subject(self) -> str:
        return nats_subject(self.subject, self.number)

    def _opened(self, log: PartitionLog) -> None:
        self.leading = self._lead(log)
        self.leading.begin()

    def open_leading(self) -> Leading:
        """The leader at work; opens the log if that is needed."""
        _ = self.log
        assert self.leading is not None, "an open log has a leader"
        return self.leading

    @property
    def expected_end_offset(self) -> int:
        return self.log.log_end_offset + self.in_flight_records + self.sink.waiting_records

    @property
    def is_only_replica(self) -> bool:
        """Whether no other server can lead the partition without the help of this one."""
        return self.leading is not None and not self.leading.core.followers

    def found_damage(self, reason: str) -> bool:
        return self.leading is not None and self.leading.found_damage(reason)

    def set_readonly(self, readonly: bool) -> None:
        self.sink.dropping = readonly
        super().set_readonly(readonly)

    # ── batches that arrive ──────────────────────────────────────────────────────────────────────

    def append(self, batch: PreparedBatch) -> Appended | BasculeError:
        """Append the batch to the log. On any thread, one batch at a time."""
        try:
            log = self._log or self.log
            if (batch.is_sequenced or self.settings.concurrency_control) and log.log_end_offset != batch.base_offset:
                # A batch before it failed: publishers would get other offsets than they expected, and producers would miss sequences.
                return BasculeError(f"{log.directory}: the batch was checked for offset {batch.base_offset}")
            builder = batch.builder
            if builder is None:  # only duplicates
                return Appended(batch.base_offset, batch.originals_to, log.last_timestamp)
            return log.append(builder, leader_epoch=self.leader_epoch)
        except BasculeError as error:
            return error

    def settle(self, batch: PreparedBatch, outcome: Appended | BasculeError, received_at: float | None) -> None:
        """In the event loop, after append(): acks, commits and replication of the batch."""
        count = batch.count
        batch.release_records()
        if isinstance(outcome, BasculeError):
            self._append_failed(batch, outcome, count)
            return
        if count:
            self.received_times.note(outcome.timestamp)
        assert self.leading is not None, "append() has opened the log"
        self.leading.appended(batch, outcome, received_at)

    def _append_failed(self, batch: PreparedBatch, error: BasculeError, count: int) -> None:
        _logger.error("%s/%d: %d messages could not be stored: %s", self.stream, self.number, count, error.message)
        self._acks.reject(batch, self._ack_error(error))
        batch.release()
        if self.leading is not None:
            self.leading.append_failed(error)
        if self.settings.concurrency_control or self.sink.knows_producers:
            self.refuse_collected()

    def _ack_error(self, error: BasculeError) -> int:
        """What the publishers of a failed batch learn. Nothing of a batch stays on a full disk."""
        if isinstance(error, EncryptionKeyError):
            return Ack.Error.ENCRYPTION
        if not isinstance(error, DiskFull):
            return Ack.Error.UNKNOWN
        can_hand_over = self.leading is not None and len(self.leading.core.in_sync_replicas) > 1
        return Ack.Error.NOT_STORED if can_hand_over else Ack.Error.DISK_FULL

    def refuse_collected(self, *, for_good: bool = False) -> None:
        """Refuse the messages that have arrived and are not written: a batch before them failed, or, for good, another server leads."""
        if for_good or self.sink.knows_producers:
            self.sink.forget_producers(Ack.Error.UNKNOWN, for_good)
        for batch in self.sink.take():
            self._acks.write_errors(batch)
            self._acks.reject(batch, Ack.Error.UNKNOWN)
            batch.release()
        self.sink.next_offset = self.log.log_end_offset

    # ── idempotent producers ─────────────────────────────────────────────────────────────────────

    def find_producers(self) -> ProducerTable | BasculeError:
        """The producers that the log knows, up to its end. On any thread, while nothing is appended."""
        try:
            return self.log.producers.at_end()
        except BasculeError as error:
            return error

    def learn_producers(self, found: ProducerTable | BasculeError) -> None:
        """In the event loop: the sink now judges the messages that it held until the producers are known."""
        if not self.sink.is_holding:
            return  # refused meanwhile
        if isinstance(found, BasculeError):
            _logger.error("%s/%d: the producers cannot be found: %s", self.stream, self.number, found.message)
            self.sink.forget_producers(Ack.Error.UNKNOWN)
        else:
            self.sink.learn_producers(found, self.log.log_end_offset)

    def stop(self) -> None:
        if self.leading is not None:
            self.leading.stop()


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def nats_subject(subject: str, number: int) -> str:
    """The subject of a partition: the stream's subject, followed by the number for all partitions but the first."""
    return subject if number == 0 else f"{subject}.{number}"


def replica_options(settings: StreamSettings, cluster: ClusterConfig) -> ReplicaOptions:
    """The options of the replicas of a stream's partitions."""
    replication = cluster.replication
    sync = settings.log_options.sync
    return ReplicaOptions(
        min_insync_replicas=settings.min_insync_replicas,
        acks_wait_for_disk=sync is not SyncPolicy.INTERVAL,
        commits_wait_for_disk=sync is SyncPolicy.ALWAYS,
        max_lag_ns=replication.replica_max_lag_time_ns,
        leader_timeout_ns=replication.replica_max_leader_timeout_ns,
        idle_wait_ns=replication.replica_max_idle_wait_ns,
        fetch_timeout_ns=replication.replica_fetch_timeout_ns,
    )
