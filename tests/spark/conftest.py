"""What Spark tests share: a session, a broker that serves tables, streams of their own, and ways to read them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bascule import blocking
from bascule.client.blocking import BlockingClient
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.spark_classes import FLAGS, share_classes
from tests.support.spark_session import connect_spark, connect_url, spark, tables

__all__ = ["connect_spark", "connect_url", "spark", "tables"]

os.environ.setdefault("SPARK_LAUNCHER_OPTS", FLAGS)


@pytest.fixture(scope="session", autouse=True)
def shared_classes() -> None:
    share_classes()


@pytest.fixture(scope="session")
def client(tables: BrokerProcess) -> Iterator[BlockingClient]:
    with blocking.connect(tables.address) as found:
        yield found


MakeStream = Callable[..., str]


@pytest.fixture
def make_stream(client: BlockingClient, request: pytest.FixtureRequest) -> MakeStream:
    """Create a stream with so many records in each partition; record n of partition p has the value `p/n`."""

    def make(records: int = 0, partitions: int = 1, **options: Any) -> str:
        name = options.pop("name", None) or unique_name(request.node.name)
        client.create_stream(name, options.pop("subject", f"subject.{name}"), partitions=partitions, **options)
        for number in range(partitions):
            publish(client, name, records, partition=number)
        return name

    return make


def publish(client: BlockingClient, stream: str, count: int, *, partition: int = 0, first: int = 0) -> None:
    """Append records whose values tell their partition and, with `first`, their offset."""
    values = [f"{partition}/{number}".encode() for number in range(first, first + count)]
    if values:
        client.publish_many(stream, values, partition=partition, ack="all")


Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, tables: BrokerProcess) -> Read:
    """A batch read with these options."""

    def make(**options: Any) -> DataFrame:
        return spark.read.format("bascule").options(servers=tables.address, **options).load()

    return make


class Query:
    """A streaming query whose batches are kept, run with AvailableNow or for as long as a test needs it."""

    def __init__(self, spark: SparkSession, servers: str, checkpoint: Path) -> None:
        self._spark = spark
        self._servers = servers
        self.checkpoint = checkpoint
        self.batches: list[tuple[int, list[tuple[int, int]]]] = []
        """Id of each batch that was run, and (partition, offset) of its rows in order."""

        self.during: Callable[[int], object] = lambda _: None
        self.progress: list[dict[str, Any]] = []

    @property
    def offsets(self) -> list[int]:
        """Of all rows so far."""
        return [offset for _, rows in self.batches for _, offset in rows]

    def start(self, trigger: dict[str, Any] | None = None, **options: Any) -> Any:
        frame = self._spark.readStream.format("bascule").options(servers=self._servers, **options).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, **options: Any) -> list[int]:
        """Run until everything is read: the offsets of all rows that this run has read."""
        seen = len(self.offsets)
        query = self.start(**options)
        query.awaitTermination()
        self.progress = [json.loads(each.json) for each in query.recentProgress]
        return self.offsets[seen:]

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        table = frame.select("partition", "offset").toArrow()
        rows = sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        self.batches.append((batch_id, rows))
        self.during(batch_id)

    def forget_commit(self, batch_id: int) -> None:
        """What a crash between a batch and its commit leaves."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def query(spark: SparkSession, tables: BrokerProcess, tmp_path: Path) -> Query:
    return Query(spark, tables.address, tmp_path / "checkpoint")
