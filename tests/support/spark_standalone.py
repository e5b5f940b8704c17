"""A standalone cluster of Spark: a master and workers as processes, each with folders, a SPARK_HOME and a Python of its own.

Each worker is on an address of its own of the loopback, so that tasks can be told by their host. Its Python is an environment without
any package.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bascule.spark import java
from tests.support.spark_classes import FLAGS
from tests.support.spark_home import spark_home
from tests.support.waiting import PATIENCE_SECONDS

_URL: Final = re.compile(r"Starting Spark master at (spark://[\d.]+:\d+)")
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"


class StandaloneCluster:
    """Started at the beginning of a block, ended with it."""

    def __init__(self, directory: Path, workers: int = 2, cores: int = 2) -> None:
        self._directory = directory
        self._workers = workers
        self._cores = cores
        self._processes: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self.url = ""
        self.hosts = [f"127.0.0.{number + 2}" for number in range(workers)]
        self.homes: list[Path] = []

    def __enter__(self) -> Self:
        try:
            master = self._start("master", MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.url = self._wait(master, _URL)[1]
            registered = [self._worker(number, host) for number, host in enumerate(self.hosts)]
            for name in registered:
                self._wait(name, re.compile("Successfully registered with master"))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end()

    def _worker(self, number: int, host: str) -> str:
        name = f"worker-{number}"
        folder = self._directory / name
        python = folder / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
        self.homes.append(folder)
        arguments = ("--host", host, "--port", "0", "--webui-port", "0", "--cores", str(self._cores))
        path = os.pathsep.join([str(python / "bin"), "/usr/bin", "/bin"])
        memory = ("--memory", "1g", "--work-dir", str(folder / "work"))
        return self._start(name, WORKER, *arguments, *memory, self.url, path=path)

    def _start(self, name: str, kind: str, *arguments: str, path: str = "/usr/bin:/bin") -> str:
        folder = self._directory / name
        folder.mkdir(parents=True, exist_ok=True)
        environ = {
            "PATH": path,
            "HOME": str(folder),
            "JAVA_HOME": str(java.choose().home),
            "SPARK_HOME": str(spark_home(folder)),
            "SPARK_DAEMON_JAVA_OPTS": FLAGS,
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_NO_DAEMONIZE": "1",
        }
        log = folder / "log"
        with log.open("wb") as opened:
            command = [str(Path(environ["SPARK_HOME"]) / "bin" / "spark-class"), kind, *arguments]
            process = subprocess.Popen(command, cwd=folder, env=environ, stdout=opened, stderr=subprocess.STDOUT)
        self._processes.append((name, process, log))
        return name

    def _wait(self, name: str, pattern: re.Pattern[str]) -> re.Match[str]:
        process, log = next((process, log) for known, process, log in self._processes if known == name)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            said = log.read_text("utf-8", "replace")
            found = pattern.search(said)
            if found is not None:
                return found
            assert process.poll() is None, said
            time.sleep(0.1)
        raise AssertionError(f"{name} did not say {pattern.pattern}: {log.read_text('utf-8', 'replace')}")

    def _end(self) -> None:
        for _, process, _ in reversed(self._processes):
            process.terminate()
        for _, process, _ in reversed(self._processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
