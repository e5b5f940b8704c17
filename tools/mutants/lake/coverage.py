"""Planted bugs of what an archive holds: holes, ranges, files and digests."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

HOLES: Final = "src/bascule/lake/holes.py"
COVERAGE: Final = "src/bascule/lake/coverage.py"
RANGES: Final = "src/bascule/lake/ranges.py"
DIGEST: Final = "src/bascule/lake/digest.py"

HOLE_TESTS: Final = "tests/unit/lake/test_lake_holes.py"
RANGE_TESTS: Final = "tests/unit/lake/test_lake_ranges.py"
DIGEST_TESTS: Final = "tests/property/lake/test_lake_digest.py"
COVERED: Final = "tests/unit/lake/test_lake_coverage.py"
HISTORY: Final = "tests/property/spark/test_history_laws.py"

MUTANTS: Final = (
    Mutant(
        "ranges that touch stay two",
        HOLES,
        "start <= found[-1][1]:",
        "start < found[-1][1]:",
        f"{HOLE_TESTS}::test_ranges_are_joined",
    ),
    Mutant(
        "a range within another one shortens it",
        HOLES,
        "max(end, found[-1][1])",
        "end",
        f"{HOLE_TESTS}::test_ranges_are_joined",
    ),
    Mutant(
        "empty ranges stay",
        HOLES,
        "        if start >= end:\n            continue\n",
        "",
        f"{HOLE_TESTS}::test_ranges_are_joined",
    ),
    Mutant(
        "what follows the last hole is left out",
        HOLES,
        "    if start < end:\n        found.append((start, end))\n    return found",
        "    return found",
        f"{HOLE_TESTS}::test_ranges_are_taken_out_of_a_range",
    ),
    Mutant(
        "a hole that begins before the range shifts it back",
        HOLES,
        "start = max(start, following)",
        "start = following",
        f"{HOLE_TESTS}::test_ranges_are_taken_out_of_a_range",
    ),
    Mutant(
        "a range before a hole beyond its end is too long",
        HOLES,
        "found.append((start, min(first, end)))",
        "found.append((start, first))",
        f"{HOLE_TESTS}::test_ranges_are_taken_out_of_a_range",
    ),
    Mutant(
        "an archive holds what it has lost",
        COVERAGE,
        "return self.start <= offset < self.end and not any(start <= offset < end for start, end in self.lost)",
        "return self.start <= offset < self.end",
        f"{COVERED}::test_offsets_from_its_start_to_its_end_are_there_except_those_that_are_lost",
    ),
    Mutant(
        "an archive holds the offset after its end",
        COVERAGE,
        "return self.start <= offset < self.end and",
        "return self.start <= offset <= self.end and",
        f"{COVERED}::test_offsets_from_its_start_to_its_end_are_there_except_those_that_are_lost",
    ),
    Mutant(
        "lost offsets are read from the archive",
        COVERAGE,
        "return holes.without(max(start, self.start), min(end, self.end), self.lost)",
        "return holes.without(max(start, self.start), min(end, self.end), ())",
        f"{HISTORY}::test_every_offset_that_is_there_is_read_once_and_in_order",
    ),
    Mutant(
        "a file that ends where a range begins is left out",
        COVERAGE,
        "bisect_left(self.files, start, key=lambda one: one.last_offset)",
        "bisect_left(self.files, start + 1, key=lambda one: one.last_offset)",
        f"{COVERED}::test_the_files_of_a_range_are_those_that_have_offsets_of_it",
    ),
    Mutant(
        "a file that begins after a range is read too",
        COVERAGE,
        "bisect_left(self.files, end, lo=first, key=lambda one: one.first_offset)",
        "bisect_left(self.files, end + 1, lo=first, key=lambda one: one.first_offset)",
        f"{COVERED}::test_the_files_of_a_range_are_those_that_have_offsets_of_it",
    ),
    Mutant(
        "a hole after the last message is not covered",
        COVERAGE,
        "max(files[-1].last_offset + 1, state.next_offsets.get(key, 0))",
        "files[-1].last_offset + 1",
        f"{RANGE_TESTS}::test_a_hole_behind_the_last_message_belongs_to_what_the_archive_has",
    ),
    Mutant(
        "a follower does not notice another archive in the same folder",
        "src/bascule/lake/archive.py",
        "        if there is None or there.chain != state.tip:",
        "        if False:",
        f"{RANGE_TESTS}::test_an_archive_that_is_made_anew_in_the_same_folder_is_another",
    ),
    Mutant(
        "a follower keeps what it saw first",
        COVERAGE,
        "        if self.version != before:\n",
        "        if before is None:\n",
        f"{RANGE_TESTS}::test_a_follower_sees_what_is_committed_and_what_is_compacted",
    ),
    Mutant(
        "rows before a range are read",
        RANGES,
        "pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))",
        "pc.less(offsets, end)",
        f"{RANGE_TESTS}::test_a_range_of_a_file_is_read_and_nothing_else",
    ),
    Mutant(
        "the end of a range is inclusive",
        RANGES,
        "pc.less(offsets, end))",
        "pc.less_equal(offsets, end))",
        f"{RANGE_TESTS}::test_a_range_of_a_file_is_read_and_nothing_else",
    ),
    Mutant(
        "all row groups are read",
        RANGES,
        "if known is None or (known.min < end and known.max >= start):",
        "if True:",
        f"{RANGE_TESTS}::test_only_row_groups_with_such_offsets_are_read",
    ),
    Mutant(
        "a row group whose last row is asked for is left out",
        RANGES,
        "known.max >= start",
        "known.max > start",
        f"{RANGE_TESTS}::test_only_row_groups_with_such_offsets_are_read",
    ),
    Mutant(
        "batches of large messages are large",
        RANGES,
        "min(limits.FLIGHT_BATCH_ROWS, limits.FLIGHT_BATCH_BYTES // row_bytes)",
        "limits.FLIGHT_BATCH_ROWS",
        f"{RANGE_TESTS}::test_batches_of_large_messages_are_small",
    ),
    Mutant(
        "columns come in the order of the file",
        RANGES,
        "return found if found.schema == wanted else found.cast(wanted)",
        "return batch",
        f"{RANGE_TESTS}::test_rows_are_as_a_broker_sends_them_whatever_columns_are_asked_for",
    ),
    Mutant(
        "a moment is found one file too late",
        RANGES,
        "    one = later[at]\n",
        "    one = later[min(at + 1, len(later) - 1)]\n",
        f"{RANGE_TESTS}::test_a_moment_is_found_in_any_file_of_any_day",
    ),
    Mutant(
        "null is digested like nothing",
        DIGEST,
        "    yield _numbers(pc.cast(column.is_null(), pa.uint8()))\n",
        '    yield b""\n',
        f"{DIGEST_TESTS}::test_null_is_not_empty",
    ),
    Mutant(
        "lengths of values are not digested",
        DIGEST,
        "    yield _numbers(pc.binary_length(filled))\n",
        "",
        f"{DIGEST_TESTS}::test_the_same_bytes_in_other_rows_matter",
    ),
    Mutant(
        "values of a slice are digested from the start of its buffer",
        DIGEST,
        "memoryview(data)[offsets[0].as_py() : offsets[-1].as_py()]",
        "memoryview(data)[: offsets[-1].as_py()]",
        f"{DIGEST_TESTS}::test_a_slice_has_the_digest_of_its_rows",
    ),
    Mutant(
        "entries of headers are not counted",
        DIGEST,
        "    yield _numbers(pc.subtract(offsets[1:], offsets[:-1]))\n",
        "",
        f"{DIGEST_TESTS}::test_the_same_bytes_in_other_rows_matter",
    ),
)
