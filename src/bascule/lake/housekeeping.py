"""Keeps an archive that is written for years quick to open and free of leftovers. The writer does it, between commits.

- At intervals the sum of all commits is written (state_file.py). Commits that two such sums contain, and that are older than what
  is kept for readers, are removed: 3 million files a year at one commit every ten seconds.
- Files that a compaction has replaced are removed after a while.
- Files that a crashed writer left are removed when the next writer starts.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from bascule.errors import ArchiveConflict
from bascule.lake.manifest import DATA, Archive, ArchiveState, Commit

STATE_COMMITS: Final = 100
"""So many commits a state, more for an archive of many files: writing it takes as long as it has files."""
FILES_PER_COMMIT: Final = 100
STATES_KEPT: Final = 2
"""The newest, and one to go back to if that is damaged."""
KEEP_REPLACED_SECONDS_DEFAULT: Final = 3600.0
SECOND_NS: Final = 1_000_000_000


class Housekeeping:
    """Of an archive that this process writes alone."""

    def __init__(self, archive: Archive, keep_replaced_seconds: float = KEEP_REPLACED_SECONDS_DEFAULT) -> None:
        self._archive = archive
        self._keep_seconds = keep_replaced_seconds
        self._replaced: list[tuple[int, str]] = []
        self._saved = 0

    def begin(self) -> ArchiveState:
        """Clear away what a former writer left. The archive as it is."""
        archive = self._archive
        self._replaced = sorted((commit.at_ns, path) for commit in archive.kept_commits() for path in commit.removed)
        self._saved = max(archive.state_numbers(), default=0)
        state = archive.state()
        self._remove_unknown(state)
        return state

    def _remove_unknown(self, state: ArchiveState) -> None:
        """Data files that no commit names, or that were replaced long ago, and commits that were never finished."""
        since = self._since_ns()
        known = state.files.keys() | {path for at_ns, path in self._replaced if at_ns > since}
        for path in (self._archive.path / DATA).rglob("*.parquet"):
            if str(path.relative_to(self._archive.path)) not in known:
                path.unlink()
        for path in self._archive.unfinished():
            path.unlink(missing_ok=True)

    def after(self, commit: Commit, state: ArchiveState) -> None:
        """What is due when a commit has been made."""
        self._replaced += [(commit.at_ns, path) for path in commit.removed]
        self._remove_replaced(state)
        if state.number - self._saved >= max(STATE_COMMITS, len(state.files) // FILES_PER_COMMIT):
            self.save(state)

    def _remove_replaced(self, state: ArchiveState) -> None:
        since = self._since_ns()
        while self._replaced and self._replaced[0][0] <= since:
            _, path = self._replaced.pop(0)
            assert path not in state.files
            (self._archive.path / path).unlink(missing_ok=True)

    def save(self, state: ArchiveState) -> None:
        """Write the sum of all commits, and remove what it makes needless."""
        with contextlib.suppress(ArchiveConflict):  # a former writer had come as far
            self._archive.write_state(state)
        self._saved = state.number
        numbers = sorted(self._archive.state_numbers())
        for number in numbers[:-STATES_KEPT]:
            self._archive.state_path(number).unlink(missing_ok=True)
        if len(numbers) >= STATES_KEPT:
            self._fold(numbers[-STATES_KEPT])

    def _fold(self, number: int) -> None:
        """Remove commits up to a number, except those that say what was replaced lately. From the oldest on: so no hole is left."""
        for path in self._archive.commit_paths():
            if int(path.stem) > number or _age_seconds(path) <= self._keep_seconds:
                return
            path.unlink(missing_ok=True)

    def _since_ns(self) -> int:
        return time.time_ns() - int(self._keep_seconds * SECOND_NS)


def _age_seconds(path: Path) -> float:
    return time.time() - path.stat().st_mtime
