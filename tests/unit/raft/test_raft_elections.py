"""Elections, section by section of the Raft paper and thesis."""

from __future__ import annotations

import pytest

from bascule.raft.core.model.entries import HardState
from bascule.raft.core.model.events import RaftTick, Receive, TransferLeadership
from bascule.raft.core.model.messages import Heartbeat, TimeoutNow, VoteReply, VoteRequest
from bascule.raft.core.state import Role
from tests.support.raft_cluster import OPTIONS, Cluster


def test_a_cluster_elects_one_leader_and_all_follow_it() -> None:
    cluster = Cluster("ABC")
    cluster.run(60)
    leaders = [node.id for node in cluster.nodes.values() if node.is_leader]
    assert len(leaders) == 1
    assert {node.leader for node in cluster.nodes.values()} == set(leaders)


def test_a_cluster_of_one_leads_after_one_tick() -> None:
    cluster = Cluster("A")
    effects = cluster.step("A", RaftTick())
    assert cluster["A"].is_leader
    assert effects.hard_state == HardState(1, "A")
    assert effects.entries == effects.committed
    proposed = cluster.propose("A", b"one")
    assert [entry.data for entry in proposed.committed] == [b"one"]


def test_paper_5_2_a_server_votes_once_in_a_term() -> None:
    cluster = Cluster("ABC")
    granted = cluster.receive(VoteRequest("A", "C", 1, 0, 0))
    refused = cluster.receive(VoteRequest("B", "C", 1, 0, 0))
    again = cluster.receive(VoteRequest("A", "C", 1, 0, 0))
    assert granted.hard_state == HardState(1, "A")
    assert granted.messages == (VoteReply("C", "A", 1, True),)
    assert refused.messages == (VoteReply("C", "B", 1, False),)
    assert again.messages == (VoteReply("C", "A", 1, True),)


def test_paper_5_2_a_vote_survives_a_restart() -> None:
    cluster = Cluster("ABC")
    cluster.receive(VoteRequest("A", "C", 1, 0, 0))
    cluster.restart("C")
    refused = cluster.receive(VoteRequest("B", "C", 1, 0, 0))
    assert refused.messages == (VoteReply("C", "B", 1, False),)


def test_a_vote_is_never_sent_without_being_persisted_in_the_same_step() -> None:
    cluster = Cluster("ABC")
    effects = cluster.receive(VoteRequest("A", "C", 3, 0, 0))
    assert effects.hard_state == HardState(3, "A") and effects.is_durable_work


def test_a_candidate_persists_its_own_vote_with_its_request() -> None:
    cluster = Cluster("ABC")
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    effects = cluster.receive(VoteReply("B", "A", 1, True, is_pre_vote=True))
    assert effects.hard_state == HardState(1, "A")
    assert [(message.to, message.term) for message in effects.messages] == [("B", 1), ("C", 1)]


@pytest.mark.parametrize(
    ("last_index", "last_term", "is_granted"),
    [(3, 2, True), (4, 2, True), (1, 3, True), (2, 2, False), (9, 1, False), (0, 0, False)],
)
def test_paper_5_4_1_election_restriction(last_index: int, last_term: int, is_granted: bool) -> None:
    """Terms are compared before lengths."""
    cluster = Cluster("ABC")
    cluster.start("C", terms=(1, 2, 2))
    for is_pre_vote in (True, False):
        effects = cluster.receive(VoteRequest("A", "C", 5, last_index, last_term, is_pre_vote))
        [reply] = effects.messages
        assert isinstance(reply, VoteReply)
        assert reply.is_granted is is_granted


def test_thesis_9_6_a_pre_vote_changes_no_term_and_no_vote() -> None:
    cluster = Cluster("ABC")
    effects = cluster.receive(VoteRequest("A", "C", 7, 0, 0, is_pre_vote=True))
    assert effects.messages == (VoteReply("C", "A", 7, True, is_pre_vote=True),)
    assert effects.hard_state is None
    assert cluster["C"].term == 0


def test_thesis_9_6_a_pre_vote_for_a_term_that_is_not_new_is_refused() -> None:
    cluster = Cluster("ABC")
    cluster.start("C", term=7)
    effects = cluster.receive(VoteRequest("A", "C", 7, 0, 0, is_pre_vote=True))
    assert effects.messages == (VoteReply("C", "A", 7, False, is_pre_vote=True),)


def test_thesis_9_6_a_cut_off_server_does_not_raise_its_term() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("C")
    cluster.tick("C", times=200)
    assert cluster["C"].term == 1 and cluster.role("C") is Role.PRE_CANDIDATE
    cluster.heal()
    cluster.run(30)
    assert cluster["A"].is_leader and cluster["A"].term == 1 and cluster["C"].leader == "A"


def test_a_pre_vote_is_not_counted_as_a_vote() -> None:
    cluster = Cluster("ABCDE")
    cluster.start("A", term=4)
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    for voter in "BC":
        cluster.receive(VoteReply(voter, "A", 5, True, is_pre_vote=True))
    assert cluster.role("A") is Role.CANDIDATE and cluster["A"].term == 5
    cluster.receive(VoteReply("B", "A", 5, True))
    for term in (6, 5):
        cluster.receive(VoteReply("C", "A", term, True, is_pre_vote=True))
        assert cluster.role("A") is Role.CANDIDATE and cluster["A"].term == 5


def test_a_granted_pre_vote_of_an_earlier_campaign_is_not_counted() -> None:
    cluster = Cluster("ABC")
    cluster.start("A", term=4)
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    cluster.receive(VoteReply("B", "A", 4, True, is_pre_vote=True))
    assert cluster.role("A") is Role.PRE_CANDIDATE


def test_votes_of_an_earlier_term_are_not_counted() -> None:
    cluster = Cluster("ABCDE")
    cluster.start("A", term=4)
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    for voter in "BC":
        cluster.receive(VoteReply(voter, "A", 5, True, is_pre_vote=True))
    for voter in "BCD":
        cluster.receive(VoteReply(voter, "A", 4, True))
    assert cluster.role("A") is Role.CANDIDATE


def test_one_vote_counts_once() -> None:
    cluster = Cluster("ABCDE")
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    for _ in range(5):
        cluster.receive(VoteReply("B", "A", 1, True, is_pre_vote=True))
    assert cluster.role("A") is Role.PRE_CANDIDATE


def test_a_candidate_that_a_majority_refuses_goes_back_to_following() -> None:
    cluster = Cluster("ABC")
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    for voter in "BC":
        cluster.receive(VoteReply(voter, "A", 0, False, is_pre_vote=True))
    assert cluster.role("A") is Role.FOLLOWER


def test_a_candidate_follows_a_leader_of_its_own_term() -> None:
    cluster = Cluster("ABC")
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    cluster.receive(VoteReply("B", "A", 1, True, is_pre_vote=True))
    assert cluster.role("A") is Role.CANDIDATE
    cluster.receive(Heartbeat("C", "A", 1, 0, 0))
    assert cluster.role("A") is Role.FOLLOWER and cluster["A"].leader == "C"


# ── thesis §4.2.3: disruptive servers ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_thesis_4_2_3_a_follower_that_hears_its_leader_helps_nobody_to_depose_it(is_pre_vote: bool) -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    effects = cluster.receive(VoteRequest("X", "B", 9, 99, 8, is_pre_vote))
    assert effects.hard_state is None and cluster["B"].term == 1
    assert not any(isinstance(message, VoteReply) and message.is_granted for message in effects.messages)


@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_thesis_4_2_3_a_leader_with_a_quorum_is_not_deposed_by_a_request(is_pre_vote: bool) -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.receive(VoteRequest("X", "A", 9, 99, 8, is_pre_vote))
    assert cluster["A"].is_leader and cluster["A"].term == 1


def test_thesis_4_2_3_a_follower_helps_again_once_its_leader_is_silent() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.tick("B", times=OPTIONS.election_ticks)
    effects = cluster.receive(VoteRequest("C", "B", 2, 1, 1))
    assert effects.messages == (VoteReply("B", "C", 2, True),)


def test_thesis_6_2_a_leader_without_a_quorum_steps_down() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("A")
    cluster.run(2 * OPTIONS.election_ticks)
    assert not cluster["A"].is_leader
    cluster.run(4 * OPTIONS.election_ticks)
    assert cluster["B"].is_leader or cluster["C"].is_leader


def test_a_leader_that_nobody_can_hear_is_replaced_although_it_hears_everybody() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.cut = {("A", "B"), ("A", "C")}
    cluster.run(6 * OPTIONS.election_ticks)
    assert not cluster["A"].is_leader
    assert cluster["B"].is_leader or cluster["C"].is_leader


def test_a_leader_that_meets_a_higher_term_steps_down() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.start("C", term=5)
    cluster.tick("A", times=OPTIONS.heartbeat_ticks)
    cluster.settle()
    assert not cluster["A"].is_leader and cluster["A"].term >= 5


# ── thesis §3.10: leadership transfer ────────────────────────────────────────────────────────────


def test_thesis_3_10_leadership_is_handed_over_at_once() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.step("A", TransferLeadership(7, "C"))
    cluster.settle()
    assert cluster["C"].is_leader and cluster["C"].term == 2
    assert not cluster["A"].is_leader and cluster["A"].leader == "C"
    assert [request for effects in cluster.effects["A"] for request in effects.handed_over] == [7]


def test_thesis_3_10_the_target_gets_the_whole_log_first() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("C")
    cluster.propose("A", b"one")
    cluster.settle()
    cluster.heal()
    effects = cluster.step("A", TransferLeadership(7, "C"))
    assert not any(isinstance(message, TimeoutNow) for message in effects.messages)
    cluster.run(OPTIONS.heartbeat_ticks)
    assert cluster["C"].is_leader and cluster.data("C") == [b"one"]


def test_thesis_3_10_a_transfer_is_given_up_after_an_election_timeout() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("C")
    cluster.step("A", TransferLeadership(7, "C"))
    cluster.propose("A", b"while handing over", request=8)
    assert [(one.request, one.reason.name) for one in cluster.refusals("A")] == [(8, "TRANSFERRING")]
    cluster.run(OPTIONS.election_ticks)
    assert [(one.request, one.reason.name) for one in cluster.refusals("A")][1:] == [(7, "TRANSFER_ABORTED")]
    cluster.propose("A", b"after")
    cluster.settle()
    assert cluster["A"].is_leader and cluster.data("B") == [b"after"]


def test_a_transfer_to_a_learner_or_a_stranger_is_refused() -> None:
    cluster = Cluster("ABC", "D")
    cluster.elect("A")
    for number, target in enumerate(("D", "X", "A")):
        cluster.step("A", TransferLeadership(number, target))
    assert [reason.name for reason in cluster.reasons("A")] == ["UNKNOWN_SERVER", "UNKNOWN_SERVER", "ALREADY_DONE"]


def test_timeout_now_of_an_earlier_term_is_ignored() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.elect("B")
    effects = cluster.receive(TimeoutNow("A", "C", 1))
    assert effects.messages == () and cluster.role("C") is Role.FOLLOWER


# ── learners ─────────────────────────────────────────────────────────────────────────────────────


def test_a_learner_never_campaigns_not_even_when_told_to() -> None:
    cluster = Cluster("ABC", "D")
    cluster.elect("A")
    cluster.tick("D", times=300)
    cluster.receive(TimeoutNow("A", "D", 1))
    assert cluster.role("D") is Role.FOLLOWER
    assert not any(message.sender == "D" for message in cluster.network)


def test_a_learner_is_not_asked_and_its_vote_does_not_count() -> None:
    cluster = Cluster("ABC", "DE")
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    assert {message.to for message in cluster.network} == {"B", "C"}
    for learner in "DE":
        cluster.receive(VoteReply(learner, "A", 1, True, is_pre_vote=True))
    assert cluster.role("A") is Role.PRE_CANDIDATE


def test_a_server_outside_any_group_never_campaigns() -> None:
    cluster = Cluster("ABC")
    cluster.join("X")
    cluster.tick("X", times=300)
    assert not any(message.sender == "X" for message in cluster.network)


# ── who is listened to ───────────────────────────────────────────────────────────────────────────


def test_messages_for_others_or_from_ourselves_are_ignored() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    before = cluster["B"].term
    for message in (VoteRequest("C", "A", 9, 9, 8), VoteRequest("B", "B", 9, 9, 8), Heartbeat("C", "A", 9, 0, 0)):
        effects = cluster["B"].step(Receive(message))
        assert effects.messages == () and effects.hard_state is None
    assert cluster["B"].term == before


def test_replies_of_strangers_are_ignored_their_term_included() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    effects = cluster.receive(VoteReply("X", "A", 99, False))
    assert effects.hard_state is None and cluster["A"].is_leader and cluster["A"].term == 1
