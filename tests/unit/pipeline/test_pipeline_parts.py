"""Parts of a pipeline that need no Spark: its checkpoint, the name brokers know it by, the marks of tables, decoding."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from bascule.errors import CallerError, CheckpointMismatch, InvalidSchema, MalformedValue, StateError
from bascule.pipeline.batches import PipelineBatches
from bascule.pipeline.checkpoint import PipelineCheckpoint
from bascule.pipeline.runner import Reports
from bascule.pipeline.sinks.stream import StreamBatches, producer_id
from bascule.pipeline.sinks.table import TableBatches
from bascule.pipeline.spec.pipeline import PipelineSpec, load
from bascule.pipeline.spec.steps import before_state, split_at_state
from bascule.pipeline.steps.batch_rows import needs_messages
from bascule.pipeline.steps.decode import REASON, Decoding
from bascule.pipeline.steps.rows import MESSAGE, literal, quoted
from bascule.spark.options.reading import value_options
from bascule.spark.options.writing import ProducerId
from bascule.spark.values.decoding import ValueReader


def spec_of(folder: Path, more: str = "", name: str = "orders") -> PipelineSpec:
    path = folder / "pipeline.yaml"
    path.write_text(f"name: {name}\nsource: {{stream: orders}}\nsinks: [console]\ncheckpoint: state\n{more}")
    return load(path, {})


# ── the name that brokers know ───────────────────────────────────────────────────────────────────


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_a_producer_has_a_name_that_brokers_take(pipeline: str, target: str) -> None:
    found = producer_id(pipeline, target, "0123456789abcdef")
    assert ProducerId().parse(found) == found
    assert found == producer_id(pipeline, target, "0123456789abcdef")


def test_another_checkpoint_is_another_producer() -> None:
    assert producer_id("orders", "big", "a" * 16) == "orders:big:aaaaaaaa"
    assert producer_id("orders", "big", "b" * 16) != producer_id("orders", "big", "a" * 16)
    assert producer_id("o" * 100, "a", "a" * 16) != producer_id("o" * 100, "b", "a" * 16)


# ── the checkpoint ───────────────────────────────────────────────────────────────────────────────


def test_a_checkpoint_is_of_one_pipeline(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    checkpoint = PipelineCheckpoint.of(spec)
    assert not checkpoint.exists
    found = checkpoint.begin(spec)
    assert checkpoint.begin(spec) == checkpoint.check(spec) == found
    with pytest.raises(CheckpointMismatch, match="checkpoint of pipeline `orders`, this one is `others`"):
        checkpoint.begin(spec_of(tmp_path, name="others"))
    with pytest.raises(CheckpointMismatch, match="`dedup` of `orders` was changed"):
        checkpoint.begin(spec_of(tmp_path, "steps: [dedup: {key: key, within: 1m}]\n"))
    assert checkpoint.begin(spec_of(tmp_path, "steps: [where: offset > 1]\n")) == found
    (tmp_path / "state/pipeline.json").write_text("{")
    with pytest.raises(CheckpointMismatch, match="cannot be read"):
        checkpoint.begin(spec)


def test_a_folder_with_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    (tmp_path / "state/spark/commits").mkdir(parents=True)
    assert PipelineCheckpoint.of(spec).begin(spec)  # Spark has just begun it
    (tmp_path / "state/pipeline.json").unlink()
    (tmp_path / "state/spark/commits/0").touch()
    with pytest.raises(CheckpointMismatch, match="not empty"):
        PipelineCheckpoint.of(spec).begin(spec)


def test_a_pipeline_runs_once_at_a_time(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    first, second = PipelineCheckpoint.of(spec), PipelineCheckpoint.of(spec)
    first.begin(spec)
    assert not second.is_held
    first.hold()
    assert second.is_held
    with pytest.raises(StateError, match="is running"):
        second.hold()
    first.release()
    assert not second.is_held
    second.hold()
    second.release()


def test_the_offsets_are_those_of_the_last_batch_that_is_done(tmp_path: Path) -> None:
    checkpoint = PipelineCheckpoint.of(spec_of(tmp_path))
    assert checkpoint.offsets() is None
    for number, has_commit in ((9, True), (10, True), (11, False)):
        for folder in ("offsets", *(["commits"] if has_commit else [])):
            path = tmp_path / "state/spark" / folder / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("v1\n{}\n" + json.dumps({"orders": {"0": number}}))
    assert checkpoint.offsets() == {"orders": {"0": 10}}


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def test_a_table_belongs_to_a_checkpoint(tmp_path: Path) -> None:
    spark: Any = None
    table = TableBatches("table", str(tmp_path / "table"), "a" * 16)
    table.open(spark)
    table.open(spark)
    with pytest.raises(CheckpointMismatch, match="another checkpoint"):
        TableBatches("table", str(tmp_path / "table"), "b" * 16).open(spark)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(CallerError, match="not empty"):
        TableBatches("table", str(tmp_path / "full"), "a" * 16).open(spark)


@pytest.mark.parametrize(
    ("columns", "partition_by", "words"),
    [
        (["a", "a"], (), "two columns are called `a`"),
        (["a", "batch"], (), "`batch`"),
        (["a", "b"], ("c",), "`partition_by` names a column `c`"),
        (["a"], ("a",), "names all columns"),
    ],
)
def test_columns_that_a_table_cannot_have_are_named(
    columns: list[str], partition_by: tuple[str, ...], words: str
) -> None:
    schema = StructType([StructField(name, LongType()) for name in columns])
    with pytest.raises(InvalidSchema, match=words):
        TableBatches("table", "t", "a", partition_by).check(schema)


@pytest.mark.parametrize(
    ("columns", "words"),
    [(["key"], "no column is left"), (["a", "A"], "two columns"), (["headers", "x"], "`headers` is")],
)
def test_columns_that_a_stream_cannot_have_are_named(columns: list[str], words: str) -> None:
    schema = StructType([StructField(name, LongType()) for name in columns])
    sink = StreamBatches("stream", {"servers": "127.0.0.1:9292", "stream": "orders"}, "orders:big:aaaaaaaa")
    with pytest.raises(InvalidSchema, match=words):
        sink.check(schema)
    sink.check(
        StructType(
            [StructField("key", LongType()), StructField("id", LongType()), StructField("timestamp", LongType())]
        )
    )


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────

DEDUP = "{dedup: {key: key, within: 1m}}"


@pytest.mark.parametrize(
    ("more", "needed"),
    [
        (f"steps: [{DEDUP}]\n", False),
        (f"steps: [{DEDUP}, {{expect: {{name: a, rule: b}}}}]\n", False),
        (f"steps: [{{where: a}}, {DEDUP}]\n", False),
        (f"steps: [{{expect: {{name: a, rule: b}}}}, {DEDUP}]\n", True),
    ],
)
def test_messages_are_read_beside_only_if_somebody_needs_what_dedup_drops(
    tmp_path: Path, more: str, needed: bool
) -> None:
    assert needs_messages(spec_of(tmp_path, more)) is needed


WINDOW = "{window: {size: 1m, aggregates: {n: count(*)}}}"


def test_steps_up_to_the_last_one_with_state_are_planned_and_the_rest_is_done_in_batches(tmp_path: Path) -> None:
    steps = spec_of(tmp_path, f"steps: [{{where: a}}, {DEDUP}, {{where: b}}]\n").steps
    assert split_at_state(steps) == (steps[:2], steps[2:])
    assert split_at_state(steps[:1]) == ((), steps[:1])
    timed = "source: {stream: orders, time: {watermark: 1m}}\n"
    text = f"steps: [{{where: a}}, {{dedup: {{key: key, within: 1m}}}}, {{where: b}}, {WINDOW}, {{where: c}}]\n"
    path = tmp_path / "timed.yaml"
    path.write_text(f"name: a\n{timed}sinks: [console]\ncheckpoint: state\n{text}")
    steps = load(path, {}).steps
    assert split_at_state(steps) == (steps[:4], steps[4:])
    assert before_state(steps) == steps[:1]


def test_the_function_for_batches_can_be_sent_to_a_server(tmp_path: Path) -> None:
    batches = PipelineBatches(spec_of(tmp_path), on_batch=print)
    batches.failure = RuntimeError("here")
    sent = pickle.loads(pickle.dumps(batches))
    assert (sent.spec, sent.on_batch, sent.failure) == (batches.spec, None, None)


# ── values ───────────────────────────────────────────────────────────────────────────────────────


def messages(*values: bytes | None) -> pa.RecordBatch:
    place = [{"stream": "orders", "partition": 0, "offset": number} for number in range(len(values))]
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), MESSAGE: place})


def decoding(*, fails: bool) -> Decoding:
    reader = ValueReader.of(value_options({"valueFormat": "json", "valueSchema": "id BIGINT"}))
    assert reader is not None
    made: Decoding = pickle.loads(pickle.dumps(Decoding(reader, StructType([StructField("id", LongType())]), fails)))
    return made


def test_what_cannot_be_decoded_keeps_its_bytes_and_says_why() -> None:
    (batch,) = decoding(fails=False)(iter([messages(b'{"id": 1}', b"x", None)]))
    assert batch.column("value").to_pylist() == [{"id": 1}, None, None]
    assert batch.column("malformedValue").to_pylist() == [None, b"x", None]
    reasons = batch.column(REASON).to_pylist()
    assert reasons[1]
    assert (reasons[0], reasons[2]) == (None, None)


def test_or_it_ends_the_pipeline_and_is_named() -> None:
    with pytest.raises(MalformedValue, match="`orders`/0 at offset 1 cannot be decoded"):
        list(decoding(fails=True)(iter([messages(b'{"id": 1}', b"x")])))


def test_names_and_texts_are_what_they_are_in_sql() -> None:
    assert quoted("a`b") == "`a``b`"
    assert literal("it's \\ here") == "'it\\'s \\\\ here'"


# ── what Spark reports ───────────────────────────────────────────────────────────────────────────


class ReportingQuery:
    """As much of a query as its reports are."""

    def __init__(self) -> None:
        self.recentProgress: list[SimpleNamespace] = []  # Spark's name

    @property
    def lastProgress(self) -> SimpleNamespace | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def report(self, batch_id: int, rows: int = 1) -> None:
        document = {
            "batchId": batch_id,
            "timestamp": f"t{len(self.recentProgress)}",
            "sources": [{"numInputRows": rows}],
        }
        self.recentProgress.append(SimpleNamespace(json=json.dumps(document)))


def test_every_report_is_told_once_however_fast_batches_are() -> None:
    query = ReportingQuery()
    reports = Reports(query)  # type: ignore[arg-type]
    told: list[list[tuple[int, int]]] = []

    def look() -> None:
        told.append([(one["batchId"], one["sources"][0]["numInputRows"]) for one in reports.new()])

    look()
    for batches in (
        [(7, 1), (8, 1)],
        [],
        [(9, 1)],
        [(10, 0)],
        [(10, 0), (10, 1), (11, 1)],
        [(12, 1), (13, 1), (14, 0)],
    ):
        for batch in batches:
            query.report(*batch)
        look()
    assert told == [
        [],
        [(7, 1), (8, 1)],
        [],
        [(9, 1)],
        [(10, 0)],
        [(10, 0), (10, 1), (11, 1)],  # the idle ones are of the batch to come
        [(12, 1), (13, 1), (14, 0)],
    ]
