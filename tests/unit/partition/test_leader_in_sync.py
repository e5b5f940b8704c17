"""Who is in sync: replication.md §6. Who may join, who has to leave, and what is asked of the controller when."""

from __future__ import annotations

from typing import Any

import pytest

from bascule.partition.core.leader import ADMISSION_NS
from bascule.partition.core.leader_events import Expand, ProposalOutcome, Shrink
from tests.unit.partition.replica_helpers import ACK, EPOCH, INTERVAL, MS, SECOND, LeaderAtWork, of_kind, one

LAG: dict[str, Any] = {"max_lag_ns": 1000 * MS, "leader_timeout_ns": 1000 * MS}

# ── joining ──────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_that_has_what_is_committed_is_proposed_as_what_it_is() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.append(10)
    leader.fetch("b", 10)
    assert one(leader.fetch("c", 10, replica_epoch=3), Expand) == Expand("c", 3, EPOCH)


def test_a_follower_is_not_proposed_before_it_has_what_is_committed() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.append(10)
    leader.fetch("b", 10)
    assert not of_kind(leader.fetch("c", 9), Expand)
    assert of_kind(leader.fetch("c", 10), Expand)


def test_a_follower_is_not_proposed_before_it_has_what_the_epoch_began_with() -> None:
    """The leader does not know yet how much of it was committed before."""
    leader = LeaderAtWork(in_sync="ab", end=10, committed=3, **INTERVAL)
    assert not of_kind(leader.fetch("c", 9), Expand)
    assert of_kind(leader.fetch("c", 10), Expand)


def test_a_follower_is_not_proposed_before_its_disk_has_what_the_epoch_began_with() -> None:
    """All of it may have been acked by the leaders before."""
    leader = LeaderAtWork(in_sync="ab", end=10, committed=3, **ACK)
    assert not of_kind(leader.fetch("c", 10, synced=9), Expand)
    assert of_kind(leader.fetch("c", 10, synced=10), Expand)


def test_a_follower_is_not_proposed_before_its_disk_has_what_was_acked() -> None:
    leader = LeaderAtWork(in_sync="ab", **ACK)
    leader.append(10)
    leader.fetch("b", 10)
    assert leader.acked == 10
    assert not of_kind(leader.fetch("c", 10, synced=9), Expand)
    assert of_kind(leader.fetch("c", 10, synced=10, is_fetch=False), Expand)


def test_under_load_a_follower_that_keeps_up_is_counted_and_then_proposed() -> None:
    """Nobody ever has what the leader has now: what it had at the last fetch is enough to be waited for."""
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.append(10)
    leader.fetch("b", 10)
    leader.fetch("c", 4)
    leader.append(10)
    leader.fetch("b", 20)
    assert leader.committed == 19
    assert not of_kind(leader.fetch("c", 10), Expand)  # it has what there was when it last asked
    leader.append(10)
    leader.fetch("b", 30)
    assert leader.committed == 19  # commits wait for it
    assert of_kind(leader.fetch("c", 20), Expand)


def test_commits_wait_only_a_moment_for_a_follower_that_is_about_to_join() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.append(10)
    leader.fetch("c", 4)
    leader.append(10)
    leader.fetch("b", 20)
    assert not of_kind(leader.fetch("c", 10), Expand)
    leader.append(10)
    leader.fetch("b", 30)
    assert leader.committed == 19
    assert leader.leader.deadline_ns == leader.now_ns + ADMISSION_NS
    leader.tick(ADMISSION_NS)
    assert leader.committed == 29


def test_what_is_not_known_is_asked_again_and_as_it_was() -> None:
    leader = LeaderAtWork(in_sync="ab", leader_timeout_ns=800 * MS, **INTERVAL)
    assert one(leader.fetch("c", 0, replica_epoch=3), Expand) == Expand("c", 3, EPOCH)
    assert not of_kind(leader.settled("c", ProposalOutcome.UNKNOWN), Expand)
    assert not of_kind(leader.tick(99 * MS), Expand)
    # Its server was started anew meanwhile and has lost what it had: the old question is about the old replica.
    leader.append(10)
    leader.fetch("c", 0, replica_epoch=9)
    assert one(leader.tick(1 * MS), Expand) == Expand("c", 3, EPOCH)


def test_a_replica_that_began_anew_while_it_was_proposed_has_to_catch_up_first() -> None:
    leader = LeaderAtWork(in_sync="ab", leader_timeout_ns=800 * MS, **INTERVAL)
    leader.append(10)
    leader.fetch("b", 10)
    leader.fetch("c", 10, replica_epoch=3)
    leader.fetch("c", 0, replica_epoch=9)
    leader.settled("c", ProposalOutcome.REFUSED)
    leader.tick(200 * MS)
    assert not of_kind(leader.fetch("c", 5, replica_epoch=9), Expand)
    assert one(leader.fetch("c", 10, replica_epoch=9), Expand) == Expand("c", 9, EPOCH)


def test_after_a_refusal_it_is_not_asked_again_at_once() -> None:
    leader = LeaderAtWork(in_sync="ab", leader_timeout_ns=800 * MS, **INTERVAL)
    leader.fetch("c", 0)
    leader.settled("c", ProposalOutcome.REFUSED)
    assert not of_kind(leader.fetch("c", 0), Expand)
    assert leader.leader.deadline_ns == leader.now_ns + 100 * MS
    assert not of_kind(leader.tick(99 * MS), Expand)
    assert of_kind(leader.tick(1 * MS), Expand)


def test_of_two_that_join_at_once_the_second_is_proposed_again_although_it_asks_for_nothing() -> None:
    """The first has changed the partition. Both have everything, and would not be heard of for a long time."""
    leader = LeaderAtWork(in_sync="a", leader_timeout_ns=800 * MS, **INTERVAL)
    leader.append(10)
    assert one(leader.fetch("b", 10), Expand) == Expand("b", 0, EPOCH)
    assert one(leader.fetch("c", 10), Expand) == Expand("c", 0, EPOCH)
    leader.set_changed("ab")
    leader.settled("b", ProposalOutcome.DONE)
    leader.settled("c", ProposalOutcome.REFUSED)
    assert one(leader.tick(100 * MS), Expand) == Expand("c", 0, EPOCH + 1)
    leader.set_changed("abc")
    leader.settled("c", ProposalOutcome.DONE)
    assert not of_kind(leader.tick(100 * MS), Expand)


def test_who_was_refused_and_lacks_something_by_now_has_to_fetch_it_first() -> None:
    leader = LeaderAtWork(in_sync="ab", leader_timeout_ns=800 * MS, **INTERVAL)
    leader.fetch("c", 0)
    leader.settled("c", ProposalOutcome.REFUSED)
    leader.append(10)
    assert not of_kind(leader.tick(100 * MS), Expand)
    assert of_kind(leader.fetch("c", 10), Expand)


def test_who_has_left_is_not_proposed_before_it_asks_again() -> None:
    """A server that stops has asked for the last time, and is taken out: nobody may wait for it again."""
    leader = LeaderAtWork(in_sync="abc", leader_timeout_ns=800 * MS, **INTERVAL)
    leader.append(10)
    for replica in "bc":
        leader.fetch(replica, 10)
    leader.set_changed("ab")
    assert not of_kind(leader.tick(100 * MS), Expand)
    assert of_kind(leader.fetch("c", 10), Expand)
    leader.set_changed("abc")
    leader.settled("c", ProposalOutcome.DONE)
    leader.set_changed("ab")
    assert not of_kind(leader.tick(SECOND // 4), Expand)


def test_an_answer_to_an_earlier_question_does_not_settle_a_later_one() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.fetch("c", 0)
    leader.set_changed("ab")  # the proposal came too late: the partition has changed
    assert not of_kind(leader.fetch("c", 0), Expand)  # but its answer is still to come
    leader.settled("c", ProposalOutcome.REFUSED)
    assert one(leader.tick(SECOND), Expand) == Expand("c", 0, EPOCH + 1)


def test_a_replica_that_came_back_is_not_settled_by_the_answer_for_the_one_that_left() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.fetch("c", 0)
    leader.set_changed("ab", replicas="ab")
    leader.set_changed("ab", replicas="abc")
    assert not of_kind(leader.fetch("c", 0, replica_epoch=7), Expand)
    leader.settled("c", ProposalOutcome.REFUSED)
    leader.tick(SECOND)
    assert of_kind(leader.fetch("c", 0, replica_epoch=7), Expand)


def test_a_set_that_is_the_same_leaves_a_proposal_counted() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.fetch("c", 0)
    leader.partition_epoch -= 1
    leader.set_changed("ab")  # the metadata of now, which knows no more than before
    leader.append(10)
    leader.fetch("b", 10)
    assert leader.committed == -1


# ── leaving ──────────────────────────────────────────────────────────────────────────────────────


def test_must_hold_a_silent_follower_leaves() -> None:
    leader = LeaderAtWork(**LAG, **INTERVAL)
    leader.now_ns += 500 * MS
    leader.fetch("b", 0)
    assert leader.leader.deadline_ns == SECOND + 1000 * MS
    shrinks = of_kind(leader.tick(500 * MS), Shrink)
    assert [(shrink.replica, shrink.reason) for shrink in shrinks] == [("c", "it is silent")]


def test_a_follower_that_asks_and_does_not_catch_up_leaves() -> None:
    leader = LeaderAtWork("ab", "ab", **LAG, **INTERVAL)
    leader.fetch("b", 0)
    leader.append(100)
    for offset in (1, 2, 3):
        leader.now_ns += 300 * MS
        leader.append(100)
        leader.fetch("b", offset)
    shrink = one(leader.tick(100 * MS), Shrink)
    assert shrink.replica == "b"
    assert "397 messages behind" in shrink.reason


def test_a_follower_that_keeps_up_under_load_stays() -> None:
    leader = LeaderAtWork("ab", "ab", **LAG, **INTERVAL)
    end = 0
    for _ in range(10):
        leader.fetch("b", end)
        end = leader.log.log_end_offset
        leader.append(100)
        assert not of_kind(leader.tick(300 * MS), Shrink)


def test_a_follower_that_waits_for_news_stays() -> None:
    leader = LeaderAtWork("ab", "ab", **LAG, **INTERVAL)
    for _ in range(5):
        leader.fetch("b", 0)
        assert not of_kind(leader.tick(500 * MS), Shrink)


def test_the_controller_is_asked_once_and_no_time_is_wasted_meanwhile() -> None:
    leader = LeaderAtWork("ab", "ab", **LAG, **INTERVAL)
    assert of_kind(leader.tick(1000 * MS), Shrink)
    assert leader.leader.deadline_ns is None
    assert not of_kind(leader.tick(5000 * MS), Shrink)
    leader.settled("b", ProposalOutcome.UNKNOWN)
    assert leader.leader.deadline_ns is not None and leader.leader.deadline_ns > leader.now_ns
    assert of_kind(leader.tick(1000 * MS), Shrink)


def test_a_follower_outside_the_set_is_never_asked_to_leave() -> None:
    leader = LeaderAtWork("ab", "a", **LAG, **INTERVAL)
    assert leader.tick(10 * SECOND) == []


@pytest.mark.parametrize("outcome", list(ProposalOutcome))
def test_an_answer_for_a_server_that_has_no_replica_any_more_changes_nothing(outcome: ProposalOutcome) -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    assert leader.settled("x", outcome) == []
