"""Planted bugs of followers that copy a log, and of the metadata that says which replica does."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

PARTITION: Final = "src/bascule/partition/core"
METADATA: Final = "src/bascule/metadata/core"

FOLLOWER: Final = "tests/unit/partition/test_follower.py"
PARTITIONS: Final = "tests/unit/metadata/test_metadata_partitions.py"
SERVERS: Final = "tests/unit/metadata/test_metadata_servers.py"
STREAMS: Final = "tests/unit/metadata/test_metadata_streams.py"
MOVES: Final = "tests/unit/metadata/test_metadata_reassignment.py"
GROUPS: Final = "tests/unit/metadata/test_metadata_groups.py"
REPLICATOR: Final = "tests/unit/partition/test_replicator.py"

MUTANTS: Final = (
    # ── followers that copy ──────────────────────────────────────────────────────────────────────
    Mutant(
        "an empty log that does not begin at 0 never agrees",
        f"{PARTITION}/follower.py",
        "if not self._agrees and self._is_empty:",
        "if not self._agrees and self._log_end_offset == 0:",
        f"{FOLLOWER}::test_an_empty_log_that_does_not_begin_at_0_agrees_with_everybody",
    ),
    Mutant(
        "an empty log keeps epochs in which nothing was written",
        f"{PARTITION}/follower.py",
        "self._agrees = self._latest_epoch == 0",
        "self._agrees = True",
        f"{FOLLOWER}::test_an_empty_log_forgets_epochs_in_which_nothing_was_written",
    ),
    Mutant(
        "the watermark goes beyond the follower's own end",
        f"{PARTITION}/follower.py",
        "high_watermark = min(self._leader_high_watermark, self._log_end_offset - 1)",
        "high_watermark = self._leader_high_watermark",
        f"{FOLLOWER}::test_fix_4_the_watermark_is_never_beyond_the_own_end",
    ),
    Mutant(
        "the watermark is followed before the logs agree",
        f"{PARTITION}/follower.py",
        "if not self._agrees or high_watermark <= self._high_watermark:",
        "if high_watermark <= self._high_watermark:",
        f"{FOLLOWER}::test_the_watermark_is_not_followed_before_the_logs_agree",
    ),
    Mutant(
        "an answer is written twice",
        f"{PARTITION}/follower.py",
        "if answer.number != self._asked_number or self.state is not FollowerState.FETCHING:",
        "if self.state is not FollowerState.FETCHING:",
        f"{FOLLOWER}::test_an_old_answer_is_ignored",
    ),
    Mutant(
        "data of another leader epoch is written",
        f"{PARTITION}/follower.py",
        "        if answer.leader_epoch != self.leader_epoch:\n",
        "        if False:\n",
        f"{FOLLOWER}::test_data_of_another_leader_epoch_is_not_written",
    ),
    Mutant(
        "notices of another leader epoch are believed",
        f"{PARTITION}/follower.py",
        "if notice.leader_epoch != self.leader_epoch or self.state is FollowerState.STUCK:",
        "if self.state is FollowerState.STUCK:",
        f"{FOLLOWER}::test_a_notice_of_another_epoch_is_ignored",
    ),
    Mutant(
        "after a failed write the logs are taken to agree",
        f"{PARTITION}/follower.py",
        "        self._agrees = self._will_agree = False  # a part",
        "        # a part",
        f"{FOLLOWER}::test_after_a_full_disk_it_looks_again_where_the_logs_part",
    ),
    Mutant(
        "a server that does not lead is taken for a leader that is well",
        f"{PARTITION}/follower.py",
        "        self.state = FollowerState.WAITING\n",
        "        self.state = FollowerState.WAITING\n        self._heard_ns = now_ns\n",
        f"{FOLLOWER}::test_a_server_that_says_it_does_not_lead_is_not_taken_for_the_leader",
    ),
    Mutant(
        "a silent leader is never reported",
        f"{PARTITION}/follower.py",
        "            effects.append(ReportLeader())\n",
        "            pass\n",
        f"{FOLLOWER}::test_a_silent_leader_is_reported_and_again_every_quarter",
    ),
    Mutant(
        "a follower whose disk is slow blames its leader",
        f"{PARTITION}/follower.py",
        "        self._heard_ns = now_ns  # nothing was asked meanwhile: this server's slow disk is not the leader's silence\n",
        "",
        f"{FOLLOWER}::test_a_follower_whose_disk_hangs_does_not_blame_its_leader",
    ),
    # ── the metadata ─────────────────────────────────────────────────────────────────────────────
    Mutant(
        "no fencing of the in-sync set by leader epoch",
        f"{METADATA}/partition_ops.py",
        "    if (partition.leader, partition.leader_epoch) != (op.leader, op.leader_epoch):\n",
        "    if False:\n",
        f"{STREAMS}::test_isr_changes_of_a_deposed_leader_are_fenced",
    ),
    Mutant(
        "no fencing of the in-sync set by partition epoch",
        f"{METADATA}/partition_ops.py",
        "    if op.partition_epoch not in (0, partition.epoch):\n",
        "    if False:\n",
        f"{PARTITIONS}::test_a_replica_comes_into_the_in_sync_set_the_leader_knew_and_into_no_other",
    ),
    Mutant(
        "no fencing of the in-sync set by replica epoch",
        f"{METADATA}/partition_ops.py",
        "    if op.replica_epoch != replica_epoch:\n",
        "    if False:\n",
        f"{PARTITIONS}::test_a_replica_that_restarted_since_the_leader_saw_it_does_not_come_in",
    ),
    Mutant(
        "a replica that is rebuilt is the same as before",
        f"{METADATA}/partition_ops.py",
        "partition.replica_epochs[op.replica] = partition.epoch = index",
        "partition.epoch = index",
        f"{PARTITIONS}::test_a_replica_that_left_for_damage_is_not_let_in_for_what_it_said_before",
    ),
    Mutant(
        "a replica that was moved away and back is the same as before",
        f"{METADATA}/reassignment.py",
        "        partition.replica_epochs[replica] = index  # it may",
        "        pass  # it may",
        f"{MOVES}::test_a_replica_that_comes_back_is_not_let_in_for_what_it_said_when_it_was_one_before",
    ),
    Mutant(
        "the last in-sync replica leaves",
        f"{METADATA}/partition_ops.py",
        "    if partition.in_sync_replicas == [op.replica]:\n",
        "    if False:\n",
        f"{PARTITIONS}::test_the_last_in_sync_replica_cannot_leave",
    ),
    Mutant(
        "a failed leader stays in sync",
        f"{METADATA}/partition_ops.py",
        "    if op.failed:\n",
        "    if False:\n",
        f"{STREAMS}::test_a_failed_leader_leaves_the_isr_in_the_op_that_replaces_it",
    ),
    Mutant(
        "an election from outside of the in-sync set",
        f"{METADATA}/partition_ops.py",
        "        for replica in partition.in_sync_replicas\n        if replica != partition.leader and",
        "        for replica in partition.replicas\n        if replica != partition.leader and",
        f"{PARTITIONS}::test_nobody_is_elected_who_is_not_in_sync",
    ),
    Mutant(
        "an unclean election is not said to be one",
        f"{METADATA}/partition_ops.py",
        "    lead(contents, index, partition, [op.replica])\n    partition.data_loss_epoch = index\n",
        "    lead(contents, index, partition, [op.replica])\n",
        f"{PARTITIONS}::test_an_unclean_election_leaves_one_in_sync_replica_and_says_that_records_may_be_lost",
    ),
    Mutant(
        "a server that lost its unsynced data stays in sync",
        f"{METADATA}/server_ops.py",
        "changed = _step_aside(contents, index, partition, op.server) or _own_loss(",
        "changed = _own_loss(",
        f"{SERVERS}::test_a_server_that_lost_what_was_not_synced_leaves_every_in_sync_set_and_leads_nothing",
    ),
    Mutant(
        "a restarted leader goes on in its epoch",
        f"{METADATA}/server_ops.py",
        "    lead(contents, index, partition, [server])\n",
        "",
        f"{SERVERS}::test_a_server_whose_machine_stayed_up_keeps_what_it_leads_in_a_new_epoch",
    ),
    Mutant(
        "the only in-sync replica does not admit its loss",
        f"{METADATA}/server_ops.py",
        "    partition.data_loss_epoch = index\n",
        "",
        f"{SERVERS}::test_the_only_in_sync_replica_leads_on_in_a_new_epoch_that_admits_the_loss",
    ),
    Mutant(
        "a restart does not renew the server's epoch",
        f"{METADATA}/server_ops.py",
        "    contents.server_epochs[op.server] = index\n",
        "    contents.server_epochs.setdefault(op.server, index)\n",
        f"{SERVERS}::test_the_epoch_of_a_server_is_its_last_restart",
    ),
    Mutant(
        "a tally is not cleared by the election",
        f"{METADATA}/failures.py",
        "        del self._tallies[what]\n        return None\n",
        "        return None\n",
        f"{GROUPS}::test_an_election_that_did_not_come_about_needs_new_reports_too",
    ),
    Mutant(
        "a tally never expires",
        f"{METADATA}/failures.py",
        "        if tally.expires_ns <= now_ns:\n",
        "        if False:\n",
        f"{GROUPS}::test_a_tally_expires_after_the_last_report",
    ),
    Mutant(
        "replicas that are not in sync are believed about the leader",
        f"{METADATA}/failures.py",
        "        if reporter not in known.in_sync_replicas or reporter == leader:\n",
        "        if False:\n",
        f"{GROUPS}::test_only_in_sync_followers_are_believed_and_only_about_the_present_leader",
    ),
    Mutant(
        "half of the followers depose a leader",
        f"{METADATA}/failures.py",
        "needed = (len(known.in_sync_replicas) - 1) // 2 + 1",
        "needed = (len(known.in_sync_replicas) - 1) // 2",
        f"{GROUPS}::test_a_leader_is_replaced_when_more_than_half_of_its_followers_report_it",
    ),
    # ── the shell ────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a proposal that was not sent settles the one before",
        "src/bascule/partition/replication/replicator.py",
        "            outcome = ProposalOutcome.UNKNOWN\n",
        "            outcome = ProposalOutcome.REFUSED\n",
        f"{REPLICATOR}::test_a_leader_hears_the_metadata_of_now_and_then_what_became_of_its_proposal",
    ),
    Mutant(
        "the outcome of a proposal is reported before the metadata",
        "src/bascule/partition/replication/replicator.py",
        "            leading.refresh(partition)\n            leading.settled(effect.replica, outcome)\n",
        "            leading.settled(effect.replica, outcome)\n            leading.refresh(partition)\n",
        f"{REPLICATOR}::test_a_leader_hears_the_metadata_of_now_and_then_what_became_of_its_proposal",
    ),
)
