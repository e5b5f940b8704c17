"""A partition's leader at work: does what partition/core/leader.py decides, with the log, the acks and the other servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bascule.errors import BasculeError, CorruptBatch, DiskFull, StorageError
from bascule.kernels.ingest.acks import AckWriter
from bascule.kernels.ingest.sink import PreparedBatch
from bascule.log import PartitionLog
from bascule.log.disk.slowness import SlowReads
from bascule.log.partition.batches import Appended
from bascule.metadata.core.model.streams import Partition
from bascule.partition.core.codec import PartitionKey
from bascule.partition.core.follower_events import AdvanceHighWatermark
from bascule.partition.core.leader import Leader
from bascule.partition.core.leader_events import (
    Acknowledge,
    BatchesRead,
    EpochQueryReceived,
    Expand,
    FetchReceived,
    LeaderAppended,
    LeaderEffect,
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
from bascule.partition.replication.commitment import Commitment
from bascule.partition.replication.following import ends_of

if TYPE_CHECKING:
    from bascule.partition.replication.replicator import Replicator

_logger = logging.getLogger(__name__)


class Leading:
    """Made when the log is open. Lives in the event loop, but for its beginning if the partition has no other replica."""

    def __init__(
        self,
        key: PartitionKey,
        stream: str,
        partition: Partition,
        log: PartitionLog,
        options: ReplicaOptions,
        replicator: Replicator,
        acks: AckWriter,
        call_in_loop: Callable[[Callable[[], None]], object],
        on_acks: Callable[[], None],
        ack_times: AckTimes | None = None,
    ) -> None:
        self.key = key
        self.stream = stream
        self.name = f"{stream}/{key[1]}"
        self.log = log
        self.slow_reads = SlowReads()
        self.armed_step = 0
        self.is_over = False
        self._replicator = replicator
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
        self.commitment = Commitment(
            log, acks, call_in_loop, on_acks, self._synced, self._disk_failed, ack_times or AckTimes()
        )

    @property
    def leader_epoch(self) -> int:
        return self.core.leader_epoch

    def begin(self) -> None:
        self._step(LeadershipBegan())

    def stop(self) -> None:
        self.is_over = True
        self.commitment.stop()

    def hold_acks(self, holds: bool) -> None:
        """While a leader hands over, LEADER acks are given for what is on all in-sync replicas."""
        self.commitment.holds_leader_acks = holds

    def log_end_offset_of(self, replica: str) -> int:
        progress = self.core.followers.get(replica)
        return -1 if progress is None else progress.log_end_offset

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    def appended(self, batch: PreparedBatch, landed: Appended) -> None:
        wants_all = batch.has_all_acks or self.commitment.holds_leader_acks
        if batch.count:
            self.commitment.appended(batch, landed)
        else:
            self.commitment.repeated(batch, landed)
        self._step(LeaderAppended(landed.last_offset + 1, self.log.synced_end_offset, wants_all, time.monotonic_ns()))

    def append_failed(self, error: BasculeError) -> None:
        """Another replica may have a disk that takes it."""
        if isinstance(error, StorageError) and self.core.followers and not self.is_over:
            self._replicator.step_down(self, error.message, is_damaged=not isinstance(error, DiskFull))

    def received(self, replica: str, request: Fetch | EpochQuery, now_ns: int) -> None:
        if isinstance(request, Fetch):
            self._step(FetchReceived(replica, request, self.log.log_start_offset, now_ns))
        else:
            epoch = self.log.epochs.at_most(request.epoch)
            end_offset = self.log.end_offset_of_epoch(epoch or request.epoch)
            self._step(EpochQueryReceived(replica, request, epoch, end_offset, now_ns))

    def batches_read(self, request: ReadBatches, data: bytes | memoryview | None) -> None:
        self._step(BatchesRead(request, data))

    def notice_due(self, replica: str, is_beginning: bool) -> None:
        self._step(NoticeDue(replica, is_beginning))

    def refresh(self, partition: Partition) -> None:
        """The metadata may say something new."""
        event = SetChanged(
            tuple(partition.replicas), tuple(partition.in_sync_replicas), partition.epoch, time.monotonic_ns()
        )
        self._step(event)

    def settled(self, replica: str, outcome: ProposalOutcome) -> None:
        self._step(ProposalSettled(replica, outcome, time.monotonic_ns()))

    def reconnected(self) -> None:
        """Answers may have been lost: followers ask again."""
        self._step(LeaderReconnected())

    def on_time(self, now_ns: int) -> None:
        self._step(LeaderTick(now_ns))

    def _synced(self) -> None:
        if not self.is_over:
            self._step(LeaderSynced(self.log.synced_end_offset))

    def _disk_failed(self, error: BasculeError) -> None:
        if not self.is_over:
            self._replicator.step_down(self, f"the disk failed: {error.message}", is_damaged=True)

    def _step(self, event: LeaderEvent) -> None:
        if self.is_over:
            return
        try:
            self._do(self.core.step(event))
        except BasculeError as error:
            _logger.error("%s: %s", self.name, error.message)

    # ── what is to be done ───────────────────────────────────────────────────────────────────────

    def _do(self, effects: list[LeaderEffect]) -> None:
        replicator = self._replicator
        for effect in effects:
            match effect:
                case AdvanceHighWatermark(high_watermark):
                    self.log.advance_high_watermark(high_watermark)
                case Acknowledge(end_offset):
                    self.commitment.acknowledge_below(end_offset)
                case ReadBatches():
                    replicator.send_batches(self, effect)
                case SendTo(replica, message):
                    replicator.link.send(replica, self.key, message)
                case Notify(replica, is_beginning):
                    replicator.notify(self, replica, is_beginning=is_beginning)
                case Shrink() | Expand():
                    replicator.propose(self, effect)
                case StepDown(reason):
                    replicator.step_down(self, reason, is_damaged=False)
        if self.core.followers:
            replicator.timers.arm(self, self.core.deadline_ns)

    def read(self, effect: ReadBatches, bytes_max: int) -> bytes | memoryview | None:
        """What a follower asked for; None when it cannot be read. On any thread."""
        try:
            found = self.log.read(effect.offset, bytes_max=bytes_max, committed=False, below=effect.end_offset)
            return b"" if found is None else found.data
        except CorruptBatch as error:
            self._replicator.call_in_loop(self.found_damage, error.message)
        except BasculeError as error:
            _logger.error("%s: cannot be read for %s: %s", self.name, effect.replica, error.message)
        return None

    def found_damage(self, reason: str) -> bool:
        """Somebody who has what these bytes were has to lead. Whether there is such a one."""
        if self.is_over or not self.core.followers:
            return self.is_over
        self._replicator.step_down(self, reason, is_damaged=True)
        return len(self.core.in_sync_replicas) > 1
