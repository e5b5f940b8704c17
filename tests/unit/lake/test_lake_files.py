"""What a task writes: one partition and one day a file, rolled by size, without what the archive has, or nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bascule.errors import BasculeError
from bascule.lake import files
from bascule.lake.delta.place import LakePlace
from bascule.lake.digest import Digest
from bascule.lake.facts import DataFile
from bascule.lake.files import WriteTask, from_stats, read_file
from tests.support.compacting import DAY_US, messages


def write(path: Path, *batches: pa.RecordBatch, next_offsets: Any = None, **options: Any) -> list[DataFile]:
    return list(WriteTask(LakePlace(str(path)), next_offsets or {}, **options).write(iter(batches)))


def ranges(found: list[DataFile]) -> list[tuple[int, int, int]]:
    return [(one.partition, one.first_offset, one.last_offset) for one in found]


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    (one,) = write(tmp_path, messages(5, 10), messages(15, 10))
    assert (one.first_offset, one.last_offset, one.rows, one.date) == (5, 24, 20, "1970-01-01")
    assert one.bytes == (tmp_path / one.path).stat().st_size
    digest = Digest()
    for batch in read_file(LakePlace(str(tmp_path)), one):
        digest.add(batch)
    assert (digest.value, digest.rows) == (one.crc32c, 20)
    whole = Digest()
    whole.add(messages(5, 20))
    assert whole.value == one.crc32c


def test_partitions_and_days_have_files_of_their_own(tmp_path: Path) -> None:
    mixed = pa.concat_batches([messages(0, 3), messages(3, 3, day=1), messages(7, 2, partition=1, day=1)])
    found = write(tmp_path, mixed, messages(9, 1, partition=1, day=1))
    assert ranges(found) == [(0, 0, 2), (0, 3, 5), (1, 7, 9)]
    assert [one.path.split("/")[0] for one in found] == ["date=1970-01-01", "date=1970-01-02", "date=1970-01-02"]


def test_the_last_moment_of_a_day_and_the_first_of_the_next_are_apart(tmp_path: Path) -> None:
    batch = messages(DAY_US - 2, 4)  # timestamps are as large as offsets here
    assert [(one.rows, one.date) for one in write(tmp_path, batch)] == [(2, "1970-01-01"), (2, "1970-01-02")]


def test_files_are_rolled_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 10_000)
    batches = [messages(number * 100, 100, size=200) for number in range(20)]
    found = write(tmp_path, *batches, file_bytes=3_000)
    assert len(found) > 3
    assert [one.first_offset for one in found][1:] == [one.last_offset + 1 for one in found][:-1]
    assert all(one.bytes >= 3_000 for one in found[:-1])
    assert sum(one.rows for one in found) == 2_000


def test_small_batches_share_row_groups(tmp_path: Path) -> None:
    (one,) = write(tmp_path, *(messages(number * 10, 10) for number in range(50)))
    assert pq.ParquetFile(tmp_path / one.path).num_row_groups == 1


def test_what_the_archive_has_is_left_out(tmp_path: Path) -> None:
    floors = {("orders", 0): 15, ("orders", 1): 100, ("other", 0): 5}
    found = write(
        tmp_path, messages(0, 20), messages(0, 20, partition=1), messages(0, 9, partition=2), next_offsets=floors
    )
    assert ranges(found) == [(0, 15, 19), (2, 0, 8)]
    assert write(tmp_path / "again", messages(0, 15), next_offsets=floors) == []
    assert not (tmp_path / "again").exists()


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(BasculeError, match="offset 5 follows 9"):
        write(tmp_path, messages(0, 10), messages(5, 10))
    assert list(tmp_path.rglob("*.parquet")) == []
    swapped = messages(0, 10).take(pa.array([0, 2, 1]))
    with pytest.raises(BasculeError, match="out of order"):
        write(tmp_path, swapped)
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_every_compression_that_may_be_asked_for(tmp_path: Path, compression: str) -> None:
    (one,) = write(tmp_path, messages(0, 10), compression=compression)
    found = pq.ParquetFile(tmp_path / one.path).metadata.row_group(0).column(0).compression
    assert found.lower() == {"none": "uncompressed"}.get(compression, compression)


def test_for_spark_a_file_is_a_row(tmp_path: Path) -> None:
    (batch,) = WriteTask(LakePlace(str(tmp_path)), {})(iter([messages(0, 10)]))
    (one,), lost = from_stats(batch.to_pylist())
    assert (one.last_offset, lost) == (9, [])
    assert list(WriteTask(LakePlace(str(tmp_path)), {})(iter([]))) == []
