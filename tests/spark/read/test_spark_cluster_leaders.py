"""Reads while leaders die and hand over, from a cluster of three brokers: every record of the range, once, and no error."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from bascule.client.arrow.reader import FlightConnection
from bascule.errors import OutcomeUnknown, StateError, Unavailable
from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions
from tests.cli.command_line import run as run_command
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import RECOVERY_SECONDS, Cluster
from tests.support.pausing_source import Pauses
from tests.support.tables import SERVING, numbers
from tests.support.waiting import eventually

ROWS = 12_000
"""Of three kilobytes, in nine pieces: whoever dies behind the first has not sent the last."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("leaders"), config=SERVING) as made:
        yield made


@pytest.fixture
def stream(cluster: Cluster) -> str:
    cluster.revive()
    return eventually(lambda: filled(cluster), "a stream was filled by one leader", RECOVERY_SECONDS)


def filled(cluster: Cluster) -> str:
    """A stream with all rows; "" if its leader stood still so long that another one was elected: nothing is sent twice by `put`."""
    name = unique_name("led")
    cluster.create_stream(name)
    with FlightConnection(cluster.addresses) as tables, suppress(Unavailable, OutcomeUnknown, StateError):
        for first in range(0, ROWS, 4_000):
            tables.put(name, numbers(4_000, first=first, size=3_000))
        (partition,) = tables.offsets([name])[name]["partitions"].values()
        if partition["high_watermark"] == ROWS - 1:
            cluster.wait_until_in_sync(name)
            return name
    return ""


@pytest.fixture
def pauses(spark: SparkSession, tmp_path: Path) -> Pauses:
    found = Pauses(tmp_path)
    spark.dataSource.register(found.source("between"))
    return found


def test_a_batch_read_goes_on_at_the_next_leader(
    spark: SparkSession, cluster: Cluster, stream: str, pauses: Pauses
) -> None:
    reader = spark.read.format(pauses.name).options(servers=",".join(cluster.addresses), stream=stream)
    frame = reader.load().selectExpr("offset", "CAST(substring_index(CAST(value AS STRING), '.', 1) AS BIGINT) AS n")
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(frame.toArrow)
        pauses.wait()
        cluster.kill(cluster.leader_of(stream))
        pauses.release()
        rows = reading.result(120)
    assert rows["offset"].to_pylist() == rows["n"].to_pylist() == [*range(ROWS)]


def test_an_archive_goes_on_at_the_next_leader_in_a_batch_and_between_batches(
    spark: SparkSession, cluster: Cluster, stream: str, pauses: Pauses, tmp_path: Path
) -> None:
    """The leader hands over while the first batch is read, and the next one is killed before the second is planned."""
    servers, checkpoint = ",".join(cluster.addresses), str(tmp_path / "checkpoint")
    job = ArchiveJob(
        spark, ArchiveOptions(streams=(stream,), path=str(tmp_path / "lake"), servers=servers, checkpoint=checkpoint)
    )

    def take(frame: DataFrame, batch_id: int) -> None:
        job.write(frame, batch_id)
        if batch_id == 0:
            cluster.revive()
            cluster.wait_until_in_sync(stream)
            cluster.kill(cluster.leader_of(stream))

    job.open()
    reader = spark.readStream.format(pauses.name).options(servers=servers, stream=stream, startingOffsets="earliest")
    writer = reader.option("maxOffsetsPerTrigger", 7_000).load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    try:
        pauses.wait()
        assert cluster.stop(cluster.leader_of(stream)) == 0
        pauses.release()
        assert query.awaitTermination(300)
    finally:
        query.stop()
        job.close()
    files = [(one.first_offset, one.last_offset) for one in job.archive.state().in_order()]
    assert (files[0][0], files[-1][1], job.archive.state().number) == (0, ROWS - 1, 2)
    server = cluster.brokers[cluster.well[0]].address
    proved = run_command("pipeline", "verify", str(tmp_path / "lake"), "--server", server, home=tmp_path)
    assert (proved.code, proved.out.partition(":")[0]) == (0, "equal"), proved
    assert f"{ROWS} compared with the log" in proved.out
