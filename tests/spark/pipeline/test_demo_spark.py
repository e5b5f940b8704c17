"""`bascule demo` with the real Spark: the screen shows the archive, and nothing outlives the demo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bascule.lake.archive import Archive
from bascule.lake.verification import Verification
from tests.support.spark_processes import Process, command_line, descendants
from tests.support.waiting import eventually

DEMO = [sys.executable, "-m", "bascule.cli.main", "demo", "--free-ports"]


def archived(process: subprocess.Popen[str], least: int) -> tuple[int, Path]:
    """The first line that shows so many rows: how many, and where."""
    assert process.stdout is not None
    for line in process.stdout:
        assert "Spark has ended" not in line
        found = re.search(r"archived: ([\d,]+) rows, [\d,]+ behind, [\d,]+ files in (.+)", line)
        if found and int(found[1].replace(",", "")) >= least:
            return int(found[1].replace(",", "")), Path(found[2])
    raise AssertionError("the demo ended without an archive")


def processes(pid: int) -> list[Process]:
    """All processes below this one, as soon as Java and Python's daemon are there: Spark starts the daemon when it needs one."""

    def look() -> list[Process] | None:
        found = [one for each in descendants(pid) if (one := Process.of(each)) is not None]
        commands = [command_line(one.pid) for one in found]
        return found if all(any(name in line for line in commands) for name in ("java", "pyspark.daemon")) else None

    return eventually(look, "Java and Python's daemon run below the demo")


def must_end(processes: list[Process]) -> None:
    eventually(lambda: not any(one.runs for one in processes), "the end of all processes of the demo")


def test_the_demo_archives_and_kill_9_leaves_no_process_and_a_right_archive(tmp_path: Path) -> None:
    command = [*DEMO, "--directory", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        rows, folder = archived(process, 100)
        beside = processes(process.pid)
        process.kill()
        process.wait(timeout=60)
    must_end(beside)
    assert folder == tmp_path / "data/archive/orders"
    report = Verification(Archive(folder), None, lambda _: None).run()
    assert (report.is_equal, report.rows >= rows) == (True, True)


@pytest.mark.soak
def test_the_demo_ends_in_order_and_takes_its_files_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True) as process:
        archived(process, 1)
        beside = processes(process.pid)
        process.terminate()
        assert process.wait(timeout=60) == 0
    must_end(beside)
    assert list(tmp_path.glob("bascule-demo-*")) == []
