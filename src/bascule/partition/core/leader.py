"""The leader of a partition decides what is committed and which replicas are in sync.

A commit counts the in-sync replicas of the metadata, and every replica that this leader has proposed to add, until the metadata has
refused it: the controller may have added the replica, and may elect it, before this server learns of it. Therefore every replica that
could be elected has what is committed. A follower that keeps up is counted a moment before it is proposed; otherwise, under load, the
high watermark would always be a step ahead of it.

The leader holds no log. Duties of the shell:

1. LeadershipBegan first, after the log has begun the epoch; LeaderAppended after every append and LeaderSynced after every sync.
2. Effects in their order.
3. The present metadata (SetChanged) before the outcome of a proposal (ProposalSettled).
4. A LeaderTick at `deadline_ns`.
5. Never a second leader for the same leader epoch and state of the partition: it would not know the proposals of the first one, which
   may still be applied. So every process begins with new epochs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from bascule.partition.core.follower_events import AdvanceHighWatermark
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
from bascule.partition.core.log_ends import LogEnds
from bascule.partition.core.messages import EpochAnswer, Fetch, FetchAnswer, Notice, Verdict
from bascule.partition.core.options import ReplicaOptions
from bascule.partition.core.progress import FollowerProgress

ADMISSION_NS: Final = 1_000_000_000
"""How long commits wait for a follower that is about to join; after that it has to catch up first."""


class Leader:
    def __init__(
        self,
        server_id: str,
        leader_epoch: int,
        ends: LogEnds,
        options: ReplicaOptions,
        *,
        replicas: Iterable[str],
        in_sync_replicas: Iterable[str],
        partition_epoch: int,
        now_ns: int,
    ) -> None:
        """`ends` are those of the log after it began the epoch: the first record of this leader goes to its end."""
        self.server_id = server_id
        self.leader_epoch = leader_epoch
        self.options = options
        self._hold_ns = options.hold_ns
        self._log_start_offset = ends.log_start_offset
        self._log_end_offset = self._epoch_start_offset = ends.log_end_offset
        self._synced_end_offset = ends.synced_end_offset
        self._high_watermark = ends.high_watermark
        self._be_in_sync(in_sync_replicas)
        self._partition_epoch = partition_epoch
        self.followers = {name: FollowerProgress(now_ns, now_ns) for name in replicas if name != server_id}
        self._acked_end_offset = 0
        self._all_wanted_to = 0
        self._outstanding: set[str] = set()
        """Replicas whose Shrink or Expand the controller has not answered. One proposal at a time for each: an answer does not name its
        proposal."""

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_sync_replicas(self) -> frozenset[str]:
        return self._in_sync

    def _be_in_sync(self, in_sync_replicas: Iterable[str]) -> None:
        """A leader is always in sync; the metadata on this server may not say so yet."""
        self._in_sync = frozenset(in_sync_replicas) | {self.server_id}
        self.can_commit = len(self._in_sync) >= self.options.min_insync_replicas

    @property
    def knows_what_is_committed(self) -> bool:
        """Whether the high watermark covers everything that earlier leaders may have committed."""
        return self._high_watermark + 1 >= self._epoch_start_offset

    def is_in_sync(self, replica: str) -> bool:
        return replica in self._in_sync

    def has_everything(self, replica: str) -> bool:
        """Whether this in-sync follower has the whole log."""
        progress = self.followers.get(replica)
        return progress is not None and replica in self._in_sync and progress.log_end_offset >= self._log_end_offset

    @property
    def deadline_ns(self) -> int | None:
        """When a LeaderTick is due; None as long as no event sets a deadline."""
        deadlines: list[int] = []
        for name, progress in self.followers.items():
            if progress.parked is not None:
                deadlines.append(progress.parked_ns + self._hold_ns)
            if name in self._in_sync and name not in self._outstanding:
                deadlines.append(max(self._lags_at(progress), progress.retry_ns))
            elif progress.admitted_ns:
                deadlines.append(progress.admitted_ns + ADMISSION_NS)
            if progress.is_in_doubt or (progress.is_refused and self._waits_to_join(name, progress)):
                deadlines.append(progress.retry_ns)
        return min(deadlines, default=None)

    def _lags_at(self, progress: FollowerProgress) -> int:
        """When the follower will have been silent, or behind, for too long."""
        return min(progress.last_seen_ns, progress.last_caught_up_ns) + self.options.max_lag_ns

    # ── step ─────────────────────────────────────────────────────────────────────────────────────

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        match event:
            case LeaderAppended():
                return self._appended(event)
            case LeaderSynced(synced_end_offset):
                self._synced_end_offset = max(self._synced_end_offset, synced_end_offset)
                return self._commit()
            case FetchReceived():
                return self._fetched(event)
            case BatchesRead(request, data):
                return self._answer_with(request, data)
            case EpochQueryReceived():
                return self._answer_epoch_query(event)
            case NoticeDue(replica, is_beginning):
                return self._notice(replica, is_beginning)
            case SetChanged():
                return self._set_changed(event)
            case ProposalSettled():
                return self._settled(event)
            case LeaderTick(now_ns):
                return self._ticked(now_ns)
            case LeadershipBegan():
                return [*self._commit(), *self._notify_all()]
            case LeaderReconnected():
                return self._notify_all()

    def _notify_all(self) -> list[LeaderEffect]:
        return [Notify(name, is_beginning=True) for name in self.followers]

    # ── committing ───────────────────────────────────────────────────────────────────────────────

    def _counted(self) -> list[FollowerProgress]:
        """The followers that could be elected."""
        counted = []
        for name, progress in self.followers.items():
            if name in self._in_sync or progress.is_counted:
                counted.append(progress)
        return counted

    def _commit(self) -> list[LeaderEffect]:
        if not self.can_commit:
            return []
        written = self._log_end_offset
        synced = min(written, self._synced_end_offset)
        followers = self.followers
        if followers:
            for progress in self._counted():
                written = min(written, progress.log_end_offset)
                synced = min(synced, progress.log_end_offset, progress.synced_end_offset)
        committed = (synced if self.options.commits_wait_for_disk else written) - 1
        acked = synced if self.options.acks_wait_for_disk else written
        effects: list[LeaderEffect] = []
        if committed > self._high_watermark:
            self._high_watermark = committed
            effects.append(AdvanceHighWatermark(committed))
            if followers:
                effects += [Notify(name) for name, one in followers.items() if one.parked is not None]
        if acked > self._acked_end_offset:
            self._acked_end_offset = acked
            effects.append(Acknowledge(acked))
        return effects

    def _appended(self, event: LeaderAppended) -> list[LeaderEffect]:
        end_offset = self._log_end_offset = max(self._log_end_offset, event.log_end_offset)
        self._synced_end_offset = max(self._synced_end_offset, event.synced_end_offset)
        if event.wants_all:
            self._all_wanted_to = end_offset
        for progress in self.followers.values():
            if progress.parked is not None and progress.parked.log_end_offset < end_offset:
                progress.last_caught_up_ns = event.now_ns  # until this moment it had everything
        effects = self._commit()
        for name in self.followers:
            effects += self._serve(name)
        return effects

    # ── fetches ──────────────────────────────────────────────────────────────────────────────────

    def _refusal(self, replica: str, leader_epoch: int) -> Verdict | None:
        if leader_epoch != self.leader_epoch:
            return Verdict.OLD_EPOCH if leader_epoch < self.leader_epoch else Verdict.NEW_EPOCH
        return None if replica in self.followers else Verdict.NO_REPLICA

    def _fetched(self, event: FetchReceived) -> list[LeaderEffect]:
        replica, fetch, now_ns = event.replica, event.fetch, event.now_ns
        self._log_start_offset = event.log_start_offset
        refusal = self._refusal(replica, fetch.leader_epoch)
        if refusal is not None:
            return [self._empty_answer(replica, fetch.number, refusal)] if fetch.is_fetch else []
        progress = self.followers[replica]
        if not progress.is_newer(fetch):
            return []
        if fetch.log_end_offset > self._log_end_offset:
            return self._fetched_beyond_end(replica, fetch)
        progress.update(fetch, now_ns)
        if fetch.is_urgent:
            progress.sync_asked_to = 0  # the answer that asked for the sync may be lost
        keeps_up = fetch.is_fetch and progress.note_fetch(self._log_end_offset, now_ns)
        effects = self._commit() + self._admit(replica, progress, keeps_up, now_ns)
        if fetch.is_fetch:
            progress.parked, progress.parked_ns = fetch, now_ns
            effects += self._serve(replica)
        return effects

    def _fetched_beyond_end(self, replica: str, fetch: Fetch) -> list[LeaderEffect]:
        """An in-sync follower made its log agree with this one when the epoch began, and has appended only what this leader sent: so
        this log has lost records. After an unclean election an empty log may begin beyond the leader's end; that is no loss."""
        effects: list[LeaderEffect] = []
        if replica in self._in_sync:
            reason = f"{replica} has offsets up to {fetch.log_end_offset - 1}, this log ends at {self._log_end_offset}"
            effects.append(StepDown(reason))
        if fetch.is_fetch:
            effects.append(self._empty_answer(replica, fetch.number, Verdict.BEYOND_END))
        return effects

    def _serve(self, replica: str) -> list[LeaderEffect]:
        """Answer the parked fetch if there is data, a sync to ask for, or a reason to hurry."""
        progress = self.followers[replica]
        fetch = progress.parked
        if fetch is None:
            return []
        end_offset = self._log_end_offset
        wants_sync = self._wants_sync(replica)
        if fetch.log_end_offset < self._log_start_offset:
            return [self._answer_parked(replica, progress, Verdict.BELOW_START)]
        if fetch.log_end_offset < end_offset:
            progress.parked = None
            progress.sync_asked_to = end_offset if wants_sync else progress.sync_asked_to
            return [ReadBatches(replica, fetch.number, fetch.log_end_offset, end_offset, wants_sync)]
        if wants_sync and progress.synced_end_offset < end_offset and progress.sync_asked_to < end_offset:
            progress.sync_asked_to = end_offset
            return [self._answer_parked(replica, progress, Verdict.OK, wants_sync=True)]
        if fetch.is_urgent:
            return [self._answer_parked(replica, progress, Verdict.OK)]
        if progress.high_watermark < self._high_watermark:
            return [Notify(replica)]
        return []

    def _wants_sync(self, replica: str) -> bool:
        """A publisher waits for an ALL ack, or the follower has to be as safe as the in-sync ones before it may join them."""
        if not self.options.acks_wait_for_disk:
            return False
        return (
            self._all_wanted_to > self._acked_end_offset
            or replica not in self._in_sync
            or self.options.commits_wait_for_disk
        )

    def _answer_parked(
        self, replica: str, progress: FollowerProgress, verdict: Verdict, *, wants_sync: bool = False
    ) -> SendTo:
        assert progress.parked is not None, "the caller has checked it"
        number, progress.parked = progress.parked.number, None
        progress.high_watermark = self._high_watermark
        return self._empty_answer(replica, number, verdict, wants_sync=wants_sync)

    def _empty_answer(self, replica: str, number: int, verdict: Verdict, *, wants_sync: bool = False) -> SendTo:
        return SendTo(replica, self._answer(number, verdict, wants_sync, b""))

    def _answer(self, number: int, verdict: Verdict, wants_sync: bool, data: bytes | memoryview) -> FetchAnswer:
        return FetchAnswer(
            self.leader_epoch,
            number,
            verdict,
            self._high_watermark,
            self._log_start_offset,
            self._log_end_offset,
            wants_sync,
            data,
        )

    def _answer_with(self, request: ReadBatches, data: bytes | memoryview | None) -> list[LeaderEffect]:
        progress = self.followers.get(request.replica)
        if progress is not None:
            progress.high_watermark = self._high_watermark
        verdict = Verdict.UNREADABLE if data is None else Verdict.OK
        return [SendTo(request.replica, self._answer(request.number, verdict, request.wants_sync, data or b""))]

    # ── notices and epochs ───────────────────────────────────────────────────────────────────────

    def _notice(self, replica: str, is_beginning: bool) -> list[LeaderEffect]:
        """Nothing if the replica was removed, or an answer has told it the high watermark meanwhile."""
        progress = self.followers.get(replica)
        if progress is None or (not is_beginning and progress.high_watermark >= self._high_watermark):
            return []
        progress.high_watermark = self._high_watermark
        return [SendTo(replica, Notice(self.leader_epoch, self._high_watermark, is_beginning))]

    def _answer_epoch_query(self, event: EpochQueryReceived) -> list[LeaderEffect]:
        replica, query = event.replica, event.query
        refusal = self._refusal(replica, query.leader_epoch)
        if refusal is None:
            self.followers[replica].last_seen_ns = event.now_ns
        verdict = refusal or Verdict.OK
        return [SendTo(replica, EpochAnswer(query.leader_epoch, query.number, verdict, event.epoch, event.end_offset))]

    # ── the in-sync set ──────────────────────────────────────────────────────────────────────────

    def _admit(self, replica: str, progress: FollowerProgress, keeps_up: bool, now_ns: int) -> list[LeaderEffect]:
        if replica in self._in_sync or progress.proposed_epoch >= 0 or now_ns < progress.retry_ns:
            return []
        if keeps_up and not progress.admitted_ns:
            progress.admitted_ns = now_ns
        if not progress.admitted_ns or replica in self._outstanding or not self._is_safe(progress):
            return []
        self._outstanding.add(replica)
        progress.proposed_epoch, progress.proposed_replica_epoch = self._partition_epoch, progress.replica_epoch
        progress.admitted_ns = 0
        progress.is_refused = False
        return [Expand(replica, progress.replica_epoch, self._partition_epoch)]

    def _waits_to_join(self, replica: str, progress: FollowerProgress) -> bool:
        """Whether the leader has to propose the follower again without another fetch. When two followers join at once, the metadata
        refuses the second; it has everything, so it will not fetch again until there is more."""
        fetch = progress.parked
        if fetch is None or not progress.is_refused or progress.is_counted or replica in self._outstanding:
            return False
        return fetch.log_end_offset >= self._log_end_offset and self._is_safe(progress)

    def _is_safe(self, progress: FollowerProgress) -> bool:
        """Whether no committed or acked record would be lost if the follower were elected now."""
        committed = max(self._high_watermark + 1, self._epoch_start_offset)
        if progress.log_end_offset < committed:
            return False
        if not self.options.acks_wait_for_disk:
            return True
        return progress.synced_end_offset >= max(self._acked_end_offset, self._epoch_start_offset)

    def _set_changed(self, event: SetChanged) -> list[LeaderEffect]:
        before = self._in_sync
        self._be_in_sync(event.in_sync_replicas)
        for name in before | self._in_sync:
            if name in self.followers:
                self.followers[name].is_refused = False
        if event.partition_epoch > self._partition_epoch:
            self._partition_epoch = event.partition_epoch
            for progress in self.followers.values():
                # A proposal for an older state of the partition was applied, and is visible, or never will be.
                if progress.proposed_epoch < event.partition_epoch:
                    progress.proposed_epoch = -1
                    progress.is_in_doubt = False
        followers = [name for name in event.replicas if name != self.server_id]
        self.followers = {
            name: self.followers.get(name) or FollowerProgress(event.now_ns, event.now_ns) for name in followers
        }
        return self._commit()

    def _settled(self, event: ProposalSettled) -> list[LeaderEffect]:
        self._outstanding.discard(event.replica)
        progress = self.followers.get(event.replica)
        if progress is None:
            return []
        progress.retry_ns = event.now_ns + self.options.back_off_ns
        if progress.proposed_epoch >= 0 and event.outcome is ProposalOutcome.UNKNOWN:
            progress.is_in_doubt = True  # counted as if it were in sync, until the outcome is known
            return []
        was_expansion = progress.proposed_replica_epoch >= 0
        progress.proposed_replica_epoch = -1
        if progress.proposed_epoch < 0:
            # It may have joined and left again since.
            is_done = event.outcome is ProposalOutcome.DONE or event.replica in self._in_sync
            progress.is_refused = was_expansion and not is_done
            return []
        if event.outcome is ProposalOutcome.REFUSED:
            progress.proposed_epoch = -1
            progress.is_refused = was_expansion
        return self._commit()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def _ticked(self, now_ns: int) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for name, progress in self.followers.items():
            if progress.parked is not None and now_ns >= progress.parked_ns + self._hold_ns:
                # The follower may have ignored the answer that asked for a sync, because it had asked again meanwhile.
                wants_sync = progress.synced_end_offset < self._log_end_offset and self._wants_sync(name)
                effects.append(self._answer_parked(name, progress, Verdict.OK, wants_sync=wants_sync))
            if progress.admitted_ns and now_ns >= progress.admitted_ns + ADMISSION_NS:
                progress.admitted_ns = 0
                effects += self._commit()
            if progress.is_in_doubt and now_ns >= progress.retry_ns:
                progress.is_in_doubt = False
                self._outstanding.add(name)
                effects.append(Expand(name, progress.proposed_replica_epoch, progress.proposed_epoch))
            elif self._waits_to_join(name, progress):
                effects += self._admit(name, progress, True, now_ns)
            effects += self._drop_if_lagging(name, progress, now_ns)
        return effects

    def _drop_if_lagging(self, name: str, progress: FollowerProgress, now_ns: int) -> list[LeaderEffect]:
        if name not in self._in_sync or name in self._outstanding or now_ns < progress.retry_ns:
            return []
        if now_ns < self._lags_at(progress):
            return []
        self._outstanding.add(name)
        silent = now_ns - progress.last_seen_ns >= self.options.max_lag_ns
        behind = self._log_end_offset - progress.log_end_offset
        return [Shrink(name, "it is silent" if silent else f"it is {behind} messages behind and does not catch up")]


# ── acks ───────────────────────────────────────────────────────────────────────────────────────────


class AckWaits(NamedTuple):
    leader_acks_are_due: bool
    """LEADER acks are sent at once."""
    awaits_disk: bool
    """LEADER acks wait for this server's disk."""
    awaits_all: bool
    """ALL acks, or LEADER acks too, wait for the in-sync replicas."""
    with_leader_acks: bool
    """LEADER acks are sent together with the ALL acks."""


def ack_waits(*, wants_leader: bool, wants_all: bool, syncs_all: bool, hands_over: bool) -> AckWaits:
    """Decide what the acks of an appended batch wait for. `syncs_all`: `streams.sync` is `always`.

    | `streams.sync` | LEADER ack            | readers see it                          | ALL ack                                 |
    |----------------|-----------------------|-----------------------------------------|-----------------------------------------|
    | `interval`     | written               | written on all in-sync replicas         | written on all in-sync replicas         |
    | `ack`          | written               | written on all in-sync replicas         | synced to disk on all in-sync replicas  |
    | `always`       | synced to disk        | synced to disk on all in-sync replicas  | synced to disk on all in-sync replicas  |

    While a leader hands over, LEADER acks wait like ALL acks: an acked message is then on the successor.
    """
    with_leader_acks = wants_leader and hands_over
    awaits_disk = wants_leader and syncs_all and not with_leader_acks
    is_due = wants_leader and not awaits_disk and not with_leader_acks
    return AckWaits(is_due, awaits_disk, wants_all or with_leader_acks, with_leader_acks)
