"""`preview` and `test` of a pipeline, runs that are limited, and their metrics: on a real Spark."""

from __future__ import annotations

import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bascule.client.blocking import BlockingClient
from bascule.errors import InvalidQuery
from bascule.pipeline.display import RunOptions, run_displayed
from bascule.pipeline.runs.bounds import bounded
from bascule.pipeline.spec.pipeline import load
from bascule.pipeline.trials.cases import load_cases
from bascule.pipeline.trials.preview import preview
from bascule.pipeline.trials.trial import run_case
from tests.spark.conftest import MakeStream
from tests.spark.pipeline.test_pipeline_run import Play
from tests.support.broker_fixtures import unique_name
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def play(spark: SparkSession, tables: BrokerProcess, client: BlockingClient, tmp_path: Path) -> Play:
    return Play(spark, tables, client, tmp_path)


TEXT = """
name: trial
source:
  stream: {orders}
  value: {{format: json, schema: "id BIGINT, customer STRING, at TIMESTAMP"}}
  time: {{from: value.at, watermark: 10s}}
tables: [csv: {{name: customers, path: customers.csv, schema: "id STRING, name STRING"}}]
steps:
  - expect: {{name: has-id, rule: value.id IS NOT NULL, otherwise: dead-letter}}
  - join: {{table: customers, on: value.customer = customers.id}}
  - join:
      stream: {payments}
      as: paid
      value: {{format: json, schema: "order BIGINT, cents BIGINT, at TIMESTAMP"}}
      time: {{from: value.at, watermark: 10s}}
      on: value.id = paid.value.order
      before: 5s
      after: 60s
  - window: {{size: 60s, by: {{name: customers.name}}, aggregates: {{orders: count(*), cents: sum(paid.value.cents)}}}}
  - expect: {{name: is-cheap, rule: cents < 1000}}
sinks: [{{table: {{path: few, when: orders < 2}}}}, {{table: {{path: many, when: otherwise}}}}]
dlq: {{path: dead}}
"""

CASES = """
- name: orders of a minute
  input:
    - {value: {id: 1, customer: x, at: "2026-01-01T00:00:01Z"}}
    - {value: {customer: x, at: "2026-01-01T00:00:02Z"}}
    - next batch
    - {value: {id: 2, customer: x, at: "2026-01-01T00:00:59Z"}}
    - {value: {id: 3, customer: y, at: "2026-01-01T00:00:03Z"}}
    - {value: {id: 9, customer: z, at: "2026-02-01T00:00:00Z"}}
  streams:
    PAYMENTS:
      - {value: {order: 1, cents: 5, at: 2026-01-01T00:00:00Z}}
      - {value: {order: 2, cents: 5000, at: 2026-01-01T00:01:00Z}}
      - {value: {order: 3, cents: 7, at: 2026-01-01T00:00:00Z}}
      - next batch
      - {value: {order: 0, at: 2027-02-01T00:00:00Z}}
  tables: {customers: [{id: x, name: Ann}, {id: y, name: Bob}]}
  expect:
    rows: [{name: Ann, orders: 2, cents: 5005}, {name: Bob, orders: 1, cents: 7}]
    sinks:
      table few: [{name: Bob, window_start: "2026-01-01T00:00:00Z"}]
      table many: [{name: Ann}]
    dead_letters: [{rule: has-id, offset: 1}]
    late: 0
- name: nothing
  input: []
  expect: {rows: [{name: Ann}], dead_letters: []}
"""


def test_messages_are_shown_after_every_step_and_nothing_is_written(play: Play, make_stream: MakeStream) -> None:
    orders, payments = make_stream(0, partitions=2), make_stream(0, name=unique_name("pay"))
    (play.folder / "customers.csv").write_text("id,name\nx,Ann\n")
    for number in range(30):
        play.publish(
            orders, {"id": number, "customer": "xy"[number % 2], "at": "2026-01-01T00:00:00Z"}, partition=number % 2
        )
        play.publish(payments, {"order": number, "cents": 600, "at": "2026-01-01T00:00:01Z"})
    play.publish(orders, b"no JSON", {"customer": "x", "at": "2026-01-01T00:00:00Z"}, partition=1)
    spec = play.write(TEXT.format(orders=orders, payments=payments))
    stages = {stage.name: stage for stage in preview(play.spark, spec, 10)}
    assert list(stages) == [
        "source",
        "1 expect",
        "2 join",
        "3 join",
        "4 window",
        "5 expect",
        "table " + str(play.folder / "few"),
        "table " + str(play.folder / "many"),
    ]
    assert [len(stage.rows) for stage in stages.values()] == [9, 8, 4, 4, 1, 1, 0, 1]
    (judged,) = stages["source"].judged
    assert (judged.rule, judged.fate, judged.row) == ("decode", "dead letter", f"{orders}/1 at 15")
    (judged,) = stages["1 expect"].judged
    assert (judged.rule, judged.reason) == ("has-id", "not: value.id IS NOT NULL")
    (judged,) = stages["5 expect"].judged
    assert (judged.fate, "2400" in judged.row) == ("kept", True)
    assert stages["4 window"].rows[0][2:] == ["Ann", 4, 2400]
    assert sorted(path.name for path in play.folder.iterdir()) == ["customers.csv", "pipeline.yaml"]
    wrong = play.write(TEXT.format(orders=orders, payments=payments).replace("cents < 1000", "cnts < 1000"))
    with pytest.raises(InvalidQuery, match="`cnts`"):
        list(preview(play.spark, wrong, 10))


def test_cases_are_run_as_the_pipeline_runs_and_differences_are_shown(play: Play) -> None:
    """Without brokers, and without the streams."""
    spec = load(_written(play, TEXT.format(orders="orders", payments="payments")), {})
    (play.folder / "customers.csv").write_text("id,name\n")
    path = play.folder / "trial.test.yaml"
    path.write_text(CASES.replace("PAYMENTS", "payments"))
    good, bad = (run_case(play.spark, spec, case) for case in load_cases(path, spec))
    assert good.differences == []
    assert bad.differences == ["--- rows expected", "+++ rows found", "@@ -1 +0,0 @@", '-{"name": "Ann"}']
    assert not (play.folder / "state").exists()


def _written(play: Play, text: str) -> Path:
    path = play.folder / "pipeline.yaml"
    path.write_text(f"checkpoint: state\n{text}")
    return path


def test_runs_end_after_their_batches_and_serve_metrics_of_each_step(
    play: Play, make_stream: MakeStream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream(10)
    spec = play.write(
        f"""
name: limited
source: {{stream: {stream}, options: {{maxOffsetsPerTrigger: 3}}}}
steps: [where: offset <> 1, expect: {{name: even, rule: offset % 2 = 0, otherwise: drop}}]
sinks: [table: table]
trigger: 0s
"""
    )
    seen: list[str] = []
    from bascule.pipeline import metrics as module

    original = module.PipelineMetrics.batch

    def batch(self: module.PipelineMetrics, report: object) -> None:
        original(self, report)  # type: ignore[arg-type]
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            seen.append(answer.read().decode())

    monkeypatch.setattr(module.PipelineMetrics, "batch", batch)
    run_displayed(play.spark, spec, RunOptions(once=True, batches_max=2, metrics_port=0), [])
    assert play.progress.batches == 2
    assert 'step_rows_in_total{pipeline="limited",step="1 where"} 6.0' in seen[-1]
    assert 'step_rows_out_total{pipeline="limited",step="1 where"} 5.0' in seen[-1]
    assert 'step_rows_dropped_total{pipeline="limited",step="2 expect"} 2.0' in seen[-1]
    assert f'step_rows_out_total{{pipeline="limited",step="table {play.folder / "table"}"}} 3.0' in seen[-1]
    run_displayed(play.spark, spec, RunOptions(batches_max=1), [])  # not `once`: it ends all the same
    assert play.progress.batches == 3
    run_displayed(play.spark, spec, RunOptions(once=True), [])
    assert sorted(row["offset"] for row in play.table("table")) == [0, 2, 4, 6, 8]
    assert "limited: " in capsys.readouterr().out


def test_a_range_of_time_is_processed_beside_the_pipeline(play: Play, make_stream: MakeStream) -> None:
    stream, out = make_stream(0, partitions=2), unique_name("out")
    play.publish(stream, 0, 1, partition=0)
    time.sleep(0.05)
    start = datetime.now(UTC)
    time.sleep(0.05)
    play.publish(stream, 2, 3, partition=0)
    play.publish(stream, 4, partition=1)
    time.sleep(0.05)
    end = datetime.now(UTC)
    time.sleep(0.05)
    play.publish(stream, 5, 6, partition=1)
    spec = play.write(f"name: back\nsource: {{stream: {stream}}}\nsinks: [stream: {{stream: {out}, create: true}}]\n")
    for _ in range(2):  # the second run finds its checkpoint and has nothing to do
        run_displayed(play.spark, bounded(spec, start, end), RunOptions(once=True), [])
        assert sorted(play.values(out)) == [2, 3, 4]
    run_displayed(
        play.spark, bounded(spec, end + timedelta(hours=1), end + timedelta(hours=2)), RunOptions(once=True), []
    )
    assert sorted(play.values(out)) == [2, 3, 4]
    play.run()
    assert sorted(play.values(out)) == [0, 1, 2, 2, 3, 3, 4, 4, 5, 6]
