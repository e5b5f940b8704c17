"""Servers as processes of their own, on free ports and with a temporary directory, and what they use of the machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bascule.broker.embedded_nats import EmbeddedNatsOptions, find_binary, read_version, render_config

TICKS: Final = os.sysconf("SC_CLK_TCK")
START_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 15.0


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of one process, all its threads, and the most memory it had resident."""

    user: float
    system: float
    rss_bytes_max: int

    @property
    def cpu(self) -> float:
        return self.user + self.system


class Process:
    """A server. `log` gets what it says."""

    def __init__(
        self, name: str, command: Sequence[str], directory: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=directory,
                env={**os.environ, **(env or {})},
            )
        self._began = (0.0, 0.0)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self) -> None:
        """Usage is counted from here; the peak of memory begins anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        self._began = self._cpu()

    def usage(self) -> Usage:
        """Since begin()."""
        user, system = self._cpu()
        return Usage(user - self._began[0], system - self._began[1], self._status("VmHWM"))

    def _cpu(self) -> tuple[float, float]:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / TICKS, int(fields[12]) / TICKS

    def _status(self, field: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))

    def check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} left with status {self._process.returncode}:\n{self.said()}")

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text("utf-8", "replace")[-2000:]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_nats(name: str, directory: Path, *, jetstream: bool = False) -> tuple[Process, int]:
    """A nats-server with the settings that a broker gives its embedded one; the process and its port."""
    directory.mkdir(parents=True)
    binary, port = find_binary(), free_port()
    options = EmbeddedNatsOptions(directory=directory, port=port)
    config = directory / "nats-server.conf"
    text = render_config(options, read_version(binary))
    if jetstream:
        text += f"jetstream {{ store_dir: {json.dumps(str(directory / 'store'))} }}\n"
    config.write_text(text)
    process = Process(name, [binary, "-c", str(config)], directory)
    wait_for_port(process, port)
    return process, port


def start_broker(directory: Path, nats_port: int) -> tuple[Process, int]:
    """The process and its gRPC port."""
    directory.mkdir(parents=True)
    data = directory / "data"
    config = directory / "bascule.yaml"
    config.write_text(json.dumps({"listen": "127.0.0.1:0"}))
    command = [sys.executable, "-m", "bascule.broker", "-c", str(config), "-d", str(data), "--raft-bootstrap-seed"]
    command += ["--nats-servers", f"nats://127.0.0.1:{nats_port}"]
    process = Process("bascule", command, directory)
    addresses = data / "addresses.json"
    deadline = time.monotonic() + START_SECONDS_MAX
    while not addresses.exists():
        _still_starting(process, deadline)
    return process, int(json.loads(addresses.read_text("utf-8"))["grpc"].rpartition(":")[2])


def start_liftbridge(binary: str, directory: Path, nats_port: int) -> tuple[Process, int]:
    """The Go original; its gRPC port."""
    directory.mkdir(parents=True)
    port = free_port()
    command = [binary, "--data-dir", str(directory / "data"), "--port", str(port), "--raft-bootstrap-seed"]
    command += ["--nats-servers", f"nats://127.0.0.1:{nats_port}", "--level", "error"]
    process = Process("liftbridge", command, directory)
    wait_for_port(process, port)
    return process, port


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(process: Process, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            _still_starting(process, deadline)
        else:
            return


def _still_starting(process: Process, deadline: float) -> None:
    process.check()
    if time.monotonic() > deadline:
        raise RuntimeError(f"{process.name} did not start within {START_SECONDS_MAX:g} s; see {process.log}")
    time.sleep(0.01)
