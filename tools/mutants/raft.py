"""Planted bugs of the Raft core: elections, replication, membership and reads."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

CORE: Final = "src/bascule/raft/core"

ELECTIONS: Final = "tests/unit/raft/test_raft_elections.py"
REPLICATION: Final = "tests/unit/raft/test_raft_replication.py"
MEMBERSHIP: Final = "tests/unit/raft/test_raft_membership.py"
READS: Final = "tests/unit/raft/test_raft_reads.py"

MUTANTS: Final = (
    # ── elections ────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "votes twice in a term",
        f"{CORE}/election.py",
        "and (state.vote == request.sender or (state.vote is None and state.leader is None))",
        "and True",
        f"{ELECTIONS}::test_paper_5_2_a_server_votes_once_in_a_term",
    ),
    Mutant(
        "the vote is not handed out to be persisted",
        f"{CORE}/node.py",
        "if state.term != self._saved.term or state.vote != self._saved.vote:",
        "if state.term != self._saved.term and state.vote is None:",
        f"{ELECTIONS}::test_paper_5_2_a_vote_survives_a_restart",
    ),
    Mutant(
        "the term is not persisted",
        f"{CORE}/node.py",
        "hard_state = self._saved = HardState(state.term, state.vote)",
        "self._saved = HardState(state.term, state.vote)",
        f"{ELECTIONS}::test_a_vote_is_never_sent_without_being_persisted_in_the_same_step",
    ),
    Mutant(
        "no election restriction",
        f"{CORE}/election.py",
        "return (request.last_term, request.last_index) >= (state.log.last_term, state.log.last_index)",
        "return True",
        f"{ELECTIONS}::test_paper_5_4_1_election_restriction",
    ),
    Mutant(
        "the election restriction compares lengths before terms",
        f"{CORE}/election.py",
        "return (request.last_term, request.last_index) >= (state.log.last_term, state.log.last_index)",
        "return (request.last_index, request.last_term) >= (state.log.last_index, state.log.last_term)",
        f"{ELECTIONS}::test_paper_5_4_1_election_restriction",
    ),
    Mutant(
        "a pre-vote is granted for a term that is not new",
        f"{CORE}/election.py",
        "is_granted = request.term > state.term and _is_up_to_date(state, request) and not state.trusts_leader()",
        "is_granted = _is_up_to_date(state, request) and not state.trusts_leader()",
        f"{ELECTIONS}::test_thesis_9_6_a_pre_vote_for_a_term_that_is_not_new_is_refused",
    ),
    Mutant(
        "a pre-vote is granted while the leader is alive",
        f"{CORE}/election.py",
        "is_granted = request.term > state.term and _is_up_to_date(state, request) and not state.trusts_leader()",
        "is_granted = request.term > state.term and _is_up_to_date(state, request)",
        f"{ELECTIONS}::test_thesis_4_2_3_a_follower_that_hears_its_leader_helps_nobody_to_depose_it",
    ),
    Mutant(
        "a vote request deposes a leader that is alive",
        f"{CORE}/election.py",
        "if state.trusts_leader() and not request.is_transfer:",
        "if False:",
        f"{ELECTIONS}::test_thesis_4_2_3_a_leader_with_a_quorum_is_not_deposed_by_a_request",
    ),
    Mutant(
        "pre-votes count as votes",
        f"{CORE}/election.py",
        "if state.role is not asked or (reply.is_pre_vote and reply.is_granted and reply.term != state.term + 1):",
        "if state.role not in (Role.PRE_CANDIDATE, Role.CANDIDATE):",
        f"{ELECTIONS}::test_a_pre_vote_is_not_counted_as_a_vote",
    ),
    Mutant(
        "no pre-vote: every timeout enters a new term",
        f"{CORE}/election.py",
        "campaign(state, is_pre_vote=True)",
        "campaign(state, is_pre_vote=False)",
        f"{ELECTIONS}::test_thesis_9_6_a_cut_off_server_does_not_raise_its_term",
    ),
    Mutant(
        "no check-quorum",
        f"{CORE}/leader.py",
        "if not _quorum_is_active(state, leadership):",
        "if False:",
        f"{ELECTIONS}::test_thesis_6_2_a_leader_without_a_quorum_steps_down",
    ),
    Mutant(
        "a transfer never times out",
        f"{CORE}/leader.py",
        "if transfer.ticks >= state.options.election_ticks:",
        "if False:",
        f"{ELECTIONS}::test_thesis_3_10_a_transfer_is_given_up_after_an_election_timeout",
    ),
    Mutant(
        "a transfer does not wait for the target's log",
        f"{CORE}/leader.py",
        "if progress is not None and progress.match_index == state.log.last_index:",
        "if progress is not None:",
        f"{ELECTIONS}::test_thesis_3_10_the_target_gets_the_whole_log_first",
    ),
    Mutant(
        "replies of strangers are listened to",
        f"{CORE}/node.py",
        "if state.is_known(message.sender):",
        "if True:",
        f"{ELECTIONS}::test_replies_of_strangers_are_ignored_their_term_included",
    ),
    # ── replication ──────────────────────────────────────────────────────────────────────────────
    Mutant(
        "an entry of an older term is committed by counting",
        f"{CORE}/leader.py",
        "if index <= state.commit_index or state.log.term(index) != state.term:",
        "if index <= state.commit_index:",
        f"{REPLICATION}::test_paper_figure_8_an_entry_of_an_older_term_is_not_committed_by_counting",
    ),
    Mutant(
        "a majority is one too few",
        f"{CORE}/leader.py",
        "index = matches[(len(matches) - 1) // 2]",
        "index = matches[len(matches) // 2]",
        f"{REPLICATION}::test_a_majority_of_even_and_odd_groups",
    ),
    Mutant(
        "a learner counts in the quorum",
        f"{CORE}/model/membership.py",
        "return 2 * len(self.voters.intersection(servers)) > len(self.voters)",
        "return 2 * len((self.voters | self.learners).intersection(servers)) > len(self.voters)",
        f"{ELECTIONS}::test_a_learner_is_not_asked_and_its_vote_does_not_count",
    ),
    Mutant(
        "a learner counts for commitment",
        f"{CORE}/leader.py",
        "voters = state.membership.voters\n    progress = leadership.progress\n",
        "voters = frozenset(state.membership.members)\n    progress = leadership.progress\n",
        f"{REPLICATION}::test_a_learner_does_not_count",
    ),
    Mutant(
        "applied before committed",
        f"{CORE}/node.py",
        "        if state.applied_index < state.commit_index:\n"
        "            committed = state.log.slice(state.applied_index + 1, state.commit_index)\n"
        "            state.applied_index = state.commit_index\n",
        "        if state.applied_index < state.log.last_index:\n"
        "            committed = state.log.slice(state.applied_index + 1, state.log.last_index)\n"
        "            state.applied_index = state.log.last_index\n",
        f"{REPLICATION}::test_paper_5_3_nothing_is_applied_before_a_majority_holds_it",
    ),
    Mutant(
        "a follower commits beyond what its leader vouches for",
        f"{CORE}/follower.py",
        "state.commit_to(max(state.commit_index, min(append.commit_index, match_index)))",
        "state.commit_to(max(state.commit_index, min(append.commit_index, state.log.last_index)))",
        f"{REPLICATION}::test_a_follower_commits_only_what_its_leader_vouches_for",
    ),
    Mutant(
        "the commit index goes beyond the log",
        f"{CORE}/follower.py",
        "state.commit_to(max(state.commit_index, min(append.commit_index, match_index)))",
        "state.commit_index = max(state.commit_index, append.commit_index)",
        f"{REPLICATION}::test_a_follower_commits_only_what_its_leader_vouches_for",
    ),
    Mutant(
        "conflicting entries are ignored",
        f"{CORE}/follower.py",
        "        if term is not None:\n            state.truncate_from(entry.index)\n",
        "        if term is not None:\n            return\n",
        f"{REPLICATION}::test_paper_figure_7_a_leader_repairs_every_log",
    ),
    Mutant(
        "every append truncates, also a late one",
        f"{CORE}/follower.py",
        "        if term == entry.term:\n            continue\n",
        "",
        f"{REPLICATION}::test_paper_5_3_only_a_conflict_truncates",
    ),
    Mutant(
        "no check of the previous term",
        f"{CORE}/follower.py",
        "if append.previous_index > state.commit_index and state.log.term(append.previous_index) != append.previous_term:",
        "if append.previous_index > state.log.last_index:",
        f"{REPLICATION}::test_paper_5_3_an_append_that_does_not_fit_is_rejected_and_changes_nothing",
    ),
    Mutant(
        "acknowledgements of an earlier term count",
        f"{CORE}/node.py",
        "    if message.term < state.term:\n        return\n    if isinstance(message, VoteReply):",
        "    if isinstance(message, VoteReply):",
        f"{REPLICATION}::test_acknowledgements_of_an_earlier_reign_do_not_count",
    ),
    Mutant(
        "what is sent counts as received",
        f"{CORE}/progress.py",
        "            self._inflight.append(last_index)\n",
        "            self._inflight.append(last_index)\n            self.match_index = last_index\n",
        f"{REPLICATION}::test_paper_5_3_nothing_is_applied_before_a_majority_holds_it",
    ),
    Mutant(
        "a lost append is never noticed",
        f"{CORE}/leader.py",
        "        _probe(state, reply.sender, progress)\n",
        "        pass\n",
        f"{REPLICATION}::test_a_lost_append_is_noticed_and_repeated",
    ),
    Mutant(
        "a lost append that was compacted is never noticed",
        f"{CORE}/leader.py",
        "        progress.become_probe()\n        return\n",
        "        return\n",
        f"{REPLICATION}::test_a_lost_append_is_repeated_although_it_is_compacted_meanwhile",
    ),
    Mutant(
        "appends in flight are not bounded",
        f"{CORE}/progress.py",
        "return len(self._inflight) < inflight_max",
        "return True",
        f"{REPLICATION}::test_unanswered_appends_to_one_follower_are_bounded",
    ),
    Mutant(
        "a heartbeat commits what the follower may not have",
        f"{CORE}/leader.py",
        "commit_index = min(progress.match_index, state.commit_index)",
        "commit_index = state.commit_index",
        f"{REPLICATION}::test_a_heartbeat_commits_no_more_than_the_follower_holds",
    ),
    # ── membership ───────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a change before an entry of the own term is committed (erratum of 2015)",
        f"{CORE}/requests.py",
        "if state.commit_index < leadership.first_index:",
        "if False:",
        f"{MEMBERSHIP}::test_erratum_2015_no_change_before_an_entry_of_the_own_term_is_committed",
    ),
    Mutant(
        "two membership changes overlap",
        f"{CORE}/requests.py",
        "if state.memberships.latest_index > state.commit_index:",
        "if False:",
        f"{MEMBERSHIP}::test_thesis_4_1_one_change_at_a_time",
    ),
    Mutant(
        "a membership that is truncated still holds",
        f"{CORE}/state.py",
        "        self.memberships.truncate_from(index)\n",
        "",
        f"{REPLICATION}::test_a_membership_that_is_cut_from_the_log_no_longer_holds",
    ),
    Mutant(
        "a server whose removal is not committed never campaigns",
        f"{CORE}/state.py",
        "return self.id in self.membership.voters or self.id in self.memberships.at(self.commit_index).voters",
        "return self.id in self.membership.voters",
        f"{MEMBERSHIP}::test_thesis_4_2_2_a_leader_that_is_no_member_does_not_count_itself",
    ),
    Mutant(
        "a removed leader leads on",
        f"{CORE}/leader.py",
        "if state.id not in voters and state.memberships.latest_index <= index:",
        "if False:",
        f"{MEMBERSHIP}::test_thesis_4_2_2_a_leader_that_is_no_member_does_not_count_itself",
    ),
    Mutant(
        "a leader removes itself without handing over",
        f"{CORE}/requests.py",
        "if event.change == RemoveServer(state.id):",
        "if False:",
        f"{MEMBERSHIP}::test_thesis_4_2_2_a_leader_hands_over_before_it_is_removed",
    ),
    Mutant(
        "a learner is promoted before it has caught up",
        f"{CORE}/requests.py",
        "return None if is_caught_up(state, leadership, server) else Reason.NOT_CAUGHT_UP",
        "return None",
        f"{MEMBERSHIP}::test_thesis_4_2_1_a_learner_that_is_behind_is_not_promoted",
    ),
    # ── reads ────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a read without a quorum's word",
        f"{CORE}/reads.py",
        "if first.index > commit_index or not is_confirmed(first.round):",
        "if first.index > commit_index:",
        f"{READS}::test_a_deposed_leader_answers_no_read",
    ),
    Mutant(
        "a read before an entry of the own term is committed",
        f"{CORE}/leader.py",
        "leadership.reads.add(request, origin, max(state.commit_index, leadership.first_index))",
        "leadership.reads.add(request, origin, state.commit_index)",
        f"{READS}::test_thesis_6_4_a_new_leader_answers_no_read_before_its_first_entry_is_committed",
    ),
    Mutant(
        "answers to an earlier round confirm a read",
        f"{CORE}/reads.py",
        "        self.round += 1\n",
        "",
        f"{READS}::test_thesis_6_4_answers_to_an_earlier_round_do_not_count",
    ),
    Mutant(
        "a follower answers a read before it has applied that far",
        f"{CORE}/requests.py",
        "elif reply.index <= state.commit_index:",
        "elif True:",
        f"{READS}::test_a_follower_reads_by_the_leaders_index_once_it_has_applied_that_far",
    ),
)
