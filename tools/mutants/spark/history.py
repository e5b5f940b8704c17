"""Planted bugs of Spark's source: the place of each offset, what is lost, and the stream that a query has read."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

STATE: Final = "src/bascule/spark/read/state.py"
ADVANCE: Final = "src/bascule/spark/read/advance.py"

LAWS: Final = "tests/property/spark/test_history_laws.py"
READER: Final = "tests/unit/spark/test_spark_stream_reader.py"

MUTANTS: Final = (
    Mutant(
        "what the archive has is read from the log",
        STATE,
        "        found.append(ReadPart(first, following, is_archived=True))\n",
        "        found.append(ReadPart(first, following, is_archived=False))\n",
        f"{LAWS}::test_what_the_archive_has_is_read_from_the_archive",
    ),
    Mutant(
        "offsets after the archive are read twice",
        STATE,
        "        position = following\n    found.append",
        "    found.append",
        f"{LAWS}::test_every_offset_that_is_there_is_read_once_and_in_order",
    ),
    Mutant(
        "offsets below the start of the log are read from it",
        STATE,
        "    found.append(ReadPart(max(position, state.log_start_offset), end, is_archived=False))",
        "    found.append(ReadPart(position, end, is_archived=False))",
        f"{LAWS}::test_every_offset_that_is_there_is_read_once_and_in_order",
    ),
    Mutant(
        "missing offsets at the end of a range are not noticed",
        STATE,
        "return (position, end) if position < end else None",
        "return None",
        f"{LAWS}::test_what_is_missing_is_what_nobody_has",
    ),
    Mutant(
        "missing offsets between archive and log are not noticed",
        STATE,
        "        if part.start > position:\n            return position, part.start\n",
        "",
        f"{LAWS}::test_what_is_missing_is_what_nobody_has",
    ),
    Mutant(
        "a query that skips losses skips the archive",
        STATE,
        "return held[0][0] if held else state.log_start_offset",
        "return state.log_start_offset",
        f"{LAWS}::test_reading_goes_on_at_the_next_offset_that_is_there",
    ),
    Mutant(
        "the first offset is that of the log",
        STATE,
        "return start if self.archived is None else min(start, self.archived.start)",
        "return start",
        f"{LAWS}::test_the_first_offset_is_the_oldest_that_is_there",
    ),
    Mutant(
        "an archive makes offsets readable that the log does not have",
        STATE,
        "max(state.end_offset, min(coverage.end, state.log_end_offset))",
        "max(state.end_offset, coverage.end)",
        f"{LAWS}::test_nothing_is_read_that_was_not_committed_and_an_archive_takes_nothing_away",
    ),
    Mutant(
        "tasks ignore the size of archived files",
        STATE,
        "        if size > bytes_max and one",
        "        if False and one",
        f"{LAWS}::test_tasks_are_cut_at_files_and_cover_everything",
    ),
    # ── identity and losses ──────────────────────────────────────────────────────────────────────
    Mutant(
        "a stream that was created again is read as the former one",
        ADVANCE,
        "    if before.id is not None and before.id != streams[name].id:\n",
        "    if False:\n",
        f"{READER}::test_a_stream_created_again_is_not_read_as_if_it_were_the_former",
    ),
    Mutant(
        "a deleted stream ends a query in silence",
        ADVANCE,
        "            check_identity(name, before, streams)\n",
        "            pass\n",
        f"{READER}::test_a_stream_that_was_deleted_is_an_error_or_left_out",
    ),
    Mutant(
        "a stream that was created again continues at the old offset",
        ADVANCE,
        "is_new = before is None or before.id not in (None, stream.id)",
        "is_new = before is None",
        f"{READER}::test_a_stream_created_again_is_read_from_its_beginning_on_request",
    ),
    Mutant(
        "a log that ends before what was read is continued",
        ADVANCE,
        "    if position > state.log_end_offset and stream.is_live:\n",
        "    if False:\n",
        f"{READER}::test_a_log_that_ends_before_what_was_read_is_never_gone_on_with",
    ),
    Mutant(
        "records that retention removed are skipped in silence",
        ADVANCE,
        "        must_be_there(stream, number, position, state.end_offset)\n",
        "        position = resume(state, position)\n",
        f"{READER}::test_records_that_retention_removed_are_an_error_that_names_them",
    ),
    Mutant(
        "a query begins with the newest records of a stream that is new to it",
        ADVANCE,
        "position = state.first_offset if before is None or is_new",
        "position = state.end_offset if before is None or is_new",
        f"{READER}::test_streams_that_come_later_are_read_from_their_beginning",
    ),
    Mutant(
        "records that are not committed are read",
        ADVANCE,
        "return weighed(state, position, max(position, state.end_offset))",
        "return weighed(state, position, max(position, state.log_end_offset))",
        f"{READER}::test_only_what_is_committed_is_read",
    ),
)
