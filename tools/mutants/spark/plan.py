"""Planted bugs of Spark's source: what a trigger reads, how tasks share it, and what a checkpoint says."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

PLAN: Final = "src/bascule/spark/read/plan.py"
OFFSETS: Final = "src/bascule/spark/read/offsets.py"

LAWS: Final = "tests/property/spark/test_spark_plan.py"
CHECKPOINTS: Final = "tests/unit/spark/test_spark_offsets.py"

MUTANTS: Final = (
    Mutant(
        "a trigger does not wait for the least number of offsets",
        PLAN,
        "limits.offsets_min is None or backlog >= limits.offsets_min or",
        "True or",
        f"{LAWS}::test_a_trigger_waits_for_enough_but_not_for_ever",
    ),
    Mutant(
        "a trigger waits for ever",
        PLAN,
        " or waited_ms >= limits.delay_max_ms",
        "",
        f"{LAWS}::test_a_trigger_waits_for_enough_but_not_for_ever",
    ),
    Mutant(
        "a trigger without messages is due",
        PLAN,
        "    if backlog <= 0:\n        return False\n",
        "",
        f"{LAWS}::test_a_trigger_waits_for_enough_but_not_for_ever",
    ),
    Mutant(
        "the larger of two limits decides",
        PLAN,
        "ends[key] = min(ends[key], waiting",
        "ends[key] = max(ends[key], waiting",
        f"{LAWS}::test_the_smaller_of_two_limits_decides",
    ),
    Mutant(
        "the limit of bytes is ignored",
        PLAN,
        " if most else {}",
        " if False else {}",
        f"{LAWS}::test_the_limits_hold_but_for_one_offset_of_each_partition",
    ),
    Mutant(
        "the limit of offsets is ignored",
        PLAN,
        "for counts in (_counts_by_offsets(waiting, limits.offsets_max), ",
        "for counts in (",
        f"{LAWS}::test_the_limits_hold_but_for_one_offset_of_each_partition",
    ),
    Mutant(
        "half of a limit is not used",
        PLAN,
        "return {key: each.head + even[key] + fraction * rest[key] for key, each in amounts.items()}",
        "return {key: each.head + even[key] for key, each in amounts.items()}",
        f"{LAWS}::test_a_limit_is_used_up",
    ),
    Mutant(
        "a limit goes by backlog alone",
        PLAN,
        "alike = Fraction(int(budget * _GRID) // (2 * len(amounts)), _GRID)",
        "alike = Fraction(0)",
        f"{LAWS}::test_a_small_partition_is_not_starved_by_large_ones",
    ),
    Mutant(
        "a partition may take more than the limit",
        PLAN,
        "fraction = min(Fraction(1), (budget",
        "fraction = max(Fraction(1), (budget",
        f"{LAWS}::test_the_limits_hold_but_for_one_offset_of_each_partition",
    ),
    Mutant(
        "offsets of pieces are counted once too often",
        PLAN,
        "            count += each.count\n            size_bytes -= each.size_bytes\n",
        "            count += each.count\n",
        "tests/property/spark/test_history_laws.py::test_a_trigger_within_a_limit_of_bytes_reads_no_more_by_the_sizes_of_files",
    ),
    Mutant(
        "tasks are larger than allowed",
        PLAN,
        "pieces = {key: -(-each.count // ",
        "pieces = {key: max(1, each.count // ",
        f"{LAWS}::test_no_piece_exceeds_what_a_task_may_read",
    ),
    Mutant(
        "the limit of bytes of a task is ignored",
        PLAN,
        "if limits.bytes_max is not None and backlog.bytes_per_offset:",
        "if False:",
        f"{LAWS}::test_no_piece_exceeds_what_a_task_may_read",
    ),
    Mutant(
        "the limit of offsets of a task is ignored",
        PLAN,
        "    if limits.offsets_max is not None:\n        most = min(most, limits.offsets_max)\n",
        "",
        f"{LAWS}::test_no_piece_exceeds_what_a_task_may_read",
    ),
    Mutant(
        "there are fewer tasks than asked for",
        PLAN,
        "        pieces[key] += 1\n",
        "        pieces[key] += 0\n",
        f"{LAWS}::test_there_are_as_many_pieces_as_asked_for_while_there_are_offsets",
    ),
    Mutant(
        "a piece overlaps the next one",
        PLAN,
        "OffsetRange(start, end, backlog.bytes_per_offset)",
        "OffsetRange(start, end + 1, backlog.bytes_per_offset)",
        f"{LAWS}::test_pieces_cover_the_ranges_exactly_and_none_is_empty",
    ),
    Mutant(
        "pieces of a partition differ much",
        PLAN,
        "backlog.start + backlog.count * piece // pieces",
        "backlog.start + backlog.count // pieces * piece",
        f"{LAWS}::test_pieces_cover_the_ranges_exactly_and_none_is_empty",
    ),
    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────
    Mutant(
        "the first batch does not say where it began",
        OFFSETS,
        "began=None if at_start else began.streams[name].next",
        "began=None",
        f"{CHECKPOINTS}::test_the_end_of_the_first_batch_says_where_it_began",
    ),
    Mutant(
        "a repeated first batch begins at the latest offset",
        OFFSETS,
        "        if stream.began is not None and not _continues(before, stream):\n",
        "        if False:\n",
        f"{CHECKPOINTS}::test_a_first_batch_that_is_repeated_begins_where_it_began_whatever_latest_is_by_now",
    ),
    Mutant(
        "a batch begins where the first batch began",
        OFFSETS,
        "        if stream.began is not None and not _continues(before, stream):\n",
        "        if stream.began is not None:\n",
        f"{CHECKPOINTS}::test_a_batch_begins_where_the_one_before_ended_whatever_its_note_says",
    ),
    Mutant(
        "an empty first batch is not noted",
        OFFSETS,
        "if _same_place(start, end) and not any(stream.is_initial for stream in start.streams.values()):",
        "if _same_place(start, end):",
        f"{CHECKPOINTS}::test_an_empty_first_batch_still_says_where_it_began",
    ),
    Mutant(
        "a batch without messages looks new",
        OFFSETS,
        "    if _same_place(start, end) and not any(stream.is_initial for stream in start.streams.values()):\n        return start\n",
        "",
        f"{CHECKPOINTS}::test_nothing_new_looks_exactly_as_before",
    ),
    Mutant(
        "a stream that was created again continues the old one",
        OFFSETS,
        " and before.id in (None, stream.id)",
        "",
        f"{CHECKPOINTS}::test_a_stream_created_again_or_found_later_says_where_it_began",
    ),
    Mutant(
        "offsets depend on the order in which partitions were found",
        OFFSETS,
        "for partition in sorted(offsets)}",
        "for partition in offsets}",
        f"{CHECKPOINTS}::test_the_text_does_not_depend_on_the_order_things_came_in",
    ),
    Mutant(
        "the identity of a stream is not noted",
        OFFSETS,
        "        document[ID] = stream.id\n",
        "        pass\n",
        f"{CHECKPOINTS}::test_offsets_come_back_as_they_were",
    ),
    Mutant(
        "True is an offset of a checkpoint",
        OFFSETS,
        "isinstance(value, int) and not isinstance(value, bool) and",
        "isinstance(value, int) and",
        f"{CHECKPOINTS}::test_offsets_of_somebody_else_are_refused",
    ),
    Mutant(
        "a partition number may have leading zeros",
        OFFSETS,
        'r"0|[1-9][0-9]{0,9}"',
        'r"[0-9]{1,10}"',
        f"{CHECKPOINTS}::test_offsets_of_somebody_else_are_refused",
    ),
)
