"""What an archive has lost is missed by whoever reads it as history: it is no hole that compaction left."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from bascule.errors import DataLost
from bascule.lake.archive import Archive
from bascule.lake.facts import REMOVED, Commit, Covered, Lost
from tests.support.archives import archive_offsets, compact
from tests.unit.spark.test_history_reads import Query, WatchedCluster, batch, offsets, watched

MISSED = "`orders`/0: offsets 20 to 29 are neither in its log, which starts at 60, nor in the archive "


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> WatchedCluster:
    return watched(monkeypatch)


@pytest.fixture(params=["files", "merged"])
def holed(cluster: WatchedCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Offsets 0 to 19 and 30 to 69, those between were lost; the log has 60 to 79."""
    path = tmp_path / "lake"
    archive_offsets(path, cluster, "orders", 0, 20)
    archive, key = Archive(path), ("orders", cluster.there["orders"].id, 0)
    lost = Lost(*key, 20, 30, REMOVED, time.time_ns())
    archive.commit(Commit(2, "append", time.time_ns(), covered=(Covered(*key, 20, 30),), lost=(lost,)))
    archive_offsets(path, cluster, "orders", 30, 70)
    if request.param == "merged":
        compact(path)
    cluster.remove_below("orders", 60)
    cluster.reads.clear()
    return path


def test_a_batch_read_fails_and_names_the_range(holed: Path) -> None:
    for mode in ("fail", "archive"):
        with pytest.raises(DataLost, match=re.escape(MISSED)) as failed:
            offsets(batch(holed, onDataLoss=mode))
        assert "has offsets 0 to 69 without 10 that were gone before they were archived: 10 offsets are gone" in str(
            failed.value
        )


def test_a_batch_read_that_skips_goes_on_behind_it(cluster: WatchedCluster, holed: Path) -> None:
    assert offsets(batch(holed, onDataLoss="skip")) == [*range(20), *range(30, 80)]
    assert cluster.reads == [(70, 80)], "what everybody knows to be lost is asked of nobody"


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 20, range(20)), (30, 80, range(30, 80)), (12, 20, range(12, 20)), (30, 35, range(30, 35))],
)
def test_a_read_beside_it_misses_nothing(holed: Path, start: int, end: int, expected: range) -> None:
    given = {"startingOffsets": f'{{"orders": {{"0": {start}}}}}', "endingOffsets": f'{{"orders": {{"0": {end}}}}}'}
    assert offsets(batch(holed, **given)) == [*expected]


def test_a_read_that_begins_in_it_fails_or_begins_behind_it(holed: Path) -> None:
    given = {"startingOffsets": '{"orders": {"0": 25}}'}
    with pytest.raises(DataLost, match="offset 25 is neither in its log"):
        offsets(batch(holed, **given))
    assert offsets(batch(holed, onDataLoss="skip", **given)) == [*range(30, 80)]


@pytest.mark.parametrize("limit", ["7", "15", "1000"])
def test_a_query_that_skips_reads_the_rest_once_whatever_its_triggers(holed: Path, limit: str) -> None:
    query = Query(holed, onDataLoss="skip", maxOffsetsPerTrigger=limit)
    found: list[int] = []
    while query.plan():
        found += query.run_last()
    assert found == [*range(20), *range(30, 80)]


def test_a_query_fails_and_names_the_range(holed: Path) -> None:
    query = Query(holed)
    with pytest.raises(DataLost, match=re.escape(MISSED)):
        query.plan()


@pytest.mark.parametrize("mode", ["fail", "archive", "skip"])
def test_a_loss_that_is_noted_after_the_plan_is_missed_by_the_task(
    cluster: WatchedCluster, tmp_path: Path, mode: str
) -> None:
    """The log had it when the batch was planned; neither has it when the task comes there."""
    path = tmp_path / "lake"
    archive_offsets(path, cluster, "orders", 0, 20)
    query = Query(path, onDataLoss=mode)
    query.plan()
    key = ("orders", cluster.there["orders"].id, 0)

    def meanwhile() -> None:
        archive_offsets(path, cluster, "orders", 30, 80)
        cluster.remove_below("orders", 60)
        lost = Lost(*key, 20, 30, REMOVED, time.time_ns())
        Archive(path).commit(Commit(3, "append", time.time_ns(), covered=(Covered(*key, 20, 30),), lost=(lost,)))

    cluster.before_read = meanwhile
    if mode == "skip":
        assert query.run_last() == [*range(20), *range(30, 80)]
    else:
        with pytest.raises(DataLost, match=r"offsets 20 to 29 are neither in its log, which starts at 60"):
            query.run_last()


def test_the_archive_of_a_deleted_stream_is_read_around_it(cluster: WatchedCluster, holed: Path) -> None:
    query = Query(holed, onDataLoss="skip")
    query.plan()
    del cluster.there["orders"]
    assert query.run_last() == [*range(20), *range(30, 70)]
