"""The proof of a table's log: each commit is what its writer made, in its place, and none is missing.

commit-missing       a version before the newest one is not there
commits-missing      the log ends before the newest commit that was made
commit-unreadable    a commit is no JSON of actions
commit-changed       a commit is not what its chain value says: changed, or a copy of another one
chain-broken         a commit does not follow the one before it
entry-changed        size, date or statistics of a file are not those of its facts
foreign-commit       another writer has added or removed files
description-changed  the table's description, schema or partition columns are not those it was made with
checkpoint-missing   `_last_checkpoint` names a checkpoint that is not there
checkpoint-changed   a checkpoint does not hold what the commits up to it do
sum-wrong            all commits together are not the table that the newest one says
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from bascule.errors import ArchiveDamaged, ArchiveUnreachable, BasculeError
from bascule.lake.archive import DATE, Archive, Head, archive_schema, description_digest
from bascule.lake.delta.log import LOG, DeltaCommit, LogFiles, list_log, read_checkpoint, read_commit
from bascule.lake.facts import (
    MARK,
    ArchiveState,
    DataFile,
    chain_of,
    decode_commit,
    state_of_checkpoint,
    statistics,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it should be."""

    kind: str
    """One of those above, or `file-missing`, `file-unreadable`, `file-changed`, `rows-missing`, `rows-doubled`, `rows-changed`,
    `rows-invented`, `overlap`, `gap`."""
    text: str


class LogProof:
    """Reads the whole log once. `state` is the table as far as the log can still be read."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._place = archive.place
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.state = ArchiveState(number=-1)

    def run(self) -> ArchiveState:
        """The state; what is wrong is in `faults`. Raises if there is no archive, or no commit of it."""
        head = self._archive.head()  # before the log: a writer may go on
        found = list_log(self._place)
        if found.newest < 0:
            self._archive.state()  # raises
        self._check_order(found)
        self._check_checkpoints(found)
        self._walk(found)
        self._check_head(head)
        self._check_sum()
        if self.state.number < 0:
            raise ArchiveUnreachable(f"{self._place} has no commit of an archive that can be read")
        return self.state

    def _fault(self, kind: str, text: str) -> None:
        self.faults.append(Fault(kind, text))

    # ── which commits ────────────────────────────────────────────────────────────────────────────

    def _check_order(self, found: LogFiles) -> None:
        present = set(found.commits)
        summed = max((version for version, _ in found.checkpoints), default=-1)
        first = min(present, default=found.newest)
        if first > summed + 1:
            self._fault("commit-missing", f"commits 0 to {first - 1} are missing, and no checkpoint holds them")
        for version in range(first, found.newest + 1):
            if version not in present:
                self._fault("commit-missing", f"commit {version} is missing")

    def _check_head(self, head: Head | None) -> None:
        if head is None:
            self.notes.append(
                "the note of the newest commit, `_bascule/head.json`, is not there: commits at the end may be missing"
            )
        elif head.version > self.state.number:
            self._fault(
                "commits-missing",
                f"the log ends at commit {self.state.number}, but commit {head.version} was made: the newest commits are missing; the "
                "archive job continues after the last one that is there",
            )

    # ── commits ──────────────────────────────────────────────────────────────────────────────────

    def _walk(self, found: LogFiles) -> None:
        """All commits in order: those that the base of the state contains are checked, the others are applied too."""
        chain: str | None = None
        for version in found.commits:
            try:
                raw = read_commit(self._place, version)
                if raw is None:
                    continue  # cleaned up meanwhile, or named above
                commit = decode_commit(raw)
            except (BasculeError, ValueError, KeyError, TypeError, AttributeError) as error:
                self._fault("commit-unreadable", f"commit {version}: {error}")
                chain = None
                continue
            self._check_description(raw)
            for file in commit.added:
                self._check_entry(raw, file)
            if commit.engine:
                self._name_foreign(version, commit.engine, changes=bool(raw.added or raw.removed or raw.metadata))
            else:
                if chain_of(commit) != commit.chain:
                    self._fault("commit-changed", f"commit {version} is not what its writer made")
                elif chain is not None and commit.previous != chain:
                    self._fault("chain-broken", f"commit {version} does not follow the commit before it")
                if commit.unproved:
                    self._fault(
                        "entry-changed", f"commit {version} has files without facts: {', '.join(commit.unproved[:3])}"
                    )
                chain = commit.chain
            if version > self.state.number:
                self.state.apply(commit)

    def _name_foreign(self, version: int, engine: str, *, changes: bool) -> None:
        if changes:
            self._fault("foreign-commit", f"commit {version} is of another writer ({engine}) and changes the table")
        else:
            self.notes.append(f"commit {version} is of another writer ({engine}); it changes no file")

    def _check_entry(self, raw: DeltaCommit, file: DataFile) -> None:
        """What engines go by, size, date and statistics, must say what the facts say."""
        entry = next(one for one in raw.added if one.path == file.path)
        if entry.values != ((DATE, file.date),):
            self._fault(
                "entry-changed",
                f"{file.path}: commit {raw.version} gives it another date than {file.date}",
            )
        elif json.loads(entry.stats) != json.loads(statistics(file)):
            self._fault(
                "entry-changed", f"{file.path}: its statistics in commit {raw.version} are not those of its rows"
            )

    def _check_description(self, raw: DeltaCommit) -> None:
        if raw.metadata is None:
            return
        if raw.version != 0:
            self._fault("description-changed", f"commit {raw.version} describes the table anew")
            return
        about = raw.info.get(MARK)
        given = about.get("query") if isinstance(about, dict) else None
        if given != description_digest(raw.metadata.get("description") or ""):
            self._fault(
                "description-changed", "the description of the table in commit 0 is not the one it was made with"
            )
        for problem in _layout_problems(raw.metadata):
            self._fault("description-changed", problem)

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────

    def _check_checkpoints(self, found: LogFiles) -> None:
        try:
            last = json.loads(self._place.read(f"{LOG}/_last_checkpoint"))["version"]
            if last not in {version for version, _ in found.checkpoints}:
                self._fault(
                    "checkpoint-missing", f"`_last_checkpoint` names version {last}, and its checkpoint is not there"
                )
        except FileNotFoundError:
            if found.checkpoints:
                self._fault("checkpoint-missing", "`_last_checkpoint` is not there, and checkpoints are")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._fault("checkpoint-missing", f"`_last_checkpoint` cannot be read: {error}")
        covers_all = 0 in found.commits
        for version, name in found.checkpoints[-2:]:
            try:
                checkpoint = read_checkpoint(self._place, version, name)
                newest = read_commit(self._place, version)
                state = state_of_checkpoint(checkpoint, newest)
            except (ArchiveDamaged, ValueError, KeyError, TypeError) as error:
                self._fault("checkpoint-changed", f"the checkpoint of version {version}: {error}")
                continue
            if state.claimed is not None and state.whole() != state.claimed:
                self._fault(
                    "checkpoint-changed",
                    f"the checkpoint of version {version} does not hold what the commits up to it do",
                )
            for problem in _layout_problems(checkpoint.metadata or {}):
                self._fault("description-changed", f"{problem} (checkpoint of version {version})")
            for raw in checkpoint.added:
                facts = raw.facts(MARK)
                if facts is not None and raw.values != ((DATE, facts.get("date")),):
                    self._fault(
                        "entry-changed", f"{raw.path}: the checkpoint of version {version} gives it another date"
                    )
            if not covers_all:  # else the commits themselves say it, and their proof is stronger
                self.state = state

    def _check_sum(self) -> None:
        if not self.faults and self.state.claimed is not None and self.state.whole() != self.state.claimed:
            self._fault("sum-wrong", f"all commits together are not the table that commit {self.state.number} says")


def _layout_problems(metadata: dict[str, object]) -> Iterator[str]:
    from deltalake import Schema

    wanted = json.loads(Schema.from_arrow(archive_schema()).to_json())
    try:
        schema = json.loads(str(metadata["schemaString"]))
    except (KeyError, ValueError):
        schema = None
    if schema != wanted:
        yield "the schema of the table is not that of an archive"
    if metadata.get("partitionColumns") != [DATE]:
        yield f"the table is partitioned by {metadata.get('partitionColumns')}, and not by `{DATE}`"
