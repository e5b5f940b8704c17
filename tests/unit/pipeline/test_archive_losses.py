"""What of a batch is gone before it could be archived is noted once and exactly, whoever reads it; and where a partition begins."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from bascule.flight.schema import COLUMNS
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import DELETED, REMOVED, Began, Covered, DataFile, Lost
from bascule.lake.files import WriteTask, from_stats
from bascule.pipeline.jobs.archive_losses import Logs, begun_by, covered_by, not_read
from bascule.pipeline.jobs.archive_ranges import Planned, RangesTask, noted_plan, read_noting
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.read.batch_reader import ReadRange
from bascule.spark.read.state import StreamState
from tests.support.memory_cluster import MemoryCluster
from tests.unit.pipeline.test_archive_ranges import note
from tests.unit.spark.test_history_reads import WatchedCluster, watched

KEY = ("orders", 0)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> WatchedCluster:
    return watched(monkeypatch)


def logs(cluster: MemoryCluster, asked: list[Collection[str]] | None = None) -> Logs:
    def ask(streams: Collection[str]) -> dict[str, StreamState]:
        if asked is not None:
            asked.append(streams)
        return dict(cluster.streams([name for name in streams if name in cluster.there]))

    return ask


def a_range(cluster: MemoryCluster, start: int, end: int) -> ReadRange:
    return ReadRange("orders", cluster.there["orders"].id, 0, start, end)


# ── tasks that read for themselves ───────────────────────────────────────────────────────────────


def read(cluster: MemoryCluster, start: int, end: int) -> tuple[list[int], list[tuple[int, int, str]]]:
    gone: list[tuple[int, int, str]] = []
    options = source_options({"subscribe": "orders", "onDataLoss": "skip"}, STREAMING)
    rows = read_noting(options, a_range(cluster, start, end), lambda *one: gone.append(one))
    return [offset for batch in rows for offset in batch["offset"].to_pylist()], gone


def test_a_task_notes_what_retention_was_faster_with(cluster: WatchedCluster) -> None:
    assert read(cluster, 10, 30) == ([*range(10, 30)], [])
    cluster.remove_below("orders", 25)
    assert read(cluster, 10, 30) == ([*range(25, 30)], [(10, 25, REMOVED)])
    cluster.remove_below("orders", 60)
    assert read(cluster, 10, 30) == ([], [(10, 30, REMOVED)]), "and no more than was its own"


def test_a_task_notes_what_a_deleted_stream_took_with_it(cluster: WatchedCluster) -> None:
    old = a_range(cluster, 10, 30)
    options = source_options({"subscribe": "orders", "onDataLoss": "skip"}, STREAMING)
    gone: list[tuple[int, int, str]] = []
    del cluster.there["orders"]
    assert list(read_noting(options, old, lambda *one: gone.append(one))) == []
    cluster.create("orders", records=5)
    assert list(read_noting(options, old, lambda *one: gone.append(one))) == []
    assert gone == [(10, 30, DELETED)] * 2


def test_what_a_task_notes_reaches_the_driver(cluster: WatchedCluster, tmp_path: Path) -> None:
    import pyarrow as pa

    options = source_options({"subscribe": "orders", "onDataLoss": "skip"}, STREAMING)
    cluster.remove_below("orders", 25)
    ranges = (a_range(cluster, 10, 20), a_range(cluster, 20, 30))
    task = RangesTask(WriteTask(LakePlace(str(tmp_path)), {}), options, ranges)
    numbers = pa.record_batch({"id": pa.array([0, 1], pa.int64())})
    files, lost = from_stats(row for batch in task(iter([numbers])) for row in batch.to_pylist())
    assert [(one.first_offset, one.last_offset, one.rows) for one in files] == [(25, 29, 5)]
    assert lost == [Lost("orders", 0, 0, 10, 20, REMOVED, 0), Lost("orders", 0, 0, 20, 25, REMOVED, 0)]


# ── rows that came through Spark ─────────────────────────────────────────────────────────────────


def written(cluster: MemoryCluster, path: Path, *ranges: tuple[int, int]) -> list[DataFile]:
    """One file with these offsets."""
    rows = [
        batch
        for start, end in ranges
        for batch in cluster.read("orders", 0, start, end, stream_id=None, columns=COLUMNS)
    ]
    return list(WriteTask(LakePlace(str(path)), {}).write(iter(rows)))


def missed(cluster: MemoryCluster, path: Path, plan: Planned, files: list[DataFile], **more: int) -> list[Lost]:
    floors = {KEY: more["floor"]} if "floor" in more else {}
    ids = {"orders": more.get("stream_id", cluster.there["orders"].id if "orders" in cluster.there else 1)}
    return list(not_read(LakePlace(str(path)), {KEY: plan}, floors, files, ids, logs(cluster)))


def test_what_was_planned_and_is_below_the_log_is_lost(cluster: WatchedCluster, tmp_path: Path) -> None:
    files = written(cluster, tmp_path, (25, 40))
    cluster.remove_below("orders", 25)
    plan = Planned(10, 40, is_beginning=False)
    assert missed(cluster, tmp_path, plan, files) == [Lost("orders", 0, 0, 10, 25, REMOVED, 0)]
    assert missed(cluster, tmp_path, plan, files, floor=20) == [Lost("orders", 0, 0, 20, 25, REMOVED, 0)]
    assert missed(cluster, tmp_path, plan, files, floor=25) == []


def test_a_hole_inside_a_file_is_found(cluster: WatchedCluster, tmp_path: Path) -> None:
    files = written(cluster, tmp_path, (10, 14), (16, 20), (25, 40))
    cluster.remove_below("orders", 25)
    found = missed(cluster, tmp_path, Planned(10, 40, is_beginning=False), files)
    assert [(one.start, one.end) for one in found] == [(14, 16), (20, 25)]


def test_a_hole_that_the_log_has_too_is_compaction(cluster: WatchedCluster, tmp_path: Path) -> None:
    files = written(cluster, tmp_path, (10, 14), (25, 40))
    assert missed(cluster, tmp_path, Planned(10, 45, is_beginning=False), files) == []


def test_brokers_are_asked_only_if_something_is_missing(cluster: WatchedCluster, tmp_path: Path) -> None:
    asked: list[Collection[str]] = []
    files = written(cluster, tmp_path, (10, 40))
    plan = {KEY: Planned(10, 40, is_beginning=True)}
    assert list(not_read(LakePlace(str(tmp_path)), plan, {}, files, {}, logs(cluster, asked))) == []
    assert asked == []


@pytest.mark.parametrize("is_created_again", [False, True])
def test_all_that_is_missing_of_a_stream_that_is_gone_is_lost(
    cluster: WatchedCluster, tmp_path: Path, is_created_again: bool
) -> None:
    files, stream_id = written(cluster, tmp_path, (10, 30)), cluster.there["orders"].id
    del cluster.there["orders"]
    if is_created_again:
        cluster.create("orders", records=100)
    found = missed(cluster, tmp_path, Planned(10, 40, is_beginning=False), files, stream_id=stream_id)
    assert found == [Lost("orders", 0, 0, 30, 40, DELETED, 0)]


# ── a query that begins behind the archive ───────────────────────────────────────────────────────


# ── commits ──────────────────────────────────────────────────────────────────────────────────────


def test_a_commit_covers_files_and_losses_and_says_where_a_partition_begins() -> None:
    files = [DataFile("a", "orders", 7, 0, 25, 29, 5, 1, 0, "2026-11-15")]
    lost = [Lost("orders", 7, 0, 10, 25, REMOVED, 1), Lost("orders", 7, 1, 5, 9, REMOVED, 1)]
    covered = covered_by(files, lost)
    assert covered == (Covered("orders", 7, 0, 10, 30), Covered("orders", 7, 1, 5, 9))
    plan = {KEY: Planned(8, 30, is_beginning=True), ("orders", 1): Planned(5, 9, is_beginning=True)}
    assert begun_by(covered, plan, {("orders", 7, 1)}) == (Began("orders", 7, 0, 8),)
    assert begun_by(covered, {}, set()) == (), "no note says what was planned"


def test_the_plan_is_in_the_notes(tmp_path: Path) -> None:
    note(tmp_path, 0, {"orders": {"0": 9, "1": 5, "id": 17, "from": {"0": 4, "1": 5}}})
    note(tmp_path, 1, *[{"orders": {"0": 12, "1": 5, "id": 17}}] * 2)
    assert noted_plan(tmp_path, 0) == {KEY: Planned(4, 9, True), ("orders", 1): Planned(5, 5, True)}
    assert noted_plan(tmp_path, 1) == {KEY: Planned(9, 12, False), ("orders", 1): Planned(5, 5, False)}
    assert noted_plan(tmp_path, 5) == {}
    (tmp_path / "offsets/6").write_text(json.dumps("no note"))
    assert noted_plan(tmp_path, 6) == {}
