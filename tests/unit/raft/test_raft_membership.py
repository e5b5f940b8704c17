"""Membership changes: thesis chapter 4 and the erratum of 2015."""

from __future__ import annotations

import pytest

from bascule.raft.core.model.codec import encode_membership
from bascule.raft.core.model.effects import Reason
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.model.events import ChangeMembership, TransferLeadership
from bascule.raft.core.model.membership import AddLearner, MembershipChange, PromoteLearner, RemoveServer
from bascule.raft.core.model.messages import AppendEntries, AppendReply, TimeoutNow, VoteReply, VoteRequest
from bascule.raft.core.state import Role
from tests.support.raft_cluster import OPTIONS, Cluster, members, with_options


def change(cluster: Cluster, server: str, what: MembershipChange, request: int = 1) -> None:
    cluster.step(server, ChangeMembership(request, what))


def test_a_server_joins_as_learner_and_is_promoted_when_it_has_caught_up() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.propose("A", b"before")
    cluster.settle()
    cluster.join("D")
    change(cluster, "A", AddLearner("D"))
    assert cluster["A"].membership == members("ABC", "D")
    change(cluster, "A", PromoteLearner("D"), request=2)
    cluster.run(2 * OPTIONS.heartbeat_ticks)
    assert cluster.data("D") == [b"before"] and cluster["A"].promotable == ["D"]
    change(cluster, "A", PromoteLearner("D"), request=3)
    cluster.settle()
    assert {node.membership for node in cluster.nodes.values()} == {members("ABCD")}
    assert cluster.reasons("A") == [Reason.CHANGE_IN_FLIGHT]


def test_thesis_4_2_1_a_learner_that_is_behind_is_not_promoted() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.join("D")
    cluster.isolate("D")
    change(cluster, "A", AddLearner("D"))
    cluster.settle()
    change(cluster, "A", PromoteLearner("D"))
    assert cluster.reasons("A") == [Reason.NOT_CAUGHT_UP] and cluster["A"].promotable == []
    assert cluster["A"].membership == members("ABC", "D")


def test_learners_are_not_promoted_beyond_the_largest_quorum() -> None:
    cluster = Cluster("ABC", "D", options=with_options(voters_max=3))
    cluster.elect("A")
    cluster.run(OPTIONS.heartbeat_ticks)
    change(cluster, "A", PromoteLearner("D"))
    assert cluster.reasons("A") == [Reason.QUORUM_FULL] and cluster["A"].promotable == []


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (AddLearner("B"), Reason.ALREADY_DONE),
        (AddLearner("D"), Reason.ALREADY_DONE),
        (PromoteLearner("B"), Reason.ALREADY_DONE),
        (PromoteLearner("X"), Reason.UNKNOWN_SERVER),
        (RemoveServer("X"), Reason.ALREADY_DONE),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(what: MembershipChange, reason: Reason) -> None:
    cluster = Cluster("ABC", "D")
    cluster.elect("A")
    change(cluster, "A", what)
    assert cluster.reasons("A") == [reason] and cluster["A"].last_index == 1


def test_only_a_leader_changes_the_membership() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    change(cluster, "B", RemoveServer("C"))
    assert [(one.reason, one.leader) for one in cluster.refusals("B")] == [(Reason.NOT_LEADER, "A")]


def test_the_last_voter_stays() -> None:
    cluster = Cluster("A", "B")
    cluster.run(3)
    change(cluster, "A", RemoveServer("A"))
    assert cluster.reasons("A") == [Reason.LAST_VOTER]


# ── the erratum of 2015, and one at a time ───────────────────────────────────────────────────────


def test_erratum_2015_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    cluster = Cluster("ABCD")
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    cluster.settle(lambda message: isinstance(message, (VoteRequest, VoteReply)))
    assert cluster["A"].is_leader
    change(cluster, "A", AddLearner("E"))
    change(cluster, "A", RemoveServer("D"))
    assert cluster.reasons("A") == [Reason.TERM_NOT_COMMITTED] * 2
    assert cluster["A"].membership == members("ABCD")
    cluster.run(OPTIONS.heartbeat_ticks)
    change(cluster, "A", RemoveServer("D"))
    assert cluster["A"].membership == members("ABC")


def test_erratum_2015_the_history_that_showed_it() -> None:
    """S1 changes the membership in term 1 and only it knows. S2 leads in term 2 and would change it too. S1 comes back in
    term 3 with its own change: the majorities of the two need not overlap, so S2 must not have been able to commit its own."""
    cluster = Cluster(["S1", "S2", "S3", "S4"])
    cluster.elect("S1")
    cluster.isolate("S1")
    change(cluster, "S1", AddLearner("S5"))
    assert "S5" in cluster["S1"].membership
    # S2 is elected by S3 and S4, but its first entry reaches nobody.
    cluster.network.clear()
    for server in ("S3", "S4"):
        cluster.tick(server, times=OPTIONS.election_ticks)
    while not cluster["S2"].is_leader:
        cluster.tick("S2")
        cluster.settle(lambda message: isinstance(message, (VoteRequest, VoteReply)))
    change(cluster, "S2", RemoveServer("S1"))
    assert cluster.reasons("S2") == [Reason.TERM_NOT_COMMITTED]
    assert cluster["S2"].membership == members(["S1", "S2", "S3", "S4"])


def test_thesis_4_1_one_change_at_a_time() -> None:
    cluster = Cluster("ABCD")
    cluster.elect("A")
    change(cluster, "A", RemoveServer("D"))
    change(cluster, "A", RemoveServer("C"))
    assert cluster.reasons("A") == [Reason.CHANGE_IN_FLIGHT]
    cluster.settle()
    change(cluster, "A", RemoveServer("C"))
    assert cluster["A"].membership == members("AB")


def test_thesis_4_1_a_membership_holds_from_the_moment_it_is_in_the_log() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("C")
    change(cluster, "A", RemoveServer("B"))
    cluster.settle()
    assert cluster["A"].membership == members("AC")
    assert cluster["A"].commit_index == 1, "B no longer counts, C does and is away"


# ── thesis §4.2.2: removing the leader ───────────────────────────────────────────────────────────


def test_thesis_4_2_2_a_leader_hands_over_before_it_is_removed() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    change(cluster, "A", RemoveServer("A"))
    assert cluster.reasons("A") == [Reason.TRANSFERRING]
    assert cluster["A"].membership == members("ABC"), "nothing was proposed"
    cluster.settle()
    [successor] = [node for node in cluster.nodes.values() if node.is_leader]
    assert successor.id in "BC"
    change(cluster, successor.id, RemoveServer("A"))
    cluster.run(OPTIONS.heartbeat_ticks)
    assert successor.membership == members({"B", "C"}) and successor.is_leader


def test_thesis_4_2_2_a_leader_that_is_no_member_leads_until_that_is_committed_and_not_longer() -> None:
    """B removes A and is gone; A, which has that entry and the longest log, has to lead once more, without counting itself."""
    cluster = Cluster("ABC")
    cluster.elect("B")
    removal = Entry(2, 1, EntryKind.MEMBERSHIP, encode_membership(members("BC")))
    cluster.receive(AppendEntries("B", "A", 1, 1, 1, (removal,), 1))
    cluster.network.clear()
    cluster.isolate("B")
    cluster.tick("C", times=OPTIONS.election_ticks)
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    cluster.settle(lambda message: isinstance(message, (VoteRequest, VoteReply)))
    assert not cluster["A"].is_leader, "its own vote does not count, and C's is no majority of B and C"
    cluster.heal()
    cluster.restart("B")
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    cluster.settle()
    assert cluster["A"].term == 2 and cluster.terms("B") == [1, 1, 2], "it led"
    assert cluster.role("A") is not Role.LEADER, "and does so no longer"
    assert cluster["B"].commit_index >= 2 and cluster["C"].commit_index >= 2
    cluster.tick("A", times=100)
    assert cluster.role("A") is Role.FOLLOWER, "removed for good: it does not campaign"


def test_thesis_4_2_2_a_leader_that_is_no_member_does_not_count_itself() -> None:
    cluster = Cluster("ABC")
    removal = Entry(1, 1, EntryKind.MEMBERSHIP, encode_membership(members("BC")))
    cluster.receive(AppendEntries("B", "A", 1, 0, 0, (removal,), 0))
    cluster.network.clear()
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    assert cluster.role("A") is Role.PRE_CANDIDATE
    cluster.receive(VoteReply("C", "A", 2, True, is_pre_vote=True))
    assert cluster.role("A") is Role.PRE_CANDIDATE
    cluster.receive(VoteReply("B", "A", 2, True, is_pre_vote=True))
    for voter in "BC":
        cluster.receive(VoteReply(voter, "A", 2, True))
    assert cluster.role("A") is Role.LEADER
    cluster.receive(AppendReply("C", "A", 2, True, 2))
    assert cluster["A"].commit_index == 0
    cluster.receive(AppendReply("B", "A", 2, True, 2))
    assert cluster["A"].commit_index == 2 and cluster.role("A") is Role.FOLLOWER


def test_thesis_4_2_3_a_removed_server_disturbs_nobody() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    change(cluster, "A", RemoveServer("C"))
    cluster.settle()
    for _ in range(100):
        cluster.tick()
        cluster.settle()
    assert cluster["A"].is_leader and cluster["A"].term == 1
    # What it might still say counts for nothing.
    cluster.receive(AppendReply("C", "A", 99, False, 0))
    cluster.receive(VoteRequest("C", "A", 99, 50, 98))
    assert cluster["A"].is_leader and cluster["A"].term == 1


def test_a_transfer_stops_other_changes() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("C")
    cluster.step("A", TransferLeadership(1, "C"))
    change(cluster, "A", AddLearner("D"))
    assert cluster.reasons("A") == [Reason.TRANSFERRING]


def test_a_voter_that_does_not_know_it_is_one_still_votes() -> None:
    """The leader of a group of one has promoted B, and restarts before B knows: without B's vote nobody could ever lead."""
    cluster = Cluster("A", "B")
    cluster.run(2 * OPTIONS.heartbeat_ticks)
    cluster.isolate("B")
    change(cluster, "A", PromoteLearner("B"))
    assert cluster["A"].membership == members("AB") and cluster["B"].membership == members("A", "B")
    cluster.network.clear()
    cluster.restart("A")
    cluster.heal()
    cluster.run(6 * OPTIONS.election_ticks)
    leaders = [node.id for node in cluster.nodes.values() if node.is_leader]
    assert len(leaders) == 1 and cluster["B"].membership == members("AB")


def test_timeout_now_reaches_the_heir_that_lacks_least() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("B")
    cluster.propose("A", b"one")
    cluster.settle()
    cluster.heal()
    effects = cluster.step("A", ChangeMembership(1, RemoveServer("A")))
    assert [message for message in effects.messages if isinstance(message, TimeoutNow)] == [TimeoutNow("A", "C", 1)]
