"""Planted bugs of an archive's files and commits: how they are written, merged, summed up and removed."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

FILES: Final = "src/bascule/lake/files.py"
COMPACTION: Final = "src/bascule/lake/compaction.py"
ARCHIVE: Final = "src/bascule/lake/archive.py"
HOUSEKEEPING: Final = "src/bascule/lake/housekeeping.py"

WRITTEN: Final = "tests/unit/lake/test_lake_files.py"
MERGED: Final = "tests/unit/lake/test_lake_compaction.py"
LAWS: Final = "tests/property/lake/test_lake_compaction_laws.py"
COMMITS: Final = "tests/unit/lake/test_lake_archive.py"

MUTANTS: Final = (
    # ── files ────────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a batch that comes again is written again",
        FILES,
        '                run = run.filter(pc.greater_equal(run["offset"], floor))\n',
        "                pass\n",
        f"{WRITTEN}::test_what_the_archive_has_is_left_out",
    ),
    Mutant(
        "the first message that an archive lacks is left out",
        FILES,
        'pc.greater_equal(run["offset"], floor)',
        'pc.greater(run["offset"], floor)',
        f"{WRITTEN}::test_what_the_archive_has_is_left_out",
    ),
    Mutant(
        "a task that fails leaves its file",
        FILES,
        "            if writer is not None:\n                writer.abandon()\n",
        "            pass\n",
        f"{WRITTEN}::test_a_task_that_fails_leaves_no_file",
    ),
    Mutant(
        "a file holds rows of several days",
        FILES,
        "            and _date_of(run) == self._date\n",
        "",
        f"{WRITTEN}::test_partitions_and_days_have_files_of_their_own",
    ),
    Mutant(
        "a file holds rows of several partitions",
        FILES,
        '            and run["partition"][0].as_py() == self._partition\n',
        "",
        f"{WRITTEN}::test_partitions_and_days_have_files_of_their_own",
    ),
    Mutant(
        "a batch is not cut at the end of a day",
        FILES,
        '    keys = [batch["stream"], batch["partition"], days]\n',
        '    keys = [batch["stream"], batch["partition"]]\n',
        f"{WRITTEN}::test_the_last_moment_of_a_day_and_the_first_of_the_next_are_apart",
    ),
    Mutant(
        "files get any size",
        FILES,
        "            self._file.size < self._file_bytes\n            and run",
        "            run",
        f"{WRITTEN}::test_files_are_rolled_by_size",
    ),
    Mutant(
        "every batch is a row group",
        FILES,
        "if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= min(ROW_GROUP_BYTES, self._file_bytes):",
        "if True:",
        f"{WRITTEN}::test_small_batches_share_row_groups",
    ),
    Mutant(
        "the digest of a file lacks the first row of each batch",
        FILES,
        "        self._digest.add(run)\n",
        "        self._digest.add(run.slice(1))\n",
        f"{WRITTEN}::test_a_file_says_what_it_holds",
    ),
    # ── merging ──────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "files of two days are merged",
        COMPACTION,
        "neighbours = groupby(in_order, key=lambda one: (one.stream, one.stream_id, one.partition, one.date))",
        "neighbours = groupby(in_order, key=lambda one: (one.stream, one.stream_id, one.partition))",
        f"{LAWS}::test_merges_are_of_neighbours_of_one_partition_and_day",
    ),
    Mutant(
        "files are merged beyond the target",
        COMPACTION,
        " and stack[-1][0] + size <= target_bytes:",
        ":",
        f"{LAWS}::test_what_is_large_enough_is_left_alone",
    ),
    Mutant(
        "a file that is merged with nothing is written again",
        COMPACTION,
        "        if len(group) > 1:\n",
        "        if group:\n",
        f"{LAWS}::test_planned_again_there_is_nothing_to_do",
    ),
    Mutant(
        "small files stay small",
        COMPACTION,
        "        while stack and stack[-1][0] < 2 * size and",
        "        while False and",
        f"{LAWS}::test_what_stays_small_is_few_files",
    ),
    Mutant(
        "a round has no limit",
        COMPACTION,
        "        if found and size + one.bytes > bytes_max:\n",
        "        if False:\n",
        f"{MERGED}::test_a_round_merges_so_much_and_the_next_one_the_rest",
    ),
    Mutant(
        "damage is copied into the merged file",
        COMPACTION,
        "    if (digest.rows, digest.value) != (one.rows, one.crc32c):\n",
        "    if False:\n",
        f"{MERGED}::test_damage_is_not_copied_in_silence",
    ),
    Mutant(
        "a merged file is not read back",
        COMPACTION,
        "            for _ in checked_rows(place, found):\n                continue  # read back: what lies there is what was meant\n",
        "            pass\n",
        f"{MERGED}::test_a_disk_that_writes_something_else_is_noticed",
    ),
    Mutant(
        "merged files stay part of the archive",
        COMPACTION,
        "removed = tuple(file.path for one in merges for file in one.files)",
        "removed = ()",
        f"{MERGED}::test_small_files_become_one_with_the_same_rows",
    ),
    # ── commits ──────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a missing commit is passed over",
        ARCHIVE,
        "            if version > state.number + 1:\n",
        "            if False:\n",
        f"{COMMITS}::test_a_commit_that_is_missing_is_named",
    ),
    Mutant(
        "two processes write an archive",
        ARCHIVE,
        "            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            pass\n",
        f"{COMMITS}::test_one_process_writes",
    ),
    Mutant(
        "an archive of a later version is read",
        ARCHIVE,
        '        if about.get("format") != FORMAT:\n',
        "        if False:\n",
        f"{COMMITS}::test_a_later_format_is_refused",
    ),
    Mutant(
        "an archive is made in a folder with something else",
        ARCHIVE,
        "        if not self._is_free():\n",
        "        if False:\n",
        f"{COMMITS}::test_what_is_no_archive_is_left_alone",
    ),
    Mutant(
        "a replaced file is removed at once",
        HOUSEKEEPING,
        "return time.time_ns() // 1_000_000 - self._keep_ms",
        "return time.time_ns() // 1_000_000",
        f"{MERGED}::test_files_that_were_replaced_stay_for_readers_and_then_go",
    ),
    Mutant(
        "files that no commit names stay",
        HOUSEKEEPING,
        "                    place.remove(one.name)\n",
        "                    pass\n",
        f"{COMMITS}::test_what_no_commit_names_is_not_there_and_goes",
    ),
    Mutant(
        "files of the archive are removed with the rest",
        HOUSEKEEPING,
        "                known = one.name in state.files or",
        "                known = False and one.name in state.files or",
        f"{COMMITS}::test_what_no_commit_names_is_not_there_and_goes",
    ),
)
