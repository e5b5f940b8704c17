"""`bascule pipeline init`, `check`, `run`, `sql` as far as no Spark is needed: files, options, brokers that are not there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bascule.cli import main
from bascule.errors import CallerError
from bascule.pipeline.display import Display, lag_of
from bascule.pipeline.progress import BatchReport, PipelineProgress, late_of
from tests.cli.command_line import Outcome
from tests.cli.command_line import run as run_command

NOBODY = "127.0.0.1:1"


def run(folder: Path, *arguments: str) -> Outcome:
    return run_command("pipeline", *arguments, home=folder, timeout=120)


def refused(*arguments: str) -> str:
    """What is wrong, without a process of its own."""
    with pytest.raises(CallerError) as caught:
        main.command()(["pipeline", *arguments])
    assert caught.value.hint
    return str(caught.value)


@pytest.fixture(autouse=True)
def nobodys_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))


def test_init_writes_a_file_and_never_over_another(tmp_path: Path) -> None:
    file = tmp_path / "my orders.yaml"
    run(tmp_path, "init", str(file), "--stream", "orders").ok()
    text = file.read_text()
    assert "name: my-orders\n" in text
    assert "  stream: orders " in text
    run(tmp_path, "init", str(file)).failed(3, "exists already")
    assert "`a b`" in refused("init", str(tmp_path / "x.yaml"), "--stream", "a b")


def test_a_file_that_is_wrong_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text("name: orders\nsuorce: {stream: orders}\n")
    run(tmp_path, "run", str(file)).failed(2, "`suorce`", "orders.yaml:2", "did you mean `source`?")
    for command in ("check", "status", "verify"):
        assert "did you mean `source`?" in refused(command, str(file))
    assert "none.yaml" in refused("run", str(tmp_path / "none.yaml"))


def test_brokers_that_are_not_there_are_named_before_spark_starts(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    run(tmp_path, "init", str(file)).ok()
    run(tmp_path, "run", str(file), "--server", NOBODY).failed(5, NOBODY)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["orders.yaml"]


def test_tests_and_limits_that_are_wrong_are_refused_before_spark_starts(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    run(tmp_path, "init", str(file)).ok()
    assert "orders.test.yaml" in refused("test", str(file))
    cases = tmp_path / "orders.test.yaml"
    cases.write_text("- {name: a, input: [], expct: {}}\n")
    assert "did you mean `expect`?" in refused("test", str(file))
    cases.write_text("- {name: a, input: [], expect: {}}\n")
    assert "no case `b`" in refused("test", str(file), "--only", "b")
    assert "`15m` for 15 minutes ago" in refused("run", str(file), "--between", "soon", "1m")
    assert "must be before the second one" in refused("run", str(file), "--between", "1m", "15m")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--archive", "orders"], ["`--archive` is `orders`", "`orders=/lake/orders`"]),
        (["--value", "orders=xml:a"], ["`--value`", "`json` or `avro`"]),
        (["--into-stream", "a", "--into-path", "b"], ["are given together"]),
        (["--continuous"], ["needs a target"]),
        (["--continuous", "--into-stream", "a"], ["--checkpoint"]),
        (["--continuous", "--into-path", "a", "--mode", "update"], ["`--mode` is `update`"]),
        (["--mode", "complete"], ["`--mode` is `complete`", "`append` or `update`"]),
        (["--watermark", "orders=10m"], ["`--watermark`", "add `--continuous`"]),
        (
            ["--continuous", "--into-stream", "a", "--checkpoint", "c", "--watermark", "orders=soon"],
            ["`--watermark`", "`soon`"],
        ),
    ],
)
def test_wrong_options_of_a_query_are_named(options: list[str], words: list[str]) -> None:
    said = refused("sql", "SELECT 1", *options, "--server", NOBODY)
    for word in words:
        assert word in said, said


# ── display ──────────────────────────────────────────────────────────────────────────────────────

REPORT = {
    "batchId": 3,
    "batchDuration": 500,
    "sources": [
        {
            "numInputRows": 20,
            "processedRowsPerSecond": 1234.5,
            "latestOffset": '{"a": {"0": 10, "id": 1, "lag": {"offsets": 5, "bytes": 500, "seconds": 2.5}},'
            ' "b": {"0": 3, "id": 2, "lag": {"offsets": 2, "bytes": 100, "seconds": 7.0}}}',
        }
    ],
    "stateOperators": [{"numRowsDroppedByWatermark": 4}],
}


def test_lag_is_added_up_over_streams() -> None:
    assert lag_of(REPORT) == {"offsets": 7, "bytes": 600, "seconds": 7.0}
    assert lag_of({"sources": [{"latestOffset": None}, {"latestOffset": "x"}]}) == {
        "offsets": 0,
        "bytes": 0,
        "seconds": 0.0,
    }
    assert late_of(REPORT) == 4


def test_a_line_for_each_batch_that_brought_something(capsys: pytest.CaptureFixture[str]) -> None:
    with Display("orders", live=False) as display:
        display.batch(BatchReport(0, 12, 7, {"table t": 7}, 2, {"has-amount": 2, "never": 0}, 1.25))
        display.batch(BatchReport(1, 0, 0))
        display.progress(REPORT)
    line, late = capsys.readouterr().out.splitlines()
    assert line.endswith("Z batch 0: 12 messages, 7 left, 1.2 s, 2 dead letters, has-amount broken by 2 rows")
    assert late == "4 rows dropped: later than the watermark"
    assert display.summary() == "orders: 12 messages in 2 batches; table t: 7 rows; 2 dead letters."


def test_a_warning_stays_above_the_picture(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Display("orders", live=True) as display:
        assert display._live is not None
        display._live.refresh()  # there is a picture
        display.warn("`dedup` has dropped 4 rows")
    said = capsys.readouterr().err
    assert re.search(r"\x1b\[2K(\x1b\[33m)?warning: `dedup` has dropped 4 rows(\x1b\[0m)?\n", said), said
    with Display("orders", live=False) as display:
        display.warn("`dedup` has dropped 4 rows")
    assert "warning: `dedup` has dropped 4 rows" in capsys.readouterr().err


def test_batches_that_are_written_elsewhere_are_told_of_by_spark(capsys: pytest.CaptureFixture[str]) -> None:
    with Display("orders", live=False, is_remote=True) as display:
        display.progress({**REPORT, "stateOperators": []})
    assert capsys.readouterr().out.endswith("Z batch 3: 20 messages, 0.5 s\n")
    assert display.summary() == "orders: 20 messages in 1 batch."


def test_a_batch_that_comes_again_is_counted_once(tmp_path: Path) -> None:
    progress, path = PipelineProgress(), tmp_path / "progress.json"
    assert progress.add(BatchReport(0, 10, 5, {"a": 5}, broken={"x": 1}))
    progress.save(path)
    again = PipelineProgress.load(path)
    assert not again.add(BatchReport(0, 10, 5, {"a": 5}, broken={"x": 1}))
    assert again.add(BatchReport(1, 1, 1, {"a": 1, "b": 1}))
    assert (again.read, again.rows, again.sinks, again.broken) == (11, 6, {"a": 6, "b": 1}, {"x": 1})
    assert again.add_late(0, 4) and again.add_late(1, 2) and not again.add_late(1, 2)
    assert again.late == 6
    path.write_text("{")
    assert PipelineProgress.load(path).batches == 0
