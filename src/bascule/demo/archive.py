"""The demo's archive: `bascule pipeline archive` with a Spark of its own, as a child, while the demo goes on.

What the screen shows of it comes from the archive's commits, not from Spark. The child is demo_child.py, which runs the command and
ends when the last of its processes has ended; that is noticed by the end of its standard error. None of them outlives the demo, kill -9
included.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Final

from bascule.errors import BasculeError
from bascule.lake.manifest import Archive, ArchiveState

EVERY: Final = "2s"
LAUNCHER: Final = Path(__file__).with_name("demo_child.py")
STOP_SECONDS_MAX: Final = 15.0
LINE_BYTES_MAX: Final = 16 * 1024
LINES_KEPT: Final = 50
REASON_CHARACTERS_MAX: Final = 200

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class DemoArchive:
    """Of one stream, in `folder`."""

    def __init__(self, folder: Path, stream: str) -> None:
        self.folder = folder
        self.stream = stream
        self.state = ArchiveState()
        self._child: _Child | None = None
        self._why_not = ""

    async def start(self, address: str, scratch: Path) -> None:
        """Begin, at once; Spark takes its time in the child. Call it on the main thread."""
        if importlib.util.find_spec("pyspark") is None:
            self._why_not = 'Spark is not installed: `pip install "bascule[spark]"`'
            return
        scratch.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "bascule.cli.main", "pipeline", "archive", str(self.folder), self.stream]
        command += ["--every", EVERY, "--server", address, "--master", "local[1]"]
        self._child = _Child(command, {"SPARK_LOCAL_DIRS": str(scratch), "NO_COLOR": "1", "BASCULE_CONTEXT": ""})
        await self._child.watch()

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop()

    # ── what is shown ────────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Read the commits that came since the last look."""
        if self.folder.is_dir() and self.problem is None:
            try:
                self.state = Archive(self.folder).refresh(self.state)
            except BasculeError:
                return  # it is being made

    @property
    def problem(self) -> str | None:
        """Why nothing is archived; None as long as all is well."""
        if self._why_not:
            return self._why_not
        if self._child is None or not self._child.ended.is_set():
            return None
        return f"Spark has ended: {self._child.complaint}"

    @property
    def is_up(self) -> bool:
        return self.state.number > 0

    def lag(self, high_watermarks: dict[int, int]) -> int:
        """Messages that are committed in the log and not in the archive."""
        archived = {number: end for (_, _, number), end in self.state.next_offsets.items()}
        return sum(max(0, mark + 1 - archived.get(number, 0)) for number, mark in high_watermarks.items())


class _Child(asyncio.Protocol):
    """The process and what it says on its standard error."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.ended = asyncio.Event()
        self._partial = b""
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._transport: asyncio.BaseTransport | None = None
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command]
        # A session of its own: Ctrl-C is for the demo, which ends this one in order.
        self._process = subprocess.Popen(
            launcher,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | environment,
        )

    async def watch(self) -> None:
        assert self._process.stderr is not None
        await asyncio.get_running_loop().connect_read_pipe(lambda: self, self._process.stderr)

    @property
    def complaint(self) -> str:
        """What it said last that sounds like a reason, in one line."""
        errors = [line.removeprefix("error: ") for line in self._said if line.startswith("error: ")]
        status = self._process.poll()
        said = (errors or [line for line in self._said if line] or [f"status {status}"])[-1]
        return said[:REASON_CHARACTERS_MAX]

    async def stop(self) -> None:
        """Have all of it end, and wait until the last process is gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), STOP_SECONDS_MAX)
                break
        await asyncio.to_thread(self._process.wait)
        if self._transport is not None:
            self._transport.close()

    # ── asyncio calls these ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-LINE_BYTES_MAX:]
        self._said.extend(_COLOUR.sub("", line.decode(errors="replace")).strip() for line in lines)

    def connection_lost(self, _exc: Exception | None) -> None:
        # The pipe is closed a moment before the process is gone.
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1)
        self.ended.set()
