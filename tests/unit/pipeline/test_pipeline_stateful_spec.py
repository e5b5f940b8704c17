"""Windows, joins, functions, routes and schedules in a pipeline's file: what fits together, and what is refused with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.config.values.duration import SECOND_NS
from bascule.errors import InvalidConfig
from bascule.pipeline.spec.pipeline import load
from bascule.pipeline.spec.sources import EventTime, Missing
from bascule.pipeline.spec.steps import Join, JoinKind, Late, Python, Window
from bascule.pipeline.spec.tables import CsvTable, JdbcTable

pytest.importorskip("pyspark")

BASE = """\
name: a
source: {stream: orders, time: {from: value.at, watermark: 10s}}
tables:
  - csv: {name: customers, path: data/customers.csv, schema: id STRING}
  - jdbc: {name: accounts, url: "jdbc:x", table: t, password: "${SECRET}"}
steps:
  - join: {table: customers, on: key = customers.id, kind: left}
  - join: {stream: payments, on: key = payments.key, after: 1m, time: {watermark: 20s}}
  - window: {size: 1m, every: 30s, by: [key], aggregates: {n: count(*)}}
  - python: {function: "shop.risk:score", with: [n], into: risk}
sinks:
  - stream: {stream: big, when: n > 10, compact: true}
  - console: {when: otherwise}
dlq: {path: dead}
schedule: "*/15 * * * *"
checkpoint: state
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "p.yaml"
    path.write_text(text)
    return path


def test_everything_that_can_be_said_is_read(tmp_path: Path) -> None:
    spec = load(write(tmp_path, BASE), {"SECRET": "hidden"})
    assert spec.source.time == EventTime("value.at", 10 * SECOND_NS, None)
    assert spec.tables[0] == CsvTable("customers", str(tmp_path / "data/customers.csv"), "id STRING")
    assert isinstance(spec.tables[1], JdbcTable)
    assert "hidden" not in repr(spec)
    table, stream, window, function = spec.steps
    assert isinstance(table, Join) and table.kind is JoinKind.LEFT
    assert isinstance(stream, Join)
    assert (stream.target, stream.before_ns, stream.after_ns) == ("payments", None, 60 * SECOND_NS)
    assert window == Window(60 * SECOND_NS, 30 * SECOND_NS, None, ("key",), ("count(*) AS `n`",), Late.DROP)
    assert function == Python("shop.risk:score", ("n",), "risk")
    assert [source.stream for source in spec.inputs] == ["orders", "payments"]
    assert spec.source_options(spec.inputs[1])["subscribe"] == "payments"
    assert (spec.folder, spec.schedule) == (str(tmp_path), "*/15 * * * *")


def test_an_event_time_can_be_one_expression(tmp_path: Path) -> None:
    text = BASE.replace("time: {from: value.at, watermark: 10s}", "time: value.at")
    text = text.partition("tables:")[0] + "sinks: [console]\ncheckpoint: state\n"
    assert load(write(tmp_path, text), {}).source.time == EventTime("value.at")


SQL_SESSION = "  - sql: SELECT session_window(timestamp, '5 minutes') FROM input GROUP BY 1\n"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("watermark: 10s", "wtermark: 10s", ("`source.time.wtermark`", "did you mean `watermark`?")),
        (", watermark: 10s}}", "}}", ("`steps[2].join`", "needs `source.time.watermark`")),
        (", time: {watermark: 20s}", "", ("needs `steps[2].join.time.watermark`",)),
        (", after: 1m", "", ("no bound in time", "`before` and `after`")),
        ("table: customers", "table: custmers", ("`custmers`", "did you mean `customers`?")),
        ("stream: payments,", "", ("none of `table` and `stream`",)),
        ("stream: payments,", "stream: pay-ments,", ("`pay-ments` is no name of a column", "`as`")),
        ("kind: left", "before: 1m", ("`steps[1].join.before`", "joins of streams")),
        ("size: 1m, ", "", ("none of `size` and `session`",)),
        ("size: 1m, every: 30s", "size: 1m, session: 1m", ("both of `size` and `session`",)),
        ("every: 30s", "every: 2m", ("`steps[3].window.every`", "at most as long as `size`")),
        ("aggregates: {n: count(*)}", "by: [value]", ("set twice",)),
        (", aggregates: {n: count(*)}", "", ("`steps[3].window.aggregates` is missing",)),
        ("by: [key]", "by: [key], late: dead-letter", ("`join` before it drops late rows already",)),
        ("  - python", SQL_SESSION + "  - python", ("`session_window`", "use a step `window`")),
        ("  - window", "  - sql: SELECT * FROM input\n  - window", ("stands behind a `sql`", "put `window` before it")),
        ("  - window", "  - expect: {name: x, rule: a}\n  - window", ("between two steps that keep state",)),
        ("  - join: {table", "  - window: {size: 1m, aggregates: [n]}\n  - join: {table", ("stands behind `window`",)),
        ("shop.risk:score", "shop.risk.score", ("a module and a function", "`shop.risk:score`")),
        ("into: risk", "into: 'a b'", ("`steps[4].python.into`", "a name of letters")),
        ("when: n > 10, ", "", ("`when: otherwise`", "nothing to be the rest of")),
        ("*/15 * * * *", "*/15 * * *", ("`schedule`", "five fields")),
        ("*/15 * * * *", "0 0 31 2 *", ("`schedule`", "five fields")),
        ("stream: big, when", "stream: payments, when", ("`payments`, which the pipeline reads",)),
        ("  - stream: {stream: big", "  - latest: l\n  - stream: {stream: big", ("not in the order of messages",)),
        ("name: accounts", "name: customers", ("have the same name",)),
        (
            "watermark: 10s}}",
            "watermark: 10s, missing: nothing}}",
            ("`source.time.missing`", "`drop`, `dead-letter`, `fail`, `message`"),
        ),
    ],
)
def test_what_cannot_be_is_refused_and_says_what_would_be_right(
    tmp_path: Path, old: str, new: str, parts: tuple[str, ...]
) -> None:
    assert old in BASE
    with pytest.raises(InvalidConfig) as caught:
        load(write(tmp_path, BASE.replace(old, new, 1)), {"SECRET": "x"})
    for part in parts:
        assert part in str(caught.value)


def test_functions_named_like_windows_in_texts_are_no_windows(tmp_path: Path) -> None:
    query = "SELECT 'window(' AS a, `window(b` FROM input"
    text = f'name: a\nsource: {{stream: s}}\nsteps: [sql: "{query}"]\nsinks: [console]\ncheckpoint: c\n'
    load(write(tmp_path, text), {})


def test_what_needs_dead_letters_says_so(tmp_path: Path) -> None:
    text = BASE.replace("dlq: {path: dead}\n", "").replace("watermark: 10s}}", "watermark: 10s, missing: dead-letter}}")
    with pytest.raises(InvalidConfig, match=r"`source.time.missing` in .* there is no `dlq`"):
        load(write(tmp_path, text), {"SECRET": "x"})
    assert Missing("dead-letter") is Missing.DEAD_LETTER


def test_a_checkpoint_belongs_to_the_steps_that_keep_state_and_to_the_event_time(tmp_path: Path) -> None:
    digests = {
        load(write(tmp_path, BASE.replace(old, new)), {"SECRET": "x"}).state_digest
        for old, new in (("", ""), ("size: 1m", "size: 2m"), ("value.at", "value.to"), ("after: 1m", "after: 2m"))
    }
    assert len(digests) == 4
    stateless = BASE.replace("n > 10", "n > 11").replace("shop.risk:score", "shop.risk:other")
    assert load(write(tmp_path, stateless), {"SECRET": "x"}).state_digest in digests


def test_a_pipeline_with_dedup_alone_keeps_its_digest(tmp_path: Path) -> None:
    """Checkpoints of earlier versions go on."""
    text = "name: a\nsource: {stream: s}\nsteps: [dedup: {key: key, within: 1m}]\nsinks: [console]\ncheckpoint: c\n"
    assert load(write(tmp_path, text), {}).state_digest == "7f104ec470dd70cc"
