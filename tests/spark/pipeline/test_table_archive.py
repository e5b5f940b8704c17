"""Streams into tables of Spark's catalog. There is no jar of Delta or Iceberg here: Spark's own Parquet tables stand in for them, which
is enough for what decides which rows are appended. That a jar is missing is said of the real formats."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bascule.client.blocking import BlockingClient
from bascule.errors import CallerError, InvalidOption, MissingExtra, StreamRecreated
from bascule.lake.tables import DELTA, ICEBERG, TableFormat
from bascule.pipeline.jobs.archive import ArchiveOptions
from bascule.pipeline.jobs.table_archive import AppendedBatch, TableArchive, require_format, run_table_archive
from tests.spark.conftest import MakeStream, publish
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess

STAND_IN = TableFormat("parquet")


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    name = unique_name("messages").replace("-", "_")
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def run(spark: SparkSession, tables: BrokerProcess, notes: Path, table: str, *streams: str) -> list[AppendedBatch]:
    appended: list[AppendedBatch] = []
    options = ArchiveOptions(path=str(notes), streams=streams, servers=tables.address)
    run_table_archive(TableArchive(spark, options, table, STAND_IN, appended.append), once=True)
    return appended


def rows(spark: SparkSession, table: str) -> list[Any]:
    found = spark.sql(f"SELECT partition, offset, count(*) FROM {table} GROUP BY ALL ORDER BY ALL").collect()
    assert all(row[2] == 1 for row in found)
    return [(row[0], row[1]) for row in found]


def test_each_message_once_whatever_comes_again(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bascule.pipeline.jobs.archive.CURSOR_SECONDS_MAX", 60.0)  # a busy machine takes longer
    stream = make_stream(30, partitions=2)
    notes = tmp_path / "notes"
    assert [one.rows for one in run(spark, tables, notes, table, stream)] == [60]
    publish(client, stream, 5, partition=1, first=30)
    committed = notes / "_bascule/checkpoint/commits"
    last = max(int(path.name) for path in committed.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):  # as if the driver had died before Spark noted the batch
        (committed / name).unlink()
    assert [one.rows for one in run(spark, tables, notes, table, stream)] == [5]
    shutil.rmtree(notes)  # everything comes again, in batches that are cut otherwise
    assert run(spark, tables, notes, table, stream) == []
    assert rows(spark, table) == [(0, at) for at in range(30)] + [(1, at) for at in range(35)]
    first = spark.sql(f"SELECT * FROM {table} ORDER BY partition, offset LIMIT 1").collect()[0]
    assert (bytes(first.value), first.stream, first["streamId"] > 0) == (b"0/0", stream, True)
    day, moment_us = spark.sql(f"SELECT date, unix_micros(timestamp) FROM {table} LIMIT 1").collect()[0]
    assert day == datetime.fromtimestamp(moment_us / 1e6, UTC).date()
    assert client.fetch_cursor("archive:notes", stream, 1) == 34


def test_a_stream_that_was_created_again_is_refused(
    spark: SparkSession,
    tables: BrokerProcess,
    client: BlockingClient,
    make_stream: MakeStream,
    table: str,
    tmp_path: Path,
) -> None:
    stream = make_stream(10)
    run(spark, tables, tmp_path / "notes", table, stream)
    client.delete_stream(stream)
    client.create_stream(stream, f"subject.{stream}")
    publish(client, stream, 20)
    with pytest.raises(StreamRecreated, match=table):
        run(spark, tables, tmp_path / "others", table, stream)
    assert len(rows(spark, table)) == 10


@pytest.mark.parametrize(
    ("table_format", "coordinates"),
    [(DELTA, "io.delta:delta-spark_2.13:VERSION"), (ICEBERG, "org.apache.iceberg:iceberg-spark-runtime-")],
)
def test_a_jar_that_is_missing_is_named_before_anything_runs(
    spark: SparkSession, tables: BrokerProcess, tmp_path: Path, table_format: TableFormat, coordinates: str
) -> None:
    with pytest.raises(MissingExtra, match=f"format `{table_format.name}`") as caught:
        require_format(spark, table_format)
    assert f"--packages {coordinates}" in str(caught.value.hint)
    options = ArchiveOptions(path=str(tmp_path / "notes"), streams=("never-was",), servers=tables.address)
    with pytest.raises(MissingExtra):
        TableArchive(spark, options, "orders", table_format).open()
    assert not (tmp_path / "notes").exists()


def test_names_and_folders_that_cannot_be_are_refused(
    spark: SparkSession, tables: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    options = ArchiveOptions(path=str(tmp_path / "notes"), streams=(make_stream(1),), servers=tables.address)
    with pytest.raises(InvalidOption, match="`table` is `a; DROP TABLE b`"):
        TableArchive(spark, options, "a; DROP TABLE b", STAND_IN)
    (tmp_path / "notes/_bascule").mkdir(parents=True)
    (tmp_path / "notes/_bascule/archive.json").write_text('{"format": 1}')
    with pytest.raises(CallerError, match="is an archive of Parquet"):
        TableArchive(spark, options, "orders", STAND_IN).open()
