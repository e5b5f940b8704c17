"""What belongs to an archive: a log of commits, each a small file that appears whole or not at all.

    <archive>/
      _bascule/archive.json                 what it is: format, stream, when it began
      _bascule/commits/<number>.json        one for each change: files that came, files that went, offsets that are lost
      _bascule/state/<number>.json          the sum of all commits up to that one
      _bascule/lock                         held by the writer
      data/date=2026-11-15/….parquet        messages of one partition, in the order of their offsets

Old commits may be gone: then a state has taken their place. A data file that no commit names does not exist, whatever lies in the
folder: so a writer that dies leaves nothing half. The next offset of every partition follows from the commits, so a batch that comes
again is recognized by the table itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from bascule.errors import ArchiveConflict, ArchiveDamaged, CallerError
from bascule.lake.documents import read_document, write_document, writing
from bascule.lake.state_file import encode_state, read_state

FORMAT: Final = 1
FOLDER: Final = "_bascule"
DATA: Final = "data"
DESCRIPTION: Final = "archive.json"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the archive and what it holds: offsets `first` to `last` of one partition, as many rows as there are."""

    path: str
    """Below the archive."""
    stream: str
    stream_id: int
    partition: int
    first_offset: int
    last_offset: int
    rows: int
    bytes: int
    crc32c: int
    """Of the rows, as lake/digest.py has it."""
    date: str


@dataclass(frozen=True, slots=True)
class Covered:
    """What was read of a partition for this commit, `start` to `end` exclusive, whether there were messages or not: compaction leaves
    holes, and a hole at the end is no reason to read it again."""

    stream: str
    stream_id: int
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets `start` to before `end` of a partition that were removed before they could be archived. `onDataLoss` was `skip`, so the
    archive continued without them. Compaction may have removed some of them: that cannot be known afterwards."""

    stream: str
    stream_id: int
    partition: int
    start: int
    end: int
    reason: str
    """`removed`: retention was faster; `deleted`: the stream was deleted, or created again."""
    at_ns: int
    """When it was noticed."""


@dataclass(frozen=True, slots=True)
class Began:
    """Where a partition of an archive begins: the first offset that was to be archived."""

    stream: str
    stream_id: int
    partition: int
    offset: int


REMOVED: Final = "removed"
DELETED: Final = "deleted"


@dataclass(frozen=True, slots=True)
class Commit:
    number: int
    kind: str
    """`append` or `compact`."""
    at_ns: int
    query: str = ""
    batch: int = -1
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    covered: tuple[Covered, ...] = ()
    lost: tuple[Lost, ...] = ()
    began: tuple[Began, ...] = ()
    """Of partitions that come for the first time."""


PartitionId = tuple[str, int, int]
"""Stream, stream id and partition."""


@dataclass(slots=True)
class ArchiveState:
    """All commits so far, taken together."""

    number: int = 0
    files: dict[str, DataFile] = field(default_factory=dict)
    next_offsets: dict[PartitionId, int] = field(default_factory=dict)
    """Everything below is here, or was never there, or is lost."""
    last_commit_ns: int = 0
    lost: dict[PartitionId, list[Lost]] = field(default_factory=dict)
    began: dict[PartitionId, int] = field(default_factory=dict)
    """Nothing for partitions of which it was not noted: archives have noted it since this is done."""

    def apply(self, commit: Commit) -> None:
        self.number = commit.number
        self.last_commit_ns = commit.at_ns
        for path in commit.removed:
            self.files.pop(path, None)
        for one in commit.added:
            self.files[one.path] = one
        for covered in commit.covered:
            key = (covered.stream, covered.stream_id, covered.partition)
            self.next_offsets[key] = max(self.next_offsets.get(key, 0), covered.end)
        for lost in commit.lost:
            self.lost.setdefault((lost.stream, lost.stream_id, lost.partition), []).append(lost)
        for began in commit.began:
            self.began.setdefault((began.stream, began.stream_id, began.partition), began.offset)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files.values())

    @property
    def lost_offsets(self) -> int:
        return sum(one.end - one.start for ranges in self.lost.values() for one in ranges)

    def in_order(self) -> list[DataFile]:
        return sorted(self.files.values(), key=lambda one: (one.stream, one.stream_id, one.partition, one.first_offset))


class Archive:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(str(path).removeprefix("file://"))
        self._commits = self.path / FOLDER / "commits"
        self._states = self.path / FOLDER / "state"

    # ── what it is ───────────────────────────────────────────────────────────────────────────────

    @property
    def exists(self) -> bool:
        return (self.path / FOLDER / DESCRIPTION).is_file()

    def create(self, streams: list[str], **selection: str | None) -> None:
        """Make it, unless it is there. `selection` says what chose the streams if not their names."""
        if self.exists:
            self.describe()
            return
        if not self._is_free():
            raise CallerError(f"{self.path} is not empty and no archive", hint="give a new folder, or an archive")
        with writing(self.path, FOLDER):
            self._commits.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, "streams": streams, "created_ns": time.time_ns()}
        document |= {name: value for name, value in selection.items() if value is not None}
        write_document(self.path / FOLDER / DESCRIPTION, document)

    def _is_free(self) -> bool:
        """Whether nothing is there, or no more than is left of an archive whose making was cut short, by a full disk or a death."""
        return all(
            self.path / FOLDER in (path, *path.parents) and (path.is_dir() or path.name.startswith(f".{DESCRIPTION}."))
            for path in self.path.rglob("*")
        )

    def describe(self) -> dict[str, Any]:
        found = _read(self.path / FOLDER / DESCRIPTION)
        must_be_known_format(self.path, found, FORMAT)
        return found

    # ── commits ──────────────────────────────────────────────────────────────────────────────────

    def state(self) -> ArchiveState:
        """Raises ArchiveDamaged for a commit that is missing or cannot be read."""
        self.describe()
        while True:
            numbers = self.state_numbers()
            state = ArchiveState()
            try:
                if numbers:
                    state = read_state(self.state_path(numbers[-1]), numbers[-1], FORMAT)
                for commit in self.commits(state.number):
                    state.apply(commit)
                return state
            except (FileNotFoundError, _Folded) as error:
                # The writer has summed up commits in the meantime; if not, they are missing.
                if self.state_numbers()[-1:] == numbers[-1:]:
                    raise ArchiveDamaged(f"{self.path}: {error}") from None

    def refresh(self, state: ArchiveState) -> ArchiveState:
        """A state that was read before, with the commits since then. Reads only these."""
        if not state.number:
            return self.state()
        while (commit := self.commit_at(state.number + 1)) is not None:
            state.apply(commit)
        return state if max(self.state_numbers(), default=0) <= state.number else self.state()

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """Those that follow a number."""
        expected = after + 1
        for path in self.commit_paths():
            number = int(path.stem)
            if number > expected:
                raise _Folded(f"commit {expected} is missing, {path.name} is there")
            if number == expected:
                yield _decode_commit(read_document(path), path)
                expected += 1

    def kept_commits(self) -> Iterator[Commit]:
        """All that are there: the last ones, and what of the older ones is kept for readers."""
        for path in self.commit_paths():
            yield _decode_commit(read_document(path), path)

    def commit_paths(self) -> list[Path]:
        return sorted(path for path in self._commits.glob("*.json") if path.stem.isdecimal())

    def commit_at(self, number: int) -> Commit | None:
        """The commit of this number; None while there is none. For readers that have the others already."""
        path = self._commits / _commit_name(number)
        try:
            return _decode_commit(read_document(path), path)
        except FileNotFoundError:
            return None

    def commit(self, commit: Commit) -> None:
        """Add it. Raises ArchiveConflict when another writer was faster: then nothing has happened."""
        write_document(self._commits / _commit_name(commit.number), _encode_commit(commit))

    # ── the sum of commits ───────────────────────────────────────────────────────────────────────

    def state_numbers(self) -> list[int]:
        """Of the sums that are there, in order."""
        return sorted(int(path.stem) for path in self._states.glob("*.json") if path.stem.isdecimal())

    def state_path(self, number: int) -> Path:
        return self._states / _commit_name(number)

    def write_state(self, state: ArchiveState) -> None:
        """Raises ArchiveConflict when it is there already."""
        with writing(self.path, self._states.name):
            self._states.mkdir(exist_ok=True)
        write_document(self.state_path(state.number), encode_state(state, FORMAT))

    def unfinished(self) -> list[Path]:
        """Commits and sums that a writer has not finished, or is writing now."""
        return [path for folder in (self._commits, self._states) for path in folder.glob(".*.json.*")]

    # ── writing alone ────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Held by one process at a time; it ends with the process, however that ends."""
        with writing(self.path, "the lock"):
            handle = os.open(self.path / FOLDER / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ArchiveConflict(
                f"{self.path} is being written by another pipeline", hint="stop that one, or wait for it"
            ) from None
        try:
            yield
        finally:
            os.close(handle)


class _Folded(Exception):
    """Commits are not there, maybe because a sum has taken their place."""


def _commit_name(number: int) -> str:
    return f"{number:020d}.json"


_LATER: Final = ("lost", "began")
"""Fields that commits did not always have; one that has nothing to say in them is written as it always was."""


def _encode_commit(commit: Commit) -> dict[str, Any]:
    values = asdict(commit)
    return {"format": FORMAT, **{name: value for name, value in values.items() if value or name not in _LATER}}


def _decode_commit(document: dict[str, Any], path: Path) -> Commit:
    must_be_known_format(path, document, FORMAT)
    try:
        values = {item.name: document[item.name] for item in fields(Commit) if item.name not in _LATER}
        values["added"] = tuple(DataFile(**one) for one in values["added"])
        values["removed"] = tuple(values["removed"])
        values["covered"] = tuple(Covered(**one) for one in values["covered"])
        values["lost"] = tuple(Lost(**one) for one in document.get("lost", ()))
        values["began"] = tuple(Began(**one) for one in document.get("began", ()))
        return Commit(**values)
    except (KeyError, TypeError) as error:
        raise ArchiveDamaged(f"{path} is no commit: {error}") from None


def must_be_known_format(path: Path, document: dict[str, Any], known: int) -> None:
    """Raises ArchiveDamaged for a format of another version."""
    if document.get("format") != known:
        raise ArchiveDamaged(
            f"{path} has format {document.get('format')!r}, this version knows {known}",
            hint="use the version that wrote it, or a later one",
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_document(path)
    except FileNotFoundError:
        raise ArchiveDamaged(f"{path} does not exist", hint="is this the folder of an archive?") from None
