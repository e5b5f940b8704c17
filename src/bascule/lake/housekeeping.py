"""Removes files that the table no longer needs. The writer does it, between commits, so Delta's own vacuum is never needed.

- Files that a compaction has replaced are deleted after the retention (7 days): until then readers of older versions find them.
- Files that a dead writer has left are deleted when the next writer starts. In a folder the lock says that nobody else writes; in an
  object store they have to be older than the retention.

Old commits are deltalake's: it writes a checkpoint every 100 commits, and then deletes commits that are older than 30 days.
"""

from __future__ import annotations

import re
import time
from typing import Final

from bascule.lake.archive import Archive
from bascule.lake.delta.log import LOG
from bascule.lake.facts import ArchiveState, Commit
from bascule.lake.files import made_ms

RETENTION_SECONDS_DEFAULT: Final = 7 * 86_400.0
_DATA: Final = re.compile(r"(data/)?date=[^/]+/[^/]+\.parquet")


class Housekeeping:
    """Of an archive that this process writes alone."""

    def __init__(self, archive: Archive, retention_seconds: float = RETENTION_SECONDS_DEFAULT) -> None:
        self._archive = archive
        self._keep_ms = int(retention_seconds * 1000)
        self._replaced: list[tuple[int, str]] = []

    def begin(self) -> ArchiveState:
        """Clear away what a former writer left. The archive as it is."""
        state = self._archive.state()
        self._replaced = sorted((at_ms, path) for path, at_ms in state.replaced.items())
        self._remove_unknown(state)
        self._remove_replaced(state)
        return state

    def _remove_unknown(self, state: ArchiveState) -> None:
        """Data files that no commit names, and commits that were never finished."""
        place = self._archive.place
        since = self._since_ms()
        for one in place.list():
            if _DATA.fullmatch(one.name):
                known = one.name in state.files or one.name in state.unproved or one.name in state.replaced
                if not known and (place.local is not None or (made_ms(one.name) or since) < since):
                    place.remove(one.name)
            elif place.local is not None and one.name.startswith(f"{LOG}/") and _is_unfinished(one.name):
                place.remove(one.name)

    def after(self, commit: Commit, state: ArchiveState) -> None:
        """What is due when a commit has been made."""
        self._replaced += [(commit.at_ns // 1_000_000, path) for path in commit.removed]
        self._remove_replaced(state)

    def _remove_replaced(self, state: ArchiveState) -> None:
        since = self._since_ms()
        while self._replaced and self._replaced[0][0] <= since:
            _, path = self._replaced.pop(0)
            if path not in state.files:
                self._archive.place.remove(path)

    def _since_ms(self) -> int:
        return time.time_ns() // 1_000_000 - self._keep_ms


def _is_unfinished(name: str) -> bool:
    """A commit that deltalake was writing to a disk when its process died."""
    return "#" in name or name.endswith(".tmp") or "/_commit_" in name
