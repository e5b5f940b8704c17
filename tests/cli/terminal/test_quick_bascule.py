"""The `bascule` of guides, which begins as a copy, is like a real one from outside: output, exit code, signals and death."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import COMMAND, environ
from tests.support.quick_programs import bascule_command
from tests.support.waiting import eventually


@pytest.mark.parametrize("arguments", [("--version",), ("stream", "no-such-command"), ("context", "list", "--json")])
def test_it_says_and_returns_what_the_real_one_does(home: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    def outcome(*command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, env=environ(home), cwd=tmp_path, check=False
        )
        return done.returncode, done.stdout, done.stderr

    assert outcome(str(bascule_command(tmp_path))) == outcome(*COMMAND)


def start_server(home: Path, tmp_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The program, and the process of the server that it stands for."""
    file = tmp_path / "bascule.yaml"
    file.write_text("listen: 127.0.0.1:0\nnats.embedded.port: 0\nflight.enabled: false\nhttp.enabled: false\n")
    program = [str(bascule_command(tmp_path)), "server", "-c", str(file), "-d", str(tmp_path / "data")]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [*program, "--embedded-nats", "--raft-bootstrap-seed"], stdout=said, stderr=said, env=environ(home)
        )
    addresses = tmp_path / "data" / "addresses.json"
    eventually(addresses.exists, "the server serves")
    return process, _owner(tmp_path / "data")


def _owner(directory: Path) -> int:
    """The process that has files of the directory open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [str(one.readlink()) for one in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(file.startswith((f"{directory}/raft", f"{directory}/lock")) for file in files):
            return int(process.name)
    raise AssertionError(f"no process has files of {directory} open")


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_signal_stops_the_server_as_it_should_be_stopped(home: Path, tmp_path: Path) -> None:
    process, server = start_server(home, tmp_path)
    assert server != process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert is_gone(server)
    assert not (tmp_path / "data" / "addresses.json").exists(), "it has not stopped, it was killed"


def test_the_server_dies_with_the_program(home: Path, tmp_path: Path) -> None:
    process, server = start_server(home, tmp_path)
    process.kill()
    process.wait()
    eventually(lambda: is_gone(server), "the server is gone")
