"""Reads while leaders die and hand over, from a cluster of three brokers: every record of the range, once, and no error."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bascule.flight.reader import FlightConnection
from tests.support.broker_fixtures import unique_name
from tests.support.cluster import Cluster
from tests.support.pausing_source import Pauses
from tests.support.tables import SERVING, numbers

ROWS = 12_000
"""Of three kilobytes, in nine pieces: whoever dies behind the first has not sent the last."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("leaders"), config=SERVING) as made:
        yield made


@pytest.fixture
def stream(cluster: Cluster) -> str:
    name = unique_name("led")
    cluster.revive()
    cluster.create_stream(name)
    with FlightConnection(cluster.addresses) as tables:
        for first in range(0, ROWS, 4_000):
            tables.put(name, numbers(4_000, first=first, size=3_000))
    cluster.wait_until_in_sync(name)
    return name


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


def test_a_query_goes_on_at_the_next_leader_in_a_batch_and_between_batches(
    spark: SparkSession, cluster: Cluster, stream: str, pauses: Pauses, tmp_path: Path
) -> None:
    """The leader hands over while the first batch is read, and the next one is killed before the second is planned."""
    found: list[list[int]] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        found.append(frame.select("offset").toArrow()["offset"].to_pylist())
        if batch_id == 0:
            cluster.revive()
            cluster.wait_until_in_sync(stream)
            cluster.kill(cluster.leader_of(stream))

    options: dict[str, Any] = {"servers": ",".join(cluster.addresses), "stream": stream}
    reader = spark.readStream.format(pauses.name).options(**options, startingOffsets="earliest")
    writer = reader.option("maxOffsetsPerTrigger", 7_000).load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    try:
        pauses.wait()
        assert cluster.stop(cluster.leader_of(stream)) == 0
        pauses.release()
        assert query.awaitTermination(120)
    finally:
        query.stop()
    assert found == [[*range(7_000)], [*range(7_000, ROWS)]]
