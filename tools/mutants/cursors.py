"""Planted bugs of cursors on the server: the stale answers that their leader must not give, and what it remembers."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

CURSORS: Final = "src/bascule/readers/cursors.py"
STORED: Final = "src/bascule/readers/stored_cursors.py"
TABLES: Final = "src/bascule/readers/cursor_tables.py"

LEADERS: Final = "tests/unit/readers/test_cursor_leaders.py"
STORE: Final = "tests/unit/readers/test_cursors.py"
LISTS: Final = "tests/unit/readers/test_cursor_tables.py"

MUTANTS: Final = (
    # ── stale leaders ────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a server answers another one for a partition that it does not lead",
        CURSORS,
        "        if partition is None or partition.leader != self._server_id:\n",
        "        if partition is None:\n",
        f"{LEADERS}::test_a_server_that_does_not_lead_the_partition_any_more_refuses_the_request_of_another",
    ),
    Mutant(
        "a follower answers for cursors",
        CURSORS,
        "        if local is None or not local.is_leader:\n",
        "        if local is None:\n",
        f"{LEADERS}::test_a_replica_that_follows_answers_nothing",
    ),
    Mutant(
        "a leader of an older epoch answers for cursors",
        CURSORS,
        "if partition is None or (partition.leader, partition.leader_epoch) != (self._server_id, local.leader_epoch):",
        "if partition is None or partition.leader != self._server_id:",
        f"{LEADERS}::test_a_leader_with_followers_confirms_its_epoch_before_it_answers",
    ),
    Mutant(
        "a leader with followers does not confirm that it leads",
        CURSORS,
        "            await self._make_sure(local, local.leading)\n",
        "            pass\n",
        f"{LEADERS}::test_a_leader_with_followers_confirms_its_epoch_before_it_answers",
    ),
    Mutant(
        "a new leader answers before it knows what is committed",
        CURSORS,
        "        while not leading.core.knows_what_is_committed:\n            await asyncio.sleep(POLL_SECONDS)\n",
        "",
        f"{LEADERS}::test_a_new_leader_waits_until_it_knows_what_is_committed",
    ),
    Mutant(
        "cursors read in an older epoch are remembered",
        CURSORS,
        "(view.stream_id, view.leader_epoch) != (local.stream_id, local.leader_epoch)",
        "view.stream_id != local.stream_id",
        f"{LEADERS}::test_a_leader_of_a_new_epoch_reads_its_log_anew",
    ),
    Mutant(
        "cursors of a deleted stream are remembered",
        CURSORS,
        "(view.stream_id, view.leader_epoch) != (local.stream_id, local.leader_epoch)",
        "view.leader_epoch != local.leader_epoch",
        f"{LEADERS}::test_a_leader_of_a_new_epoch_reads_its_log_anew",
    ),
    # ── keys ─────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "commas in the names of streams are kept in keys",
        STORED,
        'stream.encode().replace(b",", b"\\xff")',
        "stream.encode()",
        f"{STORE}::test_no_two_cursors_have_the_same_key",
    ),
    Mutant(
        "the partition of a cursor is not that of other clients",
        CURSORS,
        "return zlib.crc32(key) % partitions",
        "return zlib.adler32(key) % partitions",
        f"{STORE}::test_the_key_and_its_partition_are_what_clients_compute",
    ),
    # ── setting and replacing ────────────────────────────────────────────────────────────────────
    Mutant(
        "two servers replace a cursor at the same time",
        CURSORS,
        "        async with lock:\n            found",
        "        if lock:\n            found",
        f"{STORE}::test_one_of_several_servers_replaces_a_cursor",
    ),
    Mutant(
        "a cursor is replaced whatever it is",
        CURSORS,
        "            if found.offset != wanted.expected:\n                return found\n",
        "",
        f"{STORE}::test_one_of_several_servers_replaces_a_cursor",
    ),
    Mutant(
        "a cursor is set once, even if its partition has no leader",
        CURSORS,
        "            await _insist(attempt, timeout)\n",
        "            await attempt(timeout)\n",
        f"{STORE}::test_a_cursor_is_set_again_while_its_partition_has_no_leader",
    ),
    Mutant(
        "a paused partition of cursors is not resumed",
        CURSORS,
        "            await self._starts.resume(CURSORS_STREAM, number)\n            local",
        "            local",
        f"{STORE}::test_a_paused_partition_is_resumed_by_using_it",
    ),
    Mutant(
        "cursors do not wait for their stream",
        CURSORS,
        "        if self._waits_for_stream:\n",
        "        if False:\n",
        f"{STORE}::test_a_cluster_that_just_began_makes_cursors_wait_until_it_has_their_stream",
    ),
    # ── reading ──────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a cursor is not looked for in the log after it was evicted",
        CURSORS,
        "            if found is None and self._forgotten:\n",
        "            if False:\n",
        f"{STORE}::test_cursors_that_do_not_fit_are_looked_for_in_the_log",
    ),
    Mutant(
        "an evicted cursor is not marked as forgotten",
        CURSORS,
        "            self._cursors.popitem(last=False)\n            self._forgotten = True\n",
        "            self._cursors.popitem(last=False)\n",
        f"{STORE}::test_cursors_that_do_not_fit_are_looked_for_in_the_log",
    ),
    Mutant(
        "the first of several cursors is found in the log",
        CURSORS,
        "                    latest = stored\n",
        "                    latest = latest or stored\n",
        f"{STORE}::test_cursors_that_do_not_fit_are_looked_for_in_the_log",
    ),
    Mutant(
        "a cursor that retention removed is still answered",
        CURSORS,
        "            if found is None or found.at < log.log_start_offset:\n",
        "            if found is None:\n",
        f"{STORE}::test_a_cursor_that_retention_took_is_none",
    ),
    Mutant(
        "cursors are read beyond the high watermark",
        CURSORS,
        "            found = log.read(offset)\n",
        "            found = log.read(offset, committed=False)\n",
        f"{STORE}::test_only_what_is_committed_counts_and_foreign_messages_do_not",
    ),
    Mutant(
        "new cursors are not read before an answer",
        CURSORS,
        "            await self._read_on(log, passes_damage)\n",
        "            await self._read_on(log, passes_damage) if not self._cursors else None\n",
        f"{STORE}::test_a_cursor_is_what_was_set_last",
    ),
    # ── lists for metrics ────────────────────────────────────────────────────────────────────────
    Mutant(
        "holds of groups are listed as readers",
        TABLES,
        "        if found is None or found[0].cursor_id.startswith(HOLD_PREFIX):\n",
        "        if found is None:\n",
        f"{LISTS}::test_notes_of_groups_and_foreign_messages_are_passed_over",
    ),
    Mutant(
        "a list of a truncated log keeps what was cut off",
        TABLES,
        "            if end_offset < self._next_offset:",
        "            if False:",
        f"{LISTS}::test_a_log_that_was_cut_back_is_read_anew",
    ),
    Mutant(
        "cursors beyond the bound of a list are not counted",
        TABLES,
        "            if self.count >= self.cursors_max:\n                self.left_out += 1\n",
        "            if self.count >= self.cursors_max:\n",
        f"{LISTS}::test_many_are_read_beside_the_loop_and_more_than_there_is_room_for_are_counted",
    ),
    Mutant(
        "a list has no bound",
        TABLES,
        "            if self.count >= self.cursors_max:\n",
        "            if False:\n",
        f"{LISTS}::test_many_are_read_beside_the_loop_and_more_than_there_is_room_for_are_counted",
    ),
    Mutant(
        "a server gets the cursors of partitions that others lead",
        TABLES,
        "            if partition.leader != server or not cursors:\n",
        "            if not cursors:\n",
        f"{LISTS}::test_a_server_is_told_of_the_cursors_in_what_it_leads",
    ),
    Mutant(
        "a paused partition is resumed for every scrape",
        TABLES,
        "            if table.is_up_to_date:\n",
        "            if False:\n",
        f"{LISTS}::test_a_paused_partition_is_woken_only_for_what_was_not_read",
    ),
    Mutant(
        "a paused partition is listed without what was not read",
        TABLES,
        "            if table.is_up_to_date:\n",
        "            if True:\n",
        f"{LISTS}::test_a_paused_partition_is_woken_only_for_what_was_not_read",
    ),
    Mutant(
        "an answer between servers has no bound",
        TABLES,
        "            if nbytes > limits.METRICS_CURSORS_BYTES_MAX:\n",
        "            if False:\n",
        f"{LISTS}::test_answers_between_servers_and_tables_have_bounds",
    ),
)
