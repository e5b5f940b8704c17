"""The proof that an archive and its stream hold the same: every file, every offset, every byte.

Each file is read and compared with what its commit says of it: rows, offsets, checksum. Where the log still has the messages they are
read too and compared; if they differ the report names the offsets that are missing, there twice, or changed. What lies between two
files must be nothing in the log either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import BasculeError
from bascule.lake.digest import Digest
from bascule.lake.files import read_file
from bascule.lake.manifest import Archive, ArchiveState, DataFile

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.flight.reader import FlightConnection

OFFSETS_NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it should be."""

    kind: str
    """`file-missing`, `file-unreadable`, `file-changed`, `rows-missing`, `rows-doubled`, `rows-changed`, `rows-invented`, `overlap`,
    `gap`."""
    text: str


@dataclass(slots=True)
class Report:
    files: int = 0
    rows: int = 0
    rows_compared: int = 0
    """With the log."""
    faults: list[Fault] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What the log no longer has: only the archive's own checksums speak for it."""

    @property
    def is_equal(self) -> bool:
        return not self.faults


class Verification:
    def __init__(self, archive: Archive, tables: FlightConnection | None, on_file: Callable[[DataFile], None]) -> None:
        """Without `tables` the archive is compared with its own commits alone."""
        self._archive = archive
        self._tables = tables
        self._on_file = on_file
        self._report = Report()

    def run(self) -> Report:
        state = self._archive.state()
        logs = self._logs(state)
        by_partition = groupby(state.in_order(), key=lambda one: (one.stream, one.stream_id, one.partition))
        for (stream, stream_id, partition), files in by_partition:
            log = logs.get(stream)
            ends = None if log is None or log["id"] != stream_id else log["partitions"].get(partition)
            self._check_partition(list(files), ends)
        return self._report

    def _logs(self, state: ArchiveState) -> dict[str, Any]:
        names = sorted({one.stream for one in state.files.values()})
        found: dict[str, Any] = {}
        for name in names if self._tables is not None else ():
            try:
                assert self._tables is not None
                found |= self._tables.offsets([name])
            except BasculeError as error:
                self._report.unchecked.append(f"{name}: {error.message}")
        return found

    # ── one partition ────────────────────────────────────────────────────────────────────────────

    def _check_partition(self, files: list[DataFile], ends: dict[str, Any] | None) -> None:
        before: DataFile | None = None
        for one in files:
            self._check_file(one, ends)
            if before is not None and one.first_offset <= before.last_offset:
                self._fault(
                    "overlap", f"{one.path} begins at {one.first_offset}, {before.path} ends at {before.last_offset}"
                )
            elif before is not None and one.first_offset > before.last_offset + 1:
                self._check_gap(one, before.last_offset + 1, one.first_offset, ends)
            before = one

    def _check_gap(self, one: DataFile, start: int, end: int, ends: dict[str, Any] | None) -> None:
        name = f"{one.stream}/{one.partition}"
        if ends is None or start < ends["log_start"]:
            self._report.unchecked.append(
                f"{name}: nobody can say any more why offsets {start} to {end - 1} are not there"
            )
            return
        missing = [offset for batch in self._log_rows(one, start, end) for offset in batch["offset"].to_pylist()]
        if missing:
            self._fault("gap", f"{name}: the log has offsets {_some(missing)}, no file of the archive does")

    def _check_file(self, one: DataFile, ends: dict[str, Any] | None) -> None:
        self._report.files += 1
        self._on_file(one)
        rows = self._rows_of(one)
        if rows is None:
            return
        digest = Digest()
        offsets: list[int] = []
        for batch in rows:
            digest.add(batch)
            offsets += batch["offset"].to_pylist()
        self._report.rows += len(offsets)
        is_whole = (digest.value, digest.rows) == (one.crc32c, one.rows)
        if self._tables is not None and ends is not None and one.first_offset >= ends["log_start"]:
            self._compare_with_log(one, digest, is_whole)
        else:
            self._report.unchecked.append(
                f"{one.path}: the log no longer has offsets {one.first_offset} to {one.last_offset}"
            )
            if not is_whole:
                self._explain_without_log(one, offsets)

    def _rows_of(self, one: DataFile) -> list[pa.RecordBatch] | None:
        path = Path(self._archive.path) / one.path
        if not path.exists():
            self._fault(
                "file-missing",
                f"{one.path} is gone, and with it {one.rows} messages, offsets {one.first_offset} to {one.last_offset}",
            )
            return None
        try:
            return list(read_file(self._archive.path, one))
        except Exception as error:
            self._fault("file-unreadable", f"{one.path} cannot be read: {error}")
            return None

    # ── what is wrong ────────────────────────────────────────────────────────────────────────────

    def _compare_with_log(self, one: DataFile, digest: Digest, is_whole: bool) -> None:
        in_log = Digest()
        for batch in self._log_rows(one, one.first_offset, one.last_offset + 1):
            in_log.add(batch)
        self._report.rows_compared += in_log.rows
        if in_log.value == digest.value and is_whole:
            return
        faults = len(self._report.faults)
        archived, logged = (
            _by_offset(read_file(self._archive.path, one)),
            _by_offset(self._log_rows(one, one.first_offset, one.last_offset + 1)),
        )
        self._name("rows-missing", one, [at for at in logged if at not in archived], "are in the log and not in it")
        self._name("rows-invented", one, [at for at in archived if at not in logged], "are in it and not in the log")
        self._name(
            "rows-doubled", one, [at for at, rows in archived.items() if len(rows) > 1], "are in it more than once"
        )
        both = [at for at in archived if at in logged and archived[at][0] != logged[at][0]]
        self._name("rows-changed", one, both, "are not what the log has")
        if len(self._report.faults) == faults:
            self._fault(
                "file-changed", f"{one.path}: its rows are the log's, but not in order or not as they were written"
            )

    def _explain_without_log(self, one: DataFile, offsets: list[int]) -> None:
        doubled = sorted({at for at, following in pairwise(offsets) if at == following})
        self._name("rows-doubled", one, doubled, "are in it more than once")
        count = len(set(offsets))
        if count < one.rows:
            self._fault("rows-missing", f"{one.path}: {one.rows - count} of its {one.rows} messages are not in it")
        elif not doubled:
            self._fault("file-changed", f"{one.path}: its messages are not what was written")

    def _name(self, kind: str, one: DataFile, offsets: list[int], what: str) -> None:
        if offsets:
            self._fault(kind, f"{one.path}: offsets {_some(sorted(offsets))} of {one.stream}/{one.partition} {what}")

    def _fault(self, kind: str, text: str) -> None:
        self._report.faults.append(Fault(kind, text))

    def _log_rows(self, one: DataFile, start: int, end: int) -> Iterator[pa.RecordBatch]:
        assert self._tables is not None
        return self._tables.read(one.stream, one.partition, start, end)


def _by_offset(batches: Iterator[pa.RecordBatch]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            found.setdefault(row["offset"], []).append(row)
    return found


def _some(offsets: list[int]) -> str:
    """The first few, and how many more."""
    named = ", ".join(str(offset) for offset in offsets[:OFFSETS_NAMED_MAX])
    more = len(offsets) - OFFSETS_NAMED_MAX
    return named if more <= 0 else f"{named} and {more} more"
