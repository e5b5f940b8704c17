"""Streaming writes: what a row says of itself, and what happens to batches that come again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from bascule.client.blocking import BlockingClient
from tests.spark.conftest import MakeStream, publish
from tests.spark.write.test_spark_sink import stored, values
from tests.support.broker_process import BrokerProcess
from tests.support.pausing_source import Pauses
from tests.support.spark_processes import kill_workers
from tests.support.waiting import eventually


class Copy:
    """A query from stream to stream, run until everything is read."""

    def __init__(self, spark: SparkSession, servers: str, checkpoint: Path) -> None:
        self._spark = spark
        self._servers = servers
        self.checkpoint = checkpoint

    def start(
        self,
        source: str,
        target: str,
        *,
        read: dict[str, str] | None = None,
        read_format: str = "bascule",
        value: str = "value",
        **options: str,
    ) -> Any:
        rows = self._spark.readStream.format(read_format).options(
            servers=self._servers, stream=source, startingOffsets="earliest", **(read or {})
        )
        writer = rows.load().selectExpr("key", f"{value} AS value", "headers").writeStream.format("bascule")
        writer = writer.options(servers=self._servers, stream=target, **options)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self, source: str, target: str, **options: Any) -> str:
        """The query's id."""
        query = self.start(source, target, **options)
        query.awaitTermination()
        return str(query.id)

    def forget_commit(self, batch_id: int) -> None:
        """What a crash between the write of a batch and its commit leaves."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def copy(spark: SparkSession, tables: BrokerProcess, tmp_path: Path) -> Copy:
    return Copy(spark, tables.address, tmp_path / "checkpoint")


def identities(client: BlockingClient, stream: str) -> list[tuple[str, int, int]]:
    """What messages say of themselves: producer, epoch, sequence."""
    return [
        (
            message.headers["bascule-producer"].decode(),
            int(message.headers["bascule-epoch"]),
            int(message.headers["bascule-sequence"]),
        )
        for messages in stored(client, stream)
        for message in messages
    ]


def test_rows_know_their_query_batch_and_place(client: BlockingClient, make_stream: MakeStream, copy: Copy) -> None:
    """Trap 3: a writer is told neither batch nor query; the task's properties know both."""
    source, target = make_stream(5, partitions=2), make_stream()
    read = {"maxOffsetsPerTrigger": "6", "gatherRecordsPerTask": "1"}  # a task for each partition
    query = copy.run(source, target, delivery="exactly-once", read=read)
    found = Counter((producer, epoch) for producer, epoch, _ in identities(client, target))
    assert found == {
        (f"spark:{query}:0", 0): 3,
        (f"spark:{query}:1", 0): 3,
        (f"spark:{query}:0", 1): 2,
        (f"spark:{query}:1", 1): 2,
    }
    for producer, epoch in found:
        sequences = [each[2] for each in identities(client, target) if each[:2] == (producer, epoch)]
        assert sequences == [*range(len(sequences))]


def test_a_query_of_connect_says_the_same(
    connect_spark: Any, tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    source, target = make_stream(3), make_stream()
    query = Copy(connect_spark, tables.address, tmp_path / "checkpoint").run(source, target, delivery="exactly-once")
    assert identities(client, target) == [(f"spark:{query}:0", 0, sequence) for sequence in range(3)]


def test_at_least_once_says_nothing_and_a_batch_that_comes_again_is_there_twice(
    client: BlockingClient, make_stream: MakeStream, copy: Copy
) -> None:
    """Trap 4: which `exactly-once` is for."""
    source, target = make_stream(5), make_stream()
    copy.run(source, target)
    copy.forget_commit(0)
    copy.run(source, target)
    assert Counter(values(client, target)) == {b"0/%d" % number: 2 for number in range(5)}
    assert not any(message.headers for message in stored(client, target)[0])


def test_a_batch_that_comes_again_is_stored_once(client: BlockingClient, make_stream: MakeStream, copy: Copy) -> None:
    source, target = make_stream(40, partitions=2), make_stream(partitions=3)
    once = {"delivery": "exactly-once", "partitioner": "round-robin"}
    copy.run(source, target, **once)
    everything = identities(client, target)
    copy.forget_commit(0)
    copy.run(source, target, **once)
    assert identities(client, target) == everything
    publish(client, source, 3, first=40)
    copy.run(source, target, **once)
    assert sorted(values(client, target)) == sorted(values(client, source))


def test_a_batch_that_comes_again_with_other_rows_is_noticed(
    client: BlockingClient, make_stream: MakeStream, copy: Copy
) -> None:
    """Brokers go by numbers: they would drop rows that nobody has, and keep others twice."""
    source, target = make_stream(5), make_stream()
    copy.run(source, target, delivery="exactly-once")
    copy.forget_commit(0)
    query = copy.start(source, target, delivery="exactly-once", value="reverse(CAST(value AS STRING))")
    with pytest.raises(StreamingQueryException, match=r"\[ROWS_CHANGED\] batch 0 came again with other rows"):
        query.awaitTermination()
    assert values(client, target) == values(client, source)


def test_rows_that_were_written_in_another_order_are_put_in_order_first(
    client: BlockingClient, make_stream: MakeStream, copy: Copy
) -> None:
    source, target = make_stream(12), make_stream()
    copy.run(source, target, delivery="exactly-once", orderBy="value")
    assert values(client, target) == sorted(values(client, source))


ROWS_OF_A_PIECE = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def small_pieces(spark: SparkSession) -> Iterator[None]:
    """Tasks get their rows a hundred at a time."""
    before = spark.conf.get(ROWS_OF_A_PIECE)
    spark.conf.set(ROWS_OF_A_PIECE, "100")
    yield
    spark.conf.set(ROWS_OF_A_PIECE, str(before))


@pytest.mark.usefixtures("small_pieces")
def test_a_worker_that_dies_while_it_writes_loses_and_doubles_nothing(
    spark: SparkSession, client: BlockingClient, make_stream: MakeStream, copy: Copy, tmp_path: Path
) -> None:
    """Between the first row of a batch and its commit: some rows are stored, and Spark knows of none."""
    pauses = Pauses(tmp_path)
    spark.dataSource.register(pauses.source("later"))
    count = 3_000
    source, target = make_stream(), make_stream(partitions=2)
    # Brokers send them in three pieces: whoever reads them waits behind the second, however long it takes to be hit.
    client.publish_many(source, [b"%d".ljust(3_000, b".") % number for number in range(count)], ack="all")
    once: dict[str, Any] = {"delivery": "exactly-once", "partitioner": "round-robin", "read_format": pauses.name}
    query = copy.start(source, target, **once)
    pauses.wait()
    eventually(lambda: stored_count(client, target) > 100, "the batch is being written")
    assert kill_workers(java_of(spark))
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    part = stored_count(client, target)
    assert 100 < part < count, "it was hit in the middle"
    pauses.release()
    copy.run(source, target, **once)
    assert sorted(values(client, target)) == sorted(values(client, source))


def stored_count(client: BlockingClient, stream: str) -> int:
    partitions = client.fetch_metadata([stream]).streams[stream].partitions
    return sum(client.fetch_partition_metadata(stream, number).newest_offset + 1 for number in partitions)


def java_of(spark: SparkSession) -> int:
    gateway: Any = spark.sparkContext._gateway
    pid: int = gateway.proc.pid
    return pid
