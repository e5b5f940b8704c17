"""Offsets and moments out of an archive's files, and what an archive has while it is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from bascule import limits
from bascule.errors import ArchiveDamaged, ArchiveUnreachable
from bascule.flight.schema import COLUMNS, schema_of, table_schema
from bascule.lake.archive import Archive
from bascule.lake.coverage import ArchiveFollower, Coverage, coverage_of
from bascule.lake.delta.log import commit_name
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import DataFile
from bascule.lake.ranges import offset_at, read_rows
from tests.support.archives import archive_rows, compact

DAY_US = 86_400_000_000


def rows(offsets: list[int], *, step_us: int = 1_000_000, value: bytes = b"x", partition: int = 0) -> pa.RecordBatch:
    """Messages with these offsets; the one at offset n is of the moment n steps after 1970."""
    entries = [
        {
            "key": None if offset % 2 else b"k",
            "value": value,
            "stream": "orders",
            "partition": partition,
            "offset": offset,
            "timestamp": offset * step_us,
            "subject": "shop.orders",
            "replySubject": None,
            "headers": [("n", str(offset).encode())],
            "leaderEpoch": 3,
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(entries, schema=table_schema())


def found(path: Path, one: DataFile, start: int, end: int, columns: tuple[str, ...] = ("offset",)) -> list[int]:
    return [
        offset
        for _, batch in read_rows(LakePlace(str(path)), one, start, end, (*columns,))
        for offset in batch["offset"].to_pylist()
    ]


def coverage(path: Path, partition: int = 0) -> Coverage:
    return coverage_of(Archive(path).state())["orders"][1][partition]


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_range_of_a_file_is_read_and_nothing_else(tmp_path: Path) -> None:
    (one,) = archive_rows(tmp_path / "lake", 1, [rows([*range(10, 60), *range(70, 90)])])
    assert found(tmp_path / "lake", one, 0, 1000) == [*range(10, 60), *range(70, 90)]
    assert found(tmp_path / "lake", one, 55, 72) == [55, 56, 57, 58, 59, 70, 71]
    assert found(tmp_path / "lake", one, 60, 70) == []


def test_rows_are_as_a_broker_sends_them_whatever_columns_are_asked_for(tmp_path: Path) -> None:
    wanted = rows(list(range(5)))
    (one,) = archive_rows(tmp_path / "lake", 1, [wanted])
    ((following, whole),) = read_rows(LakePlace(str(tmp_path / "lake")), one, 0, 5, COLUMNS)
    assert following == 5 and whole.schema == table_schema() and whole.to_pylist() == wanted.to_pylist()
    for columns in (("value",), ("headers", "key"), ("timestamp", "offset", "value")):
        ((_, some),) = read_rows(LakePlace(str(tmp_path / "lake")), one, 1, 3, columns)
        assert some.schema == schema_of(columns)
        assert some.to_pylist() == wanted.select(list(columns)).slice(1, 2).to_pylist()


def test_only_row_groups_with_such_offsets_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = archive_rows(tmp_path / "lake", 1, [rows(list(range(50)))])
    table = pq.read_table(tmp_path / "lake" / one.path, partitioning=None)
    pq.write_table(table, tmp_path / "lake" / one.path, row_group_size=10)
    groups: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def watched(self: pq.ParquetFile, *arguments: object, row_groups: list[int], **options: object) -> object:
        groups.extend(row_groups)
        return iter_batches(self, *arguments, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    assert found(tmp_path / "lake", one, 18, 31) == list(range(18, 31))
    assert groups == [1, 2, 3]
    assert [found(tmp_path / "lake", one, offset, offset + 1) for offset in range(50)] == [
        [offset] for offset in range(50)
    ]


def test_batches_of_large_messages_are_small(tmp_path: Path) -> None:
    size = limits.FLIGHT_BATCH_BYTES // 4
    messages = rows(list(range(12)), value=bytes(size))
    (one,) = archive_rows(tmp_path / "lake", 1, [messages])
    table = pq.read_table(tmp_path / "lake" / one.path, partitioning=None)
    # zeros compress to nothing: what counts is what they are in memory
    pq.write_table(table, tmp_path / "lake" / one.path, compression="none", use_dictionary=False)
    assert max(batch.num_rows for _, batch in read_rows(LakePlace(str(tmp_path / "lake")), one, 0, 12, ("value",))) <= 4


# ── moments ──────────────────────────────────────────────────────────────────────────────────────


def test_a_moment_is_found_in_any_file_of_any_day(tmp_path: Path) -> None:
    """Six hours between two messages: four a day, in files of two."""
    step = DAY_US // 4
    for start in range(0, 20, 2):
        archive_rows(tmp_path / "lake", 1, [rows([start, start + 1], step_us=step)])
    whole = coverage(tmp_path / "lake")
    for offset in range(20):
        assert offset_at(LakePlace(str(tmp_path / "lake")), whole, offset * step) == offset
        assert offset_at(LakePlace(str(tmp_path / "lake")), whole, offset * step - 1) == offset
        assert offset_at(LakePlace(str(tmp_path / "lake")), whole, offset * step + 1) == (
            offset + 1 if offset < 19 else None
        )


# ── what it has ──────────────────────────────────────────────────────────────────────────────────


def test_a_hole_behind_the_last_message_belongs_to_what_the_archive_has(tmp_path: Path) -> None:
    archive_rows(tmp_path / "lake", 1, [rows([5, 6, 9])], covered_end=15)
    whole = coverage(tmp_path / "lake")
    assert (whole.start, whole.end) == (5, 15)
    assert 4 not in whole and 14 in whole and 15 not in whole


def test_a_follower_sees_what_is_committed_and_what_is_compacted(tmp_path: Path) -> None:
    archive_rows(tmp_path / "lake", 1, [rows([0, 1, 2])])
    follower = ArchiveFollower(Archive(tmp_path / "lake"))
    follower.look()
    archive_rows(tmp_path / "lake", 1, [rows([3, 4])])
    archive_rows(tmp_path / "lake", 1, [rows([0], partition=1)])
    assert [one.end for one in follower.stream("orders")[1].values()] == [3], "not before it looks again"
    follower.look()
    assert [one.end for one in follower.stream("orders")[1].values()] == [5, 1]
    compact(tmp_path / "lake")
    follower.look()
    whole = follower.stream("orders")[1][0]
    assert (whole.start, whole.end, len(whole.files)) == (0, 5, 1)
    assert follower.stream("returns") == {} and follower.streams == {"orders"}


def test_a_follower_that_slept_while_commits_were_summed_up_sees_what_they_say(tmp_path: Path) -> None:
    archive_rows(tmp_path / "lake", 1, [rows([0])])
    follower = ArchiveFollower(Archive(tmp_path / "lake"))
    follower.look()
    for offset in range(1, 5):
        archive_rows(tmp_path / "lake", 1, [rows([offset])])
    DeltaTable(tmp_path / "lake").create_checkpoint()
    for number in range(5):
        (tmp_path / "lake" / commit_name(number)).unlink()
    follower.look()
    assert follower.stream("orders")[1][0].end == 5


def test_an_archive_that_is_made_anew_in_the_same_folder_is_another(tmp_path: Path) -> None:
    archive_rows(tmp_path / "lake", 1, [rows([0, 1, 2])])
    archive_rows(tmp_path / "lake", 1, [rows([3])])
    follower = ArchiveFollower(Archive(tmp_path / "lake"))
    follower.look()
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(ArchiveUnreachable, match="there is no archive in"):
        follower.look()
    archive_rows(tmp_path / "lake", 7, [rows([5])])
    follower.look()
    assert list(follower.stream("orders")) == [7]


def test_an_archive_whose_commits_are_damaged_is_not_followed(tmp_path: Path) -> None:
    archive_rows(tmp_path / "lake", 1, [rows([0])])
    (tmp_path / "lake" / commit_name(1)).write_text("{", "utf-8")
    with pytest.raises(ArchiveDamaged):
        ArchiveFollower(Archive(tmp_path / "lake")).look()


def test_bytes_of_a_range_are_those_of_its_files(tmp_path: Path) -> None:
    (one,) = archive_rows(tmp_path / "lake", 1, [rows(list(range(10)))])
    (other,) = archive_rows(tmp_path / "lake", 1, [rows(list(range(10, 20)))])
    whole = coverage(tmp_path / "lake")
    assert whole.bytes_in(0, 20) == one.bytes + other.bytes
    assert whole.bytes_in(0, 10) == one.bytes
    assert whole.bytes_in(5, 10) == -(-one.bytes // 2)
    assert whole.bytes_in(20, 30) == 0
