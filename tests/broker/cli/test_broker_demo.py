"""`bascule demo` as a person uses it: real processes, a real nats-server, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bascule.demo.archive import LAUNCHER
from tests.support.waiting import eventually

WITH_SPARK = [sys.executable, "-m", "bascule.cli.main", "demo", "--free-ports"]
DEMO = [*WITH_SPARK, "--no-spark"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def must_end(pids: list[int]) -> None:
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of nats-server")


def messages_shown(line: str) -> int:
    found = re.match(r"orders: ([\d,]+) messages", line)
    return int(found[1].replace(",", "")) if found else -1


def first_count(process: subprocess.Popen[str], seen: int = 0) -> int:
    """The first that is more than was seen before; none may be less."""
    assert process.stdout is not None
    for line in process.stdout:
        count = messages_shown(line)
        assert count >= seen or count == -1, line
        if count > seen:
            return count
    raise AssertionError("the demo ended without a message")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_stops_at_a_signal_and_leaves_nothing_behind(tmp_path: Path, end: signal.Signals) -> None:
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, env=_environment(tmp_path)) as process:
        first_count(process)
        beside = children(process.pid)
        assert beside, "nats-server runs beside the broker"
        process.send_signal(end)
        assert process.wait(timeout=120) == 0
    must_end(beside)
    assert list(tmp_path.glob("bascule-demo-*")) == []


def test_the_demo_goes_on_where_kill_9_ended_it(tmp_path: Path) -> None:
    seen = 0
    for _ in range(2):
        command = [*DEMO, "--directory", str(tmp_path / "data")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            seen = first_count(process, seen)
            beside = children(process.pid)
            process.kill()
            process.wait(timeout=120)
        must_end(beside)


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    command = [*DEMO, "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first_count(process)
        second = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        process.terminate()
        process.wait(timeout=120)
    assert second.returncode == 3
    assert "in use by another process" in second.stderr


# ── the archive: with something in place of Spark, which is slow to start; tests/spark has the real one ──


def fake_pyspark(path: Path, program: str) -> dict[str, str]:
    (path / "fake/pyspark").mkdir(parents=True)
    (path / "fake/pyspark/__init__.py").write_text(program)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(path / "fake"), *sys.path])}


def first_line(process: subprocess.Popen[str], what: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if what in line:
            return line
    raise AssertionError(f"the demo ended without {what!r}")


def test_the_demo_goes_on_without_spark_and_says_why(tmp_path: Path) -> None:
    environment = fake_pyspark(tmp_path, "raise ImportError('no', name='pyspark')")
    with subprocess.Popen(WITH_SPARK, stdout=subprocess.PIPE, text=True, env=environment) as process:
        line = first_line(process, "Spark has ended")
        assert line.rstrip().endswith("; Spark has ended: Spark is not installed: pyspark is missing")
        assert first_count(process) >= messages_shown(line)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_archives_for_the_demo_ends_with_it(tmp_path: Path, end: signal.Signals) -> None:
    environment = fake_pyspark(tmp_path, "import time; time.sleep(1000)") | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(WITH_SPARK, stdout=subprocess.PIPE, text=True, env=environment) as process:
        first_line(process, "Spark is starting")
        beside = children(process.pid)
        assert len(beside) == 2, "nats-server, and what archives"
        process.send_signal(end)
        process.wait(timeout=120)
    must_end(beside)
    assert len(list(tmp_path.glob("bascule-demo-*"))) == (end is signal.SIGKILL)


# `print` may write a line in two pieces, between which there is room for somebody else's.
TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "deaf" else signal.SIG_DFL)
if os.fork() == 0:
    os.setsid()  # as Spark's daemon leaves its group
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(1000)
    os._exit(0)  # so the grandchild is an orphan
os.write(1, b"%d\\n" % os.getpid())
time.sleep(1000)
"""


@pytest.mark.parametrize(("kind", "end"), [("", signal.SIGTERM), ("deaf", signal.SIGTERM), ("", signal.SIGKILL)])
def test_everything_that_was_started_is_ended_orphans_too(kind: str, end: signal.Signals) -> None:
    """SIGKILL is for the parent, of which the launcher then hears from the kernel."""
    tree = [sys.executable, "-c", TREE, kind]
    parent = f"""import subprocess, sys, os
child = subprocess.Popen([sys.executable, "-I", "-S", {str(LAUNCHER)!r}, str(os.getpid()), *{tree!r}])
os.write(1, b"%d\\n" % child.pid)
child.wait()"""
    with (
        subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(3)]
        if end is signal.SIGKILL:
            process.kill()
        else:
            launcher = next(pid for pid in pids if LAUNCHER.name in Path(f"/proc/{pid}/cmdline").read_text())
            os.kill(launcher, end)
        must_end(pids)


def test_what_ends_by_itself_ends_with_its_status() -> None:
    command = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), sys.executable, "-c", "raise SystemExit(7)"]
    assert subprocess.run(command, check=False, timeout=120).returncode == 7
    # whose parent is another than it was told of
    command[4] = "1"
    command[-1] = "import time; time.sleep(1000)"
    assert subprocess.run(command, check=False, timeout=120).returncode == 0


def test_the_welcome_names_the_query(tmp_path: Path) -> None:
    environment = fake_pyspark(tmp_path, "import time; time.sleep(1000)")
    command = [*WITH_SPARK, "--directory", str(tmp_path / "data"), "--seconds", "1"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True, env=environment).stdout
    assert f'FROM orders GROUP BY ALL" --archive orders={tmp_path}/data/archive/orders -s 127.0.0.1:' in said


def _environment(temporary: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(temporary)}
