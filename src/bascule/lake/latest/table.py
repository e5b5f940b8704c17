"""The latest message of each key in Parquet files: a table that changes by snapshots, each whole or not there at all.

    <table>/
      _bascule/latest.json                  what it is: format, streams, key, number of buckets
      _bascule/snapshots/<number>.json      all files of the table at that moment, and how far it had read; the highest one holds
      _bascule/lock                         held by the writer
      data/<bucket>-<random>.parquet        rows whose keys hash to that bucket
      graves/<bucket>-<random>.parquet      keys that were deleted, and by which message

A file is never changed: a bucket that changes is written anew, and the next snapshot names the new file in place of the old one.
Replaced snapshots stay for a while, because readers may use them. A file that no snapshot names is not part of the table.
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import ArchiveConflict, ArchiveDamaged, CallerError
from bascule.flight.arrow import require
from bascule.lake.archive import FOLDER, Archive
from bascule.lake.delta.documents import read_document, sync_directory, write_document

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 1
ROWS: Final = "data"
GRAVES: Final = "graves"
BUCKETS_DEFAULT: Final = 16
BUCKETS_MAX: Final = 4096
KEEP_SECONDS_DEFAULT: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows whose keys hash to one number. Paths are below the table; "" for no file, when there is nothing to hold."""

    number: int
    path: str = ""
    rows: int = 0
    bytes: int = 0
    crc32c: int = 0
    """Of the file."""
    graves_path: str = ""
    graves: int = 0

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(path for path in (self.path, self.graves_path) if path)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The table at one moment."""

    number: int = 0
    at_ns: int = 0
    batch: int = -1
    """Of the query that made it."""
    schema: str = ""
    """Of the rows: Arrow's, serialized, in base64."""
    buckets: dict[int, Bucket] = field(default_factory=dict)
    next_offsets: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """By stream, stream id and partition: everything below is in the table."""

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.buckets.values())

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.buckets.values())

    @property
    def data_files(self) -> list[str]:
        return [one.path for _, one in sorted(self.buckets.items()) if one.path]

    @property
    def files(self) -> set[str]:
        return {path for one in self.buckets.values() for path in one.files}

    def floors(self) -> dict[tuple[str, int], int]:
        return {(stream, partition): end for (stream, _, partition), end in self.next_offsets.items()}

    def arrow_schema(self) -> pa.Schema:
        pa = require()
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    def following(
        self,
        at_ns: int,
        batch: int,
        schema: pa.Schema,
        buckets: Iterable[Bucket],
        ends: Mapping[tuple[str, int, int], int],
    ) -> TableSnapshot:
        """The next one: these buckets in place of what they were, and the partitions read to these ends."""
        changed = {one.number: one for one in buckets}
        offsets = {key: max(end, self.next_offsets.get(key, 0)) for key, end in ends.items()}
        return TableSnapshot(
            self.number + 1,
            max(at_ns, self.at_ns),
            batch,
            serialized(schema),
            {**self.buckets, **changed},
            {**self.next_offsets, **offsets},
        )


def serialized(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


class LatestStore:
    """The folder of a table."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(str(path).removeprefix("file://"))
        self._snapshots = self.path / FOLDER / "snapshots"

    # ── what it is ───────────────────────────────────────────────────────────────────────────────

    @property
    def exists(self) -> bool:
        return (self.path / FOLDER / "latest.json").is_file()

    def create(self, streams: list[str], buckets: int, **rules: str | None) -> dict[str, Any]:
        """Make it, unless it is there; what it is. `rules` say which rows it holds (key, deleted, null_keys): they never change."""
        if not self.exists:
            self._create({"streams": streams, "buckets": buckets, **rules})
        found = self.describe()
        for name, given in rules.items():
            if found.get(name) != given:
                raise CallerError(
                    f"{self.path} was made with `{name}` = `{found.get(name)}`, not `{given}`",
                    hint="give the same, or another folder: rows of two kinds are no table",
                )
        return found

    def _create(self, document: dict[str, Any]) -> None:
        if self.path.exists() and any(self.path.iterdir()):
            raise CallerError(
                f"{self.path} is not empty and no table of latest messages", hint="give a new folder, or such a table"
            )
        self._snapshots.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, **document, "created_ns": time.time_ns()}
        with contextlib.suppress(
            ArchiveConflict
        ):  # another process makes it at the same moment: the lock decides which one writes
            write_document(self.path / FOLDER / "latest.json", document)

    def describe(self) -> dict[str, Any]:
        try:
            found = read_document(self.path / FOLDER / "latest.json")
        except FileNotFoundError:
            raise ArchiveDamaged(
                f"{self.path} holds no table of latest messages", hint="`bascule pipeline latest` makes one"
            ) from None
        if found.get("format") != FORMAT:
            raise ArchiveDamaged(
                f"{self.path} has format {found.get('format')!r}, this version knows {FORMAT}",
                hint="use the version that wrote it, or a later one",
            )
        return found

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> TableSnapshot:
        """The newest. Before the first one there is an empty one with number 0."""
        self.describe()
        while True:
            numbers = self._numbers()
            if not numbers:
                return TableSnapshot()
            # One that is gone when it is read was replaced long ago: there is a newer one.
            with contextlib.suppress(FileNotFoundError):
                return self._read(numbers[-1])

    def snapshots(self) -> list[TableSnapshot]:
        """All snapshots that are kept, the oldest first. For the writer."""
        return [self._read(number) for number in self._numbers()]

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._snapshots.glob("[0-9]*.json"))

    def _read(self, number: int) -> TableSnapshot:
        path = self._snapshots / _snapshot_name(number)
        return _decoded(read_document(path), path)

    def commit(self, snapshot: TableSnapshot) -> None:
        """From now on readers find this one. Raises ArchiveConflict when another writer was faster: then nothing has happened."""
        write_document(self._snapshots / _snapshot_name(snapshot.number), _encoded(snapshot))

    # ── writing alone ────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Held by one process at a time; it ends with the process, however that ends."""
        with Archive(self.path).writing():
            yield

    def expire(self, keep_seconds: float, now_ns: int) -> int:
        """Remove snapshots that were replaced longer ago than that, and the files that no other one names. How many files."""
        known = self.snapshots()
        before = now_ns - int(keep_seconds * 1e9)
        gone = [one for one, following in pairwise(known) if following.at_ns <= before]
        if not gone:
            return 0
        for one in gone:  # first, so that no snapshot names a file that is not there
            (self._snapshots / _snapshot_name(one.number)).unlink()
        sync_directory(self._snapshots)
        left = set().union(*(one.files for one in known[len(gone) :]))
        return self._remove(set().union(*(one.files for one in gone)) - left)

    def remove_leftovers(self) -> int:
        """Delete files that no snapshot names: of writers that died. Only while writing alone."""
        known = set().union(*(one.files for one in self.snapshots()))
        there = {
            str(path.relative_to(self.path))
            for folder in (ROWS, GRAVES)
            for path in (self.path / folder).glob("*.parquet")
        }
        return self._remove(there - known)

    def _remove(self, files: set[str]) -> int:
        for path in files:
            (self.path / path).unlink(missing_ok=True)
        return len(files)


def latest_files(path: str | os.PathLike[str]) -> list[str]:
    """The Parquet files that are the table now, as any reader of Parquet takes them. They stay for as long as the table keeps old
    snapshots (`--keep`, an hour unless said otherwise): ask again for each query."""
    store = LatestStore(path)
    return [str(store.path / one) for one in store.snapshot().data_files]


def read_latest(path: str | os.PathLike[str], columns: list[str] | None = None) -> pa.Table:
    """The table in memory. Raises ArchiveDamaged for a table without a snapshot: its columns are not known yet."""
    import pyarrow.parquet as pq

    pa = require()
    store = LatestStore(path)
    snapshot = store.snapshot()
    if not snapshot.number:
        raise ArchiveDamaged(f"{store.path} has no snapshot yet", hint="the first one comes with the first message")
    schema = snapshot.arrow_schema()
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    parts = [pq.ParquetFile(store.path / one).read(columns=columns) for one in snapshot.data_files]
    return pa.concat_tables([chosen.empty_table(), *(part.select(chosen.names).cast(chosen) for part in parts)])


def _snapshot_name(number: int) -> str:
    return f"{number:020d}.json"


def _encoded(snapshot: TableSnapshot) -> dict[str, Any]:
    document = asdict(replace(snapshot, buckets={}, next_offsets={}))
    offsets = [[*key, end] for key, end in sorted(snapshot.next_offsets.items())]
    buckets = [asdict(one) for _, one in sorted(snapshot.buckets.items())]
    return {"format": FORMAT, **document, "buckets": buckets, "next_offsets": offsets}


def _decoded(document: dict[str, Any], path: Path) -> TableSnapshot:
    try:
        buckets = [Bucket(**one) for one in document["buckets"]]
        return TableSnapshot(
            document["number"],
            document["at_ns"],
            document["batch"],
            document["schema"],
            {one.number: one for one in buckets},
            {(stream, stream_id, number): end for stream, stream_id, number, end in document["next_offsets"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveDamaged(f"{path} is no snapshot: {error}") from None
