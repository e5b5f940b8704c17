"""One replica on a simulated server: what the broker does around the production Leader and Follower, and nothing more.

The rules of the shell: effects in their order; the metadata of now before the outcome of a proposal; one role object for each leader
epoch (and incarnation of the replica); a role begins only when no write of the one before is under way; the log begins the epoch
before its leader is made, and stays open over all of them; numbers of fetches go on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError, CallerError, DiskFull, EpochFenced, RejectedBatch, StorageError
from bascule.kernels.records.producers import DUPLICATE, NEW, ProducerTable
from bascule.log.core.options import SyncPolicy
from bascule.metadata.core.model import ops
from bascule.metadata.core.model.streams import Partition
from bascule.partition.core import follower_events as follow
from bascule.partition.core import leader_events as lead
from bascule.partition.core.follower import Follower
from bascule.partition.core.leader import Leader, ack_waits
from bascule.partition.core.leader_events import ProposalOutcome
from bascule.partition.core.log_ends import LogEnds
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Message, Notice, Verdict
from bascule.partition.core.options import ReplicaOptions
from tests.simulation.cluster.cluster_checker import Violation
from tests.simulation.cluster.cluster_log import Content, Sequenced, SimulatedLog

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_server import Server

MS: Final = 1_000_000
Key = tuple[int, int]
"""Stream id and partition number."""


REFUSED: Final = -2
"""The message of an idempotent producer that must not be stored."""


@dataclass(frozen=True, slots=True)
class Publish:
    numbers: list[int]
    wants_all: bool
    sequenced: Sequenced | None = None


@dataclass(frozen=True, slots=True)
class StreamConfig:
    policy: SyncPolicy
    options: ReplicaOptions


class Replica:
    def __init__(self, server: Server, key: Key, stream: str, config: StreamConfig, log: SimulatedLog) -> None:
        self.server = server
        self.world = server.world
        self.key = key
        self.stream = stream
        self.policy = config.policy
        self.options = config.options
        self.log = log
        self.role: Leader | Follower | None = None
        self.epoch = 0
        """The leader epoch of the role, or of the last one there was."""
        self.replica_epoch = 0
        self.next_number = (
            server.local_ns()
        )  # as a broker does: late answers to an earlier process must not be taken for new ones
        self.highest_watermark = log.high_watermark
        self.is_writing = False
        self.is_syncing = False
        self.is_leaving = False
        """The controller was asked to take it out of the in-sync set."""
        self.is_damaged = False
        """As soon as it is out, which makes it another replica for the metadata, it has to be rebuilt."""
        self.is_checked = False
        """Whether what it takes for committed was compared since the role began."""
        self.is_moving = False
        self.hands_over_to = ""
        self.is_frozen = False
        """Nothing is appended: the hand-over is in its last step."""
        self.is_in_doubt = False
        """A hand-over was proposed and may still be done."""
        self.pending: deque[tuple[int, int, bool, Publish]] = deque()
        """End offset, that of the batch alone, whether LEADER acks wait too, and the publish: they wait for all in-sync replicas."""
        self.pending_disk: deque[int] = deque()
        """End offsets of publishes whose LEADER acks wait for the disk."""
        self.acked_end_offset = 0
        self.producers: ProducerTable | None = None
        self._tick_ns = -1
        self._sync_to = -1
        """The last offset whose sync the role waits for; −1 if it waits for none."""

    def __repr__(self) -> str:
        role = type(self.role).__name__ if self.role is not None else "no role"
        log = self.log
        return (
            f"{self.server.id}:{self.stream}#{self.key[0]}/{self.key[1]} ({role} in {self.epoch}, offsets "
            f"{log.log_start_offset}-{log.log_end_offset}, synced {log.synced_end_offset}, hw {log.high_watermark})"
        )

    @property
    def partition(self) -> Partition | None:
        stream = self.server.metadata.streams.get(self.stream)
        if stream is None or stream.id != self.key[0]:
            return None
        return stream.partition(self.key[1])

    def ends(self) -> LogEnds:
        log = self.log
        return LogEnds(
            log.log_start_offset, log.log_end_offset, log.synced_end_offset, log.high_watermark, log.latest_epoch
        )

    # ── roles ────────────────────────────────────────────────────────────────────────────────────

    def reconcile(self) -> None:
        """The metadata may say something else than before."""
        partition = self.partition
        if partition is None or partition.paused:
            self.drop_role()
            return
        epoch = self.server.replica_epoch(partition)
        if self.is_damaged and epoch != self.replica_epoch and self.server.id not in partition.in_sync_replicas:
            self.drop_role()
            if not self.is_writing:
                self._rebuild()
            return
        is_leader = partition.leader == self.server.id
        same = self.role is not None and self.epoch == partition.leader_epoch
        if same and isinstance(self.role, Leader) == is_leader and (is_leader or self.replica_epoch == epoch):
            if is_leader:
                self._tell_set(partition)
            return
        self.drop_role()
        if not self.is_writing:
            self._begin(partition, epoch)

    def drop_role(self) -> None:
        if isinstance(self.role, Follower):
            self.next_number = self.role.next_number
        self.role = None
        self._sync_to = -1
        self.pending.clear()
        self.pending_disk.clear()
        self.acked_end_offset = 0
        self.producers = None
        self.hands_over_to = ""
        self.is_frozen = self.is_in_doubt = False

    def _begin(self, partition: Partition, replica_epoch: int) -> None:
        if partition.leader_epoch < self.epoch:
            return
        self.epoch, self.replica_epoch = partition.leader_epoch, replica_epoch
        if partition.leader == self.server.id:
            self._begin_leader(partition)
        else:
            self._begin_follower(partition)

    def _begin_leader(self, partition: Partition) -> None:
        try:
            self.log.begin_epoch(self.epoch)
        except EpochFenced:
            return
        except StorageError:
            self.leave()
            return
        self.world.checker.leader_began(self, self.epoch)
        self.role = Leader(
            self.server.id,
            self.epoch,
            self.ends(),
            self.options,
            replicas=partition.replicas,
            in_sync_replicas=partition.in_sync_replicas,
            partition_epoch=partition.epoch,
            now_ns=self.server.local_ns(),
        )
        self.world.trace("%r begins", self)
        self._step_leader(lead.LeadershipBegan())
        if self.policy is SyncPolicy.ALWAYS and self.log.synced_end_offset < self.log.log_end_offset:
            self.request_sync()
        self.is_moving = False
        self._move_on(partition)

    def _begin_follower(self, partition: Partition) -> None:
        self.is_checked = False
        self.role = Follower(
            partition.leader,
            self.epoch,
            self.options,
            replica_epoch=self.replica_epoch,
            data_loss_epoch=partition.data_loss_epoch,
            first_number=self.next_number,
        )
        self.world.trace("%r begins", self)
        self._step_follower(follow.FollowingBegan(self.ends(), self.server.local_ns()))

    def _tell_set(self, partition: Partition) -> None:
        self._step_leader(
            lead.SetChanged(
                tuple(partition.replicas),
                tuple(partition.in_sync_replicas),
                partition.epoch,
                self.server.local_ns(),
            )
        )
        self._move_on(partition)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    def _step_leader(self, event: lead.LeaderEvent) -> None:
        if isinstance(self.role, Leader):
            self.world.trace("  %r <- %r", self, event)
            self._lead(self.role.step(event))

    def _step_follower(self, event: follow.FollowerEvent) -> None:
        if isinstance(self.role, Follower):
            self.world.trace("  %r <- %r", self, event)
            self._follow(self.role.step(event))

    def _schedule(self) -> None:
        role = self.role
        deadline_ns = None if role is None else role.deadline_ns
        if deadline_ns is None or (0 <= self._tick_ns <= deadline_ns):
            return
        self._tick_ns = deadline_ns
        self.server.call(self.server.until_ns(deadline_ns), self._tick, deadline_ns)

    def _tick(self, at_ns: int) -> None:
        if at_ns != self._tick_ns:
            return
        self._tick_ns = -1
        role, now_ns = self.role, self.server.local_ns()
        if role is not None and role.deadline_ns is not None and role.deadline_ns <= now_ns:
            if isinstance(role, Leader):
                self._step_leader(lead.LeaderTick(now_ns))
            else:
                self._step_follower(follow.FollowerTick(now_ns))
        self._schedule()

    def receive(self, sender: str, message: Message) -> None:
        now_ns = self.server.local_ns()
        match message:
            case Fetch():
                if isinstance(self.role, Leader):
                    self._step_leader(lead.FetchReceived(sender, message, self.log.log_start_offset, now_ns))
                elif message.is_fetch:
                    self.server.send(
                        sender, self.key, FetchAnswer(message.leader_epoch, message.number, Verdict.NOT_LEADER)
                    )
            case EpochQuery():
                if isinstance(self.role, Leader):
                    epoch = self.log.epoch_at_most(message.epoch)
                    end_offset = self.log.end_offset_of_epoch(message.epoch)
                    self._step_leader(lead.EpochQueryReceived(sender, message, epoch, end_offset, now_ns))
                else:
                    answer = EpochAnswer(message.leader_epoch, message.number, Verdict.NOT_LEADER)
                    self.server.send(sender, self.key, answer)
            case FetchAnswer():
                self._step_follower(follow.AnswerReceived(message, now_ns))
            case EpochAnswer():
                own_end_offset = self.log.end_offset_of_epoch(message.epoch)
                self._step_follower(follow.EpochAnswerReceived(message, own_end_offset, now_ns))
            case Notice():
                self._step_follower(follow.NoticeReceived(message, now_ns))

    # ── what the leader wants ────────────────────────────────────────────────────────────────────

    def _lead(self, effects: list[lead.LeaderEffect]) -> None:
        role = self.role
        for effect in effects:
            if self.role is not role or not isinstance(role, Leader):
                return
            self._do_lead(role, effect)
        self._schedule()

    def _do_lead(self, role: Leader, effect: lead.LeaderEffect) -> None:
        server = self.server
        match effect:
            case follow.AdvanceHighWatermark(high_watermark):
                before = self.log.high_watermark
                self.log.advance_high_watermark(high_watermark)
                self.world.checker.committed(self, before)
            case lead.Acknowledge(end_offset):
                self._acknowledge(end_offset)
            case lead.ReadBatches():
                server.call(self.world.read_ns(), self._read_batches, role, effect)
            case lead.SendTo(replica, message):
                server.send(replica, self.key, message)
            case lead.Notify(replica, is_beginning):
                server.call(self.world.notice_ns(), self._notify, role, replica, is_beginning)
            case lead.Shrink(replica, _):
                op: ops.Op = ops.ShrinkIsr(self.stream, self.key[1], replica, server.id, self.epoch)
                self._propose(op, role, replica)
            case lead.Expand(replica, replica_epoch, partition_epoch):
                op = ops.ExpandIsr(
                    self.stream, self.key[1], replica, server.id, self.epoch, replica_epoch, partition_epoch
                )
                self._propose(op, role, replica)
            case lead.StepDown():
                self.world.checker.counts["step downs"] += 1
                self.leave()

    def _read_batches(self, role: Leader, request: lead.ReadBatches) -> None:
        if self.role is not role:
            return
        try:
            data = self.log.read(request.offset, request.end_offset)
        except BasculeError:
            self.world.checker.counts["unreadable"] += 1
            self._step_leader(lead.BatchesRead(request, None))
            self.leave()
            return
        self._step_leader(lead.BatchesRead(request, data))

    def _notify(self, role: Leader, replica: str, is_beginning: bool) -> None:
        if self.role is role:
            self._step_leader(lead.NoticeDue(replica, is_beginning))

    def _propose(self, op: ops.Op, role: Leader, replica: str) -> None:
        def settle(outcome: ProposalOutcome) -> None:
            self.reconcile()  # the metadata of now comes first
            if self.role is role:
                self._step_leader(lead.ProposalSettled(replica, outcome, self.server.local_ns()))

        self.server.propose(op, settle)

    def reconnected(self) -> None:
        """The line to the other servers was away for a moment: all replicas begin to ask, and to notify, again."""
        if isinstance(self.role, Leader):
            self._step_leader(lead.LeaderReconnected())
        else:
            self._step_follower(follow.FollowerReconnected(self.server.local_ns()))

    # ── publishing ───────────────────────────────────────────────────────────────────────────────

    def publish(self, publish: Publish) -> None:
        """A publisher's messages have arrived: they are appended a moment later, if this server still leads then."""
        if isinstance(self.role, Leader):
            self.server.call(self.server.disk_ns(), self._append, self.role, publish)

    def _append(self, role: Leader, publish: Publish) -> None:
        if self.role is not role or self.server.is_draining or self.is_frozen:
            return
        original = self._original(publish)
        if original is REFUSED:
            return
        if original is not None:
            self.server.call(self.world.hop_ns(), self._appended, role, original + 1, publish)
            return
        try:
            base_offset = self.log.append(publish.numbers, self.epoch, publish.sequenced)
        except BasculeError as error:
            self.producers = None
            if not isinstance(error, DiskFull):
                self.leave()
            return
        if self.producers is not None and publish.sequenced is not None:
            told = publish.sequenced
            self.producers.note(told.producer, told.epoch, told.sequence, base_offset)
        self.world.checker.appended(self, base_offset, publish.numbers)
        self.server.call(self.world.hop_ns(), self._appended, role, base_offset + len(publish.numbers), publish)

    def _original(self, publish: Publish) -> int | None:
        """Where the message of an idempotent producer is stored already; None if it is new; REFUSED if it must not be stored."""
        told = publish.sequenced
        if told is None:
            return None
        if self.producers is None:
            try:
                self.producers = self.log.producers()
            except BasculeError:
                return REFUSED
        verdict, _, at_most = self.producers.judge(told.producer, told.epoch, told.sequence)
        if verdict == DUPLICATE:
            self.world.checker.counts["duplicates"] += 1
            return at_most
        return None if verdict == NEW else REFUSED

    def _appended(self, role: Leader, end_offset: int, publish: Publish) -> None:
        """By production's rules: which acks are due, and which wait."""
        if self.role is not role:
            return
        waits = ack_waits(
            wants_leader=not publish.wants_all,
            wants_all=publish.wants_all,
            syncs_all=self.policy is SyncPolicy.ALWAYS,
            hands_over=self.is_in_doubt or bool(self.hands_over_to),
        )
        if waits.leader_acks_are_due:
            self.world.checker.acked_leader(self, end_offset)
        if waits.awaits_disk:
            self.pending_disk.append(end_offset)
        if waits.awaits_all and end_offset > self.acked_end_offset:
            waits_to = max(end_offset, self.pending[-1][0]) if self.pending else end_offset
            self.pending.append((waits_to, end_offset, waits.with_leader_acks, publish))
        elif waits.awaits_all:
            self.world.acked(self, publish)  # a duplicate
        if self.policy is SyncPolicy.ALWAYS or (waits.awaits_all and self.policy is SyncPolicy.ACK):
            self.request_sync()
        now_ns = self.server.local_ns()
        self._step_leader(lead.LeaderAppended(end_offset, self.log.synced_end_offset, waits.awaits_all, now_ns))

    def _acknowledge(self, end_offset: int) -> None:
        self.acked_end_offset = max(self.acked_end_offset, end_offset)
        while self.pending and self.pending[0][0] <= end_offset:
            _, batch_end_offset, with_leader_acks, publish = self.pending.popleft()
            if with_leader_acks:
                self.world.checker.acked_leader(self, batch_end_offset)
            if publish.wants_all:
                self.world.checker.acked_all(self, batch_end_offset, publish)
                self.world.acked(self, publish)

    def _acknowledge_synced(self) -> None:
        while self.pending_disk and self.pending_disk[0] <= self.log.synced_end_offset:
            self.world.checker.acked_leader(self, self.pending_disk.popleft())

    # ── what the follower wants ──────────────────────────────────────────────────────────────────

    def _follow(self, effects: list[follow.FollowerEffect]) -> None:
        role = self.role
        for effect in effects:
            if self.role is not role or not isinstance(role, Follower):
                return
            self._do_follow(role, effect)
        self._schedule()

    def _do_follow(self, role: Follower, effect: follow.FollowerEffect) -> None:
        server = self.server
        match effect:
            case follow.Send(message):
                if isinstance(message, Fetch):
                    self.world.checker.claims(self, role.leader)
                server.send(role.leader, self.key, message)
            case follow.Append() | follow.Truncate() | follow.Reset():
                self.is_writing = True
                server.call(server.disk_ns(), self._write, role, effect)
            case follow.AdvanceHighWatermark(high_watermark):
                before = self.log.high_watermark
                self.log.advance_high_watermark(high_watermark)
                self.world.checker.committed(self, before)
            case follow.RequestSync():
                self.request_sync()
            case follow.ReportLeader():
                server.report_leader(self, role)
            case follow.Rebuild(reason, flaw):
                if flaw is follow.Flaw.DIVERGED:
                    raise Violation(f"{self}: {reason}")
                self.world.checker.counts[f"{flaw.value} logs"] += 1
                self.leave()

    def _write(self, role: Follower, effect: follow.Append | follow.Truncate | follow.Reset) -> None:
        """Also when the role has ended meanwhile: the disk was asked before."""
        log = self.log
        if self.key not in self.server.replicas:
            return  # the whole partition is gone from here
        done: follow.FollowerWrote | follow.FollowerWriteFailed
        try:
            match effect:
                case follow.Append(data):
                    log.append_replicated(data)
                case follow.Truncate(offset, allow_committed):
                    self.world.checker.counts["truncations"] += 1
                    self.world.checker.cut(self, offset, allow_committed)
                    log.truncate(offset, allow_committed=allow_committed)
                case follow.Reset(offset):
                    self.world.checker.counts["resets"] += 1
                    self._check_reset(offset)
                    log.reset_to(offset)
            done = follow.FollowerWrote(self.ends(), self.server.local_ns())
        except RejectedBatch as error:
            self.world.checker.counts["rejected"] += 1
            done = follow.FollowerWriteFailed(str(error), False, self.ends(), self.server.local_ns())
        except CallerError as error:
            raise Violation(f"{self} was asked for something wrong: {error}") from error
        except StorageError as error:
            is_damaged = not isinstance(error, DiskFull)
            done = follow.FollowerWriteFailed(str(error), is_damaged, self.ends(), self.server.local_ns())
        self.server.call(self.world.hop_ns(), self._wrote, role, done)

    def _check_reset(self, offset: int) -> None:
        log = self.log
        if log.log_end_offset > log.log_start_offset or offset < log.log_end_offset:
            raise Violation(f"{self} is to begin anew at {offset} without leaving the in-sync set")

    def _wrote(self, role: Follower, done: follow.FollowerWrote | follow.FollowerWriteFailed) -> None:
        self.is_writing = False
        self.world.checker.watermark(self)
        if self.role is role:
            self._step_follower(done)
        else:
            self.reconcile()

    # ── syncing ──────────────────────────────────────────────────────────────────────────────────

    def request_sync(self) -> None:
        """The role waits for what is written now."""
        self._sync_to = self.log.log_end_offset - 1
        self.sync_later()

    def sync_later(self) -> None:
        if not self.is_syncing:
            self.is_syncing = True
            self.server.call(self.server.disk_ns() * 2, self._sync, self.log)

    def _sync(self, log: SimulatedLog) -> None:
        self.is_syncing = False
        if self.log is not log:
            return
        try:
            log.sync()
        except StorageError:
            self.world.checker.counts["failed syncs"] += 1
            self.leave()
            return
        if self.world.rng.random() < 0.3:
            log.write_checkpoint()
        self._synced()
        if self._sync_to >= 0 or (log.synced_end_offset < log.log_end_offset and self.policy is SyncPolicy.ALWAYS):
            self.sync_later()

    def _synced(self) -> None:
        """A role learns of a sync only if it waits for it."""
        synced_end_offset = self.log.synced_end_offset
        if not 0 <= self._sync_to < synced_end_offset:
            return
        self._sync_to = -1
        if isinstance(self.role, Leader):
            self._acknowledge_synced()
            self._step_leader(lead.LeaderSynced(synced_end_offset))
        else:
            self._step_follower(follow.FollowerSynced(synced_end_offset))

    # ── damage ───────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> None:
        """The log is damaged: leave the in-sync set, then begin with an empty one."""
        partition = self.partition
        if partition is None:
            return
        self.is_damaged = True  # also while it leaves: the log may be another one than when that began
        if self.is_leaving:
            return
        self.is_leaving = True
        op = ops.LeaveIsr(self.stream, self.key[1], self.server.id, partition.leader_epoch)
        self.server.propose(op, self._left)

    def _left(self, outcome: ProposalOutcome) -> None:
        self.is_leaving = False
        partition = self.partition
        if partition is None:
            return
        if outcome is ProposalOutcome.REFUSED and partition.in_sync_replicas == [self.server.id]:
            self.world.last_is_damaged(self)
        elif self.is_damaged and self.replica_epoch == self.server.replica_epoch(partition):
            # Not yet, or before the flaw was found: the leader may be about to propose this log.
            self.server.call(100 * MS, self.leave)

    def _rebuild(self) -> None:
        self.world.checker.counts["rebuilds"] += 1
        self.is_damaged = False
        self.log = self.server.new_log(self.key)
        self.highest_watermark = -1
        self.reconcile()

    # ── handing over, moving ─────────────────────────────────────────────────────────────────────

    def hand_over(self, candidates: list[str]) -> None:
        """Once one of these in-sync replicas has everything, nothing is written any more; once it has that too, it leads."""
        role = self.role
        if not isinstance(role, Leader):
            return
        able = [name for name in candidates if name != self.server.id and role.is_in_sync(name)]
        if not able:
            self._keep_leading()
            return
        if self.hands_over_to not in able:
            self.hands_over_to = able[0]
        if not role.has_everything(self.hands_over_to):
            self.server.call(50 * MS, self.hand_over, candidates)
        elif self.is_frozen:
            op = ops.ChangeLeader(
                self.stream, self.key[1], self.server.id, self.epoch, (self.hands_over_to,), failed=False
            )
            self.server.propose(op, lambda outcome: self._handed_over(role, outcome))
        else:
            self.is_frozen = True
            self.server.call(self.world.hop_ns(), self.hand_over, candidates)

    def _handed_over(self, role: Leader, outcome: ProposalOutcome) -> None:
        if self.role is not role or outcome is ProposalOutcome.DONE:
            return
        self.is_in_doubt = self.is_in_doubt or outcome is ProposalOutcome.UNKNOWN
        self._keep_leading()

    def _keep_leading(self) -> None:
        self.is_frozen = False
        self.hands_over_to = ""

    def _move_on(self, partition: Partition) -> None:
        """A reassignment is under way: the leader drives it."""
        targets = partition.target_replicas
        if not targets or self.is_moving or not set(targets) <= set(partition.in_sync_replicas):
            return
        self.is_moving = True
        if self.server.id in targets:
            op = ops.CompleteReassignment(self.stream, self.key[1], self.server.id, self.epoch)
            self.server.propose(op, self._moved)
        else:
            self.hand_over(targets)
            self.server.call(500 * MS, self._moved, ProposalOutcome.UNKNOWN)

    def _moved(self, outcome: ProposalOutcome) -> None:
        self.is_moving = False
        partition = self.partition
        if outcome is not ProposalOutcome.DONE and partition is not None and isinstance(self.role, Leader):
            self.server.call(200 * MS, self.reconcile)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def read(self) -> None:
        """As a subscriber does, of the leader or of a follower that is in sync."""
        partition, log = self.partition, self.log
        if self.role is None or partition is None or self.server.id not in partition.in_sync_replicas:
            return
        end_offset = log.high_watermark + 1
        if self.policy is SyncPolicy.ALWAYS:
            end_offset = min(end_offset, log.synced_end_offset)
        first = max(log.log_start_offset, end_offset - 20)
        found: list[Content | None] = [log.content(offset) for offset in range(first, end_offset)]
        self.world.checker.read(self, first, found)
        if any(content is None and log.is_unreadable(at) for at, content in enumerate(found, first)):
            self.world.checker.counts["damage read"] += 1
            self.leave()

    def clean(self) -> None:
        """One tick of the cleaner, by production's rules."""
        log, before = self.log, self.log.log_start_offset
        log.clean()
        if log.log_start_offset > before:
            self.world.checker.counts["retentions"] += 1
            self.world.checker.retained(self)
        self.server.call(self.world.hop_ns(), self._synced)  # the cleaner syncs first
