"""A follower of a partition in one leader epoch: make the log agree with the leader's, then copy what it appends.

    begin ──► ASKING ──epoch's end──► WRITING (truncate) ──► ASKING … ──► FETCHING ◄──────────┐
                │                                                           │ answer with data │
                └──no good answer──► WAITING ──back-off, or a notice──►     └──► WRITING ──────┘

Nothing is deleted before the leader has answered, and nothing that is known to be committed unless the metadata says that this epoch
began with a loss. The high watermark follows the leader's only once the logs agree, and never beyond the own end.
"""

from __future__ import annotations

from enum import Enum, auto

from bascule.partition.core.follower_events import (
    AdvanceHighWatermark,
    AnswerReceived,
    Append,
    Begin,
    DiskSynced,
    Diverged,
    EpochAnswerReceived,
    FollowerEffect,
    FollowerEvent,
    FollowerTick,
    NoticeReceived,
    Rebuild,
    Reconnected,
    ReportLeader,
    RequestSync,
    Reset,
    Send,
    Truncate,
    WriteFailed,
    Written,
)
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Notice, Verdict
from bascule.partition.core.options import ReplicaLog, ReplicaOptions


class FollowerState(Enum):
    IDLE = auto()
    """Not begun."""
    ASKING = auto()
    FETCHING = auto()
    WRITING = auto()
    WAITING = auto()
    STUCK = auto()
    """The log cannot be used: a new follower has to begin on a new one."""


class Follower:
    def __init__(
        self,
        leader: str,
        leader_epoch: int,
        log: ReplicaLog,
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
        self.state = FollowerState.IDLE
        self.leader_log_end_offset = -1
        """As last heard."""
        self._log = log
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
        """Once what is being written is written."""
        self._high_watermark = -1
        self._wants_sync = False
        self._synced_told = -1

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
        if self.state in (FollowerState.IDLE, FollowerState.STUCK, FollowerState.WRITING):
            return None
        return min(max(self._heard_ns + self.options.leader_timeout_ns, self._report_ns), self._ask_again_ns)

    @property
    def _ask_again_ns(self) -> int:
        if self.state is FollowerState.WAITING:
            return self._until_ns
        return self._asked_ns + self.options.answer_timeout_ns

    # ── the verb ─────────────────────────────────────────────────────────────────────────────────

    def step(self, event: FollowerEvent) -> list[FollowerEffect]:
        match event:
            case Begin(now_ns):
                self._heard_ns = now_ns
                return self._ask(now_ns)
            case AnswerReceived(answer, now_ns):
                return self._answered(answer, now_ns)
            case EpochAnswerReceived(answer, now_ns):
                return self._epoch_answered(answer, now_ns)
            case NoticeReceived(notice, now_ns):
                return self._noticed(notice, now_ns)
            case Written(now_ns):
                return self._written(now_ns)
            case WriteFailed():
                return self._write_failed(event)
            case DiskSynced():
                return self._synced()
            case Reconnected(now_ns):
                return self._reconnected(now_ns)
            case FollowerTick(now_ns):
                return self._ticked(now_ns)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    def _ask(self, now_ns: int, *, is_urgent: bool = False) -> list[FollowerEffect]:
        """The next thing there is to ask for."""
        log = self._log
        if not self._agrees and log.log_end_offset == log.log_start_offset:
            # An empty log, wherever it begins, has nothing that could differ; but it may know of epochs in which nothing was written.
            self._agrees = log.latest_epoch == 0
            if not self._agrees:
                self._will_agree = True
                self.state = FollowerState.WRITING
                return [Truncate(log.log_end_offset, False)]
        self._asked_ns = now_ns
        self._number += 1
        self._asked_number = self._number
        if not self._agrees:
            self.state = FollowerState.ASKING
            self._asked_epoch = log.latest_epoch
            return [Send(EpochQuery(self.leader_epoch, self._number, self._asked_epoch))]
        self.state = FollowerState.FETCHING
        return [Send(self._fetch(is_urgent=is_urgent))]

    def _fetch(self, *, is_fetch: bool = True, is_urgent: bool = False) -> Fetch:
        log = self._log
        # Before the end: what is synced is never more than what is told to be written.
        self._synced_told = log.synced_end_offset
        return Fetch(
            self.leader_epoch,
            self._number,
            log.log_end_offset,
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

    def _epoch_answered(self, answer: EpochAnswer, now_ns: int) -> list[FollowerEffect]:
        if self.state is not FollowerState.ASKING or not self._is_answer(answer):
            return []
        if answer.verdict is not Verdict.OK:
            return self._wait(now_ns)
        self._heard_ns = now_ns
        log = self._log
        may_lose = self._data_loss_epoch > log.latest_epoch
        keep = min(answer.end_offset, self._common_end_offset(answer.epoch, may_lose))
        if answer.epoch in (self._asked_epoch, 0) and keep >= log.log_end_offset:
            self._agrees = True
            return self._ask(now_ns)
        if keep <= log.high_watermark and not may_lose:
            reason = (
                f"{self.leader} keeps epoch {answer.epoch} below offset {keep} only, but everything up to "
                f"{log.high_watermark} is committed here"
            )
            return [Diverged(reason), *self._wait(now_ns)]
        # When both know the epoch, or only what is committed is kept, what is left after the cut is the leader's too. Not before it.
        self._will_agree = answer.epoch in (self._asked_epoch, 0)
        self.state = FollowerState.WRITING
        return [Truncate(keep, may_lose)]

    def _common_end_offset(self, epoch: int, may_lose: bool) -> int:
        """Up to where this log may be the leader's, whose largest epoch that is not above ours is this one."""
        log = self._log
        if epoch:
            return log.end_offset_of_epoch(epoch)
        # The leader's log begins behind all of our epochs. What it has deleted may have been of other leaders than what is here: only
        # what is committed is the same, and after a loss not even that.
        return log.log_start_offset if may_lose else max(log.high_watermark + 1, log.log_start_offset)

    def _is_answer(self, answer: EpochAnswer | FetchAnswer) -> bool:
        return answer.number == self._asked_number and answer.leader_epoch == self.leader_epoch

    # ── copying ──────────────────────────────────────────────────────────────────────────────────

    def _answered(self, answer: FetchAnswer, now_ns: int) -> list[FollowerEffect]:
        if answer.number != self._asked_number or self.state is not FollowerState.FETCHING:
            return []
        if answer.leader_epoch != self.leader_epoch:
            return self._wait(now_ns)  # this server, or the other one, will hear of the epoch
        self.leader_log_end_offset = answer.log_end_offset
        match answer.verdict:
            case Verdict.OK:
                return self._take(answer, now_ns)
            case Verdict.BELOW_START:
                self._heard_ns = now_ns
                self.state = FollowerState.WRITING
                return [Reset(answer.log_start_offset)]
            case Verdict.BEYOND_END:
                return self._beyond_end(answer, now_ns)
        return self._wait(now_ns)

    def _take(self, answer: FetchAnswer, now_ns: int) -> list[FollowerEffect]:
        self._heard_ns = now_ns
        self._high_watermark = max(self._high_watermark, answer.high_watermark)
        self._wants_sync = answer.wants_sync
        if len(answer.data):
            self.state = FollowerState.WRITING
            return [Append(answer.data)]
        return [*self._follow_watermark(), *self._sync_if_wanted(), *self._ask(now_ns)]

    def _beyond_end(self, answer: FetchAnswer, now_ns: int) -> list[FollowerEffect]:
        log = self._log
        self._agrees = False
        if log.log_end_offset == log.log_start_offset:
            self.state = FollowerState.WRITING  # there is nothing in it that could be lost
            return [Reset(answer.log_start_offset)]
        return self._wait(now_ns)

    def _follow_watermark(self) -> list[FollowerEffect]:
        high_watermark = min(self._high_watermark, self._log.log_end_offset - 1)
        if not self._agrees or high_watermark <= self._log.high_watermark:
            return []
        return [AdvanceHighWatermark(high_watermark)]

    def _noticed(self, notice: Notice, now_ns: int) -> list[FollowerEffect]:
        if notice.leader_epoch != self.leader_epoch or self.state is FollowerState.STUCK:
            return []
        self._heard_ns = now_ns
        self._high_watermark = max(self._high_watermark, notice.high_watermark)
        if self.state is FollowerState.WRITING:
            return []  # the watermark is followed when that is done
        effects = self._follow_watermark()
        if notice.is_beginning or self.state is FollowerState.WAITING:
            effects += self._ask(now_ns)
        return effects

    # ── what was written ─────────────────────────────────────────────────────────────────────────

    def _written(self, now_ns: int) -> list[FollowerEffect]:
        assert self.state is FollowerState.WRITING
        self._agrees, self._will_agree = self._agrees or self._will_agree, False
        self._heard_ns = now_ns  # nothing was asked meanwhile: a disk that is slow here is not the leader's silence
        return [*self._follow_watermark(), *self._sync_if_wanted(), *self._ask(now_ns)]

    def _sync_if_wanted(self) -> list[FollowerEffect]:
        wanted, self._wants_sync = self._wants_sync, False
        return [RequestSync()] if wanted and self._log.synced_end_offset < self._log.log_end_offset else []

    def _write_failed(self, event: WriteFailed) -> list[FollowerEffect]:
        if event.is_damaged:
            self.state = FollowerState.STUCK
            return [Rebuild(event.reason)]
        self._heard_ns = event.now_ns
        self._agrees = self._will_agree = False  # some of it may have been done: look again where the logs part
        return self._wait(event.now_ns)

    def _synced(self) -> list[FollowerEffect]:
        """Tell the leader what is on the disk, if it has not heard: somebody waits for it."""
        if not self._agrees or self.state is FollowerState.STUCK or self._log.synced_end_offset <= self._synced_told:
            return []
        self._number += 1
        return [Send(self._fetch(is_fetch=False))]

    def _reconnected(self, now_ns: int) -> list[FollowerEffect]:
        if self.state in (FollowerState.ASKING, FollowerState.FETCHING, FollowerState.WAITING):
            return self._ask(now_ns, is_urgent=True)
        return []

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def _ticked(self, now_ns: int) -> list[FollowerEffect]:
        effects: list[FollowerEffect] = []
        if self.state in (FollowerState.IDLE, FollowerState.STUCK, FollowerState.WRITING):
            return effects
        if now_ns >= self._ask_again_ns:
            effects += self._ask(now_ns, is_urgent=True)
        if now_ns >= max(self._heard_ns + self.options.leader_timeout_ns, self._report_ns):
            self._report_ns = now_ns + self.options.leader_timeout_ns // 4
            effects.append(ReportLeader())
        return effects
