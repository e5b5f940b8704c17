"""Planted bugs of Spark's sink: where rows go, in which order, and what is published of them."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

ROUTING: Final = "src/bascule/spark/write/routing.py"
SORTING: Final = "src/bascule/spark/write/columns.py"
PARTITIONS: Final = "src/bascule/client/arrow/partitions.py"
COLUMNS: Final = "src/bascule/client/arrow/message_columns.py"

TESTS: Final = "tests/unit/spark/test_spark_sink_routing.py"

MUTANTS: Final = (
    Mutant(
        "a row for a partition that does not exist is sent",
        ROUTING,
        "if low < 0 or high >= self._counts[stream]:",
        "if low < 0:",
        f"{TESTS}::test_partitions_that_are_not_there_are_refused",
    ),
    Mutant(
        "a row for a partition below zero is sent",
        ROUTING,
        "if low < 0 or high >= self._counts[stream]:",
        "if high >= self._counts[stream]:",
        f"{TESTS}::test_partitions_that_are_not_there_are_refused",
    ),
    Mutant(
        "a row without a partition goes to partition 0",
        ROUTING,
        "                if column.null_count:\n",
        "                if False:\n",
        f"{TESTS}::test_partitions_that_are_not_there_are_refused",
    ),
    Mutant(
        "the option for a partition is ignored",
        ROUTING,
        "        if target.partition is not None:\n",
        "        if False:\n",
        f"{TESTS}::test_an_option_sends_all_rows_to_one_partition",
    ),
    Mutant(
        "a row without a target is dropped",
        ROUTING,
        'if "subject" not in batch.schema.names or rest.column("subject").null_count:',
        'if "subject" not in batch.schema.names:',
        f"{TESTS}::test_a_row_without_a_target_is_refused",
    ),
    Mutant(
        "round robin begins anew with every batch",
        PARTITIONS,
        "        self._next[stream] = (first + rows) % count\n",
        "",
        f"{TESTS}::test_round_robin_goes_on_from_batch_to_batch_and_begins_where_it_is_told",
    ),
    Mutant(
        "round robin begins with partition 0",
        PARTITIONS,
        "self._next.get(stream, self._first % count)",
        "self._next.get(stream, 0)",
        f"{TESTS}::test_round_robin_goes_on_from_batch_to_batch_and_begins_where_it_is_told",
    ),
    Mutant(
        "a key is stronger than the column for partitions",
        PARTITIONS,
        "        found[is_given] = integers(pc.fill_null(given, 0))[is_given]\n",
        "        pass\n",
        f"{TESTS}::test_automatic_takes_the_column_then_the_key_then_turns",
    ),
    Mutant(
        "rows without a key go to the partition of the empty key",
        PARTITIONS,
        "        if key.null_count:\n",
        "        if False:\n",
        f"{TESTS}::test_automatic_takes_the_column_then_the_key_then_turns",
    ),
    Mutant(
        "rows of a partition lose their order",
        PARTITIONS,
        'order = np.argsort(chosen, kind="stable")',
        'order = np.argsort(chosen, kind="stable")[::-1]',
        f"{TESTS}::test_rows_keep_their_order_within_a_partition_and_none_is_lost",
    ),
    Mutant(
        "rows of the last partition are lost",
        PARTITIONS,
        "+ 1).tolist(), len(ordered)]",
        "+ 1).tolist()]",
        f"{TESTS}::test_rows_keep_their_order_within_a_partition_and_none_is_lost",
    ),
    Mutant(
        "a slice of rows is published from the start of its buffer",
        COLUMNS,
        "[array.offset : array.offset + len(array) + 1]",
        "[: len(array) + 1]",
        f"{TESTS}::test_nulls_are_empty_and_slices_are_themselves",
    ),
    Mutant(
        "headers of another producer are copied",
        COLUMNS,
        "dropped = PRODUCER_HEADERS | (",
        "dropped = frozenset[str]() | (",
        f"{TESTS}::test_headers_of_the_producer_that_a_row_was_read_from_are_left_out",
    ),
    Mutant(
        "a row has two times",
        COLUMNS,
        '({TIMESTAMP_HEADER} if "timestamp" in names else frozenset())',
        "frozenset()",
        f"{TESTS}::test_headers_of_the_producer_that_a_row_was_read_from_are_left_out",
    ),
    Mutant(
        "times are microseconds",
        COLUMNS,
        "np.where(found < 0, -1, found * 1_000)",
        "np.where(found < 0, -1, found)",
        f"{TESTS}::test_times_are_nanoseconds_and_none_before_1970",
    ),
    Mutant(
        "times before 1970 are published",
        COLUMNS,
        "np.where(found < 0, -1, found * 1_000)",
        "found * 1_000",
        f"{TESTS}::test_times_are_nanoseconds_and_none_before_1970",
    ),
    Mutant(
        "keys are hashed from the first key on",
        COLUMNS,
        "        start = end\n    return found % count",
        "    return found % count",
        f"{TESTS}::test_keys_are_hashed_as_every_client_does",
    ),
    Mutant(
        "a repeated task has its rows in another order",
        SORTING,
        'if "*" in columns else columns\n',
        'if "*" not in columns else columns[1:] or ["key"]\n',
        f"{TESTS}::test_rows_are_sorted_by_what_they_are_whatever_order_they_come_in",
    ),
)
