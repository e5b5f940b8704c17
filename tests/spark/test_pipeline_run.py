"""Pipelines from a file: what goes in comes out of every sink, once, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bascule.client.blocking import BlockingClient
from bascule.flight.reader import FlightConnection
from bascule.lake.manifest import Archive
from bascule.lake.verification import Verification
from bascule.pipeline.progress import Progress
from bascule.pipeline.runner import Pipeline
from bascule.pipeline.spec import PipelineSpec, load
from tests.spark.conftest import MakeStream
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess


class Play:
    """A pipeline in a folder of its own, run as often as a test likes."""

    def __init__(self, spark: SparkSession, tables: BrokerProcess, client: BlockingClient, folder: Path) -> None:
        self.spark, self.client, self.folder = spark, client, folder
        self._servers = tables.address
        self.spec: PipelineSpec | None = None

    def write(self, text: str) -> PipelineSpec:
        path = self.folder / "pipeline.yaml"
        path.write_text(f"servers: {self._servers}\ncheckpoint: state\n{text}")
        self.spec = load(path, {})
        return self.spec

    def run(self, text: str | None = None, **options: Any) -> Progress:
        spec = self.write(text) if text is not None else self.spec
        assert spec is not None
        pipeline = Pipeline(options.pop("spark", self.spark), spec)
        pipeline.run(once=True)
        return self.progress

    @property
    def progress(self) -> Progress:
        return Progress.load(self.folder / "state/progress.json")

    def forget_last_commit(self) -> None:
        """What a driver leaves that died between a batch and Spark's note of it."""
        commits = self.folder / "state/spark/commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)

    def publish(self, stream: str, *values: Any, key: str | None = None, partition: int = 0) -> None:
        for value in values:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.client.publish(stream, data, key=None if key is None else key.encode(), partition=partition, ack="all")

    def messages(self, stream: str) -> list[dict[str, Any]]:
        table = self.spark.read.format("bascule").options(servers=self._servers, stream=stream).load()
        return [row.asDict() for row in table.orderBy("partition", "offset").collect()]

    def values(self, stream: str) -> list[Any]:
        return [json.loads(row["value"]) for row in self.messages(stream)]

    def table(self, name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.spark.read.parquet(str(self.folder / name)).collect()]


@pytest.fixture
def play(spark: SparkSession, tables: BrokerProcess, client: BlockingClient, tmp_path: Path) -> Play:
    return Play(spark, tables, client, tmp_path)


@pytest.fixture
def orders(make_stream: MakeStream, play: Play) -> str:
    """Two partitions with orders of amounts 0, 50, 100, 150 …, one value that is no order, and one without an amount."""
    stream = make_stream(0, partitions=2)
    for number in range(10):
        play.publish(stream, {"id": number, "amount": number * 50.0}, key=f"c{number % 3}", partition=number % 2)
    play.publish(stream, b"no JSON", partition=1)
    play.publish(stream, {"id": 99}, partition=0)
    return stream


TYPED = "value: {{format: json, schema: 'id BIGINT, amount DOUBLE'}}"


def test_rows_go_through_the_steps_into_every_sink_once(play: Play, orders: str, tables: BrokerProcess) -> None:
    big, dead = unique_name("big"), unique_name("dead")
    text = f"""
name: big-orders
source:
  stream: {orders}
  value: {{format: json, schema: "id BIGINT, amount DOUBLE"}}
steps:
  - expect: {{name: has-amount, rule: value.amount IS NOT NULL, otherwise: dead-letter}}
  - expect: {{name: is-positive, rule: value.amount > 0}}
  - where: value.amount > 100
  - key: value.id
  - select: {{key: key, id: value.id, amount: value.amount}}
sinks:
  - archive: lake
  - stream: {{stream: {big}, create: true}}
  - table: table
  - latest: {{path: latest, key: id}}
  - console
dlq: {{stream: {dead}}}
"""
    done = play.run(text)
    assert (done.read, done.rows, done.dead_letters) == (12, 7, 2)
    assert done.broken == {"decode": 1, "has-amount": 1, "is-positive": 1}
    wanted = [{"id": number, "amount": number * 50.0} for number in range(3, 10)]
    assert sorted(play.values(big), key=lambda row: row["id"]) == wanted
    assert {row["key"] for row in play.messages(big)} == {b"%d" % number for number in range(3, 10)}
    assert sorted(row["id"] for row in play.table("table")) == list(range(3, 10))
    letters = {row["value"]: row["headers"] for row in play.messages(dead)}
    assert letters.keys() == {b"no JSON", b'{"id": 99}'}
    said = {name: text.decode() for name, text in letters[b"no JSON"].items()}
    assert said.pop("dead-letter-reason")
    assert {name: text for name, text in said.items() if name.startswith("dead-letter")} == {
        "dead-letter-pipeline": "big-orders",
        "dead-letter-rule": "decode",
        "dead-letter-stream": orders,
        "dead-letter-partition": "1",
        "dead-letter-offset": "5",
    }
    with FlightConnection(tables.address) as connection:
        report = Verification(Archive(play.folder / "lake"), connection, lambda _: None).run()
    assert (report.is_equal, report.rows) == (True, 12)

    play.forget_last_commit()
    again = play.run()
    assert (again.read, again.rows, again.dead_letters, again.sinks) == (12, 7, 2, done.sinks)
    assert len(play.messages(big)) == 7
    assert len(play.messages(dead)) == 2
    assert len(play.table("table")) == 7

    play.publish(orders, {"id": 200, "amount": 1000.0})
    more = play.run()
    assert (more.read, more.rows) == (13, 8)
    assert [row["id"] for row in play.values(big)].count(200) == 1
    assert len(play.table("table")) == 8
