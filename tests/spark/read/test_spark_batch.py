"""Batch reads by a real Spark from a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema

from bascule.client.blocking import BlockingClient
from bascule.flight.schema import table_schema
from bascule.spark import register
from bascule.spark.options.schema import TABLE
from tests.spark.conftest import MakeStream, Read, publish
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually


def places(frame: DataFrame) -> list[tuple[int, int]]:
    """(partition, offset) of all rows, in order."""
    table = frame.select("partition", "offset").toArrow()
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def tasks(frame: DataFrame) -> int:
    return int(frame.rdd.getNumPartitions())


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_schema_is_the_one_brokers_send_exactly() -> None:
    assert to_arrow_schema(TABLE, timezone="UTC").equals(table_schema(), check_metadata=True)


def test_rows_are_what_was_published(client: BlockingClient, make_stream: MakeStream, read: Read) -> None:
    """`format("bascule")` is found with no register call: nothing here has made one."""
    stream = make_stream(partitions=2)
    before = datetime.now(UTC)
    client.publish(stream, b"lamp", key=b"k1", headers={"colour": b"red", "empty": b""}, partition=1)
    client.publish(stream, b"\xff\x00", partition=0)
    rows = read(stream=stream).orderBy("partition").toArrow().to_pylist()
    assert [row["value"] for row in rows] == [b"\xff\x00", b"lamp"]
    assert [row["key"] for row in rows] == [None, b"k1"]
    assert [(row["stream"], row["partition"], row["offset"]) for row in rows] == [(stream, 0, 0), (stream, 1, 0)]
    assert rows[0]["subject"] == f"subject.{stream}"
    assert rows[0]["replySubject"] is None
    assert dict(rows[1]["headers"]) == {"colour": b"red", "empty": b""}
    assert all(before <= row["timestamp"] <= datetime.now(UTC) for row in rows)
    assert all(row["leaderEpoch"] > 0 for row in rows)


def test_columns_are_left_out_by_a_schema(spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream(3)
    reader = spark.read.format("bascule").options(servers=tables.address, stream=stream)
    frame = reader.schema("offset bigint, VALUE binary, headers map<string, binary>").load()
    assert frame.columns == ["offset", "VALUE", "headers"]
    assert sorted((row.offset, bytes(row.VALUE)) for row in frame.collect()) == [
        (n, f"0/{n}".encode()) for n in range(3)
    ]


def test_a_schema_that_is_not_a_streams_is_refused(spark: SparkSession, tables: BrokerProcess) -> None:
    reader = spark.read.format("bascule").options(servers=tables.address, stream="any").schema("offset string")
    with pytest.raises(PySparkException, match=r"\[INVALID_SCHEMA\] column `offset` was asked for as `string`"):
        reader.load().collect()


def test_values_in_json_become_columns(client: BlockingClient, make_stream: MakeStream, read: Read) -> None:
    stream = make_stream()
    client.publish_many(stream, [b'{"id": 1, "tags": ["a"]}', b"{", b'{"id": 2}'])
    rows = read(stream=stream, valueFormat="json", valueSchema="id BIGINT NOT NULL, tags ARRAY<STRING>")
    found = rows.selectExpr("offset", "value.id", "value.tags", "malformedValue").orderBy("offset").collect()
    assert [tuple(row) for row in found] == [(0, 1, ["a"], None), (1, None, None, bytearray(b"{")), (2, 2, None, None)]


def test_an_empty_stream_has_no_rows(make_stream: MakeStream, read: Read) -> None:
    assert read(stream=make_stream(partitions=2)).count() == 0


# ── which streams ────────────────────────────────────────────────────────────────────────────────


def test_streams_are_chosen_by_name_pattern_subject_and_partition(make_stream: MakeStream, read: Read) -> None:
    one = make_stream(2, partitions=2, name="choice.eu", subject="choice.orders.eu")
    two = make_stream(3, name="choice.us", subject="choice.orders.us")
    make_stream(5, name="choicest", subject="choice.returns")

    def chosen(**options: str) -> dict[str, int]:
        return {row.stream: row.n for row in read(**options).groupBy("stream").agg(fn.count("*").alias("n")).collect()}

    assert chosen(subscribe=f"{one}, {two}") == {one: 4, two: 3}
    assert chosen(subscribePattern=r"choice\..*") == {one: 4, two: 3}
    assert chosen(subjectPattern="choice.orders.*") == {one: 4, two: 3}
    assert chosen(assign='{"choice.eu": [1], "choice.us": [0]}') == {one: 2, two: 3}
    assert chosen(subscribePattern="nothing-like-this") == {}


def test_errors_arrive_with_their_code(read: Read) -> None:
    with pytest.raises(PySparkException, match=r"\[STREAM_NOT_FOUND\] there is no stream `no-such-stream`"):
        read(stream="no-such-stream").collect()


# ── where from, where to ─────────────────────────────────────────────────────────────────────────


def test_offsets_timestamps_and_cursors_bound_a_read(
    client: BlockingClient, make_stream: MakeStream, read: Read
) -> None:
    stream = make_stream(10, partitions=2)
    between = datetime.now(UTC)
    publish(client, stream, 5, first=10)
    client.set_cursor("job", stream, 0, 12)
    starting = f'{{"{stream}": {{"0": 8, "1": -2}}}}'
    ending = f'{{"{stream}": {{"0": -1, "1": 3}}}}'
    assert places(read(stream=stream, startingOffsets=starting, endingOffsets=ending)) == [
        *((0, offset) for offset in range(8, 15)),
        *((1, offset) for offset in range(3)),
    ]
    assert places(read(stream=stream, endingTimestamp=between.isoformat())) == [
        (p, o) for p in (0, 1) for o in range(10)
    ]
    begin = {"startingTimestamp": between.isoformat(), "startingOffsetsByTimestampStrategy": "latest"}
    assert places(read(stream=stream, **begin)) == [(0, offset) for offset in range(10, 15)]
    assert places(read(stream=stream, startingOffsets="cursor:job")) == [(0, 13), (0, 14), *((1, o) for o in range(10))]


def test_records_that_are_gone_are_an_error_or_skipped(
    client: BlockingClient, make_stream: MakeStream, read: Read
) -> None:
    stream = make_stream(retention_max_messages=10, segment_max_bytes=1, cleaner_interval=0.05)
    for first in range(0, 200, 5):  # each five are a segment, or some
        publish(client, stream, 5, first=first)

    def log_start() -> int:
        return min((offset for _, offset in places(read(stream=stream, onDataLoss="skip"))), default=0)

    start = eventually(lambda: (found := log_start()) >= 190 and found, "retention removed all that it will")
    from_zero = {"stream": stream, "startingOffsets": f'{{"{stream}": {{"0": 0}}}}'}
    said = rf"\[DATA_LOST\] `{stream}`/0 was to be read from offset 0, but its log starts at {start}: {start} offsets are gone"
    with pytest.raises(PySparkException, match=said):
        read(**from_zero).collect()
    assert places(read(**from_zero, onDataLoss="skip")) == [(0, offset) for offset in range(start, 200)]


# ── tasks and filters ────────────────────────────────────────────────────────────────────────────


def test_a_partition_is_read_by_many_tasks(make_stream: MakeStream, read: Read) -> None:
    stream = make_stream(10, partitions=2)
    whole, split = read(stream=stream), read(stream=stream, minPartitions="3", maxRecordsPerPartition="4")
    assert (tasks(whole), tasks(split)) == (1, 6), "two small partitions are one task"
    alone = read(stream=stream, gatherRecordsPerTask="1")
    assert tasks(alone) == 2
    assert (
        places(split)
        == places(alone)
        == places(whole)
        == [(number, offset) for number in (0, 1) for offset in range(10)]
    )


PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["true", "false"])
def pushdown(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(PUSHDOWN_CONF)
    spark.conf.set(PUSHDOWN_CONF, request.param)
    yield
    spark.conf.set(PUSHDOWN_CONF, before or "false")


@pytest.mark.usefixtures("pushdown")
def test_a_filter_of_one_query_leaves_the_others_alone(make_stream: MakeStream, read: Read) -> None:
    """A reader that takes filters is planned with them, and Spark keeps the plan for all that is made of the same DataFrame."""
    frame = read(stream=make_stream(10, partitions=2))
    three, seven = frame.where("offset = 3"), frame.where("offset = 7 AND partition = 1")
    assert places(three.union(seven)) == [(0, 3), (1, 3), (1, 7)]
    assert places(frame) == [(number, offset) for number in (0, 1) for offset in range(10)]
    assert places(three) == [(0, 3), (1, 3)]


# ── other ways in ────────────────────────────────────────────────────────────────────────────────


def test_a_session_can_be_told(spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream(2)
    session = spark.newSession()
    register(session)
    assert session.read.format("bascule").option("servers", tables.address).load(stream).count() == 2
