"""The traps of Spark's API for data sources in Python, one test each. Beside ours stands what one writes first, and falls in.

The naive ones are honest: a few lines that do what the documentation of the API suggests, and the same check is run on both. If a naive
one ever passes, Spark has changed, and a lot of care in `bascule/spark` may be for nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import StructType

from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.pipeline.jobs.archive import ArchiveOptions, run_archive
from bascule.spark.options.declaration import BATCH, STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.read import cluster
from bascule.spark.read.batch_reader import BatchReader
from bascule.spark.read.stream_reader import StreamReader
from bascule.spark.source import BasculeSource
from bascule.spark.write import task as sink_task
from bascule.spark.write.sink import StreamWriter, stream_writer
from bascule.spark.write.task import TaskIdentity
from tests.spark.conftest import MakeStream, publish
from tests.spark.write.test_spark_sink import values
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Spark's workers do not find tests

# Methods have the names and the arguments that Spark wants.
# ruff: noqa: N802, ARG002

Json = dict[str, Any]


def naive(*values: Any) -> Any:
    """The same check on what falls in. Spark changes more seldom than we do: in `make soak`."""
    return pytest.param(*values, marks=pytest.mark.soak)


# ── naive ones ───────────────────────────────────────────────────────────────────────────────────


@dataclass
class NaiveRange(InputPartition):
    start: int
    end: int


class NaiveReader(DataSourceStreamReader):
    """Begins at the end of the stream, as the guide of the API has it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def log_end(self) -> int:
        with FlightConnection(self.options["servers"]) as tables:
            stream = tables.offsets([self.options["stream"]])[self.options["stream"]]
        return int(stream["partitions"][0]["high_watermark"]) + 1

    def rows(self, start: int, end: int) -> Iterator[Any]:
        with FlightConnection(self.options["servers"]) as tables:
            yield from tables.read(self.options["stream"], 0, start, end, ("offset",))

    def initialOffset(self) -> Json:
        return {"offset": self.log_end()}

    def latestOffset(self, start: Json, limit: Any) -> Json:
        return {"offset": self.log_end()}

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        return [NaiveRange(start["offset"], end["offset"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, NaiveRange)
        yield from self.rows(partition.start, partition.end)


class NaiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "naive"

    def schema(self) -> str:
        return "offset bigint NOT NULL"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NaiveReader(self.options)


def publish_once(options: Any, key: str) -> None:
    """Five records that somebody publishes just after a reader was asked where it begins."""
    servers, stream = options["servers"], options["stream"]
    with FlightConnection(servers) as tables:
        import pyarrow as pa

        tables.put(stream, pa.table({"value": [f"{key}".encode()] * 5}))


# ── how queries are run ──────────────────────────────────────────────────────────────────────────


class Offsets:
    """A query that keeps the offsets it has read, through several lives."""

    def __init__(self, spark: SparkSession, servers: str, checkpoint: Path) -> None:
        self._spark = spark
        self._servers = servers
        self.checkpoint = checkpoint
        self.batches: list[list[int]] = []

    def start(self, source: str, trigger: Json, **options: str) -> Any:
        frame = self._spark.readStream.format(source).options(servers=self._servers, **options).load()
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint)).foreachBatch(self._take)
        return writer.trigger(**trigger).start()

    def run(self, source: str, **options: str) -> list[int]:
        """To the end of the stream: what this life has read."""
        self.batches = []
        self.start(source, {"availableNow": True}, **options).awaitTermination()
        return sorted(offset for batch in self.batches for offset in batch)

    def _take(self, frame: DataFrame, _: int) -> None:
        self.batches.append(frame.select("offset").toArrow()["offset"].to_pylist())

    def die_in_first_batch(self) -> None:
        """What is left of a query that died before it noted its first batch as done: where that batch ends."""
        shutil.rmtree(self.checkpoint / "commits")
        for path in (self.checkpoint / "offsets").iterdir():
            if path.name != "0":
                path.unlink()


def forget_commit(checkpoint: Path, batch_id: int = 0) -> None:
    """What a death between a batch and Spark's note of it leaves."""
    for name in (f"{batch_id}", f".{batch_id}.crc"):
        (checkpoint / "commits" / name).unlink()


@pytest.fixture
def query(spark: SparkSession, tables: BrokerProcess, tmp_path: Path) -> Offsets:
    return Offsets(spark, tables.address, tmp_path / "checkpoint")


# ── trap 1 ───────────────────────────────────────────────────────────────────────────────────────


class BusyNaiveReader(NaiveReader):
    def initialOffset(self) -> Json:
        found = super().initialOffset()
        publish_once(self.options, "later")
        return found


class BusyNaiveSource(NaiveSource):
    @classmethod
    def name(cls) -> str:
        return "busy_naive"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return BusyNaiveReader(self.options)


class BusyReader(StreamReader):
    def initialOffset(self) -> Json:
        found = super().initialOffset()
        connection = self._options.connection
        publish_once({"servers": connection.servers, "stream": self._options.streams.stream}, "later")
        return found


class BusySource(BasculeSource):
    @classmethod
    def name(cls) -> str:
        return "busy_bascule"

    def streamReader(self, schema: StructType) -> StreamReader:
        return BusyReader(source_options(self.options, STREAMING), schema)


@pytest.mark.parametrize(("source", "is_whole"), [(BusySource, True), naive(BusyNaiveSource, False)])
def test_trap_1_the_initial_offset_is_asked_for_again_and_kept_by_nobody(
    spark: SparkSession, make_stream: MakeStream, query: Offsets, source: Any, is_whole: bool
) -> None:
    """A stream with ten records is read from `latest`, records come whenever a reader was asked where it begins, and the query dies in
    its first batch. Whatever came since it was asked first has to be read."""
    spark.dataSource.register(source)
    stream = make_stream(10)
    running = query.start(source.name(), {"processingTime": "0 seconds"}, stream=stream)
    eventually(lambda: query.batches, "the first batch was run")
    running.stop()
    query.die_in_first_batch()
    found = query.run(source.name(), stream=stream)
    assert (found[:1] == [10] and found == [*range(10, found[-1] + 1)]) is is_whole, found


# ── trap 2 ───────────────────────────────────────────────────────────────────────────────────────


class CursorReader(NaiveReader):
    """Keeps its place by itself, as far as things were committed to it, and needs no checkpoint."""

    def initialOffset(self) -> Json:
        path = Path(self.options["cursor"])
        return {"offset": int(path.read_text()) if path.exists() else 0}

    def commit(self, end: Json) -> None:
        Path(self.options["cursor"]).write_text(str(end["offset"]))


class CursorSource(NaiveSource):
    @classmethod
    def name(cls) -> str:
        return "naive_cursor"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CursorReader(self.options)


def test_trap_2_a_commit_comes_late_or_never(client: BlockingClient, make_stream: MakeStream, query: Offsets) -> None:
    """The last batch of AvailableNow is never committed to the source: the offset log alone says what was read."""
    stream = make_stream(10)
    options = {"stream": stream, "cursor": "etl", "startingOffsets": "earliest"}
    assert query.run("bascule", **options) == [*range(10)]
    assert client.fetch_cursor("etl", stream) is None, "nobody told us"
    publish(client, stream, 3, first=10)
    assert query.run("bascule", **options) == [10, 11, 12]
    assert client.fetch_cursor("etl", stream) == 9, "a batch late"


@pytest.mark.soak
def test_trap_2_who_keeps_its_place_by_commits_reads_twice(
    spark: SparkSession, make_stream: MakeStream, query: Offsets, tmp_path: Path
) -> None:
    spark.dataSource.register(CursorSource)
    options = {"stream": make_stream(10), "cursor": str(tmp_path / "cursor")}
    for number in range(2):
        query.checkpoint = tmp_path / f"naive-{number}"
        assert query.run("naive_cursor", **options) == [*range(10)], "and nobody notices"


# ── traps 3 and 4 ────────────────────────────────────────────────────────────────────────────────


class AttemptWriter(StreamWriter):
    """Numbers rows by what the API offers: the attempt of the task."""

    def write(self, iterator: Iterator[Any]) -> Any:
        def naive_identity(options: Any) -> TaskIdentity:
            del options
            context: Any = TaskContext.get()
            return TaskIdentity(f"task:{context.taskAttemptId()}", 0, context.partitionId())

        honest, sink_task.identity = sink_task.identity, naive_identity
        try:
            return super().write(iterator)
        finally:
            sink_task.identity = honest  # the worker will run other tasks


class AttemptSource(BasculeSource):
    @classmethod
    def name(cls) -> str:
        return "naive_sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return AttemptWriter(stream_writer(self.options, schema, overwrite).options)


@pytest.mark.parametrize(("sink", "copies"), [("bascule", 1), naive("naive_sink", 2)])
def test_trap_3_a_writer_is_not_told_which_batch_it_writes(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    tmp_path: Path,
    sink: str,
    copies: int,
) -> None:
    """Rows that come again have to say the same of themselves, and tasks of other batches something else."""
    spark.dataSource.register(AttemptSource)
    source, target = make_stream(5), make_stream()

    def copy() -> None:
        rows = spark.readStream.format("bascule").options(servers=tables.address, startingOffsets="earliest")
        writer = rows.load(source).select("value").writeStream.format(sink)
        writer = writer.options(servers=tables.address, stream=target, delivery="exactly-once")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    copy()
    forget_commit(tmp_path / "checkpoint")
    publish(client, source, 1, first=5)
    copy()
    assert Counter(values(client, target)) == {b"0/5": 1, **{b"0/%d" % number: copies for number in range(5)}}


def archive(spark: SparkSession, options: ArchiveOptions) -> int:
    return run_archive(spark, options, once=True).rows


def append(spark: SparkSession, options: ArchiveOptions) -> int:
    """An archive in two lines."""
    rows = spark.readStream.format("bascule").options(**options.source_options()).load().writeStream
    writer = rows.foreachBatch(lambda frame, _: frame.write.mode("append").parquet(options.path))
    writer = writer.option("checkpointLocation", str(options.checkpoint_path)).trigger(availableNow=True)
    writer.start().awaitTermination()
    return spark.read.parquet(options.path).count()


@pytest.mark.parametrize(("run", "copies"), [(archive, 1), naive(append, 2)])
def test_trap_4_a_batch_that_was_done_comes_again(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path, run: Any, copies: int
) -> None:
    options = ArchiveOptions(streams=(make_stream(50),), path=str(tmp_path / "lake"), servers=tables.address)
    assert run(spark, options) == 50
    forget_commit(options.checkpoint_path)
    assert run(spark, options) == 50 * copies


# ── trap 5 ───────────────────────────────────────────────────────────────────────────────────────


class SimpleReader(SimpleDataSourceStreamReader):
    """The short way that the API offers: rows are read where the query is planned, all that there are."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._reader = NaiveReader(options)

    def initialOffset(self) -> Json:
        return {"offset": 0}

    def read(self, start: Json) -> tuple[Iterator[Any], Json]:
        end = self._reader.log_end()
        rows = [(offset,) for batch in self._reader.rows(start["offset"], end) for offset in batch[0].to_pylist()]
        return iter(rows), {"offset": end}

    def readBetweenOffsets(self, start: Json, end: Json) -> Iterator[Any]:
        return iter([(offset,) for offset in range(start["offset"], end["offset"])])


class SimpleSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "naive_simple"

    def schema(self) -> str:
        return "offset bigint NOT NULL"

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleReader(self.options)


@pytest.mark.parametrize(("source", "batches"), [("bascule", [4, 4, 2]), naive("naive_simple", [10])])
def test_trap_5_a_simple_reader_knows_no_limits(
    spark: SparkSession, make_stream: MakeStream, query: Offsets, source: str, batches: list[int]
) -> None:
    """It reads in the driver, whatever there is."""
    spark.dataSource.register(SimpleSource)
    options = {"startingOffsets": "earliest"} if source == "bascule" else {}
    assert query.run(source, stream=make_stream(10), maxOffsetsPerTrigger="4", **options) == [*range(10)]
    assert [len(batch) for batch in query.batches] == batches


# ── trap 6 ───────────────────────────────────────────────────────────────────────────────────────

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
HDFS_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.mark.parametrize("provider", ["ours", "spark's"])
def test_trap_6_state_needs_a_store_that_is_named(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path, provider: str
) -> None:
    """transformWithState works in a session of ours, and not in one that nobody told where to keep state."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._seen = handle.getValueState("seen", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N803
            del timerValues
            pd: Any = import_module("pandas")
            before = self._seen.get()
            n = (before[0] if before else 0) + sum(len(frame) for frame in rows)
            self._seen.update((n,))
            yield pd.DataFrame({"partition": [key[0]], "n": [n]})

        def close(self) -> None:
            pass

    session = spark.newSession()
    session.conf.set(PROVIDER, HDFS_PROVIDER if provider != "ours" else str(spark.conf.get(PROVIDER)))
    found: list[tuple[int, int]] = []
    reader = session.readStream.format("bascule").options(servers=tables.address, startingOffsets="earliest")
    rows: Any = reader.load(make_stream(3, partitions=2)).select("partition").groupBy("partition")
    counted = rows.transformWithStateInPandas(Count(), "partition int, n bigint", "Update", "None")
    writer = counted.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.foreachBatch(lambda frame, _: found.extend((row.partition, row.n) for row in frame.collect()))
    if provider == "ours":
        writer.trigger(availableNow=True).start().awaitTermination()
        assert sorted(found) == [(0, 3), (1, 3)]
    else:
        with pytest.raises(PySparkException, match=r"(?i)state"):
            writer.trigger(availableNow=True).start().awaitTermination()


def default_source(servers: str, stream: str) -> type[DataSource]:
    """A source for people who try things out: what they do not say has a default."""

    class DefaultReader(DataSourceReader):
        def __init__(self, options: Mapping[str, str]) -> None:
            self._reader = NaiveReader({"servers": servers, "stream": stream, **options})

        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield from self._reader.rows(0, self._reader.log_end())

    class DefaultSource(NaiveSource):
        @classmethod
        def name(cls) -> str:
            return "naive_default"

        def reader(self, schema: StructType) -> DataSourceReader:
            return DefaultReader(self.options)

    return DefaultSource


def count_of(spark: SparkSession, kind: str, source: str, more: str = "", **options: str) -> int | str:
    """Rows of a table or a view in SQL, or what is said in place of them."""
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE {kind} trap_6 USING {source} OPTIONS ({given})")
    try:
        return int(spark.sql(f"SELECT count(*) AS n FROM trap_6 {more}").collect()[0].n)
    except PySparkException as error:
        return str(error)
    finally:
        spark.sql(f"DROP {kind.removeprefix('TEMPORARY ')} trap_6")


@pytest.mark.parametrize(("source", "is_honest"), [("bascule", True), naive("naive_default", False)])
def test_trap_6_a_table_loses_its_options_and_a_view_has_them(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, source: str, is_honest: bool
) -> None:
    """Spark hands the source of a table no options at all. Rows of another stream are not an answer; a word on what to do is."""
    spark.dataSource.register(default_source(tables.address, make_stream(7)))
    options = {"servers": tables.address, "stream": make_stream(4)}
    assert count_of(spark, "TEMPORARY VIEW", source, **options) == 4
    said = f"WITH (servers = '{tables.address}', stream = '{options['stream']}')"
    assert count_of(spark, "TABLE", source, said, **options) == 4
    found = count_of(spark, "TABLE", source, **options)
    assert (found == 4 or "CREATE TEMPORARY VIEW" in str(found)) is is_honest, found


# ── trap 7 ───────────────────────────────────────────────────────────────────────────────────────


class OpenReader(DataSourceReader):
    """Connects when it is made."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._stream = options["stream"]
        self._tables = FlightConnection(options["servers"])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        del partition
        yield from self._tables.read(self._stream, 0, columns=("offset",))


class OpenSource(NaiveSource):
    @classmethod
    def name(cls) -> str:
        return "naive_open"

    def reader(self, schema: StructType) -> DataSourceReader:
        return OpenReader(self.options)


def test_trap_7_readers_are_built_again_and_pickled(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    """So nothing is open in them, and yet the tasks of a worker share a connection."""
    seen = str(tmp_path / "seen")

    class WatchedReader(BatchReader):
        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield from super().read(partition)
            with Path(seen).open("a") as file:
                file.write(f"{os.getpid()} {id(cluster.connect(self._options.connection))}\n")

    class WatchedSource(BasculeSource):
        @classmethod
        def name(cls) -> str:
            return "watched_bascule"

        def reader(self, schema: StructType) -> BatchReader:
            return WatchedReader(source_options(self.options, BATCH), schema)

    for source in (OpenSource, WatchedSource):
        spark.dataSource.register(source)
    stream = make_stream(60)
    options = {"servers": tables.address, "stream": stream}
    with pytest.raises(PySparkException, match=r"(?i)pickle"):
        spark.read.format("naive_open").options(**options).load().count()
    # More than there may be workers left over from other tests, which take turns.
    frame = spark.read.format("watched_bascule").options(**options, maxRecordsPerPartition="2").load()
    assert frame.count() == 60
    lines = Path(seen).read_text().splitlines()
    processes = {line.split()[0] for line in lines}
    assert len(lines) == 30 > len(processes), "workers run more than one task"
    assert len(set(lines)) == len(processes), "a worker has one connection"
