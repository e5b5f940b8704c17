"""A broker as a real process with a data directory of its own: started, stopped, killed and started again.

Once it serves, it writes its addresses into `<data directory>/addresses.json`; a graceful stop removes the file. What it said is in
`<directory>/broker.log` and is shown when a test fails.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.support.api_client import Api, Health, Status, grpc
from tests.support.fork_server import ForkedProcess, start_copy
from tests.support.waiting import PATIENCE_SECONDS

ROOT: Final = Path(__file__).resolve().parents[2]
LOG_LINES_SHOWN: Final = 60
COMMAND: Final = (sys.executable, "-m", "bascule.broker")

LIVE: Final[dict[int, BrokerProcess]] = {}
"""Brokers that run now, for whoever reports a failure."""


def clean_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our own environment without anything that configures a broker."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BASCULE_", "LIFTBRIDGE_"))}
    paths = [str(ROOT / "src"), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONFAULTHANDLER": "1", **(extra or {})}


class BrokerProcess:
    """`nats_url` None runs the embedded NATS server on a free port. `config` maps dotted keys to values; without it the broker serves
    no tables and keeps no cursors, and so has no stream of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        nats_url: str | None = None,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        seed: bool = True,
        arguments: Sequence[str] = (),
        handles: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.data = directory / "data"
        self.log = directory / "broker.log"
        self.config_file = directory / "bascule.yaml"
        # Hundreds of brokers need no tables: importing Arrow would double what each costs.
        quick = {"flight.enabled": False, "cursors.stream.partitions": 0}
        self.config = {"listen": "127.0.0.1:0", **quick, **(config or {})}
        self.env = dict(env or {})
        self.arguments = [*arguments]
        self.handles = handles
        """Hard limit of open files; None for the limit of the test."""
        self.memory_bytes = memory_bytes
        """Limit of the memory that the process may write to; None for the limit of the test."""
        if nats_url is None:
            self.config.setdefault("nats.embedded.port", 0)
            self.arguments.append("--embedded-nats")
        else:
            self.arguments += ["--nats-servers", nats_url]
        if seed:
            self.arguments.append("--raft-bootstrap-seed")
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.address = ""
        self.flight_address = ""
        self.http_address = ""
        self.nats_url = nats_url or ""

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker does not run"
        return self.process.pid

    def launch(self) -> None:
        """Start it and do not wait."""
        assert self.process is None, "the broker runs already"
        self.addresses_file.unlink(missing_ok=True)
        self.config_file.write_text(json.dumps(self.config), "utf-8")
        arguments = ["-c", str(self.config_file), "-d", str(self.data), *self.arguments]
        with self.log.open("ab") as log:
            log.write(f"=== bascule.broker {' '.join(arguments)}\n".encode())
            log.flush()
            self.process = self._launched(arguments, log.fileno())
        if self.memory_bytes is not None:
            resource.prlimit(self.pid, resource.RLIMIT_DATA, (self.memory_bytes, self.memory_bytes))
        LIVE[id(self)] = self

    def _launched(self, arguments: list[str], log: int) -> subprocess.Popen[bytes] | ForkedProcess:
        environ = clean_environ(self.env)
        copy = start_copy("bascule.broker.main", arguments, environ, stdout=log, stderr=log, handles=self.handles)
        if copy is not None:
            return copy
        limited = [] if self.handles is None else ["prlimit", f"--nofile={self.handles}:{self.handles}"]
        command = [*limited, *COMMAND, *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environ)

    def start(self) -> BrokerProcess:
        """Start it and wait until it serves."""
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self, timeout: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            assert self.is_running, f"the broker left with {self._returncode()} before it served:\n{self.tail()}"
            assert time.monotonic() < deadline, f"the broker did not serve within {timeout:g} s:\n{self.tail()}"
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        try:
            addresses = json.loads(self.addresses_file.read_text("utf-8"))
        except FileNotFoundError:
            return False
        self.address, self.nats_url = addresses["grpc"], addresses["nats"]
        self.flight_address = addresses.get("flight", "")
        self.http_address = addresses.get("http", "")
        api = self.api()
        try:
            return Health(api).check() == Health.SERVING and bool(api.FetchMetadata().brokers)
        except grpc.RpcError as error:
            assert error.code() in (Status.UNAVAILABLE, Status.NOT_FOUND, Status.INTERNAL), error
            return False
        finally:
            api.close()

    def stop(self, signal_number: int = signal.SIGTERM, timeout: float = PATIENCE_SECONDS) -> int:
        """Ask it to leave; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal_number)
        return self.wait(timeout)

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Until it is gone; its exit code."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the broker is still there after {timeout:g} s:\n{self.tail()}") from None
        self.process = None
        LIVE.pop(id(self), None)
        return code

    def kill(self) -> None:
        """kill -9. A broker that is gone already is fine too."""
        if self.process is not None:
            self.process.kill()
            self.wait()

    def restart(self) -> None:
        """kill -9 and start again."""
        self.kill()
        self.start()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    @property
    def addresses_file(self) -> Path:
        return self.data / "addresses.json"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _returncode(self) -> int | None:
        return None if self.process is None else self.process.returncode

    def api(self, **options: Any) -> Api:
        """A new connection; the caller closes it."""
        return Api(self.address, **options)

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def tail(self) -> str:
        return "\n".join(self.said().splitlines()[-LOG_LINES_SHOWN:])

    def rss_bytes(self) -> int:
        """Memory in use, without what is shared with files: the page cache is not ours."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no RssAnon in /proc")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def children(self) -> list[int]:
        """Process ids of the embedded NATS server."""
        found: list[int] = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                found += map(int, (task / "children").read_text().split())
        return found

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.kill()
