"""The leader of a partition: who has what, what is committed, who is in sync.

The set that counts for a commit is the in-sync replicas as the metadata has them, and whoever this leader has proposed to add and was
not refused for certain: the controller may have added it, and elect it, before this server hears of it. So what is committed is on
every replica that could be elected. A follower that keeps up is counted a moment before it is proposed; otherwise, under load, the high
watermark would always be a step ahead of it.

The shell's duties: after every append an Appended, after every sync a Synced; effects in their order; the metadata of now (SetChanged)
before the outcome of a proposal (ProposalSettled); a Tick at `deadline_ns`. Never a second leader for the same leader epoch and state
of the partition: it would not know what the first one proposed, and that may still be done. So every process begins with new epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from bascule.partition.core.leader_events import (
    Acknowledge,
    AnswerEpoch,
    Appended,
    Commit,
    EpochQueryReceived,
    Expand,
    FetchReceived,
    LeaderEffect,
    LeaderEvent,
    Notify,
    Outcome,
    ProposalSettled,
    SendAnswer,
    SendBatches,
    SetChanged,
    Shrink,
    StepDown,
    Synced,
    Tick,
)
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Notice, Verdict
from bascule.partition.core.options import ReplicaLog, ReplicaOptions
from bascule.partition.core.progress import Progress

ADMISSION_NS: Final = 1_000_000_000
"""So long commits may wait for a follower that is about to join; then it has to catch up first."""


class Leader:
    def __init__(
        self,
        server_id: str,
        leader_epoch: int,
        log: ReplicaLog,
        options: ReplicaOptions,
        *,
        replicas: Iterable[str],
        in_sync_replicas: Iterable[str],
        partition_epoch: int,
        now_ns: int,
    ) -> None:
        """The log has begun the epoch: its end is where the first record of this leader goes."""
        self.server_id = server_id
        self.leader_epoch = leader_epoch
        self.options = options
        self._log = log
        self._epoch_start_offset = log.log_end_offset
        self._in_sync = frozenset(in_sync_replicas)
        self._partition_epoch = partition_epoch
        self._followers = {name: Progress(now_ns, now_ns) for name in replicas if name != server_id}
        self._high_watermark = log.high_watermark
        self._acked_end_offset = 0
        self._all_wanted_to = 0
        self._outstanding: set[str] = set()
        """Replicas that the controller was asked to take out or let in and has not answered for. One question at a time: an answer does
        not say to which."""

    # ── what it knows ────────────────────────────────────────────────────────────────────────────

    @property
    def in_sync_replicas(self) -> frozenset[str]:
        """As the metadata has them, as far as this server has heard; a leader is always one of them."""
        return self._in_sync | {self.server_id}

    @property
    def followers(self) -> dict[str, Progress]:
        return self._followers

    @property
    def knows_what_is_committed(self) -> bool:
        """Whether everything that any leader before it has committed is known to be: what it began with is."""
        return self._high_watermark + 1 >= self._epoch_start_offset

    @property
    def can_commit(self) -> bool:
        return len(self.in_sync_replicas) >= self.options.min_insync_replicas

    def is_in_sync(self, replica: str) -> bool:
        return replica in self.in_sync_replicas

    def has_everything(self, replica: str) -> bool:
        """Whether this in-sync follower has all that is in the log now."""
        progress = self._followers.get(replica)
        return progress is not None and replica in self._in_sync and progress.log_end_offset >= self._log.log_end_offset

    @property
    def deadline_ns(self) -> int | None:
        """When a Tick is due; None for never, as far as can be told now."""
        return min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterator[int]:
        options = self.options
        for name, progress in self._followers.items():
            if progress.parked is not None:
                yield progress.parked_ns + options.hold_ns
            if name in self._in_sync and name not in self._outstanding:
                yield max(self._lags_at(progress), progress.retry_ns)
            elif progress.admitted_ns:
                yield progress.admitted_ns + ADMISSION_NS
            if progress.is_in_doubt or self._waits_to_join(name, progress):
                yield progress.retry_ns

    def _lags_at(self, progress: Progress) -> int:
        """When it will have been silent, or behind, for too long."""
        return min(progress.last_seen_ns, progress.last_caught_up_ns) + self.options.max_lag_ns

    # ── the verb ─────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> list[LeaderEffect]:
        """Tell the replicas, and commit what a lone leader can."""
        return [*self._commit(), *(Notify(name) for name in self._followers)]

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        match event:
            case Appended():
                return self._appended(event)
            case Synced():
                return self._commit()
            case FetchReceived(replica, fetch, now_ns):
                return self._fetched(replica, fetch, now_ns)
            case EpochQueryReceived(replica, query, now_ns):
                return self._asked(replica, query, now_ns)
            case SetChanged():
                return self._set_changed(event)
            case ProposalSettled():
                return self._settled(event)
            case Tick(now_ns):
                return self._ticked(now_ns)

    # ── committing ───────────────────────────────────────────────────────────────────────────────

    def _counted(self) -> Iterator[tuple[int, int]]:
        """Log end and synced end of every replica that could be elected."""
        yield self._log.log_end_offset, self._log.synced_end_offset
        for name, progress in self._followers.items():
            if name in self._in_sync or progress.is_counted:
                yield progress.log_end_offset, progress.synced_end_offset

    def _commit(self) -> list[LeaderEffect]:
        if not self.can_commit:
            return []
        ends = list(self._counted())
        written = min(end for end, _ in ends)
        synced = min(min(end) for end in ends)
        committed = (synced if self.options.commits_wait_for_disk else written) - 1
        acked = synced if self.options.acks_wait_for_disk else written
        effects: list[LeaderEffect] = []
        if committed > self._high_watermark:
            self._high_watermark = committed
            effects.append(Commit(committed))
            effects += [Notify(name) for name, one in self._followers.items() if one.parked is not None]
        if acked > self._acked_end_offset:
            self._acked_end_offset = acked
            effects.append(Acknowledge(acked))
        return effects

    def _appended(self, event: Appended) -> list[LeaderEffect]:
        end_offset = self._log.log_end_offset
        if event.wants_all:
            self._all_wanted_to = end_offset
        for progress in self._followers.values():
            if progress.parked is not None and progress.parked.log_end_offset < end_offset:
                progress.last_caught_up_ns = event.now_ns  # until this moment it had everything
        effects = self._commit()
        for name in self._followers:
            effects += self._serve(name)
        return effects

    # ── followers that ask ───────────────────────────────────────────────────────────────────────

    def _refusal(self, replica: str, leader_epoch: int) -> Verdict | None:
        if leader_epoch != self.leader_epoch:
            return Verdict.OLD_EPOCH if leader_epoch < self.leader_epoch else Verdict.NEW_EPOCH
        return None if replica in self._followers else Verdict.NO_REPLICA

    def _fetched(self, replica: str, fetch: Fetch, now_ns: int) -> list[LeaderEffect]:
        refusal = self._refusal(replica, fetch.leader_epoch)
        if refusal is not None:
            return [SendAnswer(replica, self._empty(fetch.number, refusal))] if fetch.is_fetch else []
        progress = self._followers[replica]
        if not progress.takes(fetch):
            return []
        end_offset = self._log.log_end_offset
        if fetch.log_end_offset > end_offset:
            return self._overtaken(replica, fetch, end_offset)
        progress.take(fetch, now_ns)
        keeps_up = fetch.is_fetch and progress.note_fetch(end_offset, now_ns)
        effects = self._commit() + self._admit(replica, progress, keeps_up, now_ns)
        if fetch.is_fetch:
            progress.parked, progress.parked_ns = fetch, now_ns
            effects += self._serve(replica)
        return effects

    def _overtaken(self, replica: str, fetch: Fetch, end_offset: int) -> list[LeaderEffect]:
        """Its log was made to agree with ours when the epoch began, and has grown by what we sent since; or it is empty and begins
        behind our end, as after an unclean election."""
        effects: list[LeaderEffect] = []
        if replica in self._in_sync:
            reason = f"{replica} has offsets up to {fetch.log_end_offset - 1}, this log ends at {end_offset}"
            effects.append(StepDown(reason))
        if fetch.is_fetch:
            effects.append(SendAnswer(replica, self._empty(fetch.number, Verdict.BEYOND_END)))
        return effects

    def _serve(self, replica: str) -> list[LeaderEffect]:
        """Answer its fetch if there is anything to say."""
        progress = self._followers[replica]
        fetch = progress.parked
        if fetch is None:
            return []
        end_offset = self._log.log_end_offset
        wants_sync = self._wants_sync(replica)
        if fetch.log_end_offset < self._log.log_start_offset:
            return [self._answer_parked(replica, progress, Verdict.BELOW_START)]
        if fetch.log_end_offset < end_offset:
            progress.parked = None
            progress.sync_asked_to = end_offset if wants_sync else progress.sync_asked_to
            return [SendBatches(replica, fetch.number, fetch.log_end_offset, wants_sync)]
        if wants_sync and progress.synced_end_offset < end_offset and progress.sync_asked_to < end_offset:
            progress.sync_asked_to = end_offset
            return [self._answer_parked(replica, progress, Verdict.OK, wants_sync=True)]
        if fetch.is_urgent:
            return [self._answer_parked(replica, progress, Verdict.OK)]
        if progress.high_watermark < self._high_watermark:
            return [Notify(replica)]
        return []

    def _wants_sync(self, replica: str) -> bool:
        """Somebody waits for an ALL ack, or this follower has to be as safe as the others before it may join them."""
        if not self.options.acks_wait_for_disk:
            return False
        return (
            self._all_wanted_to > self._acked_end_offset
            or replica not in self._in_sync
            or self.options.commits_wait_for_disk
        )

    def _answer_parked(
        self, replica: str, progress: Progress, verdict: Verdict, *, wants_sync: bool = False
    ) -> SendAnswer:
        assert progress.parked is not None
        number, progress.parked = progress.parked.number, None
        progress.high_watermark = self._high_watermark
        return SendAnswer(replica, self._empty(number, verdict, wants_sync=wants_sync))

    def _empty(self, number: int, verdict: Verdict, *, wants_sync: bool = False) -> FetchAnswer:
        log = self._log
        return FetchAnswer(
            self.leader_epoch,
            number,
            verdict,
            self._high_watermark,
            log.log_start_offset,
            log.log_end_offset,
            wants_sync,
        )

    def answer(self, effect: SendBatches, data: bytes | memoryview | None) -> FetchAnswer:
        """The answer with what was read; None when it could not be."""
        progress = self._followers.get(effect.replica)
        if progress is not None:
            progress.high_watermark = self._high_watermark
        log = self._log
        return FetchAnswer(
            self.leader_epoch,
            effect.number,
            Verdict.UNREADABLE if data is None else Verdict.OK,
            self._high_watermark,
            log.log_start_offset,
            log.log_end_offset,
            effect.wants_sync,
            data or b"",
        )

    def notice(self, replica: str, *, is_beginning: bool = False) -> Notice | None:
        """What it should know and has not been told; None when it has."""
        progress = self._followers.get(replica)
        if progress is None or (not is_beginning and progress.high_watermark >= self._high_watermark):
            return None
        progress.high_watermark = self._high_watermark
        return Notice(self.leader_epoch, self._high_watermark, is_beginning)

    def _asked(self, replica: str, query: EpochQuery, now_ns: int) -> list[LeaderEffect]:
        refusal = self._refusal(replica, query.leader_epoch)
        if refusal is None:
            self._followers[replica].last_seen_ns = now_ns
        return [AnswerEpoch(replica, query)]

    def epoch_answer(self, effect: AnswerEpoch, epoch: int, end_offset: int) -> EpochAnswer:
        """`epoch` is the largest one of the log that is not above the asked one, 0 for none, and `end_offset` where it ends."""
        query = effect.query
        refusal = self._refusal(effect.replica, query.leader_epoch)
        return EpochAnswer(query.leader_epoch, query.number, refusal or Verdict.OK, epoch, end_offset)

    # ── who is in sync ───────────────────────────────────────────────────────────────────────────

    def _admit(self, replica: str, progress: Progress, keeps_up: bool, now_ns: int) -> list[LeaderEffect]:
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

    def _waits_to_join(self, replica: str, progress: Progress) -> bool:
        """It was refused, as one of two that wanted to join at once is, and has everything: until there is more for it, it will not ask
        again, and nobody else speaks for it."""
        fetch = progress.parked
        if fetch is None or not progress.is_refused or progress.is_counted or replica in self._outstanding:
            return False
        return fetch.log_end_offset >= self._log.log_end_offset and self._is_safe(progress)

    def _is_safe(self, progress: Progress) -> bool:
        """Whether nothing committed or acked would be lost if it were elected now."""
        committed = max(self._high_watermark + 1, self._epoch_start_offset)
        if progress.log_end_offset < committed:
            return False
        if not self.options.acks_wait_for_disk:
            return True
        return progress.synced_end_offset >= max(self._acked_end_offset, self._epoch_start_offset)

    def _set_changed(self, event: SetChanged) -> list[LeaderEffect]:
        before, self._in_sync = self._in_sync, frozenset(event.in_sync_replicas)
        for name in before | self._in_sync:
            if name in self._followers:
                self._followers[name].is_refused = False
        if event.partition_epoch > self._partition_epoch:
            self._partition_epoch = event.partition_epoch
            for progress in self._followers.values():
                # A proposal for an older state of the partition was done, and shows, or never will be.
                if progress.proposed_epoch < event.partition_epoch:
                    progress.proposed_epoch = -1
                    progress.is_in_doubt = False
        followers = [name for name in event.replicas if name != self.server_id]
        self._followers = {
            name: self._followers.get(name) or Progress(event.now_ns, event.now_ns) for name in followers
        }
        return self._commit()

    def _settled(self, event: ProposalSettled) -> list[LeaderEffect]:
        self._outstanding.discard(event.replica)
        progress = self._followers.get(event.replica)
        if progress is None:
            return []
        progress.retry_ns = event.now_ns + self.options.back_off_ns
        if progress.proposed_epoch >= 0 and event.outcome is Outcome.UNKNOWN:
            progress.is_in_doubt = True  # it counts as if it had been done, until it is known
            return []
        was_expansion = progress.proposed_replica_epoch >= 0
        progress.proposed_replica_epoch = -1
        if progress.proposed_epoch < 0:
            is_done = event.outcome is Outcome.DONE or event.replica in self._in_sync  # it may have left again since
            progress.is_refused = was_expansion and not is_done
            return []
        if event.outcome is Outcome.REFUSED:
            progress.proposed_epoch = -1
            progress.is_refused = was_expansion
        return self._commit()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def _ticked(self, now_ns: int) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for name, progress in self._followers.items():
            if progress.parked is not None and now_ns >= progress.parked_ns + self.options.hold_ns:
                effects.append(self._answer_parked(name, progress, Verdict.OK))
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

    def _drop_if_lagging(self, name: str, progress: Progress, now_ns: int) -> list[LeaderEffect]:
        if name not in self._in_sync or name in self._outstanding or now_ns < progress.retry_ns:
            return []
        if now_ns < self._lags_at(progress):
            return []
        self._outstanding.add(name)
        silent = now_ns - progress.last_seen_ns >= self.options.max_lag_ns
        behind = self._log.log_end_offset - progress.log_end_offset
        return [Shrink(name, "it is silent" if silent else f"it is {behind} messages behind and does not catch up")]
