"""Reads of an archive and a log as one stream: a cluster in memory, an archive on disk, Spark's part played by the test."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from bascule.errors import (
    ArchiveDamaged,
    ArchiveUnreachable,
    CheckpointMismatch,
    DataLost,
    InvalidOption,
    StreamNotFound,
    StreamRecreated,
)
from bascule.lake.archive import Archive
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import DataFile
from bascule.lake.ranges import read_rows
from bascule.spark.options.declaration import BATCH, STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.options.schema import TABLE
from bascule.spark.read import archive_reader
from bascule.spark.read import batch_reader as reading
from bascule.spark.read import cluster as cluster_module
from bascule.spark.read.batch_reader import BatchReader, ReadRange, ReadTask
from bascule.spark.read.stream_reader import StreamReader
from tests.support.archives import archive_offsets, archive_rows, compact
from tests.support.memory_cluster import RECORD_BYTES, MemoryCluster

Json = dict[str, Any]


class WatchedCluster(MemoryCluster):
    """Remembers what was read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []
        self.before_read: Callable[[], object] = lambda: None

    def read(self, stream: str, partition: int, start: int, end: int, **options: Any) -> Any:
        before, self.before_read = self.before_read, lambda: None
        before()
        self.reads.append((start, end))
        return super().read(stream, partition, start, end, **options)


def watched(monkeypatch: pytest.MonkeyPatch) -> WatchedCluster:
    """One that every reader finds, with a stream of 80 records."""
    found = WatchedCluster()
    monkeypatch.setattr(cluster_module, "connect", lambda _: found)
    found.create("orders", records=80)
    return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> WatchedCluster:
    return watched(monkeypatch)


@pytest.fixture
def lake(cluster: WatchedCluster, tmp_path: Path) -> Path:
    """Offsets 0 to 49 in five files; the log begins at 30 and ends at 80."""
    for start in range(0, 50, 10):
        archive_offsets(tmp_path / "lake", cluster, "orders", start, start + 10)
    cluster.remove_below("orders", 30)
    cluster.reads.clear()
    return tmp_path / "lake"


def batch(lake: Path, /, **options: str) -> BatchReader:
    """Each range is read by a task of its own, though they are small."""
    given = {"stream": "orders", "history": str(lake), "gatherRecordsPerTask": "1", **options}
    return BatchReader(source_options(given, BATCH), TABLE)


def ranges(tasks: list[ReadTask]) -> list[ReadRange]:
    return [one for task in tasks for one in task.ranges]


def offsets(read: BatchReader) -> list[int]:
    tasks = pickle.loads(pickle.dumps(read.partitions()))
    return [offset for task in tasks for found in read.read(task) for offset in found["offset"].to_pylist()]


# ── batch ────────────────────────────────────────────────────────────────────────────────────────


def test_earliest_is_the_archives_and_the_log_goes_on_at_the_next_offset(cluster: WatchedCluster, lake: Path) -> None:
    assert offsets(batch(lake)) == list(range(80))
    assert cluster.reads == [(50, 80)], "what the archive has is no work for brokers"


def test_rows_of_both_are_alike(cluster: WatchedCluster, lake: Path) -> None:
    cluster.remove_below("orders", 0)
    with_history = batch(lake)
    alone = BatchReader(source_options({"stream": "orders"}, BATCH), TABLE)
    both = [
        [row for task in read.partitions() for found in read.read(task) for row in found.to_pylist()]
        for read in (with_history, alone)
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"orders": {"0": 7}}'}, range(7, 80)),
        ({"startingOffsets": '{"orders": {"0": -2}}', "endingOffsets": '{"orders": {"0": 12}}'}, range(12)),
        ({"startingOffsets": '{"orders": {"0": 49}}', "endingOffsets": '{"orders": {"0": 51}}'}, range(49, 51)),
        ({"startingOffsets": '{"orders": {"0": 64}}'}, range(64, 80)),
        ({"startingTimestamp": "25000"}, range(25, 80)),
        ({"startingTimestamp": "24001", "endingTimestamp": "55000"}, range(25, 55)),
        ({"startingTimestamp": "60000"}, range(60, 80)),
        ({"startingTimestamp": "0", "endingTimestamp": "3000"}, range(3)),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 31000}}'}, range(31, 80)),
        ({"startingOffsets": "cursor:nobody"}, range(80)),
    ],
    ids=str,
)
def test_any_position_may_be_in_the_archive(
    cluster: WatchedCluster, lake: Path, options: dict[str, str], expected: range
) -> None:
    del cluster
    assert offsets(batch(lake, **options)) == list(expected)


def test_an_archive_that_was_begun_late_has_the_log_before_and_behind_it(
    cluster: WatchedCluster, tmp_path: Path
) -> None:
    archive_offsets(tmp_path / "lake", cluster, "orders", 20, 50)
    cluster.remove_below("orders", 5)
    cluster.reads.clear()
    assert offsets(batch(tmp_path / "lake")) == list(range(5, 80))
    assert cluster.reads == [(5, 20), (50, 80)]
    assert offsets(batch(tmp_path / "lake", startingTimestamp="8000")) == list(range(8, 80))


def test_an_archive_that_is_just_begun_or_has_other_partitions_changes_nothing(
    cluster: WatchedCluster, tmp_path: Path
) -> None:
    Archive(tmp_path / "new").create(["orders"])
    cluster.remove_below("orders", 70)
    assert offsets(batch(tmp_path / "new")) == list(range(70, 80))
    cluster.create("returns", 2, records=10)
    archive_offsets(tmp_path / "lake", cluster, "returns", 0, 10, partition=1)
    read = batch(tmp_path / "lake", stream="returns")
    assert [(one.partition, one.archived is not None) for one in ranges(read.partitions())] == [(0, False), (1, True)]


def test_holes_that_compaction_of_the_log_left_are_no_loss(cluster: WatchedCluster, tmp_path: Path) -> None:
    columns = TABLE.fieldNames()
    (rows,) = cluster.read("orders", 0, 0, 60, stream_id=1, columns=tuple(columns))
    archive_rows(tmp_path / "lake", 1, [rows.take([*range(3, 10), *range(15, 40), 50])], covered_end=60)
    cluster.remove_below("orders", 58)
    assert offsets(batch(tmp_path / "lake")) == [*range(3, 10), *range(15, 40), 50, *range(60, 80)]


# ── what nobody has ──────────────────────────────────────────────────────────────────────────────


def test_a_hole_between_archive_and_log_is_an_error_that_says_what_each_has(
    cluster: WatchedCluster, lake: Path
) -> None:
    cluster.remove_below("orders", 60)
    cluster.there["orders"].retention = {"max_age_ns": 3600 * 10**9}
    for mode in ("fail", "archive"):
        with pytest.raises(DataLost) as failed:
            batch(lake, onDataLoss=mode).partitions()
        assert failed.value.message == (
            "[DATA_LOST] `orders`/0: offsets 50 to 59 are neither in its log, which starts at 60, nor in the archive "
            f"{lake}, which has offsets 0 to 49: 10 offsets are gone; the stream keeps 1h"
        )
    assert offsets(batch(lake, onDataLoss="skip")) == [*range(50), *range(60, 80)]
    assert offsets(batch(lake, endingOffsets='{"orders": {"0": 50}}')) == list(range(50)), (
        "whoever reads less, reads it"
    )


def test_an_offset_before_archive_and_log_is_an_error(cluster: WatchedCluster, tmp_path: Path) -> None:
    archive_offsets(tmp_path / "lake", cluster, "orders", 20, 50)
    cluster.remove_below("orders", 40)
    start = '{"orders": {"0": 3}}'
    with pytest.raises(DataLost, match=r"offsets? 3 .*archive .* has offsets 20 to 49"):
        batch(tmp_path / "lake", startingOffsets=start).partitions()
    assert offsets(batch(tmp_path / "lake", startingOffsets=start, onDataLoss="skip")) == list(range(20, 80))


def test_a_log_that_is_shorter_than_its_archive_is_another_log(cluster: WatchedCluster, lake: Path) -> None:
    del cluster.there["orders"].partitions[0].values[45:]
    with pytest.raises(CheckpointMismatch, match=r"has offsets 0 to 49 of `orders`/0, but the log ends at 45"):
        batch(lake).partitions()


def test_an_archive_that_grew_after_the_log_was_asked_is_no_such_log(
    cluster: WatchedCluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = cluster.streams

    def then_grow(names: Any) -> Any:
        monkeypatch.setattr(cluster, "streams", streams)
        found = streams(names)
        cluster.append("orders", 20)
        archive_offsets(lake, cluster, "orders", 50, 100)
        return found

    monkeypatch.setattr(cluster, "streams", then_grow)
    assert offsets(batch(lake)) == list(range(80))


def test_what_was_archived_may_be_read_before_a_new_leader_knows_that_it_is_committed(
    cluster: WatchedCluster, lake: Path
) -> None:
    cluster.there["orders"].partitions[0].uncommitted = 40
    assert offsets(batch(lake)) == list(range(50))


# ── whose archive it is ──────────────────────────────────────────────────────────────────────────


def test_an_archive_of_a_former_stream_is_refused(cluster: WatchedCluster, lake: Path) -> None:
    cluster.create("orders", records=5)
    for mode in ("fail", "archive"):
        with pytest.raises(
            StreamRecreated, match=r"is of a former stream `orders`, with id 1; now there is one with id 2"
        ):
            batch(lake, onDataLoss=mode).partitions()
    assert offsets(batch(lake, onDataLoss="skip")) == [0, 1, 2, 3, 4]


def test_an_archive_of_other_streams_is_refused(cluster: WatchedCluster, lake: Path, tmp_path: Path) -> None:
    cluster.create("returns", records=5)
    with pytest.raises(InvalidOption, match="which is an archive of `orders`, not of `returns`"):
        batch(lake, stream="returns").partitions()
    Archive(tmp_path / "new").create(["orders"])
    with pytest.raises(InvalidOption, match="which is an archive of `orders`, not of `returns`"):
        batch(tmp_path / "new", stream="returns").partitions()
    both = BatchReader(source_options({"subscribe": "orders,returns", "history": str(lake)}, BATCH), TABLE)
    assert offsets(both) == [*range(80), *range(5)]


def test_a_folder_that_is_no_archive_is_refused(cluster: WatchedCluster, tmp_path: Path) -> None:
    del cluster
    with pytest.raises(ArchiveUnreachable, match=rf"\[ARCHIVE_UNREACHABLE\] there is no archive in {tmp_path} on "):
        batch(tmp_path).partitions()


def test_a_deleted_stream_is_read_from_its_archive_on_request(cluster: WatchedCluster, lake: Path) -> None:
    del cluster.there["orders"]
    with pytest.raises(StreamNotFound):
        batch(lake).partitions()
    assert offsets(batch(lake, onDataLoss="archive")) == list(range(50))
    assert offsets(batch(lake, onDataLoss="archive", startingTimestamp="44000")) == list(range(44, 50))
    pattern = source_options({"subscribePattern": "or.*", "history": str(lake), "onDataLoss": "archive"}, BATCH)
    assert offsets(BatchReader(pattern, TABLE)) == list(range(50))


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_read_is_cut_at_files(cluster: WatchedCluster, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del cluster

    def pieces(**options: str) -> list[tuple[int, int]]:
        return [(one.start, one.end) for one in ranges(batch(lake, **options).partitions())]

    assert pieces() == [(0, 50), (50, 80)]
    monkeypatch.setattr(reading, "SPARK_ARCHIVE_TASK_BYTES", 1)
    assert pieces() == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50), (50, 80)]
    assert [len(one.archived.files) for one in ranges(batch(lake).partitions()) if one.archived] == [1] * 5
    assert pieces(startingOffsets='{"orders": {"0": 35}}') == [(35, 40), (40, 50), (50, 80)]
    assert len(pieces(minPartitions="9")) == 9
    assert max(end - start for start, end in pieces(maxRecordsPerPartition="4")) <= 4
    for options in ({}, {"minPartitions": "9"}, {"maxRecordsPerPartition": "4"}, {"maxBytesPerPartition": "700"}):
        assert offsets(batch(lake, **options)) == list(range(80))


def test_columns_that_nobody_asks_for_are_not_read(cluster: WatchedCluster, lake: Path) -> None:
    del cluster
    schema = StructType([StructField("leaderEpoch", LongType())])
    read = BatchReader(source_options({"stream": "orders", "history": str(lake)}, BATCH), schema)
    rows = [row for task in read.partitions() for found in read.read(task) for row in found.to_pylist()]
    assert rows == [{"leaderEpoch": 1}] * 80


def test_a_file_that_was_compacted_after_planning_has_a_successor(cluster: WatchedCluster, lake: Path) -> None:
    del cluster
    read = batch(lake)
    planned = read.partitions()
    compact(lake)
    first = [found["offset"].to_pylist() for found in read.read(planned[0])]
    assert [offset for part in first for offset in part] == list(range(50))


def test_a_file_that_is_compacted_while_a_task_reads_the_one_before_has_one_too(
    cluster: WatchedCluster, lake: Path
) -> None:
    del cluster
    read = batch(lake)
    rows = read.read(read.partitions()[0])
    seen = next(iter(rows))["offset"].to_pylist()
    compact(lake)
    for found in rows:
        seen += found["offset"].to_pylist()
    assert seen == list(range(50))


def test_a_file_that_is_lost_in_the_middle_is_gone_on_with_at_the_next_offset(
    cluster: WatchedCluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network's file system has it: the file is replaced by a compaction, and an open one is stale."""
    del cluster
    whole = read_rows

    def stale(place: LakePlace, one: DataFile, start: int, end: int, columns: tuple[str, ...]) -> Any:
        for following, found in whole(place, one, start, end, columns):
            yield following - 4, found.slice(0, found.num_rows - 4)
            monkeypatch.setattr(archive_reader, "read_rows", whole)
            compact(lake)
            raise OSError(errno.ESTALE, "Stale file handle")

    read = batch(lake)
    planned = read.partitions()
    monkeypatch.setattr(archive_reader, "read_rows", stale)
    found = [offset for rows in read.read(planned[0]) for offset in rows["offset"].to_pylist()]
    assert found == list(range(50))


def test_a_file_that_is_gone_for_good_or_damaged_is_named(cluster: WatchedCluster, lake: Path) -> None:
    del cluster
    one = Archive(lake).state().in_order()[2]
    text = (lake / one.path).read_bytes()
    (lake / one.path).unlink()
    with pytest.raises(ArchiveDamaged, match=r"\[ARCHIVE_DAMAGED\].*offsets 20 to 29 of `orders`/0") as failed:
        offsets(batch(lake))
    assert one.path in failed.value.message
    with pytest.raises(ArchiveDamaged, match="a file of the archive"):
        offsets(batch(lake, startingTimestamp="25000"))
    for changed in (text[:-20], text[:40] + bytes(40) + text[80:], b""):
        (lake / one.path).write_bytes(changed)
        with pytest.raises(ArchiveDamaged, match="offsets 20 to 29"):
            offsets(batch(lake))


def test_rows_that_are_missing_in_a_file_are_noticed(cluster: WatchedCluster, lake: Path) -> None:
    import pyarrow.parquet as pq

    del cluster
    one = Archive(lake).state().in_order()[2]
    pq.write_table(pq.read_table(lake / one.path, partitioning=None).slice(0, 9), lake / one.path)
    with pytest.raises(ArchiveDamaged, match="it has 9 rows, 10 were written"):
        offsets(batch(lake))


def test_an_executor_that_does_not_have_the_folder_says_so(
    cluster: WatchedCluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cluster
    read = batch(lake)
    planned = read.partitions()
    shutil.rmtree(lake)
    monkeypatch.setattr(archive_reader, "_followed", {})
    with pytest.raises(ArchiveUnreachable, match=rf"there is no archive in {lake} on "):
        list(read.read(planned[0]))


# ── streaming ────────────────────────────────────────────────────────────────────────────────────


class Query:
    """Spark's side of a query: the offset log is all that survives it."""

    def __init__(self, lake: Path, log: list[Json] | None = None, **options: str) -> None:
        given = {"stream": "orders", "history": str(lake), "startingOffsets": "earliest", **options}
        self.reader = StreamReader(source_options(given, STREAMING), TABLE)
        self.log: list[Json] = [] if log is None else log

    def plan(self) -> bool:
        start = self.log[-1] if self.log else self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit())))
        if self.log and end == self.log[-1]:
            return False
        self.log.append(end)
        return True

    def run_last(self) -> list[int]:
        before = self.log[-2] if len(self.log) > 1 else self.reader.initialOffset()
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(before, self.log[-1])))
        return [offset for task in tasks for found in self.reader.read(task) for offset in found["offset"].to_pylist()]

    def next(self) -> list[int]:
        return self.run_last() if self.plan() else []

    def all(self) -> list[list[int]]:
        found = []
        while rows := self.next():
            found.append(rows)
        return found


def test_triggers_cross_the_border_between_archive_and_log(cluster: WatchedCluster, lake: Path) -> None:
    query = Query(lake, maxOffsetsPerTrigger="15")
    found = query.all()
    assert [len(rows) for rows in found] == [15, 15, 15, 15, 15, 5]
    assert [offset for rows in found for offset in rows] == list(range(80))
    assert cluster.reads[0] == (50, 60), "the batch from 45 to 60 is of both"


def test_bytes_of_a_trigger_are_those_of_the_files(cluster: WatchedCluster, lake: Path) -> None:
    del cluster
    sizes = [one.bytes for one in Archive(lake).state().in_order()]
    query = Query(lake, maxBytesPerTrigger=str(sizes[0] + sizes[1] + 1))
    assert query.next() == list(range(20))
    last = Query(lake, startingOffsets='{"orders": {"0": 50}}', maxBytesPerTrigger=str(3 * RECORD_BYTES))
    assert last.next() == [50, 51, 52]


def test_checkpoints_are_the_same_with_and_without_history(cluster: WatchedCluster, lake: Path) -> None:
    cluster.remove_below("orders", 0)
    with_history = Query(lake, maxOffsetsPerTrigger="15")
    alone = StreamReader(
        source_options({"stream": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "15"}, STREAMING),
        TABLE,
    )
    assert alone.initialOffset() == with_history.reader.initialOffset()
    with_history.all()
    assert with_history.log[0] == {"orders": {"0": 15, "id": 1, "from": {"0": 0}}}
    before: Json = alone.initialOffset()
    for end in with_history.log:
        before = alone.latestOffset(before, alone.getDefaultReadLimit())
        assert before == end


def test_a_query_that_fell_behind_retention_goes_on_from_the_archive(cluster: WatchedCluster, lake: Path) -> None:
    query = Query(lake)
    assert query.next() == list(range(80))
    cluster.append("orders", 120)
    archive_offsets(lake, cluster, "orders", 50, 170)
    cluster.remove_below("orders", 160)
    cluster.reads.clear()
    assert query.next() == list(range(80, 200))
    assert cluster.reads == [(170, 200)]


def test_a_query_that_fell_behind_both_says_so(cluster: WatchedCluster, lake: Path) -> None:
    query, skipping = Query(lake, onDataLoss="archive"), Query(lake, onDataLoss="skip")
    query.next()
    skipping.next()
    cluster.append("orders", 20)
    cluster.remove_below("orders", 90)
    with pytest.raises(
        DataLost, match="offsets 80 to 89 are neither in its log, which starts at 90, nor in the archive"
    ):
        query.plan()
    assert skipping.next() == list(range(90, 100))


@pytest.mark.parametrize("mode", ["fail", "archive", "skip"])
def test_retention_that_is_faster_than_a_task_is_made_good_by_the_archive(
    cluster: WatchedCluster, lake: Path, mode: str
) -> None:
    query = Query(lake, onDataLoss=mode)
    query.plan()

    def retention() -> None:
        archive_offsets(lake, cluster, "orders", 50, 70)
        cluster.remove_below("orders", 65)

    cluster.before_read = retention
    if mode == "fail":
        with pytest.raises(DataLost, match="was to be read from offset 50, but its log starts at 65") as failed:
            query.run_last()
        assert failed.value.hint is not None and "set `onDataLoss` to `archive`" in failed.value.hint
    else:
        assert query.run_last() == list(range(80))


@pytest.mark.parametrize("mode", ["fail", "archive", "skip"])
def test_retention_that_is_faster_than_task_and_archive_is_loss(cluster: WatchedCluster, lake: Path, mode: str) -> None:
    query = Query(lake, onDataLoss=mode)
    query.plan()
    cluster.before_read = lambda: cluster.remove_below("orders", 65)
    if mode == "skip":
        assert query.run_last() == [*range(50), *range(65, 80)]
    else:
        with pytest.raises(DataLost, match=r"offsets 50 to 64 are neither in its log, .* which has offsets 0 to 49"):
            query.run_last()


def test_a_stream_that_is_deleted_under_a_task_ends_where_its_archive_ends(cluster: WatchedCluster, lake: Path) -> None:
    query, failing = Query(lake, onDataLoss="archive"), Query(lake)
    query.plan()
    failing.plan()
    archive_offsets(lake, cluster, "orders", 50, 70)
    del cluster.there["orders"]
    with pytest.raises(StreamNotFound):
        failing.run_last()
    with pytest.raises(
        DataLost, match=r"from offset 70 to 79, but the stream is deleted and the archive .* has offsets 0 to 69"
    ):
        query.run_last()


def test_a_query_of_a_deleted_stream_reads_its_archive_to_the_end(cluster: WatchedCluster, lake: Path) -> None:
    query = Query(lake, onDataLoss="archive", maxOffsetsPerTrigger="20")
    assert query.next() == list(range(20))
    del cluster.there["orders"]
    assert query.all() == [list(range(20, 40)), list(range(40, 50))]
    assert not query.plan()


def test_a_query_that_has_read_more_than_the_archive_of_a_deleted_stream_has_nothing_left_to_read(
    cluster: WatchedCluster, lake: Path
) -> None:
    query = Query(lake, onDataLoss="archive")
    assert query.next() == list(range(80))
    del cluster.there["orders"]
    assert not query.plan()


def test_available_now_is_frozen_and_what_retention_takes_meanwhile_comes_from_the_archive(
    cluster: WatchedCluster, lake: Path
) -> None:
    query = Query(lake, maxOffsetsPerTrigger="40")
    query.reader.prepareForTriggerAvailableNow()
    assert query.next() == list(range(40))
    cluster.append("orders", 100)
    archive_offsets(lake, cluster, "orders", 50, 150)
    cluster.remove_below("orders", 140)
    cluster.reads.clear()
    assert query.all() == [list(range(40, 80))]
    assert cluster.reads == []


def test_a_batch_that_is_repeated_is_cut_as_before_whatever_was_archived_meanwhile(
    cluster: WatchedCluster, lake: Path
) -> None:
    query = Query(lake, minPartitions="3")
    rows = query.next()
    tasks = query.reader.partitions(query.reader.initialOffset(), query.log[0])
    before = [(one.start, one.end) for one in ranges(tasks)]
    archive_offsets(lake, cluster, "orders", 50, 75)
    cluster.remove_below("orders", 70)
    again = Query(lake, query.log, minPartitions="3")
    planned = again.reader.partitions(again.reader.initialOffset(), query.log[0])
    assert [(one.start, one.end) for one in ranges(planned)] == before
    assert again.run_last() == rows == list(range(80))


def test_progress_counts_what_waits_in_the_archive(
    cluster: WatchedCluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cluster
    monkeypatch.setattr(time, "time_ns", lambda: 100 * 1_000_000_000)
    query = Query(lake, maxOffsetsPerTrigger="20")
    query.plan()
    report = query.reader.reportLatestOffset()
    assert report is not None
    archived = sum(one.bytes for one in Archive(lake).state().in_order()[2:])
    lag = report["orders"]["lag"]
    assert (lag["offsets"], lag["seconds"]) == (60, 80.0)
    assert abs(lag["bytes"] - (archived + 30 * RECORD_BYTES)) <= 5
