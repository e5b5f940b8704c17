"""A pipeline's file: what it says is what is read, and what is wrong is named with its line and what would be right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import InvalidConfig
from bascule.pipeline.sample import sample
from bascule.pipeline.spec.pipeline import PipelineSpec, load
from bascule.pipeline.spec.sinks import ArchiveSink, ConsoleSink, StreamSink
from bascule.pipeline.spec.sources import ValueMode
from bascule.pipeline.spec.steps import Dedup, Expect, Otherwise, Select, Sql, Where
from tests.support.guides.pages import Block, blocks_of_page

pytest.importorskip("pyspark")

BASE = """\
name: big-orders
source:
  stream: orders
sinks:
  - console
checkpoint: state
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "orders.yaml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str, *parts: str, **environ: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        load(write(folder, text), environ)
    said = str(caught.value)
    for part in parts:
        assert part in said, said
    return said


def test_everything_that_can_be_said_is_read(tmp_path: Path) -> None:
    text = """\
name: big-orders
servers: broker-1:9292,broker-2:9292
connection: {tls_ca: /ca.pem, token: "${TOKEN}"}
source:
  streams: [orders, returns]
  starting: '{"orders": {"0": 3}, "returns": {"0": -2}}'
  on_data_loss: skip
  value: {format: json, schema: "id BIGINT, amount DOUBLE", mode: dead-letter}
  options: {maxOffsetsPerTrigger: 1000}
steps:
  - expect: {name: has-amount, rule: value.amount > 0, otherwise: dead-letter}
  - where: value.amount > 100
  - dedup: {key: [value.id], within: 10m}
  - select: {id: value.id, twice: value.amount * 2}
  - sql: |
      SELECT id, twice
      FROM input
sinks:
  - archive: lake/orders
  - stream: {stream: big, create: true, partitions: 4}
  - console
dlq: {stream: dead}
trigger: 1s
checkpoint: file:///state/big-orders
spark: {spark.driver.memory: 1g}
"""
    spec = load(write(tmp_path, text), {"TOKEN": "secret"})
    assert spec.steps == (
        Expect("has-amount", "value.amount > 0", Otherwise.DEAD_LETTER),
        Where("value.amount > 100"),
        Dedup(("value.id",), 600 * 10**9),
        Select(("value.id AS `id`", "value.amount * 2 AS `twice`")),
        Sql("SELECT id, twice\nFROM input"),
    )
    assert spec.sinks == (
        ArchiveSink(str(tmp_path / "lake/orders")),
        StreamSink("big", True, 4),
        ConsoleSink(),
    )
    assert spec.checkpoint == "/state/big-orders"
    assert spec.spark == {"spark.driver.memory": "1g"}
    assert "secret" not in repr(spec)
    assert spec.source_options() == {
        "servers": "broker-1:9292,broker-2:9292",
        "tlsCa": "/ca.pem",
        "token": "secret",
        "tls": "true",
        "subscribe": "orders,returns",
        "startingOffsets": '{"orders": {"0": 3}, "returns": {"0": -2}}',
        "onDataLoss": "skip",
        "maxOffsetsPerTrigger": "1000",
    }


def test_the_sample_is_a_pipeline(tmp_path: Path) -> None:
    spec = load(write(tmp_path, sample("orders", "orders")), {})
    assert (spec.name, spec.streams, spec.steps) == ("orders", ("orders",), ())
    assert spec.sinks == (ArchiveSink(str(tmp_path / "lake/orders")),)


def test_what_the_sample_shows_in_comments_is_right_too(tmp_path: Path) -> None:
    text = re.sub(r"^( *)# ( *(- )?\w+(:|  ))", r"\1\2", sample("orders", "orders"), flags=re.MULTILINE)
    spec = load(write(tmp_path, text.replace("steps: []", "steps:")), {})
    assert len(spec.steps) == 6
    assert len(spec.sinks) == 4
    assert spec.dlq is not None


def test_values_that_cannot_be_decoded_go_where_something_is_for_them(tmp_path: Path) -> None:
    typed = BASE.replace("  stream: orders", "  stream: orders\n  value: {format: json, schema: id BIGINT}")
    assert load(write(tmp_path, typed), {}).value_mode is ValueMode.FAILFAST
    assert load(write(tmp_path, typed + "dlq: {path: dead}\n"), {}).value_mode is ValueMode.DEAD_LETTER


def test_variables_have_defaults_and_can_be_written_as_they_are(tmp_path: Path) -> None:
    text = BASE.replace("state", "${STATE:-here}/$${HOME}/x")
    assert load(write(tmp_path, text), {}).checkpoint == str(tmp_path / "here/${HOME}/x")
    assert load(write(tmp_path, text), {"STATE": "/there"}).checkpoint == "/there/${HOME}/x"
    refused(tmp_path, BASE.replace("state", "${STATE}"), "orders.yaml:6", "`STATE`", "not set")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("name:", "nmae:"), ("`nmae`", "orders.yaml:1", "did you mean `name`?")),
        (("  stream:", "  strem:"), ("`source.strem`", "orders.yaml:3", "did you mean `stream`?")),
        (("name: big-orders", "name: a.b"), ("`name`", ":1", "`a.b`", "without spaces, dots")),
        (("  - console", "  - consoel"), ("`consoel`", ":5", "did you mean `console`?")),
        (("  - console", "  - consoel: {}"), ("`consoel`", "is no sink", "did you mean `console`?")),
        (("  - console", "  - console: {rows: 0}"), ("`sinks[1].console.rows`", ":5", "`0`", "from 1 to")),
        (("  - console", "  - archive: hdfs://bucket/x"), ("`sinks[1].archive.path`", "`hdfs`", "a folder")),
        (("  - console", "  - stream: orders"), ("which the pipeline reads",)),
        (("  - console", "  - console\n  - console"), ("`sinks[2]`", "another sink")),
        (("  - console", "  - stream: {create: true}"), ("`sinks[1].stream.stream` is missing",)),
        (("checkpoint: state\n", ""), ("`checkpoint` is missing", "A folder of its own")),
        (("checkpoint: state", "checkpoint: state\ncheckpoint: other"), ("set twice",)),
        (("  stream: orders", "  pattern: '('"), ("`source.pattern`", "regular expression")),
        (("  stream: orders", "  stream: orders\n  subject: a.>"), ("`stream` and `subject` both say",)),
        (("  stream: orders", "  starting: earliest"), ("nothing says which streams",)),
        (("  stream: orders", "  stream: orders\n  starting: erliest"), ("startingOffsets", "`erliest`")),
        (
            ("  stream: orders", "  stream: orders\n  options: {maxOffsetPerTrigger: 1}"),
            ("did you mean `maxOffsetsPerTrigger`?",),
        ),
        (("  stream: orders", "  stream: orders\n  options: {subscribe: a}"), ("has a key of its own",)),
        (
            ("  stream: orders", "  stream: orders\n  value: {format: xml}"),
            ("`source.value.format`", "`xml`", "`json`"),
        ),
        (("  stream: orders", "  stream: orders\n  value: {format: json}"), ("valueSchema",)),
        (("  stream: orders", "  stream: orders\n  value: {schema: a INT}"), ("has no `format`",)),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], parts: tuple[str, ...]) -> None:
    assert change[0] in BASE
    refused(tmp_path, BASE.replace(*change), *parts)


@pytest.mark.parametrize(
    ("steps", "parts"),
    [
        ("wher", ("`steps`", "a list")),
        ("[{where: x, select: y}]", ("`steps[1]`", "one step")),
        ("[{where: }]", ("`steps[1].where.condition` is missing",)),
        ("[{where: [a]}]", ("`steps[1].where.condition`", "one value")),
        ("[{dedup: {key: id}}]", ("`steps[1].dedup.within` is missing", "duration")),
        ("[{dedup: {key: id, within: 10 minutes}}]", ("`steps[1].dedup.within`", "`10 minutes`", "`1m30s`")),
        ("[{dedup: {key: a, within: 1m}}, {dedup: {key: b, within: 1m}}]", ("`steps[2].dedup`", "the second one")),
        ("[{sql: SELECT 1}, {dedup: {key: a, within: 1m}}]", ("put `dedup` before it",)),
        ("[{expect: {name: a, rule: b, otherwise: explode}}]", ("`steps[1].expect.otherwise`", "`explode`", "`drop`")),
        ("[{expect: {name: a, rule: b, otherwise: dead-letter}}]", ("there is no `dlq`",)),
        (
            "[{expect: {name: a, rule: b}}, {expect: {name: a, rule: c}}]",
            ("`steps[2].expect.name`", "name each rule once"),
        ),
        ("[{select: {a: [b]}}]", ("`steps[1].select.columns`", "`a`")),
    ],
)
def test_what_is_wrong_with_steps_is_named(tmp_path: Path, steps: str, parts: tuple[str, ...]) -> None:
    refused(tmp_path, BASE + f"steps: {steps}\n", *parts)


def test_dead_letters_go_to_one_place(tmp_path: Path) -> None:
    refused(tmp_path, BASE + "dlq: {stream: a, path: b}\n", "both of `stream` and `path`")
    refused(tmp_path, BASE + "dlq: {create: true}\n", "none of `stream` and `path`")
    refused(tmp_path, BASE + "dlq: {stream: orders}\n", "`dlq.stream`", "reads or writes")


def test_aliases_that_lead_in_circles_end(tmp_path: Path) -> None:
    refused(tmp_path, BASE + "steps: &a [*a]\n")


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    said = refused(tmp_path, BASE + "connection: {token: [hunter2]}\n", "`connection.token`")
    assert "hunter2" not in said


def test_a_file_that_is_not_there_or_empty_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="Cannot read"):
        load(tmp_path / "none.yaml")
    refused(tmp_path, "", "is empty", "pipeline init")
    refused(tmp_path, "- a\n", "the file", "must be keys")


def spec_of(folder: Path, more: str = "", **environ: Any) -> PipelineSpec:
    return load(write(folder, BASE + more), environ)


def test_only_another_dedup_needs_another_checkpoint(tmp_path: Path) -> None:
    plain = spec_of(tmp_path).state_digest
    assert spec_of(tmp_path, "steps: [{where: offset > 1}]\n").state_digest == plain
    first = spec_of(tmp_path, "steps: [{dedup: {key: key, within: 1m}}]\n").state_digest
    assert first != plain
    assert spec_of(tmp_path, "steps: [{dedup: {key: key, within: 2m}}]\n").state_digest != first


def test_history_and_patterns_are_handed_to_the_source(tmp_path: Path) -> None:
    text = BASE.replace("  stream: orders", "  pattern: orders-.*\n  history: lake\n  on_data_loss: archive")
    given = load(write(tmp_path, text), {}).source_options()
    assert (given["subscribePattern"], given["history"], given["onDataLoss"]) == (
        "orders-.*",
        str(tmp_path / "lake"),
        "archive",
    )
    refused(tmp_path, text.replace("  history: lake\n", ""), "onDataLoss", "`history` is missing")


GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/pipelines.md"


PIPELINES = [block for block in blocks_of_page(GUIDE) if block.language == "yaml" and block.is_run]


@pytest.mark.parametrize("block", PIPELINES, ids=str)
def test_pipelines_of_the_guide_are_right(tmp_path: Path, block: Block) -> None:
    assert load(write(tmp_path, block.code), {}).sinks
