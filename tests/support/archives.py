"""Archives for tests, made without Spark: of a cluster in memory, or of any record batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from bascule.flight.schema import COLUMNS
from bascule.lake.archive import Archive
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import Commit, Covered, DataFile
from bascule.lake.files import WriteTask, read_file
from tests.support.memory_cluster import MemoryCluster


def archive_rows(
    path: Path, stream_id: int, batches: Iterable[pa.RecordBatch], *, covered_end: int | None = None
) -> list[DataFile]:
    """One commit with these messages of one partition; the folder is made if it is not there."""
    archive = Archive(path)
    rows = [batch for batch in batches if batch.num_rows]
    archive.create([rows[0]["stream"][0].as_py()])
    found = [replace(one, stream_id=stream_id) for one in WriteTask(LakePlace(str(path)), {}).write(iter(rows))]
    first, last = found[0], found[-1]
    end = last.last_offset + 1 if covered_end is None else covered_end
    covered = Covered(first.stream, stream_id, first.partition, first.first_offset, end)
    number = archive.state().number + 1
    archive.commit(Commit(number, "append", time.time_ns(), added=tuple(found), covered=(covered,)))
    return found


def archive_offsets(
    path: Path, cluster: MemoryCluster, stream: str, start: int, end: int, *, partition: int = 0
) -> list[DataFile]:
    """One commit with offsets of a stream in memory."""
    stream_id = cluster.there[stream].id
    batches = cluster.read(stream, partition, start, end, stream_id=stream_id, columns=COLUMNS)
    return archive_rows(path, stream_id, batches)


def compact(path: Path, *, keep: bool = False) -> list[DataFile]:
    """What a compaction does: one file in place of all those of a partition and day, and the old ones are gone unless they are kept."""
    archive = Archive(path)
    state = archive.state()
    added: list[DataFile] = []
    groups = itertools.groupby(state.in_order(), key=lambda one: (one.stream, one.stream_id, one.partition, one.date))
    for (_, stream_id, _, _), group in groups:
        rows = itertools.chain.from_iterable(read_file(archive.place, one) for one in group)
        added += [replace(one, stream_id=stream_id) for one in WriteTask(LakePlace(str(path)), {}).write(rows)]
    commit = Commit(state.number + 1, "compact", time.time_ns(), added=tuple(added), removed=tuple(state.files))
    archive.commit(commit)
    for name in () if keep else state.files:
        (archive.path / name).unlink()
    return added
