"""Planted bugs of retention, of logs that are replaced, and of acks: what keeps replicas electable and LEADER acks true."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

PARTITION: Final = "src/bascule/partition/core"

FOLLOWERS: Final = "tests/unit/partition/test_leader_followers.py"
RETENTION: Final = "tests/unit/log/test_log_retention.py"
REPAIRS: Final = "tests/unit/partition/test_repairs.py"

MUTANTS: Final = (
    Mutant(
        "retention deletes uncommitted records",
        "src/bascule/log/core/retention.py",
        "while count and segments[count].base_offset > committed_end_offset:",
        "while False:",
        f"{RETENTION}::test_no_limit_deletes_a_segment_that_is_not_committed",
    ),
    Mutant(
        "the cleaner takes everything for committed",
        "src/bascule/log/cleaning/cleaner.py",
        "now_ns, log.high_watermark + 1)",
        "now_ns, log.log_end_offset)",
        f"{RETENTION}::test_must_hold_retention_deletes_nothing_that_is_not_committed",
    ),
    Mutant(
        "a log is removed before its replica has left the in-sync set",
        "src/bascule/partition/repairs.py",
        "return replica_epoch > finding.replica_epoch and self._server_id not in partition.in_sync_replicas",
        "return True",
        f"{REPAIRS}::test_must_hold_a_log_is_removed_only_after_its_replica_has_left_the_set",
    ),
    Mutant(
        "a comparison with a deposed leader removes a log",
        "src/bascule/partition/repairs.py",
        "return self.leader_epoch in (0, partition.leader_epoch)",
        "return True",
        f"{REPAIRS}::test_a_comparison_with_a_deposed_leader_does_not_count",
    ),
    Mutant(
        "a flaw that is found while the replica leaves is forgotten",
        "src/bascule/partition/repairs.py",
        "        known = self._findings.get(role.key)\n",
        "        if role.key in self._tasks:\n            return\n        known = self._findings.get(role.key)\n",
        f"{REPAIRS}::test_a_flaw_that_is_found_while_the_replica_leaves_is_not_forgotten",
    ),
    Mutant(
        "a log is removed in the replica epoch in which it was used",
        "src/bascule/partition/repairs.py",
        "return replica_epoch > finding.replica_epoch and",
        "return",
        f"{REPAIRS}::test_must_hold_a_flaw_that_is_found_in_a_new_replica_epoch_needs_another_one",
    ),
    Mutant(
        "an epoch that began in a gap of compaction begins after it",
        "src/bascule/log/partition/partition_log.py",
        "                epoch_start_offset = self._end_offset\n",
        "                epoch_start_offset = header.base_offset\n",
        "tests/unit/log/test_log_replicated.py::test_must_hold_an_epoch_that_began_in_a_hole_begins_with_it_on_a_copy",
    ),
    Mutant(
        "a sync that was asked for in a lost answer is never asked for again",
        f"{PARTITION}/leader.py",
        "        if fetch.is_urgent:\n            progress.sync_asked_to = 0",
        "        if False:\n            progress.sync_asked_to = 0",
        f"{FOLLOWERS}::test_a_follower_whose_answer_may_be_lost_is_asked_to_sync_again",
    ),
    Mutant(
        "a sync that was asked for in an ignored answer is never asked for again",
        f"{PARTITION}/leader.py",
        "self._answer_parked(name, progress, Verdict.OK, wants_sync=wants_sync)",
        "self._answer_parked(name, progress, Verdict.OK)",
        f"{FOLLOWERS}::test_a_follower_that_has_not_synced_when_its_fetch_is_answered_for_time_is_asked_again",
    ),
    Mutant(
        "a new leader waits for no disk",
        "src/bascule/partition/replication/leading.py",
        "if self._syncs_all and self.log.synced_end_offset < self.log.log_end_offset:",
        "if False:",
        "tests/unit/partition/test_leading_acks.py::"
        "test_with_always_a_new_leader_commits_what_was_written_and_not_synced_before_it",
    ),
    Mutant(
        "LEADER acks do not wait while a leader hands over",
        f"{PARTITION}/leader.py",
        "with_leader_acks = wants_leader and hands_over",
        "with_leader_acks = False",
        "tests/unit/partition/test_ack_waits.py::test_leader_acks_wait_for_all_replicas_while_the_leader_hands_over",
    ),
    Mutant(
        "LEADER acks are released although the hand-over may be done",
        "src/bascule/partition/hand_over.py",
        "leading.holds_leader_acks = in_doubt or not is_certain",
        "leading.holds_leader_acks = False",
        "tests/unit/partition/test_hand_over.py::test_leader_acks_wait_on_if_the_outcome_of_the_change_is_unknown",
    ),
)
