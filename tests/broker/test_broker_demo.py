"""`bascule demo` as a person uses it: real processes, a real nats-server, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually

DEMO = [sys.executable, "-m", "bascule.cli.main", "demo", "--free-ports"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def must_end(pids: list[int]) -> None:
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of nats-server")


def messages_shown(line: str) -> int:
    found = re.match(r"orders: ([\d,]+) messages", line)
    return int(found[1].replace(",", "")) if found else -1


def first_count(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if (count := messages_shown(line)) > 0:
            return count
    raise AssertionError("the demo ended without a message")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_stops_at_a_signal_and_leaves_nothing_behind(tmp_path: Path, end: signal.Signals) -> None:
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, env=_environment(tmp_path)) as process:
        first_count(process)
        beside = children(process.pid)
        assert beside, "nats-server runs beside the broker"
        process.send_signal(end)
        assert process.wait(timeout=30) == 0
    must_end(beside)
    assert list(tmp_path.glob("bascule-demo-*")) == []


def test_the_demo_goes_on_where_kill_9_ended_it(tmp_path: Path) -> None:
    seen = 0
    for _ in range(2):
        command = [*DEMO, "--directory", str(tmp_path / "data")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            count = first_count(process)
            assert count > seen
            seen = count
            beside = children(process.pid)
            process.kill()
            process.wait(timeout=30)
        must_end(beside)


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    command = [*DEMO, "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first_count(process)
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        process.terminate()
        process.wait(timeout=30)
    assert second.returncode == 3
    assert "in use by another process" in second.stderr


def _environment(temporary: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(temporary)}
