"""A follower of a partition in one leader epoch makes its log agree with the leader's, then copies what the leader appends.

    began ──► ASKING ──epoch's end──► WRITING (truncate) ──► ASKING … ──► FETCHING ◄──────────┐
                │                                                           │ answer with data │
                └──no good answer──► WAITING ──back-off, or a notice──►     └──► WRITING ──────┘

The follower deletes nothing before the leader has answered, and nothing that it knows to be committed, unless the metadata says that
this epoch began with a loss. Its high watermark follows the leader's only while the logs agree, and never beyond its own log end.

If no truncation can make the log a part of the leader's, the follower asks for a Rebuild and is STUCK: the replica leaves the in-sync
set first, since an empty replica must not be elected, then copies the leader's log under a new replica epoch. Only an empty log is
moved forward without that: it has nothing to lose.

The follower holds no log: its events report where the log begins and ends.
"""

from __future__ import annotations

from enum import Enum, auto

from bascule.partition.core.follower_events import (
    AdvanceHighWatermark,
    AnswerReceived,
    Append,
    EpochAnswerReceived,
    Flaw,
    FollowerEffect,
    FollowerEvent,
    FollowerReconnected,
    FollowerSynced,
    FollowerTick,
    FollowerWriteFailed,
    FollowerWrote,
    FollowingBegan,
    NoticeReceived,
    Rebuild,
    ReportLeader,
    RequestSync,
    Reset,
    Send,
    Truncate,
)
from bascule.partition.core.log_ends import LogEnds
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Notice, Verdict
from bascule.partition.core.options import ReplicaOptions


class FollowerState(Enum):
    IDLE = auto()
    """Before FollowingBegan."""
    ASKING = auto()
    FETCHING = auto()
    WRITING = auto()
    WAITING = auto()
    STUCK = auto()
    """The log cannot be used: another follower has to begin with another log."""


_RESTING = frozenset((FollowerState.IDLE, FollowerState.STUCK, FollowerState.WRITING))
"""States without a deadline."""


class Follower:
    def __init__(
        self,
        leader: str,
        leader_epoch: int,
        options: ReplicaOptions,
        *,
        replica_epoch: int,
        data_loss_epoch: int = 0,
        first_number: int = 1,
    ) -> None:
        """`replica_epoch` is Metadata.replica_epoch of this replica: when that changes, another follower has to begin. `first_number`
        is above every number that this server has used for the partition in this replica epoch, by earlier processes too."""
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.options = options
        self._answer_timeout_ns = options.answer_timeout_ns
        self.state = FollowerState.IDLE
        self.leader_log_end_offset = -1
        """The leader's log end in its last answer."""
        self._log_start_offset = 0
        self._log_end_offset = 0
        self._synced_end_offset = 0
        self._high_watermark = -1
        self._latest_epoch = 0
        self._replica_epoch = replica_epoch
        self._data_loss_epoch = data_loss_epoch
        self._number = first_number - 1
        self._asked_number = -1
        self._asked_epoch = 0
        self._asked_ns = 0
        self._until_ns = 0
        self._heard_ns = 0
        self._report_ns = 0
        self._agrees = False
        self._will_agree = False
        """Whether the logs agree once the present write is done."""
        self._leader_high_watermark = -1
        self._wants_sync = False
        self._synced_told = -1
        """The synced end offset in the last message to the leader."""

    @property
    def next_number(self) -> int:
        return self._number + 1

    @property
    def replica_epoch(self) -> int:
        return self._replica_epoch

    @property
    def agrees(self) -> bool:
        """Whether the log is known to be a part of the leader's."""
        return self._agrees

    @property
    def heard_ns(self) -> int:
        """When the leader last gave a good answer."""
        return self._heard_ns

    @property
    def deadline_ns(self) -> int | None:
        if self.state in _RESTING:
            return None
        return min(max(self._heard_ns + self.options.leader_timeout_ns, self._report_ns), self._ask_again_ns)

    @property
    def _ask_again_ns(self) -> int:
        if self.state is FollowerState.WAITING:
            return self._until_ns
        return self._asked_ns + self._answer_timeout_ns

    # ── step ─────────────────────────────────────────────────────────────────────────────────────

    def step(self, event: FollowerEvent) -> list[FollowerEffect]:
        match event:
            case AnswerReceived(answer, now_ns):
                return self._answered(answer, now_ns)
            case FollowerWrote(ends, now_ns):
                return self._wrote(ends, now_ns)
            case NoticeReceived(notice, now_ns):
                return self._noticed(notice, now_ns)
            case FollowerSynced(synced_end_offset):
                return self._synced(synced_end_offset)
            case EpochAnswerReceived():
                return self._epoch_answered(event)
            case FollowerWriteFailed():
                return self._write_failed(event)
            case FollowerReconnected(now_ns):
                return self._reconnected(now_ns)
            case FollowerTick(now_ns):
                return self._ticked(now_ns)
            case FollowingBegan(ends, now_ns):
                self._update(ends)
                self._heard_ns = now_ns
                return self._ask(now_ns)

    def _update(self, ends: LogEnds) -> None:
        self._log_start_offset = ends.log_start_offset
        self._log_end_offset = ends.log_end_offset
        self._synced_end_offset = ends.synced_end_offset
        self._high_watermark = ends.high_watermark
        self._latest_epoch = ends.latest_epoch

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    def _ask(self, now_ns: int, *, is_urgent: bool = False) -> list[FollowerEffect]:
        """The next request: where an epoch ends as long as the logs may differ, then fetches."""
        if not self._agrees and self._is_empty:
            if self._may_lose and self._log_start_offset > 0:
                # The offsets before it were committed, and after the loss they may not be.
                return self._rebuild(
                    f"it begins at offset {self._log_start_offset} and was made before a loss", Flaw.OUTDATED
                )
            # Otherwise an empty log has no record that could differ; but it may know of epochs without records.
            self._agrees = self._latest_epoch == 0
            if not self._agrees:
                self._will_agree = True
                self.state = FollowerState.WRITING
                return [Truncate(self._log_end_offset, False)]
        self._asked_ns = now_ns
        self._number += 1
        self._asked_number = self._number
        if not self._agrees:
            self.state = FollowerState.ASKING
            self._asked_epoch = self._latest_epoch
            return [Send(EpochQuery(self.leader_epoch, self._number, self._asked_epoch))]
        self.state = FollowerState.FETCHING
        return [Send(self._fetch(is_urgent=is_urgent))]

    @property
    def _is_empty(self) -> bool:
        return self._log_end_offset == self._log_start_offset

    @property
    def _may_lose(self) -> bool:
        """Whether committed records of this log may be lost: the metadata has declared a loss since the log's latest epoch."""
        return self._data_loss_epoch > self._latest_epoch

    def _fetch(self, *, is_fetch: bool = True, is_urgent: bool = False) -> Fetch:
        self._synced_told = self._synced_end_offset
        return Fetch(
            self.leader_epoch,
            self._number,
            self._log_end_offset,
            self._synced_told,
            self._replica_epoch,
            is_fetch,
            is_urgent,
        )

    def _wait(self, now_ns: int) -> list[FollowerEffect]:
        self.state = FollowerState.WAITING
        self._until_ns = now_ns + self.options.back_off_ns
        return []

    # ── making the logs agree ────────────────────────────────────────────────────────────────────

    def _epoch_answered(self, event: EpochAnswerReceived) -> list[FollowerEffect]:
        answer, now_ns = event.answer, event.now_ns
        if self.state is not FollowerState.ASKING or not self._is_answer(answer):
            return []
        if answer.verdict is not Verdict.OK:
            return self._wait(now_ns)
        self._heard_ns = now_ns
        may_lose = self._may_lose
        keep = min(answer.end_offset, self._common_end_offset(event, may_lose))
        if answer.epoch in (self._asked_epoch, 0) and keep >= self._log_end_offset:
            self._agrees = True
            return self._ask(now_ns)
        if keep <= self._high_watermark and not may_lose:
            reason = (
                f"{self.leader} keeps epoch {answer.epoch} below offset {keep} only, but everything up to "
                f"{self._high_watermark} is committed here"
            )
            return self._rebuild(reason, Flaw.DIVERGED)
        if keep < self._log_start_offset or (may_lose and keep == self._log_start_offset > 0):
            return self._rebuild(f"no record of it is in the log of its leader {self.leader}", Flaw.OUTDATED)
        # If both logs know the epoch, or only committed records are kept, the rest is the leader's too once the log is truncated.
        self._will_agree = answer.epoch in (self._asked_epoch, 0)
        self.state = FollowerState.WRITING
        return [Truncate(keep, may_lose)]

    def _common_end_offset(self, event: EpochAnswerReceived, may_lose: bool) -> int:
        """Up to where this log may be a part of the leader's, whose largest epoch not above the asked one is that of the answer."""
        if event.answer.epoch:
            return event.own_end_offset
        # The leader's log begins after all epochs of this one. The records that it has deleted may have been of other leaders than
        # those here: only committed records are the same, and after a loss not even those.
        return self._log_start_offset if may_lose else max(self._high_watermark + 1, self._log_start_offset)

    def _is_answer(self, answer: EpochAnswer) -> bool:
        return answer.number == self._asked_number and answer.leader_epoch == self.leader_epoch

    # ── copying ──────────────────────────────────────────────────────────────────────────────────

    def _answered(self, answer: FetchAnswer, now_ns: int) -> list[FollowerEffect]:
        if answer.number != self._asked_number or self.state is not FollowerState.FETCHING:
            return []
        if answer.leader_epoch != self.leader_epoch:
            return self._wait(now_ns)  # the metadata will bring the newer epoch to this server, or to the other
        self.leader_log_end_offset = answer.log_end_offset
        match answer.verdict:
            case Verdict.OK:
                return self._copy(answer, now_ns)
            case Verdict.BELOW_START:
                self._heard_ns = now_ns
                return self._below_start(answer)
            case Verdict.BEYOND_END:
                return self._beyond_end(answer, now_ns)
        return self._wait(now_ns)

    def _below_start(self, answer: FetchAnswer) -> list[FollowerEffect]:
        """Retention has deleted the next offset on the leader, and with it everything before."""
        self._agrees = False
        if not self._is_empty or answer.log_start_offset < self._log_end_offset:
            reason = f"it ends at offset {self._log_end_offset}, and its leader {self.leader} begins at {answer.log_start_offset}"
            return self._rebuild(reason, Flaw.OUTDATED)
        self._will_agree = True
        self.state = FollowerState.WRITING
        return [Reset(answer.log_start_offset)]

    def _rebuild(self, reason: str, flaw: Flaw) -> list[FollowerEffect]:
        self.state = FollowerState.STUCK
        return [Rebuild(reason, flaw)]

    def _copy(self, answer: FetchAnswer, now_ns: int) -> list[FollowerEffect]:
        self._heard_ns = now_ns
        self._leader_high_watermark = max(self._leader_high_watermark, answer.high_watermark)
        self._wants_sync = answer.wants_sync
        if len(answer.data):
            self.state = FollowerState.WRITING
            return [Append(answer.data)]
        return [*self._follow_watermark(), *self._sync_if_wanted(), *self._ask(now_ns)]

    def _beyond_end(self, answer: FetchAnswer, now_ns: int) -> list[FollowerEffect]:
        self._agrees = False
        if self._is_empty:
            reason = f"it begins at offset {self._log_start_offset}, and its leader {self.leader} ends at {answer.log_end_offset}"
            return self._rebuild(reason, Flaw.OUTDATED)
        return self._wait(now_ns)

    def _follow_watermark(self) -> list[FollowerEffect]:
        high_watermark = min(self._leader_high_watermark, self._log_end_offset - 1)
        if not self._agrees or high_watermark <= self._high_watermark:
            return []
        self._high_watermark = high_watermark
        return [AdvanceHighWatermark(high_watermark)]

    def _noticed(self, notice: Notice, now_ns: int) -> list[FollowerEffect]:
        if notice.leader_epoch != self.leader_epoch or self.state is FollowerState.STUCK:
            return []
        self._heard_ns = now_ns
        self._leader_high_watermark = max(self._leader_high_watermark, notice.high_watermark)
        if self.state is FollowerState.WRITING:
            return []  # the high watermark advances when the write is done
        effects = self._follow_watermark()
        if notice.is_beginning or self.state is FollowerState.WAITING:
            effects += self._ask(now_ns)
        return effects

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def _wrote(self, ends: LogEnds, now_ns: int) -> list[FollowerEffect]:
        assert self.state is FollowerState.WRITING
        self._update(ends)
        self._agrees, self._will_agree = self._agrees or self._will_agree, False
        self._heard_ns = now_ns  # nothing was asked meanwhile: this server's slow disk is not the leader's silence
        return [*self._follow_watermark(), *self._sync_if_wanted(), *self._ask(now_ns)]

    def _sync_if_wanted(self) -> list[FollowerEffect]:
        wanted, self._wants_sync = self._wants_sync, False
        return [RequestSync()] if wanted and self._synced_end_offset < self._log_end_offset else []

    def _write_failed(self, event: FollowerWriteFailed) -> list[FollowerEffect]:
        if event.is_damaged:
            return self._rebuild(event.reason, Flaw.DAMAGED)
        self._update(event.ends)
        self._heard_ns = event.now_ns
        self._agrees = self._will_agree = False  # a part may have been written: find again where the logs differ
        return self._wait(event.now_ns)

    def _synced(self, synced_end_offset: int) -> list[FollowerEffect]:
        """Tell the leader what is on disk, if it does not know: a publisher may wait for it."""
        self._synced_end_offset = min(synced_end_offset, self._log_end_offset)
        if not self._agrees or self.state is FollowerState.STUCK or self._synced_end_offset <= self._synced_told:
            return []
        self._number += 1
        return [Send(self._fetch(is_fetch=False))]

    def _reconnected(self, now_ns: int) -> list[FollowerEffect]:
        return [] if self.state in _RESTING else self._ask(now_ns, is_urgent=True)

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def _ticked(self, now_ns: int) -> list[FollowerEffect]:
        effects: list[FollowerEffect] = []
        if self.state in _RESTING:
            return effects
        if now_ns >= self._ask_again_ns:
            effects += self._ask(now_ns, is_urgent=True)
        if now_ns >= max(self._heard_ns + self.options.leader_timeout_ns, self._report_ns):
            self._report_ns = now_ns + self.options.leader_timeout_ns // 4
            effects.append(ReportLeader())
        return effects
