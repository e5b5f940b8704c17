"""Planted bugs of pipelines: what a batch reads, what it has lost, and which checkpoint is its own."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

RANGES: Final = "src/bascule/pipeline/jobs/archive_ranges.py"
LOSSES: Final = "src/bascule/pipeline/jobs/archive_losses.py"
JOB: Final = "src/bascule/pipeline/jobs/archive.py"
CHECKPOINT: Final = "src/bascule/pipeline/checkpoint.py"

NOTED: Final = "tests/unit/pipeline/test_archive_ranges.py"
LOST: Final = "tests/unit/pipeline/test_archive_losses.py"
FULL: Final = "tests/unit/pipeline/test_archive_job_disk_full.py"
OPTIONS: Final = "tests/unit/pipeline/test_archive_options.py"
PARTS: Final = "tests/unit/pipeline/test_pipeline_parts.py"

MUTANTS: Final = (
    Mutant(
        "a batch reads what is archived already",
        RANGES,
        "replace(one, start=max(one.start, floors.get((one.stream, one.partition), 0)))",
        "replace(one, start=one.start)",
        f"{NOTED}::test_what_is_archived_already_is_not_read_again",
    ),
    Mutant(
        "a batch begins where the first one began",
        RANGES,
        'start = Offsets() if batch_id == 0 else _noted(checkpoint / "offsets" / str(batch_id - 1))',
        "start = Offsets()",
        f"{NOTED}::test_the_next_one_begins_where_the_last_one_ended",
    ),
    Mutant(
        "what retention removed under a task is not noted",
        RANGES,
        "            note(position, following, REMOVED)\n",
        "",
        f"{LOST}::test_a_task_notes_what_retention_was_faster_with",
    ),
    Mutant(
        "what a deleted stream took along is not noted",
        RANGES,
        "            note(position, one.end, DELETED)\n",
        "",
        f"{LOST}::test_a_task_notes_what_a_deleted_stream_took_with_it",
    ),
    Mutant(
        "a hole between files is no loss",
        LOSSES,
        "return holes.within(self.start, min(self.end, limit), [*self._between, *inside])",
        "return holes.within(self.start, min(self.end, limit), inside)",
        f"{LOST}::test_what_was_planned_and_is_below_the_log_is_lost",
    ),
    Mutant(
        "a hole inside a file is no loss",
        LOSSES,
        "return holes.within(self.start, min(self.end, limit), [*self._between, *inside])",
        "return holes.within(self.start, min(self.end, limit), self._between)",
        f"{LOST}::test_a_hole_inside_a_file_is_found",
    ),
    Mutant(
        "a hole of compaction is a loss",
        LOSSES,
        "limit = found.end if is_gone or log is None else log.partitions[number].log_start_offset",
        "limit = found.end",
        f"{LOST}::test_a_hole_that_the_log_has_too_is_compaction",
    ),
    Mutant(
        "brokers are asked although nothing is missing",
        LOSSES,
        "    there = logs({stream for stream, _ in missing}) if missing else {}\n",
        "    there = logs({stream for stream, _ in missing})\n",
        f"{LOST}::test_brokers_are_asked_only_if_something_is_missing",
    ),
    Mutant(
        "a stream that was created again has what the former one lost",
        LOSSES,
        "is_gone = log is None or log.id != ids.get(stream, log.id)",
        "is_gone = log is None",
        f"{LOST}::test_all_that_is_missing_of_a_stream_that_is_gone_is_lost",
    ),
    Mutant(
        "a query that begins after the archive has lost nothing",
        "src/bascule/pipeline/jobs/archive.py",
        "            if one.start > floors.get((stream, number), one.start)\n",
        "            if one.start < 0\n",
        "tests/property/lake/test_archive_losses_model.py::test_every_offset_is_archived_or_lost_or_compacted",
    ),
    Mutant(
        "a commit does not cover what was lost",
        LOSSES,
        "    spans += [((one.stream, one.stream_id, one.partition), one.start, one.end) for one in lost]\n",
        "",
        f"{LOST}::test_a_commit_covers_files_and_losses_and_says_where_a_partition_begins",
    ),
    Mutant(
        "every commit says where its partitions begin",
        LOSSES,
        "if (one.stream, one.stream_id, one.partition) not in known and (one.stream, one.partition) in plan",
        "if (one.stream, one.partition) in plan",
        f"{LOST}::test_a_commit_covers_files_and_losses_and_says_where_a_partition_begins",
    ),
    Mutant(
        "a batch without room keeps what it has written",
        JOB,
        "                self._give_back_room()\n",
        "                pass\n",
        f"{FULL}::test_what_other_tasks_had_finished_is_removed",
    ),
    Mutant(
        "a cursor that was late is forgotten",
        JOB,
        "            if self._waiting:\n                self._send()\n",
        "            pass\n",
        f"{OPTIONS}::test_cursors_that_take_too_long_wait_and_none_is_starved",
    ),
    Mutant(
        "a failing cursor is reported with every batch",
        JOB,
        "            if error.message != self._failed:",
        "            if True:",
        f"{OPTIONS}::test_a_cursor_that_fails_is_said_once_and_tried_again",
    ),
    Mutant(
        "a pipeline uses the checkpoint of another one",
        CHECKPOINT,
        '        if found["name"] != spec.name:\n',
        "        if False:\n",
        f"{PARTS}::test_a_checkpoint_is_of_one_pipeline",
    ),
    Mutant(
        "a pipeline with another dedup uses the same checkpoint",
        CHECKPOINT,
        '        if found["state"] != spec.state_digest:\n',
        "        if False:\n",
        f"{PARTS}::test_a_checkpoint_is_of_one_pipeline",
    ),
    Mutant(
        "a pipeline runs twice at a time",
        CHECKPOINT,
        "            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        except OSError:\n            os.close(handle)\n",
        "            pass\n        except OSError:\n            os.close(handle)\n",
        f"{PARTS}::test_a_pipeline_runs_once_at_a_time",
    ),
    Mutant(
        "a batch that is not done counts as done",
        CHECKPOINT,
        '        done = _numbers(self.path / "spark" / "commits")\n        try',
        '        done = _numbers(self.path / "spark" / "offsets")\n        try',
        f"{PARTS}::test_the_offsets_are_those_of_the_last_batch_that_is_done",
    ),
    Mutant(
        "a folder with something else becomes a checkpoint",
        CHECKPOINT,
        "                self._must_be_empty()\n",
        "",
        f"{PARTS}::test_a_folder_with_something_else_is_no_checkpoint",
    ),
)
