"""The load generators: C programs under bench/tools/, compiled when they are first used, each printing one line of JSON."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final

TOOLS: Final = Path(__file__).parent / "tools"
BUILT: Final = Path(__file__).parent / "out"
COMPILER: Final = "gcc -O2 -std=gnu11 -Wall -Wextra"
RUN_SECONDS_MAX: Final = 180


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a generator says of its run. `began` and `ended` are of the clock of time.monotonic()."""

    began: float
    ended: float
    messages: int
    failed: int
    client_cpu: float
    p50_us: float
    p99_us: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@functools.cache
def tool(name: str) -> str:
    """Where the program is, compiled anew if its source is newer."""
    source, program = TOOLS / f"{name}.c", BUILT / name
    newest = max(source.stat().st_mtime, (TOOLS / "load.h").stat().st_mtime)
    if not program.exists() or program.stat().st_mtime < newest:
        compiler = os.environ.get("CC", COMPILER).split()
        if not shutil.which(compiler[0]):
            raise SystemExit(f"{compiler[0]} is needed to compile bench/tools/{name}.c; set CC to another C compiler")
        BUILT.mkdir(exist_ok=True)
        subprocess.run([*compiler, str(source), "-o", str(program)], check=True)
    return str(program)


class Running:
    """A running generator with arguments `--name value`; `ready` waits for the line that reports its subscription."""

    def __init__(self, command: list[str], arguments: dict[str, object], *, ready: bool = False) -> None:
        options = [part for name, value in arguments.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        self._process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if ready and self._output.readline() != "ready\n":
            self.outcome()

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def outcome(self) -> Outcome:
        said, complaint = self._process.communicate(timeout=RUN_SECONDS_MAX)
        if self._process.returncode or not said:
            raise RuntimeError(f"{self._process.args!r} failed: {complaint.strip()}")
        return Outcome(**json.loads(said))

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def run(name: str, mode: str, **arguments: object) -> Outcome:
    with Running([tool(name), mode], arguments) as running:
        return running.outcome()


def run_grpcio(mode: str, **arguments: object) -> Outcome:
    """The same loads with the client that Python programs use, in a process of its own."""
    with Running([sys.executable, "-m", "bench.grpcio_load", mode], arguments) as running:
        return running.outcome()
