"""A streaming read against a cluster in memory: Spark's part is played by the test, crashes and repeats included."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from bascule import limits
from bascule.errors import CheckpointMismatch, DataLost, StreamDeleted, StreamNotFound, StreamRecreated, Unavailable
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.options.schema import TABLE
from bascule.spark.read import cluster as cluster_module
from bascule.spark.read.stream_reader import StreamReader
from tests.support.memory_cluster import RECORD_BYTES, MemoryCluster

Json = dict[str, Any]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    found = MemoryCluster()
    monkeypatch.setattr(cluster_module, "connect", lambda _: found)
    return found


class Query:
    """Spark's side of a query: the offset log is all that survives it."""

    def __init__(self, log: list[Json] | None = None, **options: str) -> None:
        self.options = options if "subscribePattern" in options else {"stream": "orders", **options}
        self.reader = StreamReader(source_options(self.options, STREAMING), TABLE)
        self.log: list[Json] = [] if log is None else log

    @property
    def start(self) -> Json:
        return _through_text(self.log[-1] if self.log else self.reader.initialOffset())

    def plan(self, limit: ReadLimit | None = None) -> Json | None:
        """The end of the next batch in the offset log, or None when nothing is new."""
        end = _through_text(self.reader.latestOffset(self.start, limit or self.reader.getDefaultReadLimit()))
        if self.log and json.dumps(end) == json.dumps(self.log[-1]):
            return None
        self.log.append(end)
        return end

    def run_last(self) -> list[tuple[str, int, int]]:
        """What the batch at the end of the offset log reads, whether for the first time or again."""
        before = self.log[-2] if len(self.log) > 1 else _through_text(self.reader.initialOffset())
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(before, self.log[-1])))
        rows = []
        for task in tasks:
            for batch in pickle.loads(pickle.dumps(self.reader)).read(task):
                rows += [(row["stream"], row["partition"], row["offset"]) for row in batch.to_pylist()]
        return rows

    def next(self, limit: ReadLimit | None = None) -> list[int]:
        """Plan and run a batch of a stream with one partition: its offsets."""
        return [offset for _, _, offset in self.run_last()] if self.plan(limit) is not None else []


def _through_text(document: Json) -> Json:
    found: Json = json.loads(json.dumps(document))
    return found


def test_a_read_until_a_time_ends_there_whatever_comes_later(cluster: MemoryCluster) -> None:
    """The record with offset n is n seconds old."""
    bounds: Json = {
        "startingTimestamp": "10000",
        "untilTimestamp": "15000",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    cluster.create("orders", records=12)
    query = Query(**bounds)
    assert query.next() == [10, 11]
    cluster.append("orders", 30)
    assert query.next() == [12, 13, 14]
    assert Query(query.log, **bounds).plan() is None
    frozen = Query(**bounds)
    frozen.reader.prepareForTriggerAvailableNow()
    assert frozen.next(ReadAllAvailable()) == list(range(10, 15))
    nothing = Query(**{**bounds, "startingTimestamp": "100000", "untilTimestamp": "200000"})
    assert nothing.next() == []


# ── trap 1: the initial offset ───────────────────────────────────────────────────────────────────


def test_the_initial_offset_is_the_same_however_often_it_is_asked_for(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=110)
    query = Query()
    first = query.reader.initialOffset()
    cluster.append("orders", 5)
    assert query.reader.initialOffset() == first
    assert query.next() == list(range(110, 115))


def test_a_first_batch_that_is_repeated_after_a_crash_reads_the_same(cluster: MemoryCluster) -> None:
    """Seen with a naive source: `partitions(115, 110)`, and the records in between were lost."""
    cluster.create("orders", records=100)
    query = Query()
    query.reader.initialOffset()
    cluster.append("orders", 10)
    query.plan()
    cluster.append("orders", 5)
    again = Query(query.log)
    assert [offset for _, _, offset in again.run_last()] == list(range(100, 110))
    assert again.next() == list(range(110, 115))


def test_an_empty_first_batch_fixes_where_the_query_begins(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=3)
    query = Query()
    assert query.next() == []
    assert len(query.log) == 1
    cluster.append("orders", 2)
    again = Query(query.log)
    assert again.run_last() == []
    assert again.next() == [3, 4]


def test_a_batch_that_would_end_before_it_begins_is_an_error(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=200)
    query = Query()
    with pytest.raises(CheckpointMismatch, match=r"\[CHECKPOINT_MISMATCH\].*begin at offset 115 and end at 110"):
        query.reader.partitions({"orders": {"0": 115, "id": 1}}, {"orders": {"0": 110, "id": 1}})


# ── no news ──────────────────────────────────────────────────────────────────────────────────────


def test_nothing_new_gives_no_batch(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=3)
    query = Query(startingOffsets="earliest")
    assert query.next() == [0, 1, 2]
    assert query.plan() is None
    cluster.append("orders", 1)
    assert query.next() == [3]
    assert query.plan() is None


def test_only_what_is_committed_is_read(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=5)
    cluster.there["orders"].partitions[0].uncommitted = 2
    query = Query(startingOffsets="earliest")
    assert query.next() == [0, 1, 2]


def test_a_high_watermark_that_a_new_leader_does_not_know_yet_is_waited_for(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=5)
    query = Query(startingOffsets="earliest")
    query.next()
    cluster.there["orders"].partitions[0].uncommitted = 2
    assert query.plan() is None
    cluster.there["orders"].partitions[0].uncommitted = 0
    cluster.append("orders", 1)
    assert query.next() == [5]


def test_a_query_without_news_asks_less_often_the_longer_nothing_comes(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks every 10 ms: a hundred requests a second for nothing."""
    now, slept = [1000.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    cluster.create("orders", records=3)
    query = Query(startingOffsets="earliest")
    query.next()

    def ask_for(seconds: float) -> int:
        before, until = cluster.calls, now[0] + seconds
        while now[0] < until:
            query.plan()
            now[0] += 0.01
        return cluster.calls - before

    assert ask_for(0.2) >= 19, "at first it is asked whenever Spark asks"
    ask_for(2)
    assert 15 <= ask_for(1) <= 21
    assert max(slept) <= limits.SPARK_IDLE_POLL_MS / 1_000
    cluster.append("orders", 1)
    assert query.plan() is not None
    slept.clear()
    query.plan()
    assert slept == [], "after a batch it begins anew"
    now[0] += 10
    query.plan()
    assert slept == [], "a trigger of ten seconds does not wait"


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def test_offsets_of_a_trigger_are_limited(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert [query.next(), query.next(), query.next()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_bytes_of_a_trigger_are_limited_by_default(cluster: MemoryCluster) -> None:
    reader = StreamReader(source_options({"stream": "orders"}, STREAMING), TABLE)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(limits.SPARK_TRIGGER_BYTES_DEFAULT)
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", maxBytesPerTrigger=str(3 * RECORD_BYTES))
    assert query.next() == [0, 1, 2]


def test_all_limits_hold_whichever_spark_hands_over(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="4", maxBytesPerTrigger=str(2 * RECORD_BYTES))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert query.next(ReadMaxRows(4)) == [0, 1]


def test_a_trigger_that_runs_once_reads_everything(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert query.next(ReadAllAvailable()) == list(range(10))


def test_a_trigger_waits_for_enough_records_but_not_for_ever(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    cluster.create("orders", records=2)
    query = Query(startingOffsets="earliest", minOffsetsPerTrigger="3", maxTriggerDelay="60s")
    assert query.next() == [0, 1], "the first batch does not wait"
    cluster.append("orders", 2)
    assert query.plan() is None
    now[0] += 59
    assert query.plan() is None
    now[0] += 1
    assert query.next() == [2, 3]
    cluster.append("orders", 3)
    assert query.next() == [4, 5, 6]


def test_available_now_is_frozen_when_the_query_starts(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="6", minOffsetsPerTrigger="5")
    query.reader.prepareForTriggerAvailableNow()
    cluster.append("orders", 90)
    assert [query.next(), query.next()] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]], "fewer than the least are read too"
    assert query.plan() is None


def test_available_now_from_latest_reads_nothing(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query()
    query.reader.prepareForTriggerAvailableNow()
    cluster.append("orders", 90)
    assert query.next() == []


def test_a_partition_is_split_over_tasks(cluster: MemoryCluster) -> None:
    cluster.create("orders", 2, records=10)
    query = Query(startingOffsets="earliest", minPartitions="5", maxRecordsPerPartition="4")
    end = query.plan()
    assert end is not None
    tasks = query.reader.partitions(query.reader.initialOffset(), end)
    assert len(tasks) >= 5 and max(sum(one.end - one.start for one in task.ranges) for task in tasks) <= 4
    assert sorted(query.run_last()) == [("orders", number, offset) for number in (0, 1) for offset in range(10)]


def test_bytes_of_a_task_are_limited_in_a_repeated_batch_too(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", maxBytesPerPartition=str(3 * RECORD_BYTES))
    query.plan()
    again = Query(query.log, **query.options)
    assert len(again.reader.partitions(again.reader.initialOffset(), query.log[0])) == 4


# ── streams come, go and come again ──────────────────────────────────────────────────────────────


def test_records_that_retention_removed_are_an_error_that_names_them(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    cluster.there["orders"].retention = {"max_age_ns": 3600 * 10**9, "max_bytes": 1 << 30}
    query = Query(startingOffsets="earliest")
    query.next()
    cluster.append("orders", 10)
    cluster.remove_below("orders", 15)
    with pytest.raises(DataLost) as failed:
        query.plan()
    for part in ("[DATA_LOST]", "`orders`/0", "offset 10", "starts at 15", "5 offsets are gone", "1h and 1GiB"):
        assert part in failed.value.message
    assert failed.value.hint is not None and "onDataLoss" in failed.value.hint


def test_records_that_retention_removed_are_skipped_on_request(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", onDataLoss="skip")
    query.next()
    cluster.append("orders", 10)
    cluster.remove_below("orders", 15)
    assert query.next() == [15, 16, 17, 18, 19]


def test_retention_that_is_faster_than_a_task_is_an_error_or_skipped(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    failing, skipping = Query(startingOffsets="earliest"), Query(startingOffsets="earliest", onDataLoss="skip")
    failing.plan()
    skipping.plan()
    cluster.remove_below("orders", 4)
    with pytest.raises(DataLost, match="4 offsets are gone"):
        failing.run_last()
    assert [offset for _, _, offset in skipping.run_last()] == [4, 5, 6, 7, 8, 9]


def test_a_stream_created_again_is_not_read_as_if_it_were_the_former(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest")
    query.next()
    cluster.create("orders", records=20)
    with pytest.raises(StreamRecreated, match=r"\[STREAM_RECREATED\]"):
        query.plan()


def test_a_stream_created_again_under_a_planned_batch_is_noticed_by_its_tasks(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest")
    query.plan()
    cluster.create("orders", records=20)
    with pytest.raises(StreamRecreated):
        query.run_last()


def test_a_stream_created_again_is_read_from_its_beginning_on_request(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", onDataLoss="skip")
    query.next()
    cluster.create("orders", records=4)
    assert query.next() == [0, 1, 2, 3]
    again = Query(query.log, **query.options)
    assert [offset for _, _, offset in again.run_last()] == [0, 1, 2, 3]
    cluster.append("orders", 1)
    assert again.next() == [4]


def test_a_stream_that_was_deleted_is_an_error_or_left_out(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    failing, skipping = Query(startingOffsets="earliest"), Query(startingOffsets="earliest", onDataLoss="skip")
    failing.next()
    skipping.next()
    del cluster.there["orders"]
    with pytest.raises(StreamDeleted, match="`orders`"):
        failing.plan()
    assert skipping.next() == []


def test_a_log_that_ends_before_what_was_read_is_never_gone_on_with(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", onDataLoss="skip")
    query.next()
    del cluster.there["orders"].partitions[0].values[5:]
    with pytest.raises(CheckpointMismatch, match="up to offset 10, but the log ends at 5"):
        query.plan()


def test_streams_that_come_later_are_read_from_their_beginning(cluster: MemoryCluster) -> None:
    cluster.create("orders.eu", records=2)
    cluster.create("returns", records=2)
    query = Query(subscribePattern=r"orders\..*")
    query.plan()
    cluster.create("orders.us", records=5)
    cluster.remove_below("orders.us", 2)
    query.plan()
    assert query.run_last() == [("orders.us", 0, 2), ("orders.us", 0, 3), ("orders.us", 0, 4)]


def test_a_stream_has_to_exist_when_the_query_starts(cluster: MemoryCluster) -> None:
    del cluster
    with pytest.raises(StreamNotFound, match=r"\[STREAM_NOT_FOUND\] there is no stream `orders`"):
        Query().plan()


# ── trap 2: commits, cursors, progress ───────────────────────────────────────────────────────────


def test_commits_move_an_advisory_cursor(cluster: MemoryCluster) -> None:
    cluster.create("orders", 2)
    cluster.append("orders", 10, 0)
    query = Query(startingOffsets="earliest", cursor="etl")
    end = query.plan()
    assert end is not None
    query.reader.commit(end)
    assert cluster.cursors == {("etl", "orders", 0): 9}
    follower = Query(startingOffsets="cursor:etl")
    cluster.append("orders", 1, 0)
    follower.plan()
    assert follower.run_last() == [("orders", 0, 10)]


def test_a_cursor_that_cannot_be_set_does_not_stop_the_query(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise Unavailable("not now")

    cluster.create("orders", records=10)
    monkeypatch.setattr(cluster, "set_cursor", refuse)
    query = Query(startingOffsets="earliest", cursor="etl")
    end = query.plan()
    assert end is not None
    query.reader.commit(end)
    assert "cursor `etl` was not set: not now" in capsys.readouterr().err


def test_without_a_commit_nothing_is_lost(cluster: MemoryCluster) -> None:
    """Spark never commits the last batch of AvailableNow: what counts is the offset log."""
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", cursor="etl")
    query.next()
    cluster.append("orders", 5)
    assert Query(query.log, cursor="etl").next() == [10, 11, 12, 13, 14]


def test_progress_tells_the_lag(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 20 * 1_000_000_000)
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert query.reader.reportLatestOffset() is None
    query.plan()
    assert query.reader.reportLatestOffset() == {
        "orders": {"0": 10, "id": 1, "lag": {"offsets": 6, "bytes": 6 * RECORD_BYTES, "seconds": 16.0}}
    }
    query.plan()
    query.plan()
    report = query.reader.reportLatestOffset()
    assert report is not None and report["orders"]["lag"] == {"offsets": 0, "bytes": 0, "seconds": 0.0}


# ── trap 7: readers travel ───────────────────────────────────────────────────────────────────────


def test_nothing_open_hangs_on_a_reader(cluster: MemoryCluster) -> None:
    cluster.create("orders", records=10)
    query = Query(startingOffsets="earliest")
    query.next()
    assert len(pickle.dumps(query.reader)) < 10_000
