"""Streams that change under those who read them: retention takes what was planned, a stream is deleted and created again."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.errors import DataLost, StreamRecreated
from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions, run_archive
from tests.cli.command_line import run as run_command
from tests.spark.conftest import MakeStream, publish
from tests.support.broker_process import BrokerProcess
from tests.support.pausing_source import Pauses
from tests.support.waiting import eventually

KEPT = 100
RETENTION = {"retention_max_messages": KEPT, "segment_max_bytes": 1024, "cleaner_interval": 0.05}


@pytest.fixture
def pauses(spark: SparkSession, tmp_path: Path) -> Pauses:
    found = Pauses(tmp_path)
    spark.dataSource.register(found.source("before"))
    return found


LogStart = Callable[[str], int]


@pytest.fixture
def log_start(tables: BrokerProcess) -> LogStart:
    def ask(stream: str) -> int:
        with FlightConnection(tables.address) as connection:
            return int(connection.offsets([stream])[stream]["partitions"][0]["log_start"])

    return ask


def recreate(client: BlockingClient, stream: str, records: int) -> None:
    client.delete_stream(stream)
    client.create_stream(stream, f"subject.{stream}")
    publish(client, stream, records, first=1_000)


# ── retention ────────────────────────────────────────────────────────────────────────────────────


def slowly(client: BlockingClient, stream: str, count: int, first: int = 0) -> None:
    """In pieces that fit a segment: retention takes whole ones."""
    for number in range(first, first + count, 5):
        publish(client, stream, 5, first=number)


def overtake(client: BlockingClient, stream: str, log_start: LogStart) -> int:
    """Let retention take some of the first fifty records: where the log starts then, for good."""
    slowly(client, stream, KEPT - 25, first=50)
    eventually(lambda: log_start(stream) >= 25, "retention has taken what is too much")
    return log_start(stream)


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_retention_takes_records_between_the_plan_of_a_batch_read_and_its_tasks(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    pauses: Pauses,
    log_start: LogStart,
    policy: str,
) -> None:
    stream = make_stream(**RETENTION)
    slowly(client, stream, 50)
    reader = spark.read.format(pauses.name).options(servers=tables.address, stream=stream, onDataLoss=policy)
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(reader.load().select("offset").toArrow)
        pauses.wait()
        start = overtake(client, stream, log_start)
        pauses.release()
        if policy == "skip":
            assert sorted(reading.result(120)["offset"].to_pylist()) == [*range(start, 50)]
            return
        with pytest.raises(PySparkException) as failed:
            reading.result(120)
    said = f"[DATA_LOST] `{stream}`/0 was to be read from offset 0, but its log starts at {start}: {start} offsets are gone; "
    assert f"{said}the stream keeps 168h and {KEPT} messages" in str(failed.value)


def test_retention_takes_records_of_a_batch_that_a_query_has_planned(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    pauses: Pauses,
    log_start: LogStart,
    tmp_path: Path,
) -> None:
    """It fails and says what is gone; on request the same query goes on with what is left of the batch, and with all that came."""
    stream = make_stream(**RETENTION)
    slowly(client, stream, 50)
    found: list[int] = []

    def start_query(**options: str) -> Any:
        reader = spark.readStream.format(pauses.name).options(servers=tables.address, stream=stream, **options)
        writer = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(take)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    def take(frame: DataFrame, _: int) -> None:
        found.extend(frame.select("offset").toArrow()["offset"].to_pylist())

    query = start_query()
    pauses.wait()
    start = overtake(client, stream, log_start)
    pauses.release()
    with pytest.raises(StreamingQueryException, match=rf"\[DATA_LOST\] .* starts at {start}: {start} offsets are gone"):
        query.awaitTermination(120)
    assert found == []
    start_query(onDataLoss="skip").awaitTermination(120)
    assert sorted(found) == [*range(start, KEPT + 25)]


def test_retention_takes_records_of_a_batch_that_an_archive_has_planned(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    log_start: LogStart,
    tmp_path: Path,
) -> None:
    """It says what is gone and has nothing of the batch; on request it goes on with what is left, and says where the hole is."""
    stream, lake = make_stream(**RETENTION), tmp_path / "lake"
    slowly(client, stream, 50)

    class Late(ArchiveJob):
        def write(self, batch: DataFrame, batch_id: int) -> None:
            overtake(client, stream, log_start)
            super().write(batch, batch_id)

    job = Late(spark, ArchiveOptions(streams=(stream,), path=str(lake), servers=tables.address))
    job.open()
    query = job.start(once=True)
    with pytest.raises(StreamingQueryException, match=r"\[DATA_LOST\] .* from offset 0, but its log starts at \d+"):
        query.awaitTermination(120)
    job.close()
    assert job.archive.state().rows == 0
    start = log_start(stream)
    options = ArchiveOptions(streams=(stream,), path=str(lake), servers=tables.address, source={"onDataLoss": "skip"})
    state = run_archive(spark, options, once=True)
    assert (state.rows, min(one.first_offset for one in state.files.values())) == (KEPT + 25 - start, start)
    proved = run_command("pipeline", "verify", str(lake), "--json", "--server", tables.address, home=tmp_path)
    assert (proved.json["equal"], proved.json["messages_compared_with_the_log"]) == (True, state.rows)
    assert (proved.json["complete"], proved.json["lost_offsets"]) == (False, start)


def test_an_archive_without_a_checkpoint_notices_what_retention_took_since_its_last_commit(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    log_start: LogStart,
    tmp_path: Path,
) -> None:
    """Its query begins where the log does, and nobody else would miss what lies before."""
    stream = make_stream(**RETENTION)
    slowly(client, stream, 10)
    options = ArchiveOptions(streams=(stream,), path=str(tmp_path / "lake"), servers=tables.address)
    assert run_archive(spark, options, once=True).rows == 10
    shutil.rmtree(options.checkpoint_path)
    slowly(client, stream, 40, first=10)
    start = overtake(client, stream, log_start)
    with pytest.raises(
        DataLost, match=rf"from offset 10, but its log starts at {start}: {start - 10} offsets are gone"
    ):
        run_archive(spark, options, once=True)
    skipping = replace(options, source={"onDataLoss": "skip"})
    state = run_archive(spark, skipping, once=True)
    assert state.rows == 10 + KEPT + 25 - start
    ((lost,),) = state.lost.values()
    assert (lost.start, lost.end) == (10, start), "what came before the query began again"


# ── another stream of the same name ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("records", "policy"),
    [
        (20, "skip"),
        (90, "fail"),
        pytest.param(20, "fail", marks=pytest.mark.soak),
        pytest.param(90, "skip", marks=pytest.mark.soak),
    ],
)
def test_an_archive_has_nothing_of_a_stream_that_was_created_again(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    tmp_path: Path,
    records: int,
    policy: str,
) -> None:
    """It happens between the plan of a batch and its tasks, with fewer records than were archived, and with more."""
    stream, lake = make_stream(50), tmp_path / "lake"
    options = ArchiveOptions(
        streams=(stream,), path=str(lake), servers=tables.address, trigger_seconds=0.05, source={"onDataLoss": policy}
    )

    published = threading.Event()

    class Unlucky(ArchiveJob):
        def write(self, batch: DataFrame, batch_id: int) -> None:
            if batch_id == 1:
                assert published.wait(60)  # the batch may have been planned when the first of them was there
                recreate(client, stream, records)
            super().write(batch, batch_id)

    job = Unlucky(spark, options)
    job.open()
    try:
        query = job.start()
        eventually(lambda: job.archive.state().rows == 50, "the stream is archived")
        publish(client, stream, 10, first=50)
        published.set()
        with pytest.raises(Exception, match=r"STREAM_RECREATED|STREAM_DELETED|STREAM_NOT_FOUND|created again"):
            query.awaitTermination(120)
    finally:
        query.stop()
        job.close()
    assert job.archive.state().rows == 50
    with pytest.raises(StreamRecreated):
        ArchiveJob(spark, options).open()
    proved = run_command("pipeline", "verify", str(lake), "--json", "--server", tables.address, home=tmp_path)
    found = json.loads(proved.out)
    assert (proved.code, found["equal"], found["messages"]) == (0, True, 50)
    assert found["messages_compared_with_the_log"] == 0, "there is no log of it any more"
    assert found["unchecked"], "and that is said"
    assert [one["first"] for one in found["lost"]] == ([50] if policy == "skip" else []), "what went with the stream"
    assert all(one["reason"] == "deleted" for one in found["lost"])
