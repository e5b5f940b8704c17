"""`bascule.spark.table`: Spark's own scan of the archive, and the log after it, as one DataFrame."""

from __future__ import annotations

import contextlib
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import bascule.spark
from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.errors import DataLost, InvalidOption, StreamRecreated
from bascule.lake.archive import Archive
from tests.spark.conftest import MakeStream, Read, publish
from tests.support.archives import archive_rows, compact
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

DAY_US = 86_400_000_000
SHORT = {"retention_max_messages": 100, "segment_max_bytes": 1, "cleaner_interval": 0.05}


class Lake:
    """A stream of two partitions and its archive."""

    def __init__(self, spark: SparkSession, tables: BrokerProcess, client: BlockingClient, stream: str, path: Path):
        self.spark, self.tables, self.client, self.stream, self.path = spark, tables, client, stream, path
        self.archived = {0: 0, 1: 0}

    def publish(self, first: int, end: int) -> None:
        for number in self.archived:
            for start in range(first, end, 20):
                publish(self.client, self.stream, min(20, end - start), first=start, partition=number)

    def archive(self, *, days: int = 1) -> None:
        """What is there and not archived yet; of days that follow each other, the last one being today."""
        with FlightConnection(self.tables.address) as connection:
            stream = connection.offsets([self.stream])[self.stream]
            for number, start in self.archived.items():
                end = stream["partitions"][number]["high_watermark"] + 1
                rows = pa.Table.from_batches(connection.read(self.stream, number, start, end)).combine_chunks()
                if days > 1:
                    rows = _spread(rows, days)
                archive_rows(self.path, stream["id"], rows.to_batches())
                self.archived[number] = end

    def wait_for_retention(self, start: int) -> None:
        def log_starts() -> set[int]:
            with FlightConnection(self.tables.address) as connection:
                partitions = connection.offsets([self.stream])[self.stream]["partitions"].values()
                return {int(one["log_start"]) for one in partitions}

        eventually(lambda: log_starts() == {start}, f"retention removed what is below {start}")

    def table(self, **options: Any) -> DataFrame:
        return bascule.spark.table(
            self.spark, self.stream, history=str(self.path), servers=self.tables.address, **options
        )


def _spread(rows: pa.Table, days: int) -> pa.Table:
    at = rows.column_names.index("timestamp")
    moments = rows["timestamp"].cast(pa.int64()).to_pylist()
    each = -(-len(moments) // days)
    moved = [moment - (days - 1 - number // each) * DAY_US for number, moment in enumerate(moments)]
    return rows.set_column(at, rows.schema.field(at), pa.array(moved, pa.int64()).cast(rows.schema.field(at).type))


@pytest.fixture
def lake(
    spark: SparkSession, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> Lake:
    """Offsets 0 to 99 of both partitions are archived; the log has 80 to 179."""
    found = Lake(spark, tables, client, make_stream(partitions=2, **SHORT), tmp_path / "lake [1] of 20%")
    found.publish(0, 100)
    found.archive()
    found.publish(100, 180)
    found.wait_for_retention(80)
    return found


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def both(*chosen: int) -> list[tuple[int, int]]:
    return [(number, offset) for number in (0, 1) for offset in chosen]


def plan_of(frame: DataFrame) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain(mode="formatted")
    return text.getvalue()


def files_read(frame: DataFrame) -> int:
    """How many files the scans of a query have opened, as Spark counted them."""
    frame.collect()
    java: Any = frame
    text = java._jdf.queryExecution().executedPlan().toString()
    leaves = java._jdf.queryExecution().executedPlan().collectLeaves()
    scans = [leaves.apply(number) for number in range(leaves.size())]
    assert scans, text
    return sum(int(one.metrics().apply("numFiles").value()) for one in scans if one.metrics().contains("numFiles"))


def test_a_table_is_the_same_rows_as_the_source_gives(lake: Lake, read: Read) -> None:
    columns = ["key", "value", "stream", "partition", "offset", "timestamp", "subject", "replySubject", "headers"]
    table = lake.table()
    assert table.columns == [*columns, "leaderEpoch", "date"]
    assert offsets(table) == both(*range(180))
    source = read(stream=lake.stream, history=str(lake.path)).orderBy("partition", "offset")
    assert table.drop("date").orderBy("partition", "offset").toArrow().to_pylist() == source.toArrow().to_pylist()
    days = table.selectExpr("date = CAST(to_utc_timestamp(timestamp, current_timezone()) AS DATE) AS same").distinct()
    assert [row.same for row in days.collect()] == [True], "the day in UTC, wherever the session is"
    assert "BatchScan" in plan_of(table) and "Scan parquet" in plan_of(table)


def test_a_table_is_a_snapshot_while_the_archive_grows_and_is_compacted(lake: Lake) -> None:
    before = lake.table()
    lake.archive()
    after = lake.table()
    lake.publish(180, 220)
    lake.wait_for_retention(120)
    assert offsets(before) == both(*range(180)), "80 to 119 left the log and are in the archive"
    assert offsets(after) == both(*range(180))
    assert "BatchScan" not in plan_of(after), "there was nothing after the archive"
    assert offsets(lake.table()) == both(*range(220))


def test_positions_inside_files_and_columns_are_exact(lake: Lake) -> None:
    ends = json.dumps({lake.stream: {"0": 50, "1": 120}})
    starts = json.dumps({lake.stream: {"0": 10, "1": 30}})
    part = lake.table(startingOffsets=starts, endingOffsets=ends, columns=["partition", "offset"])
    assert part.columns == ["partition", "offset"]
    assert offsets(part) == [(0, n) for n in range(10, 50)] + [(1, n) for n in range(30, 120)]
    assert part.count() == 130
    with pytest.raises(InvalidOption, match="`columns` names `values`"):
        lake.table(columns=["values"])


def test_filters_and_columns_reach_the_files_and_days_are_pruned(
    spark: SparkSession, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    lake = Lake(spark, tables, client, make_stream(partitions=2, **SHORT), tmp_path / "lake")
    lake.publish(0, 100)
    lake.archive(days=5)
    lake.publish(100, 180)
    lake.wait_for_retention(80)
    state = Archive(lake.path).state()
    days = sorted({one.date for one in state.files.values()})
    assert len(state.files) == 10 and len(days) == 5
    chosen = (
        lake.table(endingOffsets=json.dumps({lake.stream: {"0": 100, "1": 100}}))
        .where("offset >= 42 AND value IS NOT NULL")
        .select("offset")
    )
    plan = plan_of(chosen)
    assert re.search(r"PushedFilters: \[.*GreaterThanOrEqual\(offset,42\)", plan)
    assert re.search(r"ReadSchema: struct<value:binary,offset:bigint>", plan), plan
    assert sorted(row.offset for row in chosen.collect()) == sorted([*range(42, 100)] * 2)
    assert "Batched: true" in plan, "the vectorised reader"
    day = lake.table().where(f"date = DATE'{days[1]}'")
    assert "PartitionFilters: [isnotnull(date" in plan_of(day)
    assert offsets(day) == both(*range(20, 40)) and files_read(day) == 2
    since = lake.table(startingTimestamp=f"{days[3]}T00:00:00Z")
    assert offsets(since) == both(*range(60, 180)) and files_read(since) == 4, "files before are not even listed"
    moment = lake.table().where(f"timestamp >= TIMESTAMP'{days[3]} 00:00:00 UTC'")
    assert re.search(r"PushedFilters: \[.*GreaterThanOrEqual\(timestamp,", plan_of(moment))
    assert offsets(moment) == both(*range(60, 180))


def test_holes_come_from_the_log_or_are_an_error(lake: Lake) -> None:
    lake.publish(180, 240)
    lake.wait_for_retention(140)
    with pytest.raises(DataLost, match="offsets 100 to 139 are neither in its log"):
        lake.table()
    skipping = lake.table(onDataLoss="skip")
    assert offsets(skipping) == both(*range(100), *range(140, 240))
    later = Lake(lake.spark, lake.tables, lake.client, lake.stream, lake.path.parent / "late")
    later.archived = {0: 160, 1: 160}
    later.archive()
    assert offsets(later.table()) == both(*range(140, 240)), "what is before the archive is in the log"


def test_a_stream_that_was_created_again_is_noticed(lake: Lake, client: BlockingClient) -> None:
    planned = lake.table()
    client.delete_stream(lake.stream)
    assert offsets(lake.table(onDataLoss="archive")) == both(*range(100)), "a deleted stream ends with its archive"
    client.create_stream(lake.stream, f"subject.{lake.stream}", partitions=2)
    lake.publish(0, 300)
    with pytest.raises(PySparkException, match="STREAM_RECREATED"):
        planned.count()
    with pytest.raises(StreamRecreated, match="is of a former stream"):
        lake.table()
    with pytest.raises(InvalidOption, match="which is an archive of"):
        bascule.spark.table(lake.spark, "other", history=str(lake.path), servers=lake.tables.address)


def test_a_missing_file_fails_the_query_whatever_the_session_ignores(lake: Lake, spark: SparkSession) -> None:
    planned = lake.table()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        for name in Archive(lake.path).state().files:
            (lake.path / name).unlink()
        with pytest.raises((PySparkException, Py4JJavaError), match="FILE_NOT_EXIST"):
            planned.count()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_typed_values_and_stores_without_a_file_system_are_read_in_python(lake: Lake) -> None:
    typed = lake.table(valueFormat="json", valueSchema="id BIGINT")
    assert dict(typed.dtypes)["value"] == "struct<id:bigint>" and dict(typed.dtypes)["date"] == "date"
    assert "Scan parquet" not in plan_of(typed)
    assert offsets(typed) == both(*range(180))
    stored = lake.table(storage_options={"AWS_REGION": "eu-central-1"})
    assert "Scan parquet" not in plan_of(stored) and offsets(stored) == both(*range(180))


@contextlib.contextmanager
def running(act: Any) -> Iterator[list[BaseException]]:
    """Do something again and again until the block ends."""
    ended, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        while not ended.is_set():
            try:
                act()
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failed
    finally:
        ended.set()
        thread.join()


def test_every_table_is_whole_while_an_archive_is_written_and_compacted(
    spark: SparkSession, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    lake = Lake(spark, tables, client, make_stream(partitions=2), tmp_path / "lake")
    lake.publish(0, 20)
    lake.archive()
    ends = [20]

    def write() -> None:
        publish(client, lake.stream, 20, first=ends[0], partition=0)
        publish(client, lake.stream, 20, first=ends[0], partition=1)
        ends[0] += 20
        lake.archive()
        if ends[0] % 60 == 0:
            compact(lake.path, keep=True)

    with running(write) as failed:
        for _ in range(12):
            rows = offsets(lake.table())
            by_partition = {number: [offset for part, offset in rows if part == number] for number in (0, 1)}
            assert all(found == list(range(len(found))) for found in by_partition.values())
    assert not failed
    assert ends[0] > 20 and offsets(lake.table()) == both(*range(ends[0]))
