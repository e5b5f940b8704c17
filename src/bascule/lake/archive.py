"""An archive: a Delta table of messages, with the facts that prove it in every commit.

    <archive>/
      _delta_log/                           Delta's commits and checkpoints: what belongs to the table
      _bascule/head.json                    the newest commit that a writer has made here: a log that ends before it has lost commits
      _bascule/lock, checkpoint/            of the writer, in a folder
      date=2026-11-15/….parquet             messages of one partition and one day (UTC), in the order of their offsets

The facts of a file are in its statistics, under `bascule`: checkpoints keep these. The next offset of a partition, its beginning and
its losses are transactions of Delta: a commit sets them together with its files, and checkpoints keep them too. `commitInfo` has the
chain: a digest of the commit and of the one before it, and the sum of the whole table after it. docs/internals/lake.md has examples.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import ArchiveConflict, ArchiveDamaged, ArchiveUnreachable, BasculeError, CallerError
from bascule.lake.delta.documents import writing
from bascule.lake.delta.log import VERIFY_HINT, DeltaCommit, list_log, read_checkpoint, read_commit
from bascule.lake.delta.place import LakePlace
from bascule.lake.delta.writer import DeltaWriter
from bascule.lake.facts import (
    MARK,
    ArchiveState,
    Commit,
    PartitionId,
    decode_commit,
    encode_commit,
    information,
    sealed,
    state_of_checkpoint,
)

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 2
FOLDER: Final = "_bascule"
HEAD: Final = f"{FOLDER}/head.json"
DATE: Final = "date"
KIND: Final = "archive"
RETENTION_DEFAULT: Final = "interval 7 days"
CHECKPOINT_INTERVAL: Final = 100


def archive_schema() -> pa.Schema:
    """The columns of the table: those of the source, and the day that partitions it."""
    import pyarrow as pa

    from bascule.flight.schema import table_schema

    return pa.schema([*table_schema(), pa.field(DATE, pa.date32())])


@dataclass(slots=True)
class Head:
    """What the last writer noted beside the table."""

    version: int
    chain: str


class Archive:
    def __init__(self, path: str | os.PathLike[str] | LakePlace, options: dict[str, str] | None = None) -> None:
        self.place = LakePlace.of(path, options)
        self._writer = DeltaWriter(self.place)
        self._described: dict[str, Any] | None = None

    @property
    def path(self) -> Path:
        """The folder of an archive that is in one."""
        return self.place.folder

    @property
    def name(self) -> str:
        return self.place.name

    # ── what it is ───────────────────────────────────────────────────────────────────────────────

    @property
    def exists(self) -> bool:
        """Whether there is a log of commits. Raises for one of the former format, and for a store that does not answer."""
        self._refuse_former()
        if list_log(self.place).newest >= 0:
            return True
        self._refuse_ruins()
        return False

    def _refuse_ruins(self) -> None:
        """Raises ArchiveDamaged if commits were here."""
        head = self.head()
        if head is not None:
            raise ArchiveDamaged(
                f"{self.place} has lost all its commits: `_delta_log` is empty, and commit {head.version} had been made",
                hint="restore `_delta_log` from a backup, or archive into another folder",
            )

    def _refuse_former(self) -> None:
        """Raises CallerError for an archive of the former format, and for one whose upgrade was cut short."""
        if self.place.local is not None and (self.place.local / FOLDER / "archive.json").is_file():
            raise CallerError(
                f"{self.place} is an archive of the former format",
                hint=f"`bascule pipeline upgrade {self.place}` makes it a Delta table, in place",
            )

    def create(self, streams: list[str], **selection: str | None) -> None:
        """Make it, unless it is there. `selection` says what chose the streams if not their names."""
        if self.exists:
            self._must_have(streams)
            return
        if not self._is_free():
            raise CallerError(f"{self.place} is not empty and no archive", hint="give a new folder, or an archive")
        self.begin_log(streams, **selection)

    def begin_log(self, streams: list[str], **selection: str | None) -> None:
        """The first commit, of a table without files."""
        about = {"format": FORMAT, "streams": streams, "created_ns": time.time_ns()}
        about |= {name: value for name, value in selection.items() if value is not None}
        if self.place.local is not None:
            with writing(self.place.local, FOLDER):
                (self.place.local / FOLDER).mkdir(parents=True, exist_ok=True)
        description = json.dumps({MARK: KIND, **about})
        made = Commit(0, "create", time.time_ns(), query=description_digest(description))
        first = sealed(made, ArchiveState(number=-1))
        self._create_table(about, description, first)
        self._note_head(first)

    def _create_table(self, about: dict[str, Any], description: str, first: Commit) -> None:
        named = ", ".join(about["streams"]) or about.get("pattern") or about.get("subject")
        self._writer.create(
            archive_schema(),
            partition_by=[DATE],
            name=f"archive of {named}"[:200],
            description=description,
            configuration={
                "delta.deletedFileRetentionDuration": RETENTION_DEFAULT,
                "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
                # No column statistics but those that commits bring: keys and values are bytes.
                "delta.dataSkippingNumIndexedCols": "0",
            },
            information=information(first),
        )

    def _must_have(self, streams: list[str]) -> None:
        there = self.describe()["streams"]
        if streams and there and set(there).isdisjoint(streams):
            listed, given = (", ".join(f"`{name}`" for name in names) for names in (there, streams))
            raise CallerError(
                f"{self.place} is an archive of {listed}, not of {given}",
                hint="give each its own folder, or the streams of this archive",
            )

    def _is_free(self) -> bool:
        """Whether nothing is there, or no more than is left of an archive whose making was cut short, by a full disk or a death."""
        if self.place.local is None:
            return not self.place.list()
        ours = (self.place.local / FOLDER, self.place.local / "_delta_log")
        return all(
            (path.is_dir() and any(folder in (path, *path.parents) for folder in ours))
            or path.name in ("lock",)
            or "tmp" in path.name
            or "#" in path.name
            for path in self.place.local.rglob("*")
        )

    def describe(self) -> dict[str, Any]:
        """`streams`, and what else the archive was made with. Raises ArchiveDamaged, and CallerError for another kind of table."""
        if self._described is None:
            self._base()
        assert self._described is not None
        return self._described

    def _take_metadata(self, metadata: dict[str, Any] | None) -> None:
        if metadata is None:
            return
        try:
            about = json.loads(metadata.get("description") or "")
            is_ours = about[MARK] == KIND
        except (ValueError, KeyError, TypeError):
            about, is_ours = {}, False
        if not is_ours:
            what = (
                "a table of the latest messages" if about.get(MARK) == "latest" else "a Delta table of another writer"
            )
            raise CallerError(
                f"{self.place} is {what}, and no archive", hint="give the path of an archive, or a new one"
            )
        if about.get("format") != FORMAT:
            raise ArchiveDamaged(
                f"{self.place} has format {about.get('format')!r}, this version knows {FORMAT}",
                hint="use the version that wrote it, or a later one",
            )
        self._described = {"id": metadata.get("id"), **about}

    # ── commits ──────────────────────────────────────────────────────────────────────────────────

    def state(self, *, upgrading: bool = False) -> ArchiveState:
        """The sum of all commits. Raises ArchiveDamaged for a commit that is missing or cannot be read."""
        if not upgrading:
            self._refuse_former()
        state = self._base()
        while (commit := self.commit_at(state.number + 1)) is not None:
            state.apply(commit)
        return state

    def _base(self) -> ArchiveState:
        """The state of the newest checkpoint, or of the first commit; with all commits that were listed."""
        found = list_log(self.place)
        if found.newest < 0:
            self._refuse_ruins()
            raise ArchiveUnreachable(
                f"{self.place} is no archive", hint=f"`bascule pipeline archive {self.place}` makes one"
            )
        state = ArchiveState(number=-1)
        damaged: BasculeError | None = None
        for version, name in reversed(found.checkpoints):
            try:
                checkpoint = read_checkpoint(self.place, version, name)
            except ArchiveDamaged as error:
                damaged = error  # the commits before it may still be there
                continue
            self._take_metadata(checkpoint.metadata)
            state = state_of_checkpoint(checkpoint, read_commit(self.place, version))
            break
        for version in found.commits:
            if version > state.number + 1:
                hint = VERIFY_HINT if damaged is None else damaged.message
                raise ArchiveDamaged(
                    f"{self.place}: commit {state.number + 1} is missing, {version} is there", hint=hint
                )
            if version == state.number + 1 and (commit := self.commit_at(version)) is not None:
                state.apply(commit)
        if self._described is None:
            raise damaged or ArchiveDamaged(f"{self.place}: no commit describes the table", hint=VERIFY_HINT)
        return state

    def refresh(self, state: ArchiveState) -> ArchiveState:
        """A state that was read before, with the commits since then. Reads only these, unless the log is not the one it was."""
        if state.number < 0:
            return self.state()
        there = self.commit_at(state.number)
        if there is None or there.chain != state.tip:
            self._described = None
            return self.state()
        while (commit := self.commit_at(state.number + 1)) is not None:
            state.apply(commit)
        return state

    def commit_at(self, version: int) -> Commit | None:
        """The commit of this number; None while there is none."""
        found = read_commit(self.place, version)
        return None if found is None else self._decoded(found)

    def _decoded(self, found: DeltaCommit) -> Commit:
        self._take_metadata(found.metadata)
        return self._proved(found)

    def _proved(self, found: DeltaCommit) -> Commit:
        try:
            return decode_commit(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveDamaged(
                f"{self.place}: commit {found.version} cannot be read: {error}", hint=VERIFY_HINT
            ) from None

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """Those that follow a number and are there."""
        for version in list_log(self.place).commits:
            if version > after and (commit := self.commit_at(version)) is not None:
                yield commit

    def commit(self, commit: Commit, state: ArchiveState | None = None) -> Commit:
        """Add it. The commit as it is in the log; the caller applies it to its state.

        Raises ArchiveConflict if another writer was faster, or if the log is not as the state has it: then nothing has happened.
        """
        state = self.state() if state is None else state
        if commit.number != state.number + 1:
            raise ArchiveConflict(
                f"{self.place} is at commit {state.number}, and not before {commit.number}", hint=_ALONE
            )
        self.must_be_as(state)
        whole = sealed(commit, state)
        added, removed, transactions = encode_commit(whole, state)
        mark = uuid.uuid4().hex
        about = {**information(whole), "id": mark}
        self._writer.commit(
            whole.number, archive_schema(), added, removed, transactions, {MARK: about}, mark, partition_by=[DATE]
        )
        self._note_head(whole)
        return whole

    def must_be_as(self, state: ArchiveState) -> None:
        """Raises ArchiveDamaged if the newest commit of a state is not in the log any more, and for commits of another writer."""
        if state.foreign:
            version, engine = state.foreign[0]
            raise ArchiveDamaged(
                f"{self.place}: commit {version} is of another writer ({engine}): offsets can no longer be proved",
                hint=f"`bascule pipeline verify {self.place}` names what it changed; restore the table to the commit before it",
            )
        if state.claimed is not None and state.whole() != state.claimed:
            raise ArchiveDamaged(
                f"{self.place}: all commits together are not the table that commit {state.number} says: one was changed or replaced",
                hint=VERIFY_HINT,
            )
        there = read_commit(self.place, state.number)
        if there is None or self._proved(there).chain != state.tip:
            raise ArchiveDamaged(
                f"{self.place}: commit {state.number} is not there any more, or another one is in its place: the table was replaced",
                hint="start the job again: it continues after the last commit that is there, if the log still has the messages",
            )

    # ── beside the log ───────────────────────────────────────────────────────────────────────────

    def head(self) -> Head | None:
        """The newest commit that was made here, as its writer noted it."""
        try:
            found = json.loads(self.place.read(HEAD))
            return Head(int(found["version"]), str(found["chain"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # a note that is damaged says nothing

    def _note_head(self, commit: Commit) -> None:
        """It helps to notice lost commits; a commit does not fail because of it."""
        with contextlib.suppress(BasculeError, OSError):
            self.place.replace(HEAD, json.dumps({"version": commit.number, "chain": commit.chain}).encode())

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Held by one process at a time, in a folder; it ends with the process, however that ends. In an object store the commit itself
        finds a second writer."""
        if self.place.local is None:
            yield
            return
        with writing(self.place.local, "the lock"):
            (self.place.local / FOLDER).mkdir(parents=True, exist_ok=True)
            handle = os.open(self.place.local / FOLDER / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ArchiveConflict(
                f"{self.place} is being written by another pipeline", hint="stop that one, or wait for it"
            ) from None
        try:
            yield
        finally:
            os.close(handle)


_ALONE: Final = "only one pipeline may write a table: stop the other one"


def description_digest(description: str) -> str:
    """What the first commit says of the table's description."""
    return hashlib.sha256(description.encode()).hexdigest()


def files_covering(archive: Archive, version: int | None = None) -> tuple[int, dict[PartitionId, list[Any]]]:
    """The version, and by partition the files of the table in the order of offsets. None for the newest version."""
    state = archive.state() if version is None else archive_state_at(archive, version)
    found: dict[PartitionId, list[Any]] = {}
    for one in state.in_order():
        found.setdefault((one.stream, one.stream_id, one.partition), []).append(one)
    return state.number, found


def archive_state_at(archive: Archive, version: int) -> ArchiveState:
    """The table as it was after a commit, as far as the log still has it."""
    found = list_log(archive.place)
    state = ArchiveState(number=-1)
    for number, name in reversed(found.checkpoints):
        if number <= version:
            checkpoint = read_checkpoint(archive.place, number, name)
            state = state_of_checkpoint(checkpoint, read_commit(archive.place, number))
            break
    while state.number < version:
        commit = archive.commit_at(state.number + 1)
        if commit is None:
            raise ArchiveDamaged(
                f"{archive.place} has no version {version} any more: commit {state.number + 1} is gone",
                hint=f"the newest version is {found.newest}",
            )
        state.apply(commit)
    return state
