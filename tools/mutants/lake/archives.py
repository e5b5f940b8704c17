"""Planted bugs of the archive job: what becomes part of an archive, and what brokers know of it."""

from __future__ import annotations

from typing import Final

from tools.mutants.mutant import Mutant

JOB: Final = "src/bascule/pipeline/jobs/archive.py"

CURSOR: Final = "tests/unit/pipeline/test_archive_job_cursor.py"

MUTANTS: Final = (
    Mutant(
        "an archive's cursor is set before its commit",
        JOB,
        "        commit = self.archive.commit(commit, self._state)\n",
        "        self._cursors.set(commit.covered)\n        commit = self.archive.commit(commit, self._state)\n",
        f"{CURSOR}::test_a_cursor_is_set_after_the_commit_of_what_it_covers",
    ),
    Mutant(
        "an archive's cursor is set although its commit failed",
        JOB,
        "        commit = self.archive.commit(commit, self._state)\n        self._state",
        "        try:\n            commit = self.archive.commit(commit, self._state)\n        finally:\n"
        "            self._cursors.set(commit.covered)\n        self._state",
        f"{CURSOR}::test_without_a_commit_there_is_no_cursor",
    ),
    Mutant(
        "an archive's cursor is one message ahead",
        JOB,
        "(one.stream, one.partition): one.end - 1 for one in covered",
        "(one.stream, one.partition): one.end for one in covered",
        f"{CURSOR}::test_a_cursor_is_set_after_the_commit_of_what_it_covers",
    ),
)
