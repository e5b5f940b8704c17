"""A partition that this server leads: its log, what arrives for it, who reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from bascule.broker.commitment import Commitment
from bascule.broker.stream_options import StreamSettings
from bascule.core.metadata.streams import EventTimes, Partition, Stream
from bascule.errors import BasculeError, EncryptionKeyError
from bascule.kernels.acks import AckWriter
from bascule.kernels.ingest import PartitionSink, PreparedBatch
from bascule.log import PartitionLog
from bascule.log.batches import Appended
from bascule.net.status import Status
from bascule.proto.api_pb2 import Ack


class Subscriber(Protocol):
    """Somebody who reads the partition and can be told that it is over."""

    def end(self, status: Status, text: str) -> None: ...


class LocalPartition:
    def __init__(
        self,
        stream: Stream,
        partition: Partition,
        settings: StreamSettings,
        open_log: Callable[[], PartitionLog],
        sink: PartitionSink,
        acks: AckWriter,
        call_in_loop: Callable[[Callable[[], None]], object],
        on_acks: Callable[[], None],
    ) -> None:
        self.stream = stream.name
        self.number = partition.id
        self.stream_id = stream.id
        self.subject = stream.subject
        self.leader_epoch = partition.leader_epoch
        self.is_leader = True
        self.settings = settings
        self.readonly = partition.readonly
        self.sink = sink
        self.subscription_id = 0
        self.received_times = EventTimes()
        self.subscribers: set[Subscriber] = set()
        self.group_subscribers: dict[str, tuple[int, Subscriber]] = {}
        """The one reader of each consumer group, with the epoch of its group."""
        self._in_sync_replicas = len(partition.in_sync_replicas)
        self._open_log = open_log
        self._acks = acks
        self._call_in_loop = call_in_loop
        self._on_acks = on_acks
        self._log: PartitionLog | None = None
        self._opening = threading.Lock()
        self._commitment: Commitment | None = None
        self.in_flight_records = 0
        self.appending = False
        """The writer thread has a part of it: the next part goes there when that is done."""

    @property
    def nats_subject(self) -> str:
        return nats_subject(self.subject, self.number)

    @property
    def subscriber_count(self) -> int:
        return len(self.subscribers)

    # ── the log ──────────────────────────────────────────────────────────────────────────────────
    # Opened when it is first needed: thousands of idle partitions cost next to nothing.

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def log(self) -> PartitionLog:
        if self._log is None:
            with self._opening:  # the writer thread and the event loop may both come first
                return self._log or self._open()
        return self._log

    def _open(self) -> PartitionLog:
        log = self._open_log()
        log.open()
        log.set_readonly(self.readonly)
        self._commitment = Commitment(
            log,
            self._acks,
            self._call_in_loop,
            self._on_acks,
            in_sync_replicas=self._in_sync_replicas,
            min_insync_replicas=self.settings.min_insync_replicas,
        )
        self._commitment.start()
        self._log = log
        return log

    @property
    def expected_end_offset(self) -> int:
        """Where the log ends once everything is written that has arrived."""
        return self.log.log_end_offset + self.in_flight_records + self.sink.waiting_records

    def set_readonly(self, readonly: bool) -> None:
        self.readonly = readonly
        self.sink.dropping = readonly
        if self._log is not None:
            self._log.set_readonly(readonly)

    # ── what arrives ─────────────────────────────────────────────────────────────────────────────

    def append(self, batch: PreparedBatch) -> Appended | BasculeError:
        """Put the batch into the log. On any thread, for one batch at a time."""
        try:
            log = self.log
            assert batch.builder is not None
            if self.settings.concurrency_control and log.log_end_offset != batch.base_offset:
                # A batch before this one failed: the offsets that publishers expected are not the ones they would get.
                return BasculeError(f"{log.directory}: the batch was checked for offset {batch.base_offset}")
            return log.append(batch.builder, leader_epoch=self.leader_epoch)
        except BasculeError as error:
            return error

    def settle(self, batch: PreparedBatch, outcome: Appended | BasculeError) -> None:
        """In the event loop, after append(): tell whoever asked."""
        if isinstance(outcome, Appended):
            self.received_times.note(outcome.timestamp)
            assert self._commitment is not None
            self._commitment.appended(batch, outcome)
            return
        self._acks.reject(batch, Ack.Error.ENCRYPTION if isinstance(outcome, EncryptionKeyError) else Ack.Error.UNKNOWN)
        batch.release()
        if self.settings.concurrency_control:
            self._refuse_collected()
        self._on_acks()

    def _refuse_collected(self) -> None:
        """Their publishers expected offsets behind the batch that failed."""
        for batch in self.sink.take():
            self._acks.write_errors(batch)
            self._acks.reject(batch, Ack.Error.UNKNOWN)
            batch.release()
        self.sink.next_offset = self.log.log_end_offset

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def end_subscribers(self, status: Status, text: str) -> None:
        for subscriber in list(self.subscribers):
            subscriber.end(status, text)

    def stop(self) -> None:
        if self._commitment is not None:
            self._commitment.stop()


def nats_subject(subject: str, number: int) -> str:
    """Where the messages of a partition are published: the stream's subject, and its number behind it for all but the first."""
    return subject if number == 0 else f"{subject}.{number}"
