"""Pipelines from a file: what goes in comes out of every sink, once, whatever happens in between."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bascule.client.arrow.reader import FlightConnection
from bascule.client.blocking import BlockingClient
from bascule.errors import (
    CheckpointMismatch,
    ExpectationBroken,
    MalformedValue,
    PipelineFailed,
    StreamNotFound,
)
from bascule.lake.archive import Archive
from bascule.lake.verification import Verification
from bascule.pipeline.checks import look_around, look_with_spark, must_run
from bascule.pipeline.progress import PipelineProgress
from bascule.pipeline.runner import Pipeline
from bascule.pipeline.sinks.table import TableBatches
from bascule.pipeline.spec.pipeline import PipelineSpec, load
from bascule.pipeline.status import pipeline_status
from tests.cli.command_line import run as run_command
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

    def run(self, text: str | None = None, **options: Any) -> PipelineProgress:
        spec = self.write(text) if text is not None else self.spec
        assert spec is not None
        pipeline = Pipeline(options.pop("spark", self.spark), spec)
        pipeline.run(once=True)
        return self.progress

    @property
    def progress(self) -> PipelineProgress:
        return PipelineProgress.load(self.folder / "state/progress.json")

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
    play.publish(orders, {"id": 200, "amount": 1000.0})
    again = play.run()  # the batch that was done, and then one with what is new
    assert (again.read, again.rows, again.dead_letters, again.batches) == (13, 8, 2, 2)
    assert sorted(row["id"] for row in play.values(big)) == [*range(3, 10), 200]
    assert sorted(row["id"] for row in play.table("table")) == [*range(3, 10), 200]
    assert len(play.messages(dead)) == 2


def test_duplicates_are_dropped_and_the_archive_has_them_all(play: Play, make_stream: MakeStream) -> None:
    stream, unique = make_stream(0, partitions=2), unique_name("unique")
    text = f"""
name: dedup
source: {{stream: {stream}, value: {{format: json, schema: id BIGINT}}}}
steps:
  - expect: {{name: small, rule: 'coalesce(value.id, 0) < 100', otherwise: dead-letter}}
  - dedup: {{key: value.id, within: 1h}}
  - where: coalesce(value.id, 0) <> 3
sinks:
  - archive: lake
  - stream: {{stream: {unique}, create: true}}
dlq: {{path: dead}}
"""
    play.publish(stream, *({"id": number} for number in (1, 2, 1, 3)), partition=0)
    play.publish(stream, {"id": 2}, {"id": 100}, {}, {}, partition=1)
    done = play.run(text)
    assert (done.read, done.rows, done.dead_letters) == (8, 4, 1)
    assert sorted(row.get("id", 0) for row in play.values(unique)) == [0, 0, 1, 2]
    play.forget_last_commit()
    play.publish(stream, {"id": 2}, {"id": 4}, partition=0)
    done = play.run()
    assert sorted(row.get("id", 0) for row in play.values(unique)) == [0, 0, 1, 2, 4]
    assert (done.read, done.dead_letters) == (10, 1)
    assert Archive(play.folder / "lake").state().rows == 10
    assert {(row["rule"], row["offset"]) for row in play.table("dead")} == {("small", 1)}

    other = (play.folder / "pipeline.yaml").read_text().partition("\n")[2].partition("\n")[2]
    with pytest.raises(CheckpointMismatch, match="`dedup` of `dedup` was changed"):
        play.run(other.replace("within: 1h", "within: 2h"))


def test_rows_that_are_too_late_for_dedup_are_counted_and_warned_of(play: Play, make_stream: MakeStream) -> None:
    """The first batch has the newest message of all, so that what the other partition has beyond its first one is late."""
    stream = make_stream(0, partitions=2)
    play.publish(stream, *({"id": number} for number in range(5)), partition=0)
    time.sleep(0.05)  # ten times `within`
    play.publish(stream, {"id": 5}, partition=1)
    spec = play.write(
        f"""
name: late
source: {{stream: {stream}, value: {{format: json, schema: id BIGINT}}, options: {{maxOffsetsPerTrigger: 2}}}}
steps: [dedup: {{key: value.id, within: 5ms}}]
sinks: [archive: lake, table: table]
"""
    )
    warnings: list[str] = []
    Pipeline(play.spark, spec, warn=warnings.append).run(once=True)
    done = play.progress
    assert done.read == 6
    assert done.late == 6 - done.rows > 1, "no key came twice"
    assert pipeline_status(spec)["late"] == done.late
    said = run_command("pipeline", "status", str(play.folder / "pipeline.yaml"), home=play.folder).out
    assert re.search(rf"Too late\s+{done.late}\b", said), said
    assert len(warnings) == 1 and "`within` (5ms)" in warnings[0]


def test_a_batch_that_died_between_two_sinks_is_in_each_once(
    play: Play, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = unique_name("sums")
    text = f"""
name: sums
source: {{stream: {orders}, value: {{format: json, schema: "id BIGINT, amount DOUBLE", mode: permissive}}}}
steps:
  - expect: {{name: decoded, rule: value IS NOT NULL, otherwise: drop}}
  - sql: SELECT key, count(*) AS n, collect_set(value.id) AS ids FROM input GROUP BY key
sinks:
  - stream: {{stream: {sums}, create: true}}
  - table: {{path: table, partition_by: n}}
"""
    write = TableBatches.write

    def die(*_: Any) -> int:
        raise RuntimeError("killed")

    monkeypatch.setattr(TableBatches, "write", die)
    with pytest.raises(PipelineFailed, match="killed"):
        play.run(text)
    assert (len(play.messages(sums)), play.progress.batches) == (4, 0)
    monkeypatch.setattr(TableBatches, "write", write)
    done = play.run()
    assert (done.read, done.rows, done.broken) == (12, 4, {"decoded": 1})
    assert sorted((row["key"] or b"", row["n"]) for row in play.table("table")) == [
        (b"", 1),
        (b"c0", 4),
        (b"c1", 3),
        (b"c2", 3),
    ]
    assert sorted(row["n"] for row in play.values(sums)) == [1, 3, 3, 4]

    (play.folder / "state").rename(play.folder / "lost")
    with pytest.raises(CheckpointMismatch, match="with another checkpoint"):
        play.run()


def test_a_rule_that_must_hold_stops_a_batch_before_anything_is_written(play: Play, orders: str) -> None:
    text = f"""
name: strict
source: {{stream: {orders}}}
steps:
  - expect: {{name: is-json, rule: "CAST(value AS STRING) LIKE '{{%'", otherwise: fail}}
sinks: [table: table]
"""
    with pytest.raises(ExpectationBroken, match=f"`is-json` is broken by 1 rows, such as `{orders}`/1 at offset 5"):
        play.run(text)
    assert [path.name for path in (play.folder / "table").iterdir()] == ["_bascule"]
    typed = text.replace(f"{{stream: {orders}}}", f"{{stream: {orders}, value: {{format: json, schema: id BIGINT}}}}")
    with pytest.raises(MalformedValue, match=f"`{orders}`/1 at offset 5 cannot be decoded"):
        play.run(typed.replace("CAST(value AS STRING) LIKE '{%'", "true"))


def test_what_is_wrong_is_found_before_anything_runs(play: Play, orders: str) -> None:
    base = (
        f"name: wrong\nsource: {{stream: {orders}, value: {{format: json, schema: id BIGINT}}}}\ndlq: {{path: dead}}\n"
    )

    def found(more: str) -> dict[str, str]:
        spec = play.write(base + more)
        findings = [*look_around(spec), *look_with_spark(spec, play.spark)]
        return {
            one.name: f"{one.text} {one.error.hint if one.error else ''}"
            for one in findings
            if one.error or one.is_warning
        }

    assert "1 of the 12 newest messages cannot be decoded" in found("sinks: [table: t]\n")["value"]
    assert "`itm`" in found("sinks: [table: t]\nsteps: [where: value.itm > 1]\n")["steps[1]"]
    assert "no condition" in found("sinks: [table: t]\nsteps: [{expect: {name: a, rule: value.id}}]\n")["steps[1]"]
    assert "two columns" in found("sinks: [table: t]\nsteps: [select: [key, key]]\n")["sinks[1]"]
    assert "`partition_by`" in found("sinks: [table: {path: t, partition_by: day}]\n")["sinks[1]"]
    assert "create: true" in found("sinks: [stream: nowhere-to-go]\n")["sink"]
    (play.folder / "full").mkdir()
    (play.folder / "full/file").touch()
    assert "not empty" in found("sinks: [table: full]\n")["sink"]
    gone = play.write(base.replace(orders, "never-was") + "sinks: [console]\n")
    with pytest.raises(StreamNotFound, match="never-was"):
        must_run(look_around(gone))
    assert not (play.folder / "state").exists()


CONNECTED = """
name: connected
source: {{stream: {orders}, value: {{format: json, schema: "id BIGINT, amount DOUBLE"}}}}
steps:
  - expect: {{name: has-amount, rule: value.amount IS NOT NULL, otherwise: {otherwise}}}
  - where: value.amount > 100
  - select: {{key: key, id: value.id}}
sinks: [{{table: table}}, {{archive: lake}}]
dlq: {{path: dead}}
"""


def test_with_spark_connect_batches_are_written_at_the_server(play: Play, orders: str, connect_spark: Any) -> None:
    text = CONNECTED.format(orders=orders, otherwise="dead-letter")
    done = play.run(text, spark=connect_spark)
    assert (done.read, done.rows, done.dead_letters) == (12, 7, 2)
    assert sorted(row["id"] for row in play.table("table")) == list(range(3, 10))
    assert Archive(play.folder / "lake").state().rows == 12


@pytest.mark.soak
def test_with_spark_connect_a_batch_that_comes_again_is_known(play: Play, orders: str, connect_spark: Any) -> None:
    big, dead = unique_name("big"), unique_name("dead")
    text = CONNECTED.format(orders=orders, otherwise="dead-letter").replace("path: dead", f"stream: {dead}")
    text = text.replace("{archive: lake}", f"{{latest: latest}}, {{stream: {{stream: {big}, create: true}}}}")
    text = text.replace("  - where: value.amount > 100", "  - dedup: {key: value.id % 5, within: 1h}")
    for _ in range(2):
        play.run(text, spark=connect_spark)
        assert len(play.values(big)) == len(play.table("table")) == 5
        assert len(play.messages(dead)) == 2
        play.forget_last_commit()
    play.run(spark=connect_spark)
    play.publish(orders, {"id": 1000})
    with pytest.raises(ExpectationBroken, match="`has-amount` is broken by 1 rows"):
        play.run(text.replace("otherwise: dead-letter", "otherwise: fail"), spark=connect_spark)
