"""SQL over streams and archives: answered once, or running on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bascule.client.blocking import BlockingClient
from bascule.errors import CheckpointMismatch, InvalidQuery
from bascule.pipeline.jobs.archive import ArchiveOptions, run_archive
from bascule.pipeline.sql import Continuous, SqlOptions, SqlSession, cells, is_shuffled, write_stream
from tests.spark.conftest import MakeStream
from tests.spark.write.test_spark_sink import values
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess

Ask = Callable[..., list[list[Any]]]


@pytest.fixture
def session(spark: SparkSession, tables: BrokerProcess) -> Callable[..., SqlSession]:
    def make(query: str, **options: Any) -> SqlSession:
        return SqlSession(spark, SqlOptions(query=query, connection={"servers": tables.address}, **options))

    return make


@pytest.fixture
def ask(session: Callable[..., SqlSession]) -> Ask:
    return lambda query, **options: cells(session(query, **options).frame(), 100)[1]


def publish(client: BlockingClient, stream: str, *rows: Any) -> None:
    for row in rows:
        client.publish(stream, json.dumps(row).encode(), ack="all")


def test_streams_are_tables_with_values_of_their_types(
    ask: Ask, client: BlockingClient, make_stream: MakeStream
) -> None:
    stream, other = make_stream(name=unique_name("with-dashes")), make_stream(name=unique_name("names"))
    publish(client, stream, {"id": 1, "item": "tea"}, {"id": 2, "item": "milk"}, {"id": 3, "item": "tea"})
    publish(client, other, {"item": "tea", "name": "Tea"})
    found = ask(
        f"SELECT n.value.name, count(*) FROM `{stream}` s JOIN `{other}` n ON s.value.item = n.value.item GROUP BY 1",
        values={stream: ("json", "id BIGINT, item STRING"), other: ("json", "item STRING, name STRING")},
    )
    assert found == [["Tea", 2]]


def test_an_archive_and_the_log_behind_it_are_one_table(
    ask: Ask,
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    tmp_path: Path,
) -> None:
    stream = make_stream(20, name=unique_name("archived"))
    lake = str(tmp_path / "lake")
    run_archive(spark, ArchiveOptions(streams=(stream,), path=lake, servers=tables.address), once=True)
    client.publish(stream, b"one more", ack="all")
    query = f"SELECT count(*), count(DISTINCT offset), max(CAST(value AS STRING)) FROM `{stream}`"
    assert ask(query, archives={stream: lake}) == [[21, 21, "one more"]]
    assert ask("SELECT count(*) FROM history", archives={"history": lake}) == [[20]]


def test_what_is_wrong_with_a_query_is_said_in_a_sentence(ask: Ask, make_stream: MakeStream) -> None:
    stream = make_stream(1, name=unique_name("wrong"))
    with pytest.raises(InvalidQuery, match="there is no stream or archive"):
        ask("SELECT * FROM no_such_stream")
    with pytest.raises(InvalidQuery, match="`itm`") as caught:
        ask(f"SELECT itm FROM `{stream}`")
    assert "`key`" in str(caught.value.hint)


def test_windows_run_on_into_a_stream_and_a_replay_adds_nothing(
    session: Callable[..., SqlSession], ask: Ask, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream, counts = make_stream(name=unique_name("clicks")), make_stream(name=unique_name("counts"))
    publish(client, stream, *({"page": page} for page in ("a", "b", "a")))
    # A window that does not end while this runs: it began in 2024.
    query = f"SELECT value.page, count(*) AS n FROM `{stream}` GROUP BY window(timestamp, '10000 days'), value.page"
    options = {"values": {stream: ("json", "page STRING")}, "watermarks_ns": {stream: 10**9}}
    target = Continuous(checkpoint=str(tmp_path / "state"), stream=counts, output_mode="update")

    def run() -> list[dict[str, Any]]:
        session(query, **options).start(target, once=True).awaitTermination()
        return sorted((json.loads(row[0]) for row in ask(f"SELECT value FROM `{counts}`")), key=str)

    assert run() == [{"page": "a", "n": 2}, {"page": "b", "n": 1}]
    commits = tmp_path / "state/spark/commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink(missing_ok=True)
    publish(client, stream, {"page": "a"})
    assert run() == [{"page": "a", "n": 2}, {"page": "a", "n": 3}, {"page": "b", "n": 1}]
    with pytest.raises(CheckpointMismatch, match="another query"):
        session(query.replace("10000", "20000"), **options).start(target, once=True)


def test_tasks_of_an_answer_that_run_again_add_nothing(
    session: Callable[..., SqlSession], tables: BrokerProcess, client: BlockingClient, make_stream: MakeStream
) -> None:
    """As Spark runs a task again whose worker has died; another run is another answer."""
    stream, answers = make_stream(30, partitions=2, name=unique_name("asked")), make_stream(name=unique_name("answers"))
    frame = session(f"SELECT value, key FROM `{stream}` WHERE offset < 20").frame()
    for run_id, copies in (("first", 1), ("first", 1), (None, 2)):
        write_stream(frame, {"servers": tables.address}, answers, create=False, run_id=run_id)
        found = Counter(values(client, answers))
        assert found == {b"%d/%d" % (part, number): copies for part in range(2) for number in range(20)}


def test_queries_whose_rows_have_no_order_of_their_own_are_told_from_others(
    session: Callable[..., SqlSession], make_stream: MakeStream
) -> None:
    stream = make_stream(1, name=unique_name("plans"))

    def plan(query: str) -> bool:
        return is_shuffled(session(query.format(f"`{stream}`")).frame())

    assert not plan("SELECT value, upper(CAST(key AS STRING)) AS key FROM {} WHERE offset > 3")
    for query in (
        "SELECT value FROM {} LIMIT 3",
        "SELECT value FROM {} ORDER BY offset",
        "SELECT value FROM {0} EXCEPT SELECT key FROM {0}",
        "SELECT DISTINCT value FROM {}",
        "SELECT /*+ REPARTITION(3) */ value FROM {}",
    ):
        assert plan(query), query


def test_a_query_that_runs_on_writes_a_table(
    session: Callable[..., SqlSession], spark: SparkSession, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream = make_stream(10, name=unique_name("rows"))
    table = str(tmp_path / "table")
    target = Continuous(checkpoint=f"{table}/_bascule/checkpoint", path=table)
    query = f"SELECT offset, CAST(value AS STRING) AS text FROM `{stream}` WHERE offset % 2 = 0"
    for _ in range(2):
        session(query).start(target, once=True).awaitTermination()
    assert sorted(row["offset"] for row in spark.read.parquet(table).collect()) == [0, 2, 4, 6, 8]


def test_an_aggregate_without_a_watermark_is_refused_with_what_to_do(
    session: Callable[..., SqlSession], make_stream: MakeStream, tmp_path: Path
) -> None:
    stream = make_stream(1, name=unique_name("unbounded"))
    target = Continuous(checkpoint=str(tmp_path / "state"), stream=stream)
    with pytest.raises(InvalidQuery) as caught:
        session(f"SELECT stream, count(*) FROM `{stream}` GROUP BY stream").start(target)
    assert "--watermark" in str(caught.value.hint)


@pytest.mark.soak
def test_streams_are_joined_while_they_come(
    session: Callable[..., SqlSession], ask: Ask, client: BlockingClient, make_stream: MakeStream, tmp_path: Path
) -> None:
    orders, payments = make_stream(name=unique_name("orders")), make_stream(name=unique_name("payments"))
    paid = unique_name("paid")
    query = f"""
        SELECT o.value.id AS key, o.value.item, p.value.amount FROM `{orders}` o JOIN `{payments}` p
        ON o.value.id = p.value.id AND p.timestamp BETWEEN o.timestamp AND o.timestamp + INTERVAL 1 HOUR"""
    options = {
        "values": {orders: ("json", "id BIGINT, item STRING"), payments: ("json", "id BIGINT, amount DOUBLE")},
        "watermarks_ns": {orders: 10**9, payments: 10**9},
    }
    target = Continuous(checkpoint=str(tmp_path / "state"), stream=paid, create=True)

    def run() -> list[Any]:
        session(query, **options).start(target, once=True).awaitTermination()
        return sorted(json.loads(row[0])["item"] for row in ask(f"SELECT value FROM `{paid}`"))

    publish(client, orders, {"id": 1, "item": "tea"}, {"id": 2, "item": "milk"})
    publish(client, payments, {"id": 1, "amount": 2.5})
    assert run() == ["tea"]
    publish(client, payments, {"id": 2, "amount": 1.5})
    assert run() == ["milk", "tea"]


@pytest.mark.soak
def test_rows_of_a_query_without_a_shuffle_keep_their_order(
    session: Callable[..., SqlSession], ask: Ask, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream, copy = make_stream(50, name=unique_name("ordered")), make_stream(name=unique_name("copied"))
    target = Continuous(checkpoint=str(tmp_path / "state"), stream=copy)
    session(f"SELECT value FROM `{stream}` WHERE offset >= 10").start(target, once=True).awaitTermination()
    found = ask(f"SELECT CAST(value AS STRING) FROM `{copy}` ORDER BY offset")
    assert [row[0] for row in found] == [f"0/{number}" for number in range(10, 50)]
