"""Parquet files of an archive: Spark's tasks write them straight from Arrow, verification and compaction read them.

A file holds messages of one partition and one day (UTC, by their timestamps) in the order of their offsets, and is rolled by size. It
is synced before a commit names it. A file that cannot be finished, because the disk is full or for any other reason, is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import BasculeError
from bascule.flight.schema import table_schema
from bascule.lake.delta.place import LakePlace
from bascule.lake.digest import Digest
from bascule.lake.facts import DataFile, Lost

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES_DEFAULT: Final = 128 << 20
ROW_GROUP_ROWS: Final = 128 * 1024
ROW_GROUP_BYTES: Final = 16 << 20
"""In memory. A row group is written when it has so many rows or bytes."""
READ_ROWS: Final = 16 * 1024
HASH_BYTES: Final = 4 << 20
UNKNOWN_ID: Final = 0
"""A task sees rows, which do not say which stream of that name they are of: who commits its files knows."""
_DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class WriteTask:
    """What a task needs to know. Pickled, so nothing is open in it."""

    place: LakePlace
    next_offsets: dict[tuple[str, int], int]
    """Of each partition: what lies below is in the archive already and is left out."""
    file_bytes: int = FILE_BYTES_DEFAULT
    compression: str = "zstd"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For mapInArrow: messages in, one row for each file out; its `stream_id` is for the driver to fill in."""
        yield from stats(list(self.write(batches)), ())

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[DataFile]:
        writer: FileWriter | None = None
        try:
            for batch in batches:
                for run in self._missing(batch):
                    if writer is not None and not writer.continues(run):
                        finished, writer = writer.finish(), None
                        yield finished
                    if writer is None:
                        writer = FileWriter(self.place, self.compression, self.file_bytes, run)
                    writer.add(run)
            if writer is not None:
                finished, writer = writer.finish(), None
                yield finished
        finally:
            if writer is not None:
                writer.abandon()

    def _missing(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Runs of rows without what the archive has: this batch may have come before."""
        import pyarrow.compute as pc

        batch = batch.cast(table_schema()) if batch.schema != table_schema() else batch
        for run in _runs(batch):
            floor = self.next_offsets.get((run["stream"][0].as_py(), run["partition"][0].as_py()), 0)
            if pc.min(run["offset"]).as_py() < floor:
                run = run.filter(pc.greater_equal(run["offset"], floor))
            if run.num_rows:
                yield run


# ── what a task tells the driver ─────────────────────────────────────────────────────────────────

LOST: Final = "lost"
_COLUMNS: Final = (*DataFile.__slots__, LOST)
_TEXTS: Final = ("path", "stream", "date", "sha256", LOST)
STATS_DDL: Final = ", ".join(f"`{name}` {'string' if name in _TEXTS else 'bigint'}" for name in _COLUMNS)
"""One row for each file; and one for each range that a task could not read any more, with the reason in `lost` and no path."""


def stats(files: Sequence[DataFile], lost: Sequence[Lost]) -> Iterator[pa.RecordBatch]:
    """What a task has done, as Spark carries it."""
    import pyarrow as pa

    rows = [{**asdict(one), LOST: None} for one in files] + [_lost_row(one) for one in lost]
    schema = pa.schema([(name, pa.string() if name in _TEXTS else pa.int64()) for name in _COLUMNS])
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _lost_row(one: Lost) -> dict[str, Any]:
    found = DataFile("", one.stream, one.stream_id, one.partition, one.start, one.end - 1, 0, 0, 0, "")
    return {**asdict(found), LOST: one.reason}


def from_stats(rows: Iterable[dict[str, Any]]) -> tuple[list[DataFile], list[Lost]]:
    """What all tasks have done, as the driver gets it: files, and what was lost. Ids of streams are for the driver to fill in."""
    files: list[DataFile] = []
    lost: list[Lost] = []
    for row in rows:
        reason = row.pop(LOST)
        one = DataFile(**row)
        if reason is None:
            files.append(one)
        else:
            lost.append(
                Lost(one.stream, UNKNOWN_ID, one.partition, one.first_offset, one.last_offset + 1, reason, at_ns=0)
            )
    return sorted(files, key=lambda one: one.path), lost


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of one partition and one day each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    days = pc.divide(batch["timestamp"].cast(pa.int64()), _DAY_US)
    keys = [batch["stream"], batch["partition"], days]
    if all(pc.count_distinct(key).as_py() == 1 for key in keys):
        yield batch
        return
    changed = None
    for key in keys:
        differs = pc.not_equal(key[1:], key[:-1])
        changed = differs if changed is None else pc.or_(changed, differs)
    cuts = [0, *(number + 1 for number in pc.indices_nonzero(changed).to_pylist()), batch.num_rows]
    for start, end in itertools.pairwise(cuts):
        yield batch.slice(start, end - start)


class FileWriter:
    """One file: rows of one partition and one day, in the order of their offsets."""

    def __init__(self, place: LakePlace, compression: str, file_bytes: int, first: pa.RecordBatch) -> None:
        import pyarrow.parquet as pq

        self._file_bytes = file_bytes
        self._stream = first["stream"][0].as_py()
        self._partition = first["partition"][0].as_py()
        self._date = _date_of(first)
        self._first_offset = first["offset"][0].as_py()
        self._last_offset = self._first_offset - 1
        self._digest = Digest()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._first_us, self._last_us, self._epoch = 1 << 62, 0, 0
        self._name = file_name(self._stream, self._partition, self._date, self._first_offset)
        self._place = place
        self._file = place.create(self._name)
        self._writer = pq.ParquetWriter(self._file, table_schema(), compression=compression)

    def continues(self, run: pa.RecordBatch) -> bool:
        """Whether these rows belong into this file."""
        return bool(
            self._file.size < self._file_bytes
            and run["stream"][0].as_py() == self._stream
            and run["partition"][0].as_py() == self._partition
            and _date_of(run) == self._date
        )

    def add(self, run: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        offsets = run["offset"]
        is_rising = len(offsets) < 2 or pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py()
        if offsets[0].as_py() <= self._last_offset or not is_rising:
            raise BasculeError(
                f"{self._stream}/{self._partition}: offset {offsets[0].as_py()} follows {self._last_offset}: "
                "messages reached the archive out of order"
            )
        self._digest.add(run)
        self._last_offset = offsets[-1].as_py()
        first_us, last_us, epoch = fact_range([run])
        self._first_us, self._last_us = min(self._first_us, first_us), max(self._last_us, last_us)
        self._epoch = max(self._epoch, epoch)
        self._waiting.append(run)
        self._waiting_rows += run.num_rows
        self._waiting_bytes += run.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= min(ROW_GROUP_BYTES, self._file_bytes):
            self._write()

    def _write(self) -> None:
        """What has been waiting, as one row group: small ones make a file that is large and slow to read."""
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def finish(self) -> DataFile:
        self._write()
        self._writer.close()
        self._file.close()
        return DataFile(
            self._name,
            self._stream,
            UNKNOWN_ID,
            self._partition,
            self._first_offset,
            self._last_offset,
            self._digest.rows,
            self._file.size,
            self._digest.value,
            self._date,
            self._first_us,
            self._last_us,
            self._epoch,
            self._file.sha256(),
        )

    def abandon(self) -> None:
        with contextlib.suppress(Exception):  # whatever it still had to say to the file
            self._writer.close()
        self._file.abandon()


def file_name(stream: str, partition: int, date: str, first_offset: int) -> str:
    """A new name, below the table. It begins with the time, so that what a dead writer has left can be told by its age."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", stream)
    made = f"{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[:20]}"
    return f"date={date}/{safe}-{partition}-{first_offset:020d}-{made}.parquet"


def made_ms(name: str) -> int | None:
    """When a file of this name was begun; None for one of another kind."""
    match = re.search(r"-([0-9a-f]{12})[0-9a-f]{20}\.parquet$", name)
    return None if match is None else int(match[1], 16)


def _date_of(run: pa.RecordBatch) -> str:
    found: str = run["timestamp"][0].as_py().strftime("%Y-%m-%d")
    return found


def file_bytes(place: LakePlace, name: str) -> tuple[int, str]:
    """The size of a file, and its SHA-256."""
    digest, size = hashlib.sha256(), 0
    with place.open(name) as source:
        while piece := source.read(HASH_BYTES):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def fact_range(batches: Iterable[pa.RecordBatch]) -> tuple[int, int, int]:
    """The times of the oldest and the newest of rows, in microseconds, and their newest leader epoch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first_us, last_us, epoch = 1 << 62, 0, 0
    for batch in batches:
        times = pc.min_max(batch["timestamp"].cast(pa.int64())).as_py()
        first_us, last_us = min(first_us, times["min"]), max(last_us, times["max"])
        epoch = max(epoch, pc.max(batch["leaderEpoch"]).as_py())
    return first_us, last_us, epoch


def read_file(place: LakePlace, one: DataFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file. Raises OSError or pyarrow's errors for one that is not there or damaged."""
    import pyarrow.parquet as pq

    with place.open(one.path) as source, pq.ParquetFile(source) as file:
        for batch in file.iter_batches(READ_ROWS):
            yield batch.cast(table_schema()) if batch.schema != table_schema() else batch
