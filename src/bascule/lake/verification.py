"""The proof that an archive and its stream hold the same: every file, every offset, every byte.

Each file is read and compared with what its commit says of it: rows, offsets, checksum. Where the log still has the messages they are
read too and compared; if they differ the report names the offsets that are missing, there twice, or changed. What lies between two
files, or before the first one and behind where the archive began, must be nothing in the log either, or a commit says that it was lost:
then it is named, and the log must not have it. Nothing is held but a few batches, however large files are.

The archive and the log may change meanwhile. A file that a compaction has taken away is no loss: the partition is looked at again
with the files that it has now. What retention takes from the log while it is compared is compared no more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import ArchiveDamaged, BasculeError, OffsetBelowStart
from bascule.lake import holes
from bascule.lake.archive import Archive
from bascule.lake.differences import Differences, compare
from bascule.lake.digest import Digest
from bascule.lake.facts import ArchiveState, DataFile, Lost, PartitionId
from bascule.lake.files import file_bytes, read_file
from bascule.lake.log_proof import Fault, LogProof

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.arrow.reader import FlightConnection

OFFSETS_NAMED_MAX: Final = 10
Cursors = Callable[[str, str, int], int | None]
"""The offset of a cursor by its name, a stream and a partition; None for one that was never set."""


@dataclass(slots=True)
class Report:
    files: int = 0
    rows: int = 0
    rows_compared: int = 0
    """With the log."""
    faults: list[Fault] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What the log no longer has: only the archive's own checksums speak for it."""
    lost: list[Lost] = field(default_factory=list)
    """What was never archived, because it was gone before and `onDataLoss` was `skip`."""

    @property
    def is_equal(self) -> bool:
        """Nothing is wrong. Something may be lost all the same."""
        return not self.faults

    @property
    def lost_offsets(self) -> int:
        return sum(one.end - one.start for one in self.lost)

    def add(self, other: Report) -> None:
        self.files += other.files
        self.rows += other.rows
        self.rows_compared += other.rows_compared
        self.faults += other.faults
        self.unchecked += other.unchecked
        self.lost += other.lost


class Verification:
    def __init__(
        self,
        archive: Archive,
        tables: FlightConnection | None,
        on_rows: Callable[[int], None],
        *,
        streams: Collection[str] = (),
        since: str = "",
        cursors: Cursors | None = None,
    ) -> None:
        """Without `tables` the archive is compared with its own commits alone. `on_rows` gets the number of rows read, now and then.
        `streams` and `since`, a day such as `2026-11-15`, look at a part of it. `cursors` says how far the brokers have heard that the
        archive is."""
        self._cursors = cursors
        self._archive = archive
        self._tables = tables
        self._on_rows = on_rows
        self._streams = frozenset(streams)
        self._since = since
        self._state = ArchiveState()
        self._files: dict[PartitionId, list[DataFile]] = {}

    def run(self) -> Report:
        proof = LogProof(self._archive)
        self._state = proof.run()
        self._files = self.partitions(self._state)
        report = Report(faults=proof.faults, unchecked=proof.notes)
        if self._cursors is not None and not self._since:
            self._check_cursors(report, self._cursors)
        logs = self._logs(report)
        for key in list(self._files):
            log = logs.get(key[0])
            ends = None if log is None or log["id"] != key[1] else log["partitions"].get(key[2])
            report.add(self._prove(key, ends))
        return report

    def total(self) -> int:
        """Rows to read, as far as the log can say before it is proved."""
        try:
            return sum(one.rows for files in self.partitions(self._archive.state()).values() for one in files)
        except ArchiveDamaged:
            return 0

    def _check_cursors(self, report: Report, cursors: Cursors) -> None:
        """A cursor that is after the archive's end was set by commits that are not there."""
        name = self._state.query or f"archive:{self._archive.name}"
        for key in self._files:
            said, end = cursors(name, key[0], key[2]), self._state.next_offsets.get(key, 0)
            if said is not None and said >= end:
                report.faults.append(
                    Fault(
                        "commits-missing",
                        f"{key[0]}/{key[2]}: the cursor `{name}` in the brokers is at {said}, the archive ends before {end}: its "
                        "newest commits are missing, or another archive sets the same cursor",
                    )
                )

    def _look(self) -> None:
        self._state = self._archive.state()
        self._files = self.partitions(self._state)

    def partitions(self, state: ArchiveState) -> dict[PartitionId, list[DataFile]]:
        """The files that are looked at; none for a partition of which the archive says that there was nothing."""
        meant = [
            one
            for one in state.in_order()
            if one.date >= self._since and (not self._streams or one.stream in self._streams)
        ]
        grouped = groupby(meant, key=lambda one: (one.stream, one.stream_id, one.partition))
        found = {key: list(files) for key, files in grouped}
        if not self._since:
            covered = (key for key in state.next_offsets if not self._streams or key[0] in self._streams)
            found |= {key: [] for key in sorted(covered) if key not in found}
        return found

    def _logs(self, report: Report) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._tables is None:
            return found
        for name in sorted({key[0] for key in self._files}):
            try:
                found |= self._tables.offsets([name])
            except BasculeError as error:
                report.unchecked.append(f"{name}: {error.message}")
        return found

    def _prove(self, key: PartitionId, ends: dict[str, Any] | None) -> Report:
        """One partition, again when a compaction took a file away meanwhile."""
        is_lost = False
        while True:
            proof = _PartitionProof(self._archive, self._tables, self._on_rows, key, ends, lost_is_fault=is_lost)
            state, files = self._state, self._files.get(key, [])
            began = None if self._since else state.began.get(key)
            first = files[0].first_offset if self._since and files else 0
            lost = [one for one in state.lost.get(key, []) if one.end > first]
            try:
                return proof.run(files, began, state.next_offsets.get(key, 0), lost)
            except _Gone as gone:
                self._look()
                is_lost = gone.path in self._state.files  # then no commit has replaced it


class _Gone(Exception):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class _PartitionProof:
    def __init__(
        self,
        archive: Archive,
        tables: FlightConnection | None,
        on_rows: Callable[[int], None],
        key: PartitionId,
        ends: dict[str, Any] | None,
        *,
        lost_is_fault: bool,
    ) -> None:
        self._archive = archive
        self._tables = tables
        self._on_rows = on_rows
        self._key = key
        self._name = f"{key[0]}/{key[2]}"
        self._log_start: int | None = None if tables is None or ends is None else ends["log_start"]
        """What of the log can be compared begins here; None: nothing can."""
        self._lost_is_fault = lost_is_fault
        self._report = Report()
        self._lost: list[holes.Span] = []
        self._gone: list[tuple[int, int]] = []
        self._unexplained: list[tuple[int, int]] = []

    def run(self, files: list[DataFile], began: int | None, covered_end: int, lost: list[Lost]) -> Report:
        """Check the offsets from `began` to before `covered_end`: each is archived, was never there, or is lost. `began` is None for an
        archive that did not note where it began."""
        self._lost = holes.joined((one.start, one.end) for one in lost)
        before: DataFile | None = None
        position = began
        for one in files:
            self._check_file(one)
            if before is not None and one.first_offset <= before.last_offset:
                self._fault(
                    "overlap", f"{one.path} begins at {one.first_offset}, {before.path} ends at {before.last_offset}"
                )
            elif position is not None and position < one.first_offset:
                self._check_gap(position, one.first_offset)
            before, position = one, one.last_offset + 1
        self._check_gap(self._log_start or 0 if position is None else position, covered_end)
        self._name_lost(lost)
        self._sum_up()
        return self._report

    def _name_lost(self, lost: list[Lost]) -> None:
        """What the log has is not lost, whatever a commit says."""
        self._report.lost += lost
        if self._log_start is not None:
            for one in lost:
                self._must_not_have(max(one.start, self._log_start), one.end, "and a commit says that they are lost")

    def _sum_up(self) -> None:
        """One line for all files of the partition, not one for each."""
        if self._tables is None:
            return  # the log was not asked for
        if self._gone:
            self._report.unchecked.append(f"{self._name}: the log no longer has {_ranges(self._gone)}")
        if self._unexplained:
            self._report.unchecked.append(
                f"{self._name}: the log no longer shows why {_ranges(self._unexplained)} are missing"
            )

    def _check_gap(self, start: int, end: int) -> None:
        """Between two files, and at both ends."""
        for first, following in holes.without(start, end, self._lost):
            is_in_log = self._log_start is not None and first >= self._log_start
            if not is_in_log or not self._must_not_have(first, following, "no file of the archive does"):
                self._unexplained.append((first, following - 1))

    def _must_not_have(self, start: int, end: int, otherwise: str) -> bool:
        """Nothing of a range may be in the log. False when retention was faster than the question."""
        if start >= end:
            return True
        try:
            found = [at for batch in self._log_rows(start, end, ("offset",)) for at in batch.column(0).to_pylist()]
        except OffsetBelowStart as error:
            self._raise_log_start(error)
            return False
        if found:
            self._fault("gap", f"{self._name}: the log has offsets {_some(found)}, {otherwise}")
        return True

    # ── one file ─────────────────────────────────────────────────────────────────────────────────

    def _check_file(self, one: DataFile) -> None:
        self._report.files += 1
        faults = len(self._report.faults)
        while True:
            start = one.last_offset + 1 if self._log_start is None else max(self._log_start, one.first_offset)
            try:
                whole, part = self._digests(one, start)
            except FileNotFoundError:
                if not self._lost_is_fault:
                    raise _Gone(one.path) from None
                self._fault(
                    "file-missing",
                    f"{one.path} is gone, and with it {one.rows} messages, offsets {one.first_offset} to {one.last_offset}",
                )
                return
            except Exception as error:
                self._fault("file-unreadable", f"{one.path} cannot be read: {error}")
                return
            try:
                self._compare(one, whole, part, start)
            except OffsetBelowStart as error:
                self._raise_log_start(error)
                continue
            self._report.rows += whole.rows
            if len(self._report.faults) == faults:
                self._check_bytes(one)
            return

    def _check_bytes(self, one: DataFile) -> None:
        """The rows are right; other engines also go by the footer and its statistics."""
        try:
            size, digest = file_bytes(self._archive.place, one.path)
        except FileNotFoundError:
            raise _Gone(one.path) from None
        if size != one.bytes:
            self._fault("file-changed", f"{one.path} has {size} bytes, its commit says {one.bytes}; its rows are right")
        elif one.sha256 and digest != one.sha256:
            self._fault(
                "file-changed",
                f"{one.path} is not what was written: its rows are right, but its footer, its statistics or unused bytes were changed",
            )

    def _digests(self, one: DataFile, start: int) -> tuple[Digest, Digest]:
        """Of all rows, and of those from an offset on."""
        whole, part = Digest(), Digest()
        for batch in read_file(self._archive.place, one):
            whole.add(batch)
            if start > one.first_offset:
                part.add(_from_offset(batch, start))
            self._on_rows(batch.num_rows)
        return whole, part if start > one.first_offset else whole

    def _compare(self, one: DataFile, whole: Digest, part: Digest, start: int) -> None:
        is_whole = (whole.value, whole.rows) == (one.crc32c, one.rows)
        end = one.last_offset + 1
        if start >= end:
            if not is_whole:
                self._explain(one, self._without_log(one))
        else:
            in_log = Digest()
            for batch in self._log_rows(start, end):
                in_log.add(batch)
            if not is_whole or (in_log.value, in_log.rows) != (part.value, part.rows):
                archived = (_from_offset(batch, start) for batch in read_file(self._archive.place, one))
                found = compare(archived, self._log_rows(start, end))
                if not found and start > one.first_offset:
                    found = self._without_log(one)
                self._explain(one, found)
            self._report.rows_compared += in_log.rows
        if start > one.first_offset:
            self._gone.append((one.first_offset, min(start, end) - 1))

    def _without_log(self, one: DataFile) -> Differences:
        """What can be said of a file that is not what was written, by its own offsets."""
        found = compare(read_file(self._archive.place, one), None)
        found.missing_count = max(0, one.rows - found.distinct - len(found.late))
        return found

    # ── what is wrong ────────────────────────────────────────────────────────────────────────────

    def _explain(self, one: DataFile, found: Differences) -> None:
        faults = len(self._report.faults)
        self._name_offsets("rows-missing", one, found.missing, "are in the log and not in it")
        self._name_offsets("rows-invented", one, found.invented, "are in it and not in the log")
        self._name_offsets("rows-doubled", one, found.doubled, "are in it more than once")
        self._name_offsets("rows-changed", one, found.changed, "are not what the log has")
        if found.missing_count:
            self._fault("rows-missing", f"{one.path}: {found.missing_count} of its {one.rows} messages are not in it")
        if len(self._report.faults) == faults:
            self._fault(
                "file-changed", f"{one.path}: its rows are not in order, or not as they were written, or not all there"
            )

    def _name_offsets(self, kind: str, one: DataFile, offsets: list[int], what: str) -> None:
        if offsets:
            self._fault(kind, f"{one.path}: offsets {_some(sorted(offsets))} of {self._name} {what}")

    def _fault(self, kind: str, text: str) -> None:
        self._report.faults.append(Fault(kind, text))

    # ── the log ──────────────────────────────────────────────────────────────────────────────────

    @property
    def _log(self) -> FlightConnection:
        assert self._tables is not None  # else `_log_start` is None, and no row of the log is asked for
        return self._tables

    def _log_rows(self, start: int, end: int, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        stream, stream_id, partition = self._key
        return self._log.read(stream, partition, start, end, columns, stream_id=stream_id)

    def _raise_log_start(self, error: OffsetBelowStart) -> None:
        """Retention was faster."""
        stream, stream_id, partition = self._key
        log = self._log.offsets([stream])[stream]
        if log["id"] != stream_id or log["partitions"][partition]["log_start"] <= (self._log_start or 0):
            raise error
        self._log_start = log["partitions"][partition]["log_start"]


def _from_offset(batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    import pyarrow.compute as pc

    found: pa.RecordBatch = batch.filter(pc.greater_equal(batch["offset"], start))
    return found


def _ranges(ranges: list[tuple[int, int]]) -> str:
    """`offsets 5 to 9`, or the first of many and how much they are together."""
    joined: list[list[int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    first, last = joined[0]
    if len(joined) == 1:
        return f"offsets {first} to {last}"
    count = sum(last - first + 1 for first, last in joined)
    return f"{count} offsets in {len(joined)} places, the first {first} to {last},"


def _some(offsets: list[int]) -> str:
    """The first few, and how many more."""
    named = ", ".join(str(offset) for offset in offsets[:OFFSETS_NAMED_MAX])
    more = len(offsets) - OFFSETS_NAMED_MAX
    return named if more <= 0 else f"{named} and {more} more"
