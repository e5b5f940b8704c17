"""Test cases of pipelines, schedules, ranges of time and metrics, as far as they need no Spark."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bascule.errors import InvalidConfig, InvalidOption, Unavailable
from bascule.pipeline.metrics import served_metrics
from bascule.pipeline.progress import BatchReport
from bascule.pipeline.runs.bounds import bounded
from bascule.pipeline.runs.schedule import next_time, run_on_schedule
from bascule.pipeline.spec.pipeline import PipelineSpec, load
from bascule.pipeline.trials.cases import cases_beside, load_cases
from bascule.pipeline.trials.trial import difference

TEXT = """
name: a
source: {stream: orders, time: {watermark: 1m}, options: {maxOffsetsPerTrigger: 5, startingTimestamp: "2020-01-01T00:00:00Z"}}
tables: [csv: {name: customers, path: c.csv, schema: id STRING}]
steps:
  - join: {stream: payments, on: key = payments.key, after: 1m, time: {watermark: 1m}}
  - join: {table: customers, on: key = customers.id}
sinks: [{stream: big}, {table: out/rows}]
checkpoint: state
"""


@pytest.fixture
def spec(tmp_path: Path) -> PipelineSpec:
    (tmp_path / "a.yaml").write_text(TEXT)
    return load(tmp_path / "a.yaml", {})


# ── cases ────────────────────────────────────────────────────────────────────────────────────────

CASES = """
- name: both come out
  input:
    - {key: x, value: {id: 1, at: 2026-01-01T00:00:00Z, day: 2026-01-02}, timestamp: 2026-01-01T00:00:05Z}
    - {value: no JSON, partition: 1}
    - next batch
    - {base64: AAE=, headers: {a: b}}
  streams: {payments: [{value: null}]}
  tables: {customers: [{id: x}]}
  expect: {rows: [], sinks: {table rows: [{id: 1}]}, dead_letters: [{rule: decode}], late: 1}
"""


def test_cases_are_read_as_batches_of_messages(spec: PipelineSpec, tmp_path: Path) -> None:
    path = tmp_path / "a.test.yaml"
    path.write_text(CASES)
    assert cases_beside(tmp_path / "a.yaml") == path
    (case,) = load_cases(path, spec)
    (first, payments), (second, nothing) = case.batches
    assert [(row["key"], row["partition"], row["offset"]) for row in first] == [(b"x", 0, 0), (None, 1, 0)]
    assert json.loads(first[0]["value"]) == {"id": 1, "at": "2026-01-01T00:00:00Z", "day": "2026-01-02"}
    assert first[0]["timestamp"] == datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert first[1]["value"] == b"no JSON"
    assert (second[0]["value"], second[0]["offset"], second[0]["headers"]) == (b"\0\1", 1, [("a", b"b")])
    assert (payments[0]["value"], payments[0]["stream"], nothing) == (None, "payments", ())
    assert (case.rows, case.late, case.sinks) == ([], 1, {"table rows": [{"id": 1}]})
    lines = tmp_path / "b.test.jsonl"
    lines.write_text(json.dumps({"name": "one", "input": [], "expect": {"rows": []}}) + "\n\n")
    assert [one.name for one in load_cases(lines, spec)] == ["one"]


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("  input:", "  inptu:", ("`inptu`", "did you mean `input`?")),
        ("- name: both come out\n  input", "- input", ("`name` of case 1",)),
        ("key: x", "vlaue: x", ("message 1 in `input` of case `both come out`", "did you mean `value`?")),
        ("partition: 1", "partition: one", ("`partition` of message 2", "`one`")),
        ("base64: AAE=", "base64: '?'", ("`base64`", "Base64")),
        ("timestamp: 2026-01-01T00:00:05Z", "timestamp: soon", ("`timestamp`", "`soon`")),
        ("payments:", "paymnts:", ("`paymnts`", "did you mean `payments`?")),
        ("customers:", "costumers:", ("`costumers`", "did you mean `customers`?")),
        ("table rows", "table row", ("`table row`", "did you mean `table rows`?")),
        ("late: 1", "late: some", ("`expect.late`", "`some`")),
        ("rows: []", "rows: 1", ("`expect.rows`", "no list of rows")),
        ("- name: both come out\n", "- text\n- name: both come out\n", ("case 1 of", "is `text`")),
    ],
)
def test_cases_that_are_wrong_are_named(
    spec: PipelineSpec, tmp_path: Path, old: str, new: str, parts: tuple[str, ...]
) -> None:
    assert old in CASES
    path = tmp_path / "cases.yaml"
    path.write_text(CASES.replace(old, new, 1))
    with pytest.raises(InvalidConfig) as caught:
        load_cases(path, spec)
    for part in parts:
        assert part in str(caught.value)


def test_a_file_of_cases_that_cannot_be_read_is_named(spec: PipelineSpec, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"no tests beside .*\n.*a\.test\.yaml"):
        cases_beside(tmp_path / "a.yaml")
    for text in ("{", "[]", "1", "- {name: a, input: [], expect: {}}\n- {name: a, input: [], expect: {}}"):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(InvalidConfig, match=r"x\.yaml"):
            load_cases(tmp_path / "x.yaml", spec)


def test_rows_are_compared_by_the_columns_that_are_expected_in_any_order() -> None:
    found = [{"id": 2, "name": "Bob"}, {"id": 1, "name": "Ann"}]
    assert difference("rows", [{"id": 1}, {"id": 2}], found) == []
    assert difference("rows", [{"id": 1}, {"id": 3}], found)[-2:] == ['-{"id": 3}', '+{"id": 2}']
    assert difference("rows", [{"id": 1}], found)[-1] == '+{"id": 2}', "a row too many"
    assert difference("rows", [], found), "none were expected"
    assert difference("rows", [{"id": 1}, {"id": 1}], found), "each row counts"


# ── when, and over which messages ────────────────────────────────────────────────────────────────


def test_a_range_of_time_bounds_all_streams_and_has_its_own_checkpoint(spec: PipelineSpec) -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    found = bounded(spec, start, end)
    for source in found.inputs:
        options = found.source_options(source)
        assert (options["startingTimestamp"], options["untilTimestamp"]) == (
            "2026-01-01T00:00:00Z",
            "2026-01-02T00:00:00Z",
        )
        assert "startingOffsets" not in options
    assert found.source.options["maxOffsetsPerTrigger"] == "5"
    assert found.checkpoint == f"{spec.checkpoint}.between-20260101T000000Z-20260102T000000Z"
    assert found.checkpoint != bounded(spec, start, end + timedelta(microseconds=1)).checkpoint
    with pytest.raises(InvalidOption, match="`--between`"):
        bounded(spec, end, start)


def test_runs_begin_at_the_times_of_a_schedule_and_never_overlap() -> None:
    clock = [datetime(2026, 1, 1, 0, 7, tzinfo=UTC)]
    runs: list[datetime] = []
    announced: list[datetime] = []

    def sleep(seconds: float) -> None:
        assert 0 < seconds <= 60
        clock[0] += timedelta(seconds=seconds)

    def run() -> None:
        runs.append(clock[0])
        clock[0] += timedelta(minutes=20)
        if len(runs) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_schedule("*/15 * * * *", run, announced.append, now=lambda: clock[0], sleep=sleep)
    assert (
        runs
        == announced
        == [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in (15, 45)]
        + [datetime(2026, 1, 1, 1, 15, tzinfo=UTC)]
    )
    assert next_time("0 3 * * 1", clock[0]).isoformat() == "2026-01-05T03:00:00+00:00"


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def test_metrics_of_each_step_are_served_on_the_loopback() -> None:
    steps: dict[str, dict[str, Any]] = {
        "1 expect": {"in": 10, "out": 7, "dead_letters": 2},
        "table rows": {"in": 7, "out": 7, "seconds": 1.5},
    }
    with served_metrics("a", 0) as metrics:
        assert metrics is not None
        for _ in range(2):
            metrics.batch(BatchReport(1, 10, 7, {"table rows": 7}, 2, {"x": 3}, 1.0, 4, steps))
        metrics.late(5)
        url = f"http://127.0.0.1:{metrics.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        with pytest.raises(Unavailable, match=f"127.0.0.1:{metrics.port}"), served_metrics("b", metrics.port):
            pass
    for wanted in (
        'bascule_pipeline_step_rows_in_total{pipeline="a",step="1 expect"} 20.0',
        'bascule_pipeline_step_rows_out_total{pipeline="a",step="1 expect"} 14.0',
        'bascule_pipeline_step_rows_dropped_total{pipeline="a",step="1 expect"} 2.0',
        'bascule_pipeline_step_dead_letters_total{pipeline="a",step="1 expect"} 4.0',
        'bascule_pipeline_step_seconds_total{pipeline="a",step="table rows"} 3.0',
        'bascule_pipeline_late_rows_total{pipeline="a"} 13.0',
        'bascule_pipeline_broken_rows_total{pipeline="a",rule="x"} 6.0',
    ):
        assert wanted in lines
    with served_metrics("a", None) as metrics:
        assert metrics is None
