"""A leader and a follower with a log of numbers only, and short words for what happens to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bascule.log.core.epochs import EpochCache, EpochEntry
from bascule.partition.core import follower_events as follow
from bascule.partition.core.follower import Follower
from bascule.partition.core.leader import Leader
from bascule.partition.core.leader_events import (
    Acknowledge,
    BatchesRead,
    FetchReceived,
    LeaderAppended,
    LeaderEffect,
    LeaderEvent,
    LeadershipBegan,
    LeaderSynced,
    LeaderTick,
    NoticeDue,
    ProposalOutcome,
    ProposalSettled,
    ReadBatches,
    SendTo,
    SetChanged,
)
from bascule.partition.core.log_ends import LogEnds
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Notice, Verdict
from bascule.partition.core.options import ReplicaOptions

MS = 1_000_000
SECOND = 1_000_000_000
EPOCH = 5
"""The leader epoch of the leaders and followers here."""

INTERVAL: dict[str, Any] = {"acks_wait_for_disk": False}
ACK: dict[str, Any] = {"acks_wait_for_disk": True}
ALWAYS: dict[str, Any] = {"acks_wait_for_disk": True, "commits_wait_for_disk": True}

E = TypeVar("E")


@dataclass
class NumberLog:
    log_end_offset: int = 0
    log_start_offset: int = 0
    synced_end_offset: int = 0
    high_watermark: int = -1
    epochs: EpochCache = field(default_factory=EpochCache)

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest_epoch

    def end_offset_of_epoch(self, epoch: int) -> int:
        return self.epochs.end_offset(epoch, self.log_end_offset)

    @property
    def ends(self) -> LogEnds:
        return LogEnds(
            self.log_start_offset,
            self.log_end_offset,
            self.synced_end_offset,
            self.high_watermark,
            self.latest_epoch,
        )


def of_kind(effects: Iterable[object], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def one(effects: Iterable[object], kind: type[E]) -> E:
    found = of_kind(effects, kind)
    assert len(found) == 1, effects
    return found[0]


class LeaderAtWork:
    """Leads in epoch 5, at time 1 s, with partition epoch 5. What it commits is in `committed`, what it acks in `acked`."""

    def __init__(
        self,
        replicas: str = "abc",
        in_sync: str = "abc",
        *,
        end: int = 0,
        synced: int | None = None,
        committed: int = -1,
        **options: Any,
    ) -> None:
        self.log = NumberLog(end, 0, end if synced is None else synced, committed)
        self.now_ns = SECOND
        self.committed = committed
        self.acked = 0
        self.partition_epoch = EPOCH
        self.replicas = replicas
        self.numbers: dict[str, int] = {}
        self.leader = Leader(
            "a",
            EPOCH,
            self.log.ends,
            ReplicaOptions(**options),
            replicas=replicas,
            in_sync_replicas=in_sync,
            partition_epoch=EPOCH,
            now_ns=self.now_ns,
        )
        self.began = self.step(LeadershipBegan())

    def note(self, effects: list[LeaderEffect]) -> list[LeaderEffect]:
        for effect in effects:
            if isinstance(effect, follow.AdvanceHighWatermark):
                assert effect.high_watermark > self.committed
                self.committed = self.log.high_watermark = effect.high_watermark
            elif isinstance(effect, Acknowledge):
                assert effect.end_offset > self.acked
                self.acked = effect.end_offset
        return effects

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        return self.note(self.leader.step(event))

    def append(self, count: int = 1, *, wants_all: bool = True, synced: bool = True) -> list[LeaderEffect]:
        self.log.log_end_offset += count
        if synced:
            self.log.synced_end_offset = self.log.log_end_offset
        return self.step(LeaderAppended(self.log.log_end_offset, self.log.synced_end_offset, wants_all, self.now_ns))

    def sync(self) -> list[LeaderEffect]:
        self.log.synced_end_offset = self.log.log_end_offset
        return self.step(LeaderSynced(self.log.synced_end_offset))

    def fetch(
        self,
        replica: str,
        end: int,
        *,
        synced: int | None = None,
        number: int | None = None,
        epoch: int = EPOCH,
        replica_epoch: int = 0,
        is_fetch: bool = True,
        is_urgent: bool = False,
    ) -> list[LeaderEffect]:
        """A fetch of `replica` that has everything below `end`, all of it synced unless told otherwise."""
        number = self.numbers.get(replica, 0) + 1 if number is None else number
        self.numbers[replica] = max(number, self.numbers.get(replica, 0))
        synced = end if synced is None else synced
        fetch = Fetch(epoch, number, end, synced, replica_epoch, is_fetch, is_urgent)
        return self.step(FetchReceived(replica, fetch, self.log.log_start_offset, self.now_ns))

    def read(self, effects: list[LeaderEffect], data: bytes | None) -> FetchAnswer:
        """The answer to the fetch, with what was read for it."""
        message = one(self.step(BatchesRead(one(effects, ReadBatches), data)), SendTo).message
        assert isinstance(message, FetchAnswer)
        return message

    def notice(self, replica: str, *, is_beginning: bool = False) -> Notice | None:
        effects = self.step(NoticeDue(replica, is_beginning))
        message = one(effects, SendTo).message if effects else None
        assert message is None or isinstance(message, Notice)
        return message

    def set_changed(self, in_sync: str, replicas: str | None = None) -> list[LeaderEffect]:
        """The metadata has another in-sync set: a later partition epoch."""
        self.partition_epoch += 1
        self.replicas = replicas or self.replicas
        return self.step(SetChanged(tuple(self.replicas), tuple(in_sync), self.partition_epoch, self.now_ns))

    def settled(self, replica: str, outcome: ProposalOutcome) -> list[LeaderEffect]:
        return self.step(ProposalSettled(replica, outcome, self.now_ns))

    def tick(self, after_ns: int) -> list[LeaderEffect]:
        self.now_ns += after_ns
        return self.step(LeaderTick(self.now_ns))


class FollowerAtWork:
    """Follows `a` in epoch 5. Writes are done when the test says so."""

    def __init__(
        self,
        end: int = 0,
        *,
        start: int = 0,
        committed: int = -1,
        synced: int | None = None,
        epochs: Iterable[tuple[int, int]] = (),
        data_loss_epoch: int = 0,
        first_number: int = 1,
        begins: bool = True,
        **options: Any,
    ) -> None:
        cache = EpochCache([EpochEntry(epoch, at) for epoch, at in epochs])
        self.log = NumberLog(end, start, end if synced is None else synced, committed, cache)
        self.now_ns = SECOND
        self.follower = Follower(
            "a",
            EPOCH,
            ReplicaOptions(**options),
            replica_epoch=3,
            data_loss_epoch=data_loss_epoch,
            first_number=first_number,
        )
        self.effects = self.step(follow.FollowingBegan(self.log.ends, self.now_ns)) if begins else []

    def step(self, event: follow.FollowerEvent) -> list[follow.FollowerEffect]:
        self.effects = self.follower.step(event)
        for effect in self.effects:
            if isinstance(effect, follow.AdvanceHighWatermark):
                self.log.high_watermark = effect.high_watermark
        return self.effects

    @property
    def sent(self) -> Fetch | EpochQuery:
        """What it asked for in its last step."""
        return one(self.effects, follow.Send).message

    def answer_epoch(self, epoch: int, end: int, verdict: Verdict = Verdict.OK) -> list[follow.FollowerEffect]:
        answer = EpochAnswer(EPOCH, self.follower.next_number - 1, verdict, epoch, end)
        return self.step(follow.EpochAnswerReceived(answer, self.log.end_offset_of_epoch(epoch), self.now_ns))

    def answer(
        self,
        data: bytes = b"",
        *,
        committed: int = -1,
        verdict: Verdict = Verdict.OK,
        start: int = 0,
        end: int = 0,
        wants_sync: bool = False,
        epoch: int = EPOCH,
        number: int | None = None,
    ) -> list[follow.FollowerEffect]:
        number = self.follower.next_number - 1 if number is None else number
        answer = FetchAnswer(epoch, number, verdict, committed, start, end, wants_sync, data)
        return self.step(follow.AnswerReceived(answer, self.now_ns))

    def notice(self, committed: int, *, epoch: int = EPOCH, is_beginning: bool = False) -> list[follow.FollowerEffect]:
        return self.step(follow.NoticeReceived(Notice(epoch, committed, is_beginning), self.now_ns))

    def written(self, end: int | None = None) -> list[follow.FollowerEffect]:
        """What it asked for is done; the log ends at `end` now."""
        if end is not None:
            self.log.log_end_offset = end
            self.log.epochs.clear_latest(end)
        return self.step(follow.FollowerWrote(self.log.ends, self.now_ns))

    def write_failed(self, reason: str, *, is_damaged: bool) -> list[follow.FollowerEffect]:
        return self.step(follow.FollowerWriteFailed(reason, is_damaged, self.log.ends, self.now_ns))

    def synced(self, end: int | None = None) -> list[follow.FollowerEffect]:
        """What is written is synced, up to `end` if that is given."""
        self.log.synced_end_offset = self.log.log_end_offset if end is None else end
        return self.step(follow.FollowerSynced(self.log.synced_end_offset))

    def copy(self, count: int, *, committed: int = -1, wants_sync: bool = False) -> list[follow.FollowerEffect]:
        """An answer with so many records, and their append."""
        one(self.answer(b"data", committed=committed, wants_sync=wants_sync), follow.Append)
        return self.written(self.log.log_end_offset + count)

    def tick(self, after_ns: int) -> list[follow.FollowerEffect]:
        self.now_ns += after_ns
        return self.step(follow.FollowerTick(self.now_ns))
