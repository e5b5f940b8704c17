"""A partition's leader at work: carries out what partition/core/leader.py decides, and sends the acks that publishers wait for."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.errors import BasculeError, CorruptBatch, DiskFull, StorageError
from bascule.kernels.ingest.acks import AckWriter
from bascule.kernels.ingest.sink import PreparedBatch
from bascule.log import PartitionLog, SyncPolicy
from bascule.log.disk.slowness import SlowReads
from bascule.log.partition.batches import Appended
from bascule.metadata.core.model.streams import Partition
from bascule.partition.core.codec import PartitionKey
from bascule.partition.core.follower_events import AdvanceHighWatermark
from bascule.partition.core.leader import Leader, ack_waits
from bascule.partition.core.leader_events import (
    Acknowledge,
    BatchesRead,
    EpochQueryReceived,
    Expand,
    FetchReceived,
    LeaderAppended,
    LeaderEvent,
    LeaderReconnected,
    LeadershipBegan,
    LeaderSynced,
    LeaderTick,
    NoticeDue,
    Notify,
    ProposalOutcome,
    ProposalSettled,
    ReadBatches,
    SendTo,
    SetChanged,
    Shrink,
    StepDown,
)
from bascule.partition.core.messages import EpochQuery, Fetch
from bascule.partition.core.options import ReplicaOptions
from bascule.partition.replication.ack_times import AckTimes
from bascule.partition.replication.following import ends_of
from bascule.proto.api_pb2 import ALL, LEADER, Ack

if TYPE_CHECKING:
    from bascule.partition.replication.replicator import Replicator

_logger = logging.getLogger(__name__)

_KEEP_DEADLINE: Final = (LeaderAppended, LeaderSynced, BatchesRead, NoticeDue)
"""Events that never bring the leader's deadline forward."""


@dataclass(slots=True)
class _Pending:
    """A batch whose publishers wait for acks."""

    batch: PreparedBatch
    landed: Appended
    awaits_disk: bool
    """LEADER acks wait for this server's disk."""
    awaits_all: bool
    with_leader_acks: bool
    """LEADER acks are sent together with the ALL acks."""
    received_at: float | None


class Leading:
    """Created when the log is open. Lives in the event loop; a partition without followers may begin on another thread."""

    def __init__(
        self,
        key: PartitionKey,
        stream: str,
        partition: Partition,
        log: PartitionLog,
        options: ReplicaOptions,
        replicator: Replicator,
        acks: AckWriter,
        ack_times: AckTimes,
    ) -> None:
        self.key = key
        self.stream = stream
        self.name = f"{stream}/{key[1]}"
        self.log = log
        self.armed_step = 0
        self.is_over = False
        self.holds_leader_acks = False
        """LEADER acks wait until the message is on all in-sync replicas."""
        self._replicator = replicator
        self._acks = acks
        self._times = ack_times
        self._syncs_all = log.options.sync is SyncPolicy.ALWAYS
        self._syncs_acks = log.options.sync is SyncPolicy.ACK
        self._pending: deque[_Pending] = deque()
        self._acked_end_offset = 0
        self._sync_to = -1
        self._waits_for_disk = False
        self._slow_reads = SlowReads()
        log.begin_epoch(partition.leader_epoch)
        self.core = Leader(
            replicator.server_id,
            partition.leader_epoch,
            ends_of(log),
            options,
            replicas=partition.replicas,
            in_sync_replicas=partition.in_sync_replicas,
            partition_epoch=partition.epoch,
            now_ns=time.monotonic_ns(),
        )

    @property
    def leader_epoch(self) -> int:
        return self.core.leader_epoch

    @property
    def pending_batches(self) -> int:
        """Batches with acks that are not sent yet."""
        return len(self._pending)

    def begin(self) -> None:
        self._step(LeadershipBegan())
        if self._syncs_all and self.log.synced_end_offset < self.log.log_end_offset:
            # Commits of what an earlier leader wrote wait for this disk, and there may be no append that waits for it too.
            self._sync_to = self.log.newest_offset
            self._wait_for_disk()

    def stop(self) -> None:
        self.is_over = True
        self.log.stop_waiting(self)
        self._waits_for_disk = False
        self._sync_to = -1
        with contextlib.suppress(BasculeError):
            self._send_due_acks()
        self._give_up()

    def log_end_offset_of(self, replica: str) -> int:
        progress = self.core.followers.get(replica)
        return -1 if progress is None else progress.log_end_offset

    # ── appends ──────────────────────────────────────────────────────────────────────────────────

    def appended(self, batch: PreparedBatch, landed: Appended, received_at: float | None) -> None:
        """The batch is in the log: send LEADER acks, commit what can be committed, send it to followers that wait for it.

        A batch without records holds only duplicates, of messages up to `landed.last_offset`.
        """
        if self.is_over:
            self._acks.reject(batch, Ack.Error.UNKNOWN)
            batch.release()
            return
        wants_leader, wants_all = batch.has_leader_acks, batch.has_all_acks
        if wants_leader or wants_all:
            wants_all = self._acknowledge_or_wait(batch, landed, received_at, wants_leader, wants_all)
        else:
            batch.release()
        if self._syncs_all or (wants_all and self._syncs_acks):
            self._sync_to = landed.last_offset
            self._wait_for_disk()
        synced_end_offset = self.log.durability.synced.end_offset
        self._step(LeaderAppended(landed.last_offset + 1, synced_end_offset, wants_all, time.monotonic_ns()))

    def _acknowledge_or_wait(
        self, batch: PreparedBatch, landed: Appended, received_at: float | None, wants_leader: bool, wants_all: bool
    ) -> bool:
        """Sends the acks that are due; whether the others wait for all in-sync replicas."""
        if not batch.count:
            if landed.last_offset < self._acked_end_offset:
                if wants_leader:
                    self._acknowledge(batch, LEADER, landed, received_at)
                if wants_all:
                    self._acknowledge(batch, ALL, landed, received_at)
                batch.release()
                return False
            if self._pending:  # pending batches are in the order of their offsets
                last_offset = max(landed.last_offset, self._pending[-1].landed.last_offset)
                landed = Appended(landed.base_offset, last_offset, landed.timestamp)
        is_due, awaits_disk, awaits_all, with_leader_acks = ack_waits(
            wants_leader=wants_leader,
            wants_all=wants_all,
            syncs_all=self._syncs_all,
            hands_over=self.holds_leader_acks,
        )
        if is_due:
            self._acknowledge(batch, LEADER, landed, received_at)
        if awaits_disk or awaits_all:
            self._pending.append(_Pending(batch, landed, awaits_disk, awaits_all, with_leader_acks, received_at))
        else:
            batch.release()
        return awaits_all

    def append_failed(self, error: BasculeError) -> None:
        """Another replica may have a disk that works."""
        if isinstance(error, StorageError) and self.core.followers and not self.is_over:
            self._replicator.step_down(self, error.message, is_damaged=not isinstance(error, DiskFull))

    # ── acks ─────────────────────────────────────────────────────────────────────────────────────

    def _acknowledge(self, batch: PreparedBatch, which: int, landed: Appended, received_at: float | None) -> None:
        self._acks.acknowledge(batch, which, landed.base_offset, landed.timestamp, time.time_ns())
        if received_at is not None:
            self._times.note(which, received_at)

    def _send_due_acks(self) -> None:
        if not self._pending:
            return
        synced, acked = self.log.synced_end_offset, self._acked_end_offset
        for one in self._pending:
            last_offset = one.landed.last_offset
            if last_offset >= max(synced, acked):
                break
            if one.awaits_disk and last_offset < synced:
                one.awaits_disk = False
                self._acknowledge(one.batch, LEADER, one.landed, one.received_at)
            if one.awaits_all and last_offset < acked:
                one.awaits_all = False
                if one.with_leader_acks:
                    self._acknowledge(one.batch, LEADER, one.landed, one.received_at)
                if one.batch.has_all_acks:
                    self._acknowledge(one.batch, ALL, one.landed, one.received_at)
        while self._pending and not (self._pending[0].awaits_disk or self._pending[0].awaits_all):
            self._pending.popleft().batch.release()
        self._replicator.flush_acks()

    def _give_up(self) -> None:
        """The log is closed, the disk failed, or another server leads: this server cannot tell whether these messages are kept."""
        while self._pending:
            one = self._pending.popleft()
            if one.awaits_all or one.awaits_disk:
                self._acks.reject(one.batch, Ack.Error.UNKNOWN)
            one.batch.release()
        self._replicator.flush_acks()

    # ── the disk ─────────────────────────────────────────────────────────────────────────────────

    def _wait_for_disk(self) -> None:
        if self._waits_for_disk:
            return
        try:
            while self._sync_to >= 0:
                self._waits_for_disk = True
                if self.log.call_when_synced(self, self._sync_to, self._on_synced):
                    return
                self._waits_for_disk = False
                self._note_synced()
        except BasculeError as error:
            self._waits_for_disk = False
            self._sync_to = -1
            self._give_up()
            if not self.is_over:
                self._replicator.step_down(self, f"the disk failed: {error.message}", is_damaged=True)

    def _on_synced(self) -> None:
        """Called on the sync thread."""
        self._replicator.call_in_loop(self._synced)

    def _synced(self) -> None:
        self._waits_for_disk = False
        try:
            self._note_synced()
        except BasculeError:
            return  # the log was closed meanwhile
        self._wait_for_disk()

    def _note_synced(self) -> None:
        synced_end_offset = self.log.synced_end_offset
        if synced_end_offset > self._sync_to:
            self._sync_to = -1
        self._send_due_acks()
        self._step(LeaderSynced(synced_end_offset))

    # ── other events ─────────────────────────────────────────────────────────────────────────────

    def received(self, replica: str, request: Fetch | EpochQuery, now_ns: int) -> None:
        if self.is_over:
            return
        log = self.log
        if isinstance(request, Fetch):
            self._step(FetchReceived(replica, request, log.log_start_offset, now_ns))
        else:
            epoch = log.epochs.at_most(request.epoch)
            end_offset = log.end_offset_of_epoch(epoch or request.epoch)
            self._step(EpochQueryReceived(replica, request, epoch, end_offset, now_ns))

    def notice_due(self, replica: str, is_beginning: bool) -> None:
        self._step(NoticeDue(replica, is_beginning))

    def refresh(self, partition: Partition) -> None:
        """The metadata of the partition may have changed."""
        event = SetChanged(
            tuple(partition.replicas), tuple(partition.in_sync_replicas), partition.epoch, time.monotonic_ns()
        )
        self._step(event)

    def settled(self, replica: str, outcome: ProposalOutcome) -> None:
        self._step(ProposalSettled(replica, outcome, time.monotonic_ns()))

    def reconnected(self) -> None:
        self._step(LeaderReconnected())

    def on_time(self, now_ns: int) -> None:
        self._step(LeaderTick(now_ns))

    # ── effects ──────────────────────────────────────────────────────────────────────────────────

    def _step(self, event: LeaderEvent) -> None:
        if self.is_over:
            return
        replicator = self._replicator
        try:
            for effect in self.core.step(event):
                match effect:
                    case AdvanceHighWatermark(high_watermark):
                        self.log.advance_high_watermark(high_watermark)
                    case Acknowledge(end_offset):
                        self._acked_end_offset = end_offset
                        if self._pending:
                            self._send_due_acks()
                    case SendTo(replica, message):
                        replicator.link.send(replica, self.key, message)
                    case ReadBatches():
                        if replicator.may_send(self, effect):
                            self.send_batches(effect)
                    case Notify(replica, is_beginning):
                        replicator.notify(self, replica, is_beginning=is_beginning)
                    case Shrink() | Expand():
                        replicator.propose(self, effect)
                    case StepDown(reason):
                        replicator.step_down(self, reason, is_damaged=False)
        except BasculeError as error:
            _logger.error("%s: %s", self.name, error.message)
        if self.core.followers and not isinstance(event, _KEEP_DEADLINE):
            replicator.timers.arm(self, self.core.deadline_ns)

    def send_batches(self, request: ReadBatches) -> None:
        """Read what the follower fetched, on a thread if the last reads were slow, and answer it."""
        if self._slow_reads.expected:
            self._replicator.spawn(self._read_on_thread(request))
        else:
            self._answer(request, self._read(request))

    async def _read_on_thread(self, request: ReadBatches) -> None:
        self._answer(request, await self._replicator.run(lambda: self._read(request)))

    def _answer(self, request: ReadBatches, data: bytes | memoryview | None) -> None:
        if data and not self.core.is_in_sync(request.replica):
            self._replicator.throttle.spend(len(data))
        self._step(BatchesRead(request, data))

    def _read(self, request: ReadBatches) -> bytes | memoryview | None:
        """The batches; None if they cannot be read. On any thread."""
        began = time.monotonic()
        data: bytes | memoryview | None = None
        try:
            found = self.log.read(
                request.offset, bytes_max=limits.REPLICATION_READ_BYTES, committed=False, end=request.end_offset
            )
            data = b"" if found is None else found.data
        except CorruptBatch as error:
            self._replicator.call_in_loop(self.found_damage, error.message)
        except BasculeError as error:
            _logger.error("%s: cannot be read for %s: %s", self.name, request.replica, error.message)
        self._slow_reads.note(time.monotonic() - began)
        return data

    def found_damage(self, reason: str) -> bool:
        """Another replica has to lead that has these bytes undamaged. Whether there is one."""
        if self.is_over or not self.core.followers:
            return self.is_over
        self._replicator.step_down(self, reason, is_damaged=True)
        return len(self.core.in_sync_replicas) > 1
