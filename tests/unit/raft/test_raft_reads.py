"""Linearizable reads: thesis §6.4."""

from __future__ import annotations

from bascule.raft.core.model.effects import ReadReady, Reason
from bascule.raft.core.model.events import ChangeMembership, ReadIndex
from bascule.raft.core.model.membership import AddLearner
from bascule.raft.core.model.messages import AppendReply, HeartbeatReply, ReadReply, ReadRequest, VoteReply, VoteRequest
from tests.support.raft_cluster import OPTIONS, Cluster, with_options


def test_thesis_6_4_a_read_waits_for_a_quorum() -> None:
    cluster = Cluster("ABCDE")
    cluster.elect("A")
    effects = cluster.step("A", ReadIndex(1))
    assert effects.reads == ()
    assert cluster.receive(HeartbeatReply("B", "A", 1, 1)).reads == ()
    assert cluster.receive(HeartbeatReply("B", "A", 1, 1)).reads == ()
    assert cluster.receive(HeartbeatReply("C", "A", 1, 1)).reads == (ReadReady(1, 1),)


def test_thesis_6_4_answers_to_an_earlier_round_do_not_count() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.step("A", ReadIndex(1))
    cluster.step("A", ReadIndex(2))
    assert cluster.receive(HeartbeatReply("B", "A", 1, 1)).reads == (ReadReady(1, 1),)
    assert cluster.receive(HeartbeatReply("C", "A", 1, 1)).reads == ()
    assert cluster.receive(HeartbeatReply("C", "A", 1, 2)).reads == (ReadReady(2, 1),)


def test_thesis_6_4_answers_to_appends_do_not_confirm_a_read() -> None:
    """They may have been sent before a newer leader was elected."""
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.step("A", ReadIndex(1))
    assert cluster.receive(AppendReply("B", "A", 1, True, 1)).reads == ()


def test_a_learners_answer_confirms_nothing() -> None:
    cluster = Cluster("ABC", "DE")
    cluster.elect("A")
    cluster.step("A", ReadIndex(1))
    for learner in "DE":
        assert cluster.receive(HeartbeatReply(learner, "A", 1, 1)).reads == ()


def test_a_group_of_one_reads_at_once() -> None:
    cluster = Cluster("A")
    cluster.tick("A")
    assert cluster.step("A", ReadIndex(1)).reads == (ReadReady(1, 1),)


def test_thesis_6_4_a_new_leader_answers_no_read_before_its_first_entry_is_committed() -> None:
    """Until then it does not know what its predecessor has committed."""
    cluster = Cluster("ABC")
    cluster.start("A", terms=(1, 1), term=1)
    cluster.start("B", terms=(1, 1), term=1)
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    cluster.settle(lambda message: isinstance(message, (VoteRequest, VoteReply)))
    assert cluster["A"].is_leader and cluster["A"].commit_index == 0
    cluster.step("A", ReadIndex(1))
    assert cluster.receive(HeartbeatReply("B", "A", 2, 1)).reads == ()
    assert cluster.receive(AppendReply("B", "A", 2, True, 3)).reads == (ReadReady(1, 3),)


def test_a_deposed_leader_answers_no_read() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.propose("A", b"old")
    cluster.settle()
    cluster.isolate("A")
    cluster.elect("B")
    cluster.propose("B", b"new")
    cluster.settle()
    assert cluster.data("C") == [b"old", b"new"] and cluster["A"].is_leader
    cluster.step("A", ReadIndex(1))
    cluster.run(OPTIONS.heartbeat_ticks)
    assert cluster.reads("A") == []
    # Neither by answers of its own reign that come late, nor by those of the newer one.
    cluster.receive(HeartbeatReply("B", "A", 1, 0))
    cluster.heal()
    cluster.run(2 * OPTIONS.election_ticks)
    assert cluster.reads("A") == [] and cluster.reasons("A") == [Reason.LEADERSHIP_LOST]


def test_a_leader_without_a_quorum_refuses_its_reads_when_it_steps_down() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("A")
    cluster.step("A", ReadIndex(1))
    cluster.run(2 * OPTIONS.election_ticks)
    assert cluster.reasons("A") == [Reason.LEADERSHIP_LOST]


def test_a_follower_reads_by_the_leaders_index_once_it_has_applied_that_far() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("C")
    cluster.propose("A", b"one")
    cluster.settle()
    cluster.heal()
    cluster.step("C", ReadIndex(5))
    effects = cluster.receive(ReadReply("A", "C", 1, 5, 2))
    assert effects.reads == () and cluster["C"].commit_index == 1
    cluster.network.clear()
    cluster.run(2 * OPTIONS.heartbeat_ticks)
    assert cluster.reads("C") == [ReadReady(5, 2)] and cluster.data("C") == [b"one"]


def test_a_followers_read_goes_around_the_leader_and_a_quorum() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.step("C", ReadIndex(5))
    assert cluster.reads("C") == []
    cluster.settle()
    assert cluster.reads("C") == [ReadReady(5, 1)]


def test_reads_are_refused_where_there_is_no_leader() -> None:
    cluster = Cluster("ABC")
    cluster.step("A", ReadIndex(1))
    assert cluster.reasons("A") == [Reason.NO_LEADER]
    cluster.receive(ReadRequest("B", "A", 1, 2))
    assert cluster.network == [ReadReply("A", "B", 0, 2, 0, Reason.NOT_LEADER)]
    cluster.settle()
    assert cluster.reasons("B") == [Reason.NOT_LEADER]


def test_waiting_reads_are_bounded() -> None:
    cluster = Cluster("ABC", options=with_options(reads_pending_max=2))
    cluster.elect("A")
    for request in range(4):
        cluster.step("A", ReadIndex(request))
    assert cluster.reasons("A") == [Reason.OVERLOADED] * 2
    cluster.settle()
    assert [read.request for read in cluster.reads("A")] == [0, 1]


def test_a_read_while_the_membership_changes_needs_a_quorum_of_the_latest() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.join("D")
    cluster.step("A", ChangeMembership(1, AddLearner("D")))
    cluster.step("A", ReadIndex(2))
    assert cluster.receive(HeartbeatReply("D", "A", 1, 1)).reads == ()
    assert [read.request for read in cluster.receive(HeartbeatReply("B", "A", 1, 1)).reads] == [2]
