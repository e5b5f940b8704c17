"""Laws of a partition's leader and follower, whatever they are told in whatever order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bascule.partition.core import follower_events as follow
from bascule.partition.core.leader_events import Acknowledge, Expand, LeaderEffect, ProposalOutcome, Shrink
from bascule.partition.core.messages import Verdict
from tests.unit.partition.replica_helpers import ACK, ALWAYS, INTERVAL, MS, FollowerAtWork, LeaderAtWork

SHORT: dict[str, Any] = {
    "max_lag_ns": 400 * MS,
    "leader_timeout_ns": 400 * MS,
    "idle_wait_ns": 200 * MS,
    "fetch_timeout_ns": 100 * MS,
}
POLICIES = st.sampled_from((INTERVAL, ACK, ALWAYS))
FOLLOWERS = st.sampled_from("bcd")
LEADER_EVENTS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5), st.booleans()),
    st.tuples(st.just("sync")),
    st.tuples(st.just("fetch"), FOLLOWERS, st.integers(0, 40), st.integers(0, 40), st.booleans()),
    st.tuples(st.just("anew"), FOLLOWERS),
    st.tuples(st.just("set"), st.sampled_from(("a", "ab", "abc", "abcd", "acd"))),
    st.tuples(st.just("settled"), FOLLOWERS, st.sampled_from(list(ProposalOutcome))),
    st.tuples(st.just("tick"), st.integers(0, 500)),
)


class LawfulLeader:
    """The leader, and what it was told, kept apart: who could be elected now, and what everybody has."""

    def __init__(self, policy: dict[str, Any], min_isr: int) -> None:
        self.leader = LeaderAtWork("abcd", "abc", min_insync_replicas=min_isr, **SHORT, **policy)
        self.min_isr = min_isr
        self.policy = policy
        self.in_sync = set("abc")
        self.proposed: dict[str, int] = {}
        self.asked: set[str] = set()
        self.ends = dict.fromkeys("bcd", (0, 0))
        self.replica_epochs = dict.fromkeys("bcd", 0)

    def do(self, kind: str, *arguments: Any) -> None:
        effects: list[LeaderEffect] = getattr(self, f"do_{kind}")(*arguments)
        for effect in effects:
            self.check(effect)

    def do_append(self, count: int, synced: bool) -> list[LeaderEffect]:
        return self.leader.append(count, synced=synced)

    def do_sync(self) -> list[LeaderEffect]:
        return self.leader.sync()

    def do_fetch(self, replica: str, end: int, synced: int, is_fetch: bool) -> list[LeaderEffect]:
        end = max(self.ends[replica][0], min(end, self.leader.log.log_end_offset))
        synced = max(self.ends[replica][1], min(synced, end))
        self.ends[replica] = (end, synced)
        return self.leader.fetch(
            replica, end, synced=synced, is_fetch=is_fetch, replica_epoch=self.replica_epochs[replica]
        )

    def do_anew(self, replica: str) -> list[LeaderEffect]:
        """It lost everything, left the set, and begins anew: the leader hears it from the replica first."""
        self.replica_epochs[replica] += 1
        self.ends[replica] = (0, 0)
        return self.leader.fetch(replica, 0, replica_epoch=self.replica_epochs[replica])

    def do_set(self, in_sync: str) -> list[LeaderEffect]:
        self.in_sync = set(in_sync)
        self.proposed.clear()
        return self.leader.set_changed(in_sync)

    def do_settled(self, replica: str, outcome: ProposalOutcome) -> list[LeaderEffect]:
        if replica not in self.asked:
            return []
        self.asked.discard(replica)
        if outcome is ProposalOutcome.REFUSED:
            self.proposed.pop(replica, None)
        return self.leader.settled(replica, outcome)

    def do_tick(self, after_ms: int) -> list[LeaderEffect]:
        effects = self.leader.tick(after_ms * MS)
        deadline_ns = self.leader.leader.deadline_ns
        assert deadline_ns is None or deadline_ns > self.leader.now_ns, "it would spin"
        return effects

    def check(self, effect: LeaderEffect) -> None:
        log = self.leader.log
        if isinstance(effect, follow.AdvanceHighWatermark | Acknowledge):
            assert len(self.in_sync) >= self.min_isr
            counted = [self.ends[name] for name in (self.in_sync - {"a"}) | set(self.proposed)]
            counted.append((log.log_end_offset, log.synced_end_offset))
            is_commit = isinstance(effect, follow.AdvanceHighWatermark)
            waits = self.policy.get("commits_wait_for_disk" if is_commit else "acks_wait_for_disk", False)
            least = min(synced if waits else end for end, synced in counted)
            assert (effect.end_offset if isinstance(effect, Acknowledge) else effect.high_watermark + 1) <= least
        elif isinstance(effect, Expand | Shrink):
            assert effect.replica not in self.asked, "one question at a time"
            self.asked.add(effect.replica)
        if isinstance(effect, Expand):
            if effect.replica not in self.proposed:
                end, synced = self.ends[effect.replica]
                assert end > self.leader.committed
                assert synced >= self.leader.acked or not self.policy["acks_wait_for_disk"]
                assert effect.replica_epoch == self.replica_epochs[effect.replica]
            assert self.proposed.setdefault(effect.replica, effect.replica_epoch) == effect.replica_epoch


@given(POLICIES, st.integers(1, 3), st.lists(LEADER_EVENTS, max_size=60))
def test_a_leader_commits_and_acks_only_what_everybody_has_who_could_be_elected(
    policy: dict[str, Any], min_isr: int, events: list[tuple[Any, ...]]
) -> None:
    leader = LawfulLeader(policy, min_isr)
    for kind, *arguments in events:
        leader.do(kind, *arguments)


FOLLOWER_EVENTS = st.one_of(
    st.tuples(st.just("answer"), st.integers(0, 4), st.integers(-1, 30), st.sampled_from(list(Verdict))),
    st.tuples(st.just("epoch"), st.integers(0, 5), st.integers(0, 30), st.sampled_from(list(Verdict))),
    st.tuples(st.just("notice"), st.integers(-1, 30), st.booleans()),
    st.tuples(st.just("write"), st.sampled_from(("done", "full", "damaged"))),
    st.tuples(st.just("synced")),
    st.tuples(st.just("reconnected")),
    st.tuples(st.just("tick"), st.integers(0, 500)),
)


class LawfulFollower:
    def __init__(self, end: int, committed: int, loss: int) -> None:
        epochs = [(2, 0), (4, end // 2)] if end > 1 else [(2, 0)] if end else []
        self.loss = loss
        self.follower = FollowerAtWork(
            end, committed=min(committed, end - 1), epochs=epochs, data_loss_epoch=loss, begins=False, **SHORT
        )
        self.writing: follow.Append | follow.Truncate | follow.Reset | None = None
        self.number = 0
        self.check(self.follower.step(follow.FollowingBegan(self.follower.log.ends, self.follower.now_ns)))

    def do(self, kind: str, *arguments: Any) -> None:
        self.check(getattr(self, f"do_{kind}")(*arguments))

    def do_answer(self, count: int, committed: int, verdict: Verdict) -> list[follow.FollowerEffect]:
        log = self.follower.log
        start = log.log_end_offset + 3 if verdict is Verdict.BELOW_START else log.log_start_offset
        return self.follower.answer(b"x" * count, committed=committed, verdict=verdict, start=start, end=40)

    def do_epoch(self, epoch: int, end: int, verdict: Verdict) -> list[follow.FollowerEffect]:
        return self.follower.answer_epoch(min(epoch, self.follower.log.latest_epoch), end, verdict)

    def do_notice(self, committed: int, is_beginning: bool) -> list[follow.FollowerEffect]:
        return self.follower.notice(committed, is_beginning=is_beginning)

    def do_write(self, how: str) -> list[follow.FollowerEffect]:
        """The disk is done with what it was asked for, if it was."""
        writing, self.writing = self.writing, None
        if writing is None:
            return []
        if how != "done":
            return self.follower.write_failed(how, is_damaged=how == "damaged")
        log = self.follower.log
        match writing:
            case follow.Append(data):
                log.epochs.assign(5, log.log_end_offset)
                log.log_end_offset += len(data)
            case follow.Truncate(offset):
                log.log_end_offset = min(log.log_end_offset, max(offset, log.log_start_offset))
                log.high_watermark = min(log.high_watermark, log.log_end_offset - 1)
                log.epochs.clear_latest(log.log_end_offset)
            case follow.Reset(offset):
                log.log_start_offset = log.log_end_offset = offset
                log.high_watermark = offset - 1
        log.synced_end_offset = min(log.synced_end_offset, log.log_end_offset)
        return self.follower.written()

    def do_synced(self) -> list[follow.FollowerEffect]:
        return self.follower.synced()

    def do_reconnected(self) -> list[follow.FollowerEffect]:
        return self.follower.step(follow.FollowerReconnected(self.follower.now_ns))

    def do_tick(self, after_ms: int) -> list[follow.FollowerEffect]:
        effects = self.follower.tick(after_ms * MS)
        deadline_ns = self.follower.follower.deadline_ns
        assert deadline_ns is None or deadline_ns > self.follower.now_ns, "it would spin"
        return effects

    def check(self, effects: list[follow.FollowerEffect]) -> None:
        log = self.follower.log
        for effect in effects:
            match effect:
                case follow.Append() | follow.Truncate() | follow.Reset():
                    assert self.writing is None, "one thing after the other"
                    self.writing = effect
                    if isinstance(effect, follow.Reset):
                        assert log.log_start_offset == log.log_end_offset <= effect.offset, "it deletes without leaving"
                case follow.Rebuild():
                    assert effects == [effect], "a log that cannot be used says nothing"
                case follow.Send(message):
                    assert message.number > self.number
                    self.number = message.number
            if isinstance(effect, follow.Truncate) and effect.offset <= log.high_watermark:
                assert effect.allow_committed and self.loss > log.latest_epoch
            if isinstance(effect, follow.AdvanceHighWatermark):
                assert effect.high_watermark < log.log_end_offset
                assert self.follower.follower.agrees
            if isinstance(effect, follow.Send | follow.Append) and not self.follower.follower.agrees:
                assert not hasattr(getattr(effect, "message", None), "log_end_offset"), "it says what it has too early"


@given(st.integers(0, 10), st.integers(-1, 9), st.integers(0, 5), st.lists(FOLLOWER_EVENTS, max_size=60))
def test_a_follower_cuts_nothing_committed_and_says_nothing_it_does_not_know(
    end: int, committed: int, loss: int, events: list[tuple[Any, ...]]
) -> None:
    follower = LawfulFollower(end, committed, loss)
    for kind, *arguments in events:
        follower.do(kind, *arguments)
