"""What a leader says to those who ask: replication.md §5, and who is not listened to."""

from __future__ import annotations

from bascule.partition.core.leader_events import (
    EpochQueryReceived,
    LeaderEffect,
    LeaderReconnected,
    Notify,
    ReadBatches,
    SendTo,
    StepDown,
)
from bascule.partition.core.messages import EpochAnswer, EpochQuery, FetchAnswer, Notice, Verdict
from tests.unit.partition.replica_helpers import ACK, EPOCH, INTERVAL, MS, LeaderAtWork, of_kind, one


def answer_in(effects: list[LeaderEffect]) -> FetchAnswer:
    message = one(effects, SendTo).message
    assert isinstance(message, FetchAnswer)
    return message


# ── fences ───────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_of_another_epoch_is_refused_and_counts_for_nothing() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.append(10)
    assert answer_in(leader.fetch("b", 10, epoch=4)).verdict is Verdict.OLD_EPOCH
    assert answer_in(leader.fetch("b", 10, epoch=6)).verdict is Verdict.NEW_EPOCH
    assert leader.committed == -1


def test_a_server_without_a_replica_is_refused() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    assert answer_in(leader.fetch("x", 0)).verdict is Verdict.NO_REPLICA


def test_a_word_on_progress_is_never_answered() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    assert leader.fetch("b", 0, epoch=4, is_fetch=False) == []
    leader.append(5)
    assert not of_kind(leader.fetch("b", 1, is_fetch=False), ReadBatches)


def test_a_fetch_that_was_overtaken_is_ignored() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.append(10)
    leader.fetch("b", 2, number=7)
    assert leader.fetch("b", 10, number=6) == []
    assert leader.fetch("b", 10, number=7) == []
    assert leader.committed == 1


def test_what_a_replica_said_before_it_began_anew_is_ignored() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.append(10)
    leader.fetch("b", 2, number=1, replica_epoch=9)
    assert leader.fetch("b", 10, number=500, replica_epoch=8) == []
    assert leader.committed == 1


def test_a_replica_that_began_anew_is_heard_whatever_its_numbers() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.append(10)
    leader.fetch("b", 5, number=500)
    assert one(leader.fetch("b", 2, number=1, replica_epoch=9), ReadBatches).offset == 2
    assert leader.leader.followers["b"].log_end_offset == 2


# ── serving ──────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_that_is_behind_is_served_at_once() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.append(10)
    effects = leader.fetch("b", 4, number=3)
    assert one(effects, ReadBatches) == ReadBatches("b", 3, 4, 10, False)
    answer = leader.read(effects, b"batches")
    assert (answer.verdict, answer.number, bytes(answer.data)) == (Verdict.OK, 3, b"batches")
    assert (answer.high_watermark, answer.log_start_offset, answer.log_end_offset) == (3, 0, 10)


def test_a_fetch_at_the_end_waits_and_is_answered_by_the_next_append() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    assert not of_kind(leader.fetch("b", 0), SendTo | ReadBatches)  # type: ignore[arg-type]
    assert one(leader.append(3), ReadBatches).offset == 0
    assert not of_kind(leader.append(3), ReadBatches)  # it has not asked again


def test_a_follower_gets_nothing_that_the_leader_has_not_been_told_to_be_appended() -> None:
    """A thread may have appended more: with it the follower would be ahead of its leader."""
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.append(3)
    leader.log.log_end_offset = 9
    assert one(leader.fetch("b", 1), ReadBatches).end_offset == 3
    leader.read([ReadBatches("b", 1, 1, 3, False)], b"batches")
    leader.fetch("b", 3)
    assert (leader.committed, leader.acked) == (2, 3)


def test_a_fetch_that_waits_is_answered_before_either_side_would_doubt_the_other() -> None:
    leader = LeaderAtWork("ab", "ab", max_lag_ns=1000 * MS, leader_timeout_ns=800 * MS, **INTERVAL)
    leader.fetch("b", 0, number=4)
    assert leader.leader.deadline_ns == leader.now_ns + 400 * MS
    assert leader.tick(399 * MS) == []
    answer = answer_in(leader.tick(1 * MS))
    assert (answer.number, answer.verdict, len(answer.data)) == (4, Verdict.OK, 0)


def test_an_urgent_fetch_is_answered_at_once() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    assert answer_in(leader.fetch("b", 0, is_urgent=True)).verdict is Verdict.OK


def test_a_follower_behind_the_start_of_the_log_is_told_where_it_begins() -> None:
    leader = LeaderAtWork("ab", "a", end=50, **INTERVAL)
    leader.log.log_start_offset = 20
    answer = answer_in(leader.fetch("b", 10))
    assert (answer.verdict, answer.log_start_offset) == (Verdict.BELOW_START, 20)


def test_what_cannot_be_read_is_said_to_be_so() -> None:
    leader = LeaderAtWork("ab", "ab", end=10, **INTERVAL)
    assert leader.read(leader.fetch("b", 4), None).verdict is Verdict.UNREADABLE


def test_an_in_sync_follower_that_has_more_deposes_the_leader() -> None:
    leader = LeaderAtWork("ab", "ab", end=10, **INTERVAL)
    effects = leader.fetch("b", 11)
    assert answer_in(effects).verdict is Verdict.BEYOND_END
    assert of_kind(effects, StepDown)
    assert leader.leader.followers["b"].log_end_offset == 0


def test_a_follower_that_has_more_and_is_not_in_sync_deposes_nobody() -> None:
    leader = LeaderAtWork("ab", "a", end=10, **INTERVAL)
    effects = leader.fetch("b", 11)
    assert answer_in(effects).verdict is Verdict.BEYOND_END
    assert not of_kind(effects, StepDown)


def test_a_follower_is_asked_to_sync_when_somebody_waits_for_an_all_ack() -> None:
    leader = LeaderAtWork("ab", "ab", **ACK)
    leader.fetch("b", 0)
    assert one(leader.append(1, wants_all=True), ReadBatches).wants_sync
    leader.fetch("b", 1)
    assert not one(leader.append(1, wants_all=False), ReadBatches).wants_sync


def test_a_follower_that_has_it_written_is_asked_to_sync_it_once() -> None:
    leader = LeaderAtWork("ab", "ab", **ACK)
    leader.fetch("b", 0)
    leader.append(1, wants_all=False)
    leader.fetch("b", 1, synced=0)
    answer = answer_in(leader.append(0, wants_all=True))  # a duplicate whose publisher wants an ALL ack
    assert answer.wants_sync
    assert not of_kind(leader.fetch("b", 1, synced=0), SendTo)


def test_a_follower_whose_answer_may_be_lost_is_asked_to_sync_again() -> None:
    leader = LeaderAtWork("ab", "a", **ACK)
    leader.append(1)
    assert one(leader.fetch("b", 0), ReadBatches).wants_sync
    assert not of_kind(leader.fetch("b", 1, synced=0), SendTo)
    assert answer_in(leader.fetch("b", 1, synced=0, is_urgent=True)).wants_sync


def test_a_follower_that_has_not_synced_when_its_fetch_is_answered_for_time_is_asked_again() -> None:
    leader = LeaderAtWork("ab", "a", **ACK)
    leader.append(1)
    assert one(leader.fetch("b", 0), ReadBatches).wants_sync
    leader.fetch("b", 1, synced=0)
    assert answer_in(leader.tick(leader.leader.options.hold_ns)).wants_sync
    leader.fetch("b", 1, synced=1)
    assert not answer_in(leader.tick(leader.leader.options.hold_ns)).wants_sync


def test_sync_interval_nobody_is_asked_to_sync() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.fetch("b", 0)
    assert not one(leader.append(1, wants_all=True), ReadBatches).wants_sync


# ── notices and epochs ───────────────────────────────────────────────────────────────────────────


def test_a_leader_that_begins_tells_all_replicas() -> None:
    leader = LeaderAtWork(committed=3, end=4, **INTERVAL)
    assert leader.began == [Notify("b", True), Notify("c", True)]
    assert leader.notice("b", is_beginning=True) == Notice(EPOCH, 3, True)
    assert leader.notice("x", is_beginning=True) is None


def test_a_leader_whose_connection_is_back_tells_all_replicas_again() -> None:
    leader = LeaderAtWork(**INTERVAL)
    assert leader.step(LeaderReconnected()) == [Notify("b", True), Notify("c", True)]


def test_an_answer_makes_the_notice_needless() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.append(2)
    leader.fetch("b", 1)
    assert leader.notice("b") is not None
    leader.append(1)
    leader.read(leader.fetch("b", 2), b"batch")
    assert leader.notice("b") is None


def test_where_an_epoch_ends_is_told_to_replicas_of_this_epoch_only() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)

    def answer(replica: str, epoch: int) -> EpochAnswer:
        event = EpochQueryReceived(replica, EpochQuery(epoch, 1, 3), 2, 40, leader.now_ns)
        message = one(leader.step(event), SendTo).message
        assert isinstance(message, EpochAnswer)
        return message

    assert answer("b", EPOCH) == EpochAnswer(EPOCH, 1, Verdict.OK, 2, 40)
    assert answer("b", 4).verdict is Verdict.OLD_EPOCH
    assert answer("x", EPOCH).verdict is Verdict.NO_REPLICA


def test_a_successor_has_everything_only_when_it_is_in_sync_and_at_the_end() -> None:
    leader = LeaderAtWork(in_sync="ab", end=5, **INTERVAL)
    leader.fetch("b", 4)
    leader.fetch("c", 5)
    assert not leader.leader.has_everything("b")
    assert not leader.leader.has_everything("c")
    assert not leader.leader.has_everything("x")
    leader.fetch("b", 5)
    assert leader.leader.has_everything("b")
