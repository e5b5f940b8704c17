"""What is committed and acked: replication.md §3, and the commit loop of its §15."""

from __future__ import annotations

import pytest

from bascule.partition.core.follower_events import AdvanceHighWatermark
from bascule.partition.core.leader_events import Acknowledge, Expand, Notify, ProposalOutcome
from tests.unit.partition.replica_helpers import ACK, ALWAYS, INTERVAL, LeaderAtWork, of_kind, one


def test_must_hold_the_watermark_is_the_least_that_the_in_sync_replicas_have() -> None:
    leader = LeaderAtWork(**INTERVAL)
    leader.append(10)
    leader.fetch("b", 7)
    assert leader.committed == -1  # c has said nothing yet
    leader.fetch("c", 4)
    assert leader.committed == 3
    leader.fetch("c", 10)
    assert leader.committed == 6


def test_must_hold_all_acks_are_given_for_what_every_in_sync_replica_has() -> None:
    leader = LeaderAtWork(**INTERVAL)
    leader.append(10)
    leader.fetch("b", 10)
    assert leader.acked == 0
    assert one(leader.fetch("c", 4), Acknowledge).end_offset == 4


def test_must_hold_nothing_is_committed_twice_and_nothing_without_news() -> None:
    leader = LeaderAtWork("a", "a", **INTERVAL)
    leader.append(3)
    assert (leader.committed, leader.acked) == (2, 3)
    assert leader.sync() == []


def test_must_hold_below_min_isr_neither_watermark_nor_acks_move() -> None:
    leader = LeaderAtWork(in_sync="ab", min_insync_replicas=2, **INTERVAL)
    leader.append(5)
    leader.fetch("b", 5)
    assert leader.committed == 4
    leader.set_changed("a")
    assert not leader.leader.can_commit
    leader.append(5)
    assert (leader.committed, leader.acked) == (4, 5)
    leader.set_changed("ab")
    leader.fetch("b", 10)
    assert (leader.committed, leader.acked) == (9, 10)


def test_a_proposed_replica_does_not_make_up_for_one_that_min_isr_wants() -> None:
    leader = LeaderAtWork(in_sync="a", min_insync_replicas=2, **INTERVAL)
    leader.append(5)
    assert of_kind(leader.fetch("b", 5), Expand)
    leader.fetch("b", 5)
    assert (leader.committed, leader.acked) == (-1, 0)


def test_must_hold_a_follower_that_leaves_the_set_releases_what_waited_for_it() -> None:
    leader = LeaderAtWork(**INTERVAL)
    leader.append(10)
    leader.fetch("b", 10)
    effects = leader.set_changed("ab")
    assert of_kind(effects, AdvanceHighWatermark) == [AdvanceHighWatermark(9)]
    assert of_kind(effects, Acknowledge) == [Acknowledge(10)]


def test_a_follower_that_is_not_in_sync_holds_nothing_up() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.append(10)
    leader.fetch("c", 1)
    leader.fetch("b", 10)
    assert leader.committed == 9


def test_a_replica_that_was_proposed_counts_until_it_was_refused() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    assert of_kind(leader.fetch("c", 0), Expand)
    leader.append(10)
    leader.fetch("b", 10)
    assert leader.committed == -1
    leader.settled("c", ProposalOutcome.UNKNOWN)
    assert leader.committed == -1
    leader.settled("c", ProposalOutcome.REFUSED)
    assert leader.committed == 9


def test_a_replica_that_was_proposed_counts_after_it_joined() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.fetch("c", 0)
    leader.append(10)
    leader.fetch("b", 10)
    leader.set_changed("abc")
    leader.settled("c", ProposalOutcome.DONE)
    assert leader.committed == -1
    leader.fetch("c", 6)
    assert leader.committed == 5


def test_a_proposal_for_a_set_that_is_no_more_counts_no_more() -> None:
    leader = LeaderAtWork(in_sync="ab", **INTERVAL)
    leader.fetch("c", 0)
    leader.append(10)
    leader.fetch("b", 10)
    assert leader.committed == -1
    leader.set_changed("ab")
    assert leader.committed == 9


def test_fix_7_a_leader_alone_commits_what_it_has_when_it_begins() -> None:
    leader = LeaderAtWork("a", "a", end=10, committed=3, **ACK)
    assert (leader.committed, leader.acked) == (9, 10)


def test_a_leader_with_others_commits_nothing_before_they_have_fetched_in_its_epoch() -> None:
    leader = LeaderAtWork(end=10, committed=3, **INTERVAL)
    assert (leader.committed, leader.acked) == (3, 0)
    leader.fetch("b", 10)
    leader.fetch("c", 10, epoch=4)
    assert (leader.committed, leader.acked) == (3, 0)
    leader.fetch("c", 8)
    assert (leader.committed, leader.acked) == (7, 8)


def test_a_leader_knows_what_is_committed_once_its_followers_have_what_it_began_with() -> None:
    leader = LeaderAtWork(end=10, committed=3, **INTERVAL)
    assert not leader.leader.knows_what_is_committed
    leader.append(2)
    leader.fetch("b", 10)
    leader.fetch("c", 9)
    assert not leader.leader.knows_what_is_committed
    leader.fetch("c", 10)
    assert leader.leader.knows_what_is_committed
    assert LeaderAtWork("a", "a", end=10, **INTERVAL).leader.knows_what_is_committed


def test_must_hold_a_leader_that_is_missing_in_the_set_counts_itself() -> None:
    leader = LeaderAtWork(in_sync="b", min_insync_replicas=2, **INTERVAL)
    assert leader.leader.in_sync_replicas == {"a", "b"}
    leader.append(2)
    leader.fetch("b", 2)
    assert leader.committed == 1


def test_sync_ack_readers_see_what_is_written_and_all_acks_wait_for_every_disk() -> None:
    leader = LeaderAtWork("ab", "ab", **ACK)
    leader.append(10, synced=False)
    leader.fetch("b", 10, synced=4)
    assert (leader.committed, leader.acked) == (9, 0)
    leader.sync()
    assert leader.acked == 4
    leader.fetch("b", 10, synced=10, is_fetch=False)
    assert leader.acked == 10


def test_sync_always_nobody_sees_what_is_not_on_every_disk() -> None:
    leader = LeaderAtWork("ab", "ab", **ALWAYS)
    leader.append(10, synced=False)
    leader.fetch("b", 10, synced=6)
    assert (leader.committed, leader.acked) == (-1, 0)
    leader.sync()
    assert (leader.committed, leader.acked) == (5, 6)


def test_sync_interval_an_all_ack_waits_for_no_disk() -> None:
    leader = LeaderAtWork("ab", "ab", **INTERVAL)
    leader.append(10, synced=False)
    leader.fetch("b", 10, synced=0)
    assert (leader.committed, leader.acked) == (9, 10)


@pytest.mark.parametrize("options", [INTERVAL, ACK, ALWAYS])
def test_the_watermark_never_goes_back(options: dict[str, bool]) -> None:
    leader = LeaderAtWork("ab", "ab", **options)
    leader.append(10)
    leader.fetch("b", 10)
    assert leader.fetch("b", 2, replica_epoch=9) and leader.committed == 9  # it lost its disk and began anew
    leader.append(1)
    assert (leader.committed, leader.acked) == (9, 10)


def test_followers_that_wait_are_told_of_what_was_committed() -> None:
    leader = LeaderAtWork(**INTERVAL)
    leader.append(1)
    leader.fetch("b", 1)
    assert Notify("b") in leader.fetch("c", 1)
    notice = leader.notice("b")
    assert notice is not None and notice.high_watermark == 0
    assert leader.notice("b") is None  # it knows
