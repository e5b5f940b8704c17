"""Replication and commitment, section by section of the Raft paper."""

from __future__ import annotations

import pytest

from bascule.raft.core.model.codec import encode_membership
from bascule.raft.core.model.effects import Effects, Reason
from bascule.raft.core.model.entries import Entry, EntryKind
from bascule.raft.core.model.events import Propose, TakeSnapshot
from bascule.raft.core.model.messages import (
    AppendEntries,
    AppendReply,
    ForwardedProposal,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    VoteReply,
    VoteRequest,
)
from bascule.raft.core.node import RaftNode
from tests.support.raft_cluster import OPTIONS, Cluster, entries_of, members, with_options

ONE_BY_ONE = with_options(append_bytes_max=1)


def appends(effects: Effects) -> list[AppendEntries]:
    return [message for message in effects.messages if isinstance(message, AppendEntries)]


def command(index: int, term: int, data: bytes = b"x") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, data)


# ── paper §5.4.2, Figure 8 ───────────────────────────────────────────────────────────────────────


def figure_8() -> Cluster:
    """(c): S1 leads again, in term 4; its entry of term 2 lies on S1 and S2, and S5 has one of term 3."""
    servers = ["S1", "S2", "S3", "S4", "S5"]
    cluster = Cluster(servers, options=ONE_BY_ONE)
    for server, terms in zip(servers, [(1, 2), (1, 2), (1,), (1,), (1, 3)], strict=True):
        cluster.start(server, terms=terms, term=3)
    cluster.isolate("S5")
    # Votes, and one entry at a time to S3 alone.
    for _ in range(2 * OPTIONS.election_ticks):
        cluster.tick("S1")
    cluster.settle(lambda message: isinstance(message, (VoteRequest, VoteReply)))
    assert cluster["S1"].is_leader and cluster["S1"].term == 4
    return cluster


def test_paper_figure_8_an_entry_of_an_older_term_is_not_committed_by_counting() -> None:
    cluster = figure_8()
    # S1 and S2 hold entry 2 of term 2; now S3 gets it too, but not yet the entry of term 4.
    cluster.tick("S1", times=OPTIONS.heartbeat_ticks)
    for _ in range(10):
        cluster.deliver(lambda message: {message.sender, message.to} == {"S1", "S3"})
        if cluster.terms("S3") == [1, 2]:
            break
    cluster.deliver(lambda message: isinstance(message, AppendReply))
    cluster.receive(AppendReply("S2", "S1", 4, True, 2))
    assert cluster["S1"].match_index("S3") == 2 and cluster["S1"].match_index("S2") == 2
    assert cluster["S1"].commit_index < 2, "the entry of term 2 is on a majority and yet not committed"
    # (d): which is as well, since S5 can still be elected and replace it.
    cluster.network.clear()
    cluster.isolate("S1")
    cluster.elect("S5")
    assert cluster.terms("S3")[:2] == [1, 3]


def test_paper_figure_8_an_entry_of_its_own_term_commits_the_older_ones() -> None:
    """(e)"""
    cluster = figure_8()
    cluster.heal()
    cluster.isolate("S4", "S5")
    cluster.run(2 * OPTIONS.heartbeat_ticks)
    assert cluster["S1"].commit_index == 3
    assert cluster.terms("S2") == cluster.terms("S3") == [1, 2, 4]
    cluster.heal()
    cluster.isolate("S1", "S2")
    cluster.tick("S5", times=400)
    cluster.settle()
    assert not cluster["S5"].is_leader, "S3 has the committed entries and does not vote for S5"


# ── paper §5.3, Figure 7 ─────────────────────────────────────────────────────────────────────────

LEADER_TERMS = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FIGURE_7 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("options", [OPTIONS, ONE_BY_ONE, with_options(appends_inflight_max=1)])
def test_paper_figure_7_a_leader_repairs_every_log(options: object) -> None:
    assert isinstance(options, type(OPTIONS))
    cluster = Cluster(["L", *FIGURE_7], options=options)
    cluster.start("L", terms=LEADER_TERMS, term=7)
    for server, terms in FIGURE_7.items():
        cluster.start(server, terms=terms, term=7)
    cluster.elect("L")
    cluster.run(4 * OPTIONS.heartbeat_ticks)
    for server in FIGURE_7:
        assert cluster.terms(server) == [*LEADER_TERMS, 8]
        assert cluster.stored[server].entries == cluster.stored["L"].entries
        assert cluster[server].commit_index == 11


def test_paper_5_3_a_conflict_is_found_a_term_at_a_time() -> None:
    cluster = Cluster("AB", options=with_options(append_bytes_max=10_000))
    cluster.start("A", terms=[1] * 50 + [3] * 50, term=4)
    cluster.start("B", terms=[1] * 50 + [2] * 70, term=4)
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    cluster.settle(lambda message: not isinstance(message, AppendReply) or message.is_accepted)
    rejections = 0
    cluster.tick("A", times=OPTIONS.heartbeat_ticks)
    for _ in range(20):
        rejections += sum(isinstance(one, AppendReply) and not one.is_accepted for one in cluster.deliver())
    assert cluster.terms("B") == cluster.terms("A")
    assert 1 <= rejections <= 3


# ── appends, as a follower ───────────────────────────────────────────────────────────────────────


def test_paper_5_3_an_append_that_does_not_fit_is_rejected_and_changes_nothing() -> None:
    cluster = Cluster("ABC")
    cluster.start("B", terms=(1, 2))
    for previous in ((2, 1), (3, 2), (9, 2)):
        effects = cluster.receive(AppendEntries("A", "B", 3, *previous, (command(previous[0] + 1, 3),), 9))
        [reply] = effects.messages
        assert isinstance(reply, AppendReply) and not reply.is_accepted and reply.index == previous[0]
        assert effects.entries == () and effects.committed == ()
    assert cluster.terms("B") == [1, 2]


def test_paper_5_3_only_a_conflict_truncates() -> None:
    """An append that was late is shorter than what the follower has acknowledged since."""
    cluster = Cluster("ABC")
    log = [command(index, 1) for index in range(1, 6)]
    cluster.receive(AppendEntries("A", "B", 1, 0, 0, tuple(log), 0))
    effects = cluster.receive(AppendEntries("A", "B", 1, 0, 0, tuple(log[:2]), 0))
    assert effects.entries == () and cluster["B"].last_index == 5
    effects = cluster.receive(AppendEntries("C", "B", 2, 1, 1, (command(2, 1), command(3, 2)), 0))
    assert [(entry.index, entry.term) for entry in effects.entries] == [(3, 2)]
    assert cluster.terms("B") == [1, 1, 2]


def test_a_follower_commits_only_what_its_leader_vouches_for() -> None:
    """Entries behind the append may be leftovers of a deposed leader, whatever the commit index."""
    cluster = Cluster("ABC")
    cluster.start("B", terms=(1, 1, 1))
    cluster.receive(AppendEntries("C", "B", 2, 1, 1, (), 3))
    assert cluster["B"].commit_index == 1
    cluster.receive(AppendEntries("C", "B", 2, 1, 1, (command(2, 2),), 9))
    assert cluster["B"].commit_index == 2 and cluster["B"].last_index == 2


def test_an_entry_is_persisted_in_the_step_that_acknowledges_it() -> None:
    cluster = Cluster("ABC")
    effects = cluster.receive(AppendEntries("A", "B", 1, 0, 0, (command(1, 1),), 0))
    assert effects.entries == (command(1, 1),)
    assert effects.hard_state is not None and effects.hard_state.term == 1
    assert effects.messages == (AppendReply("B", "A", 1, True, 1),)
    assert effects.committed == ()


def test_an_append_of_an_older_term_is_answered_with_ours() -> None:
    cluster = Cluster("ABC")
    cluster.start("B", terms=(1, 2), term=5)
    for message in (AppendEntries("A", "B", 4, 2, 2, (command(3, 4),), 3), Heartbeat("A", "B", 4, 2, 0)):
        effects = cluster.receive(message)
        assert effects.messages == (AppendReply("B", "A", 5, False, 0),)
        assert effects.entries == () and effects.committed == () and cluster["B"].leader is None


def test_an_append_around_what_is_committed_continues_behind_it() -> None:
    cluster = Cluster("ABC")
    log = tuple(command(index, 1) for index in range(1, 7))
    cluster.receive(AppendEntries("A", "B", 1, 0, 0, log[:4], 4))
    effects = cluster.receive(AppendEntries("A", "B", 1, 1, 1, log[1:], 6))
    assert effects.entries == log[4:] and effects.committed == log[4:]
    assert effects.messages == (AppendReply("B", "A", 1, True, 6),)


# ── counting, as a leader ────────────────────────────────────────────────────────────────────────


def test_paper_5_3_nothing_is_applied_before_a_majority_holds_it() -> None:
    cluster = Cluster("ABCDE")
    cluster.elect("A")
    effects = cluster.propose("A", b"one")
    assert effects.committed == () and effects.entries[-1].data == b"one"
    cluster.network.clear()
    index = cluster["A"].last_index
    assert cluster.receive(AppendReply("B", "A", 1, True, index)).committed == ()
    assert cluster.receive(AppendReply("B", "A", 1, True, index)).committed == ()
    assert [entry.data for entry in cluster.receive(AppendReply("C", "A", 1, True, index)).committed] == [b"one"]


@pytest.mark.parametrize(("voters", "acknowledgements"), [("AB", 1), ("ABC", 1), ("ABCD", 2), ("ABCDE", 2)])
def test_a_majority_of_even_and_odd_groups(voters: str, acknowledgements: int) -> None:
    cluster = Cluster(voters)
    cluster.elect("A")
    cluster.propose("A")
    index = cluster["A"].last_index
    for number, voter in enumerate(voters[1:], start=1):
        assert (cluster["A"].commit_index == index) is (number > acknowledgements)
        cluster.receive(AppendReply(voter, "A", 1, True, index))
    assert cluster["A"].commit_index == index


def test_acknowledgements_of_an_earlier_reign_do_not_count() -> None:
    cluster = Cluster("ABC")
    cluster.start("A", terms=(1, 1), term=2)
    cluster.tick("A", times=2 * OPTIONS.election_ticks)
    cluster.settle(lambda message: isinstance(message, (VoteRequest, VoteReply)))
    assert cluster["A"].is_leader and cluster["A"].term == 3
    cluster.receive(AppendReply("B", "A", 2, True, 3))
    assert cluster["A"].match_index("B") == 0 and cluster["A"].commit_index == 0


def test_an_acknowledgement_of_what_was_never_sent_is_ignored() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.receive(AppendReply("B", "A", 1, True, 99))
    cluster.receive(AppendReply("C", "A", 1, True, 99))
    assert cluster["A"].commit_index == cluster["A"].last_index == 1


def test_a_learner_does_not_count() -> None:
    cluster = Cluster("ABC", "DE")
    cluster.elect("A")
    cluster.isolate("B", "C")
    cluster.propose("A", b"one")
    cluster.settle()
    assert cluster["A"].match_index("D") == cluster["A"].match_index("E") == 2
    assert cluster["A"].commit_index == 1
    cluster.heal()
    cluster.run(OPTIONS.heartbeat_ticks)
    assert cluster.data("D") == cluster.data("B") == [b"one"]


def test_followers_learn_of_a_commit_at_once() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.propose("A", b"one")
    cluster.settle()
    assert cluster.data("B") == cluster.data("C") == [b"one"]


def test_a_heartbeat_commits_no_more_than_the_follower_holds() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.isolate("C")
    for _ in range(3):
        cluster.propose("A")
        cluster.settle()
    cluster.tick("A", times=OPTIONS.heartbeat_ticks)
    beats = {message.to: message.commit_index for message in cluster.network if isinstance(message, Heartbeat)}
    assert beats == {"B": 4, "C": 1}


def test_a_lost_append_is_noticed_and_repeated() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.propose("A", b"lost")
    cluster.network.clear()
    cluster.run(2 * OPTIONS.heartbeat_ticks)
    assert cluster.data("B") == cluster.data("C") == [b"lost"]


def test_a_lost_append_is_repeated_although_it_is_compacted_meanwhile() -> None:
    cluster = Cluster("ABC", options=with_options(appends_inflight_max=1, trailing_entries=0))
    cluster.elect("A")
    cluster.isolate("C")
    for data in (b"lost", b"never sent: one is under way"):
        cluster.propose("A", data)
        cluster.settle()
    cluster.step("A", TakeSnapshot(cluster["A"].applied_index, b"state"))
    cluster.heal()
    cluster.run(2 * OPTIONS.heartbeat_ticks)
    assert cluster["C"].commit_index == 3 and cluster["C"].snapshot.data == b"state"


# ── flow control ─────────────────────────────────────────────────────────────────────────────────


def test_unanswered_appends_to_one_follower_are_bounded() -> None:
    cluster = Cluster("ABC", options=with_options(appends_inflight_max=3))
    cluster.elect("A")
    cluster.network.clear()
    for number in range(20):
        cluster.propose("A", b"%d" % number)
    sent = [message for message in cluster.network if isinstance(message, AppendEntries) and message.to == "B"]
    assert len(sent) == 3
    cluster.run(4)
    assert len(cluster.data("B")) == 20


def test_entries_of_one_append_are_bounded() -> None:
    cluster = Cluster("ABC", options=with_options(append_bytes_max=500))
    cluster.elect("A")
    cluster.isolate("C")
    for _ in range(20):
        cluster.propose("A", bytes(100))
        cluster.settle()
    cluster.propose("A", bytes(2000))
    cluster.settle()
    cluster.heal()
    cluster.tick("A", times=OPTIONS.heartbeat_ticks)
    sizes = []
    for _ in range(40):
        delivered = cluster.deliver()
        appended = [one for one in delivered if isinstance(one, AppendEntries) and one.to == "C" and one.entries]
        sizes += [[entry.size_bytes for entry in append.entries] for append in appended]
    assert len(cluster.data("C")) == 21
    assert all(sum(size) <= 500 or len(size) == 1 for size in sizes)
    assert max(map(len, sizes)) > 1


def test_what_a_leader_cannot_commit_is_bounded() -> None:
    cluster = Cluster("ABC", options=with_options(uncommitted_bytes_max=1000))
    cluster.elect("A")
    cluster.isolate("A")
    for number in range(20):
        cluster.propose("A", bytes(200), request=number)
    assert cluster.reasons("A") == [Reason.OVERLOADED] * 15
    cluster.heal()
    cluster.run(OPTIONS.heartbeat_ticks)
    cluster.propose("A", b"after", request=99)
    assert cluster.proposals("A")[-1].request == 99


def test_a_proposal_that_is_too_large_is_refused_wherever_it_is_made() -> None:
    cluster = Cluster("ABC", options=with_options(proposal_bytes_max=10))
    cluster.elect("A")
    for server in "AB":
        cluster.propose(server, bytes(11))
        assert cluster.reasons(server) == [Reason.TOO_LARGE]
    effects = cluster.receive(ForwardedProposal("B", "A", 1, 5, EntryKind.COMMAND, bytes(11), 0, 0))
    assert effects.entries == ()


# ── forwarding ───────────────────────────────────────────────────────────────────────────────────


def test_a_follower_passes_a_proposal_on_and_hears_where_it_went() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.step("B", Propose(42, b"from B", session=7, sequence=3))
    cluster.settle()
    assert [(one.request, one.index, one.term) for one in cluster.proposals("B")] == [(42, 2, 1)]
    assert cluster["B"].entry(2) == Entry(2, 1, EntryKind.COMMAND, b"from B", 7, 3)


def test_a_proposal_without_a_leader_is_refused() -> None:
    cluster = Cluster("ABC")
    cluster.propose("A", request=3)
    assert [(one.request, one.reason, one.leader) for one in cluster.refusals("A")] == [(3, Reason.NO_LEADER, None)]


def test_a_proposal_that_reaches_a_follower_is_refused_and_names_nobody_twice() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    message = ForwardedProposal("C", "B", 1, 5, EntryKind.COMMAND, b"x", 0, 0)
    cluster.receive(message)
    cluster.settle()
    assert [(one.request, one.reason, one.leader) for one in cluster.refusals("C")] == [(5, Reason.NOT_LEADER, "A")]


def test_a_proposal_of_a_stranger_is_ignored() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    effects = cluster.receive(ForwardedProposal("X", "A", 1, 5, EntryKind.COMMAND, b"x", 0, 0))
    assert effects.entries == () and effects.messages == ()


def test_a_request_changes_nobodys_term() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    cluster.receive(ForwardedProposal("B", "A", 99, 5, EntryKind.COMMAND, b"x", 0, 0))
    assert cluster["A"].is_leader and cluster["A"].term == 1


# ── restarts ─────────────────────────────────────────────────────────────────────────────────────


def test_a_restarted_server_forgets_nothing_durable() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    for number in range(5):
        cluster.propose("A", b"%d" % number)
        cluster.settle()
    before: RaftNode = cluster["B"]
    after = cluster.restart("B")
    assert (after.term, after.last_index) == (before.term, before.last_index)
    cluster.applied["B"].clear()
    cluster.run(4 * OPTIONS.heartbeat_ticks)
    assert cluster.data("B") == [b"0", b"1", b"2", b"3", b"4"]


def test_a_log_whose_terms_exceed_the_hard_state_is_not_believed() -> None:
    cluster = Cluster("ABC")
    cluster.stored["A"].entries = list(entries_of(1, 5))
    with pytest.raises(AssertionError, match="hard state"):
        cluster.restart("A")


def test_a_membership_that_is_cut_from_the_log_no_longer_holds() -> None:
    cluster = Cluster("ABC")
    four = Entry(1, 1, EntryKind.MEMBERSHIP, encode_membership(members("ABCD")))
    cluster.receive(AppendEntries("A", "B", 1, 0, 0, (four,), 0))
    assert cluster["B"].membership == members("ABCD")
    cluster.receive(AppendEntries("C", "B", 2, 0, 0, (command(1, 2),), 0))
    assert cluster["B"].membership == members("ABC")


def test_unknown_replies_while_following_are_ignored() -> None:
    cluster = Cluster("ABC")
    cluster.elect("A")
    replies: list[RaftMessage] = [AppendReply("C", "B", 1, True, 1), HeartbeatReply("C", "B", 1, 3)]
    for message in replies:
        assert cluster.receive(message) == Effects()
