"""Windows, joins, functions and routes of pipelines from a file, on a real Spark and broker, across batches and restarts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bascule.client.blocking import BlockingClient
from bascule.errors import CheckpointMismatch, ExpectationBroken, InvalidConfig, PipelineFailed
from bascule.lake.archive import Archive
from bascule.pipeline.checks import look_with_spark, must_run
from bascule.pipeline.sinks.table import TableBatches
from bascule.pipeline.status import pipeline_status
from tests.spark.conftest import MakeStream
from tests.spark.pipeline.test_pipeline_run import Play
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


SUMS = """
name: sums
source:
  stream: {orders}
  value: {{format: json, schema: "id BIGINT, customer STRING, at TIMESTAMP"}}
  time: {{from: value.at, watermark: 10s}}
steps:
  - join:
      stream: {payments}
      as: paid
      value: {{format: json, schema: "order BIGINT, cents BIGINT, at TIMESTAMP"}}
      time: {{from: value.at, watermark: 10s}}
      on: value.id = paid.value.order AND '{{' <> '}}'
      after: 5s
  - window: {{size: 20s, by: {{customer: value.customer}}, aggregates: {{cents: sum(paid.value.cents)}}}}
sinks: [table: table]
"""


@pytest.fixture
def play(spark: SparkSession, tables: BrokerProcess, client: BlockingClient, tmp_path: Path) -> Play:
    return Play(spark, tables, client, tmp_path)


def at(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def click(page: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"page": page, "at": at(seconds), **more}


def second(moment: datetime) -> float:
    return (moment.replace(tzinfo=UTC) - BEGIN).total_seconds()


WINDOWED = """
name: views
source:
  stream: {stream}
  value: {{format: json, schema: "page STRING, at STRING, n BIGINT"}}
  time: {{from: value.at, watermark: 10s}}
steps:
  - expect: {{name: has-page, rule: value.page IS NOT NULL, otherwise: dead-letter}}
  - window:
      size: 60s
      by: {{page: value.page}}
      aggregates: {{views: count(*), total: sum(value.n)}}
      late: dead-letter
  - where: views > 0
  - key: page
sinks: [{{archive: lake}}, {{table: table}}, {{stream: {{stream: {out}, create: true, compact: true}}}}]
dlq: {{path: dead}}
"""


def windows(play: Play) -> list[tuple[float, str, int, int]]:
    rows = play.table("table")
    return sorted((second(row["window_start"]), row["page"], row["views"], row["total"]) for row in rows)


def test_windows_are_counted_across_batches_restarts_and_repeats_and_late_rows_are_dead_letters(
    play: Play, make_stream: MakeStream, client: BlockingClient
) -> None:
    stream, out = make_stream(0, partitions=2), unique_name("views")
    text = WINDOWED.format(stream=stream, out=out)
    play.publish(stream, click("a", 0, n=1), click("a", 30, n=2), b"no JSON", partition=0)
    play.publish(stream, click("b", 5, n=3), {"page": "a"}, {"page": "a", "at": "yesterday"}, partition=1)
    done = play.run(text)
    assert (done.read, done.dead_letters, done.late) == (6, 3, 0)
    assert done.broken == {"decode": 1, "event-time": 2, "has-page": 0, f"{out}.key": 0}

    play.publish(
        stream, click("a", 40, n=4), {"at": at(41)}, partition=1
    )  # the same window, in the batch of another run
    play.publish(stream, click("c", 100, n=5), partition=0)
    done = play.run()
    assert windows(play) == [(0, "a", 3, 7), (0, "b", 1, 3)], "complete at 100 s less the watermark"
    play.forget_last_commit()
    assert windows(play) == [(0, "a", 3, 7), (0, "b", 1, 3)]

    play.publish(stream, click("a", 50, n=100), click("a", 55, n=100), click("d", 89, n=6), partition=0)
    play.publish(stream, click("e", 1_000, n=7), partition=1)
    done = play.run()
    assert windows(play) == [(0, "a", 3, 7), (0, "b", 1, 3), (60, "c", 1, 5), (60, "d", 1, 6)]
    assert done.late == 2, "both rows of one group"
    assert play.spec is not None
    assert pipeline_status(play.spec)["late"] == 2
    letters = [(row["rule"], row["value"]) for row in play.table("dead")]
    assert sorted(rule for rule, _ in letters) == ["decode", "event-time", "event-time", "has-page", "late", "late"]
    assert {json.loads(value)["n"] for rule, value in letters if rule == "late"} == {100}
    assert sorted(play.values(out), key=lambda row: row["total"])[-1]["total"] == 7
    assert len(play.values(out)) == 4
    settings = client.fetch_metadata([out]).streams[out].settings
    assert settings is not None and settings.compact
    assert Archive(play.folder / "lake").state().rows == done.read == 13

    changed = (play.folder / "pipeline.yaml").read_text().partition("\n")[2].partition("\n")[2]
    with pytest.raises(CheckpointMismatch, match="`window` of `views` was changed"):
        play.run(changed.replace("size: 60s", "size: 30s"))


def test_a_session_goes_on_in_the_next_batch(play: Play, make_stream: MakeStream) -> None:
    stream = make_stream(0)
    text = f"""
name: sessions
source:
  stream: {stream}
  value: {{format: json, schema: "page STRING, at TIMESTAMP"}}
  time: {{from: value.at, watermark: 10s}}
  options: {{maxOffsetsPerTrigger: 1}}
steps: [window: {{session: 30s, by: [value.page], aggregates: {{views: count(*)}}}}]
sinks: [table: table]
"""
    times = [0, 25, 50, 200, 210, 1, 400]  # one batch each; the one at 1 s is late
    play.publish(stream, *(click("a", moment) for moment in times))
    done = play.run(text)
    rows = play.table("table")
    found = sorted((second(row["window_start"]), second(row["window_end"]), row["page"], row["views"]) for row in rows)
    assert found == [(0, 80, "a", 3), (200, 240, "a", 2)]
    assert (done.read, done.late) == (7, 1)


JOINED = """
name: paid
source:
  stream: {orders}
  value: {{format: json, schema: "id BIGINT, customer STRING, at TIMESTAMP"}}
  time: {{from: value.at, watermark: 10s}}
tables:
  - csv: {{name: customers, path: customers.csv, schema: "id STRING, name STRING"}}
  - parquet: {{name: prices, path: prices.parquet}}
  - delta: {{name: levels, path: levels}}
  - jdbc: {{name: limits, url: "jdbc:derby:{folder}/db", table: LIMITS}}
steps:
  - join: {{table: customers, on: value.customer = customers.id, kind: left}}
  - join:
      stream: {payments}
      as: paid
      value: {{format: json, schema: "order BIGINT, cents BIGINT, at TIMESTAMP"}}
      time: {{from: value.at, watermark: 10s}}
      on: value.id = paid.value.order
      after: 60s
      kind: left
  - join: {{table: prices, on: value.id = prices.id, kind: left}}
  - join: {{table: levels, on: value.id = levels.id, kind: left}}
  - join: {{table: limits, on: value.id = limits.id, kind: left}}
  - select:
      key: value.id
      id: value.id
      name: customers.name
      cents: paid.value.cents
      found: struct(prices.price, levels.level, limits.most)
  - expect: {{name: is-paid, rule: cents IS NOT NULL, otherwise: dead-letter}}
sinks:
  - table: {{path: cheap, when: cents < 100}}
  - table: {{path: dear, when: cents >= 100 AND cents < 1000}}
  - table: {{path: rest, when: otherwise}}
  - stream: {{stream: {out}, create: true}}
dlq: {{stream: {dead}}}
"""


def test_streams_and_tables_are_joined_and_rows_go_where_their_condition_holds(
    play: Play, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake

    orders, payments, out, dead = (
        make_stream(0),
        make_stream(0, name=unique_name("pay")),
        unique_name("o"),
        unique_name("d"),
    )
    (play.folder / "customers.csv").write_text("id,name\nx,Ann\ny,Bob\n")
    pq.write_table(pa.table({"id": [1, 2], "price": [10, 20]}), play.folder / "prices.parquet")
    deltalake.write_deltalake(str(play.folder / "levels"), pa.table({"id": [1, 3], "level": ["gold", "tin"]}))
    java: Any = play.spark.sparkContext._jvm
    java.System.setProperty("derby.stream.error.file", str(play.folder / "derby.log"))
    limits = play.spark.createDataFrame([(1, 5)], "id INT, most INT")
    derby = {"url": f"jdbc:derby:{play.folder}/db;create=true", "dbtable": "LIMITS"}
    limits.write.format("jdbc").options(**derby).save()
    text = JOINED.format(orders=orders, payments=payments, out=out, dead=dead, folder=play.folder)
    order = [{"id": number, "customer": "xyz"[number % 3], "at": at(number)} for number in range(1, 6)]
    pay = [
        (1, 50, 2),
        (2, 500, 3),
        (3, 5_000, 4),
        (4, 70, 90),
    ]  # the last one comes later than the order by more than `after`
    play.publish(orders, *order[:3])
    play.publish(
        payments, *({"order": number, "cents": cents, "at": at(when)} for number, cents, when in pay[:1]), b"no JSON"
    )
    spec = play.write(text)
    (warning,) = must_run(look_with_spark(spec, play.spark))
    assert warning.startswith(f"value of {payments}: 1 of the 2 newest messages cannot be decoded")
    done = play.run(text)
    assert (done.read, done.dead_letters, done.broken[f"{payments}.decode"]) == (5, 1, 1)
    assert [(row["id"], row["name"], tuple(row["found"])) for row in play.table("cheap")] == [
        (1, "Bob", (10, "gold", 5))
    ]

    play.publish(orders, *order[3:], {"id": 100, "customer": "x", "at": at(1_000)})
    play.publish(payments, *({"order": number, "cents": cents, "at": at(when)} for number, cents, when in pay[1:]))
    play.publish(payments, {"order": 999, "cents": 1, "at": at(1_000)})
    original = TableBatches.write

    def die(self: TableBatches, batch: Any) -> int:
        if self.path.name == "rest":
            raise RuntimeError("killed")
        return original(self, batch)

    monkeypatch.setattr(TableBatches, "write", die)
    with pytest.raises(PipelineFailed, match="killed"):
        play.run()
    monkeypatch.setattr(TableBatches, "write", original)
    (play.folder / "customers.csv").write_text("id,name\nx,Zoe\ny,Zoe\n")  # a repeated batch must not see it
    done = play.run()
    found = {name: sorted((row["id"], row["name"]) for row in play.table(name)) for name in ("cheap", "dear", "rest")}
    assert found == {"cheap": [(1, "Bob")], "dear": [(2, None)], "rest": [(3, "Ann")]}
    assert sorted(row["id"] for row in play.values(out)) == [1, 2, 3]
    letters = {
        json.loads(row["value"])["id"]
        for row in play.messages(dead)
        if row["headers"]["dead-letter-rule"] == b"is-paid"
    }
    assert letters == {4, 5}, "their message, once no payment can come any more"
    assert set(pipeline_status(spec)["streams"]) == {orders, payments}
    play.publish(orders, {"id": 101, "customer": "x", "at": at(1_001)})
    play.publish(payments, {"order": 101, "cents": 1, "at": at(1_002)})
    play.run()
    assert "Zoe" in {row["name"] for row in play.table("cheap")}, "a new run reads tables again"


def joined_streams(play: Play, make_stream: MakeStream) -> str:
    """A pipeline that adds up payments of orders, with two windows that are complete and one that is not."""
    orders, payments = make_stream(0), make_stream(0, name=unique_name("pay"))
    for number in (1, 2, 30, 10_000):
        play.publish(orders, {"id": number, "customer": "x", "at": at(number)})
        play.publish(payments, {"order": number, "cents": number * 10, "at": at(number + 1)})
    return SUMS.format(orders=orders, payments=payments)


def test_windows_aggregate_joined_streams(play: Play, make_stream: MakeStream) -> None:
    """With all default settings of Spark 4.3, planning this failed."""
    done = play.run(joined_streams(play, make_stream))
    assert sorted((second(row["window_start"]), row["cents"]) for row in play.table("table")) == [(0, 30), (20, 300)]
    assert (done.read, done.rows) == (8, 2)


@pytest.mark.soak
def test_spark_connect_aggregates_joined_streams_and_refuses_tables_in_its_plan(
    play: Play, make_stream: MakeStream, connect_spark: Any
) -> None:
    text = joined_streams(play, make_stream)
    play.run(text, spark=connect_spark)
    assert sorted(row["cents"] for row in play.table("table")) == [30, 300]
    (play.folder / "c.csv").write_text("id\nx\n")
    tables = "tables: [csv: {name: c, path: c.csv, schema: id STRING}]\n"
    behind = text.replace("sinks:", "  - join: {table: c, on: customer = c.id}\nsinks:")
    (play.folder / "state").rename(play.folder / "old")
    play.run((tables + behind).replace("[table: table]", "[table: named]"), spark=connect_spark)
    assert [row["c"]["id"] for row in play.table("named")] == ["x", "x"]
    before = text.replace("steps:\n", "steps:\n  - join: {table: c, on: value.customer = c.id}\n")
    with pytest.raises(InvalidConfig, match="which Spark Connect cannot run"):
        play.run(tables + before.replace("name: sums", "name: other"), spark=connect_spark)


FUNCTIONS = """
import pyarrow as pa
import pyarrow.compute as pc

def risk(amount: float, country: str | None) -> float:
    if country == "??":
        raise ValueError(f"no country: {country}")
    return amount / 100

def twice(amount: pa.Array) -> pa.Array:
    if pc.any(pc.equal(amount, 300.0)).as_py():
        raise ValueError("three hundred")
    return pc.multiply(amount, 2)

def strict(amount: int) -> float:
    return 1.0
"""


def test_functions_are_columns_and_rows_they_fail_for_are_dead_letters(play: Play, make_stream: MakeStream) -> None:
    stream = make_stream(0)
    module = unique_name("shop").replace("-", "_")
    (play.folder / f"{module}.py").write_text(FUNCTIONS)
    values = [{"id": n, "amount": n * 100.0, "country": "??" if n == 2 else "de"} for n in range(6)]
    play.publish(stream, *values)
    base = f"""
name: scored
source: {{stream: {stream}, value: {{format: json, schema: "id BIGINT, amount DOUBLE, country STRING"}}}}
steps:
  - python: {{function: "{module}:risk", with: [value.amount, value.country], into: risk}}
  - python: {{function: "{module}:twice", with: [value.amount], into: double, type: DOUBLE}}
  - select: [value.id, risk, double]
sinks: [table: table]
dlq: {{path: dead}}
"""
    done = play.run(base)
    assert sorted((row["id"], row["risk"], row["double"]) for row in play.table("table")) == [
        (n, float(n), n * 200.0) for n in (0, 1, 4, 5)
    ]
    assert {row["rule"]: row["reason"] for row in play.table("dead")} == {
        f"{module}:risk": "ValueError: no country: ??",
        f"{module}:twice": "ValueError: three hundred",
    }
    assert (done.rows, done.dead_letters) == (4, 2)

    def found(text: str) -> str:
        spec = play.write(text)
        return " ".join(f"{one.error}" for one in look_with_spark(spec, play.spark) if one.error)

    assert "did you mean `risk`?" in found(base.replace(":risk", ":rsk"))
    assert "cannot be imported" in found(base.replace(module, "no_such_module"))
    assert "is not for 1 arguments" in found(base.replace("[value.amount, value.country]", "[value.amount]"))
    assert "`amount` of" in found(base.replace("[value.amount, value.country]", "[value.country, value.country]"))
    assert "nothing says what" in found(base.replace(", type: DOUBLE", ""))
    (play.folder / "state").rename(play.folder / "old")
    with pytest.raises(ExpectationBroken, match=f"`{module}:risk` is broken by 1 rows"):
        play.run(base.replace("dlq: {path: dead}\n", "").replace("table: table", "table: other"))
