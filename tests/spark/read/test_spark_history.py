"""Archive and log as one stream, read by a real Spark from a real broker and the archive that the archive job writes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.lake.archive import Archive
from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions, run_archive
from tests.spark.conftest import MakeStream, Query, Read, publish
from tests.support.archives import archive_rows, compact
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

SHORT = {"retention_max_messages": 100, "segment_max_bytes": 1, "cleaner_interval": 0.05}
"""A stream that keeps its last hundred messages: every twenty that are published together are a segment, or some if NATS brings them in
pieces."""


class Lake:
    """An archive of one stream, and what its log has."""

    def __init__(
        self, spark: SparkSession, tables: BrokerProcess, client: BlockingClient, stream: str, path: Path
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._client = client
        self.stream = stream
        self.path = path
        self.archived = 0

    def publish(self, first: int, end: int) -> None:
        for start in range(first, end, 20):
            publish(self._client, self.stream, min(20, end - start), first=start)

    def archive(self) -> None:
        """What is there and not archived yet, in one commit."""
        with FlightConnection(self._tables.address) as connection:
            stream = connection.offsets([self.stream])[self.stream]
            end = stream["partitions"][0]["high_watermark"] + 1
            archive_rows(self.path, stream["id"], connection.read(self.stream, 0, self.archived, end))
        self.archived = end

    def wait_for_retention(self, start: int) -> None:
        def log_start() -> int:
            with FlightConnection(self._tables.address) as connection:
                return int(connection.offsets([self.stream])[self.stream]["partitions"][0]["log_start"])

        eventually(lambda: log_start() == start, f"retention removed what is below {start}")

    @property
    def options(self) -> dict[str, str]:
        return {"stream": self.stream, "history": str(self.path)}


@pytest.fixture
def lake(
    spark: SparkSession, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> Lake:
    """Offsets 0 to 99 are archived; the log has 80 to 179."""
    found = Lake(spark, tables, client, make_stream(**SHORT), tmp_path / "lake")
    found.publish(0, 100)
    found.archive()
    found.publish(100, 180)
    found.wait_for_retention(80)
    return found


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_a_batch_reads_archive_and_log_once(lake: Lake, read: Read) -> None:
    whole = read(**lake.options)
    rows = whole.select("offset", "value", fn.unix_millis("timestamp").alias("at")).collect()
    assert sorted((row.offset, bytes(row.value)) for row in rows) == [(n, f"0/{n}".encode()) for n in range(180)]
    moments = {row.offset: row.at for row in rows}
    since = offsets(read(**lake.options, startingTimestamp=str(moments[45] + 1)))
    assert since == [offset for offset in range(180) if moments[offset] > moments[45]]
    compact(lake.path)
    assert offsets(whole.where("offset BETWEEN 90 AND 110")) == list(range(90, 111)), "planned before the compaction"


def test_a_stream_is_read_within_limits_across_the_border(lake: Lake, query: Query) -> None:
    found = query.run(**lake.options, startingOffsets="earliest", maxOffsetsPerTrigger="70")
    assert found == list(range(180))
    assert [len(rows) for _, rows in query.batches] == [70, 70, 40]
    reports = [each["sources"][0]["latestOffset"] for each in query.progress]
    lags = [each[lake.stream]["lag"] for each in reports if each]
    assert [each["offsets"] for each in lags][:3] == [110, 40, 0]
    assert lags[0]["bytes"] > lags[1]["bytes"] > lags[2]["bytes"] == 0
    (noted,) = json.loads((query.checkpoint / "offsets" / "0").read_text("utf-8").splitlines()[2]).values()
    assert noted.pop("id") > 0 and noted == {"0": 70, "from": {"0": 0}}, "as without an archive"


def test_a_query_that_falls_behind_retention_goes_on_from_the_archive(lake: Lake, query: Query) -> None:
    """And an archive that is compacted between two of its batches is the same archive."""
    options = {**lake.options, "startingOffsets": "earliest", "onDataLoss": "archive"}
    assert query.run(**options) == list(range(180))
    lake.publish(180, 200)
    lake.archive()
    lake.publish(200, 320)
    lake.wait_for_retention(220)
    with pytest.raises(StreamingQueryException, match=r"\[DATA_LOST\] .*offsets 200 to 219 are neither in its log"):
        query.run(**options)
    skipping = {**options, "onDataLoss": "skip", "maxOffsetsPerTrigger": "60"}
    query.during = lambda _: compact(lake.path)
    assert query.run(**skipping) == [*range(180, 200), *range(220, 320)]
    query.during = lambda _: None
    lake.archived = 220
    lake.archive()
    lake.publish(320, 400)
    lake.wait_for_retention(300)
    lake.archive()
    lake.publish(400, 460)
    lake.wait_for_retention(360)
    assert query.run(**options) == list(range(320, 460))


def test_a_running_query_reads_on_while_archive_and_log_grow(lake: Lake, query: Query) -> None:
    running = query.start({"processingTime": "50 milliseconds"}, **lake.options, startingOffsets="earliest")
    try:
        eventually(lambda: len(query.offsets) == 180, "archive and log were read")
        lake.archive()
        lake.publish(180, 220)
        eventually(lambda: len(query.offsets) == 220, "what came was read")
    finally:
        running.stop()
    assert query.offsets == list(range(220))


def test_what_the_archive_job_writes_is_history(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    read: Read,
    tmp_path: Path,
) -> None:
    stream = make_stream(60, partitions=2, **SHORT)
    options = ArchiveOptions(streams=(stream,), path=str(tmp_path / "lake"), servers=tables.address)
    run_archive(spark, options, once=True)
    publish(client, stream, 20, partition=1, first=60)
    frame = read(stream=stream, history=tmp_path / "lake", minPartitions="5")
    rows = sorted((row.partition, row.offset, bytes(row.value).decode()) for row in frame.collect())
    ends = {0: 60, 1: 80}
    assert rows == [(number, offset, f"{number}/{offset}") for number, end in ends.items() for offset in range(end)]


def test_errors_name_the_archive_and_what_it_has(
    lake: Lake, read: Read, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(PySparkException, match=match):
            read(**options).collect()

    refused(
        r"\[INVALID_OPTION\] option `onDataLoss` is `archive`, but `history`", stream=lake.stream, onDataLoss="archive"
    )
    refused(
        rf"\[ARCHIVE_UNREACHABLE\] there is no archive in {tmp_path}/none",
        stream=lake.stream,
        history=tmp_path / "none",
    )
    refused(r"\[INVALID_OPTION\] .* is an archive of", stream=make_stream(1), history=lake.path)
    gone = next(lake.path.rglob("date=*/*.parquet"))
    gone.rename(tmp_path / "aside")
    refused(r"\[ARCHIVE_DAMAGED\] date=.* offsets 0 to 99 ", **lake.options)
    (tmp_path / "aside").rename(gone)
    client.delete_stream(lake.stream)
    refused(r"\[STREAM_NOT_FOUND\]", **lake.options)
    assert offsets(read(**lake.options, onDataLoss="archive")) == list(range(100)), "what the archive has"
    make_stream(3, name=lake.stream)
    refused(r"\[STREAM_RECREATED\] the archive .* is of a former stream", **lake.options, onDataLoss="archive")


@pytest.mark.soak
def test_a_query_over_a_stream_that_is_archived_compacted_and_removed_while_it_reads(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    query: Query,
    tmp_path: Path,
    soak_seconds: float,
) -> None:
    """Publishing waits for the archive, so that nothing is lost; the query is always far behind the log's start."""
    stream = make_stream(**SHORT | {"retention_max_messages": 1000})
    options = ArchiveOptions(
        streams=(stream,),
        path=str(tmp_path / "lake"),
        servers=tables.address,
        trigger_seconds=0.1,
        compact_every=2,
        keep_replaced_seconds=0,
    )
    job = ArchiveJob(spark, options)
    job.open()
    archiving = job.start()
    published, until = 0, time.monotonic() + soak_seconds
    reading: Any = None
    try:
        while time.monotonic() < until:
            publish(client, stream, 20, first=published)
            published += 20
            while _next_offset(tmp_path / "lake") < published - 800:
                assert archiving.isActive, archiving.exception()
                time.sleep(0.01)
            if published == 2000:
                reading = query.start(
                    {"processingTime": "10 milliseconds"},
                    stream=stream,
                    history=str(tmp_path / "lake"),
                    onDataLoss="archive",
                    startingOffsets="earliest",
                    maxOffsetsPerTrigger="137",
                )
        eventually(
            lambda: len(query.offsets) >= published or not reading.isActive, "the query has caught up", timeout=120
        )
        assert reading.isActive, reading.exception()
    finally:
        for one in (reading, archiving):
            if one is not None:
                one.stop()
        job.close()
    assert query.offsets == list(range(published))


def _next_offset(path: Path) -> int:
    return max(Archive(path).state().next_offsets.values(), default=0)
