"""The demo's archive: `bascule pipeline archive` in a child process with its own Spark.

The screen shows the archive's commits, not Spark's reports. The child is child.py, which runs the command and exits after the last
process of its tree; the demo notices by the end of the child's standard error. No process outlives the demo, even after kill -9.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Final

from bascule.child_process import ChildProcess
from bascule.errors import BasculeError
from bascule.lake.archive import Archive
from bascule.lake.facts import ArchiveState

EVERY: Final = "2s"
LAUNCHER: Final = Path(__file__).with_name("child.py")
STOP_SECONDS_MAX: Final = 15.0
REASON_CHARACTERS_MAX: Final = 200

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class DemoArchive:
    """The archive of one stream, in `folder`."""

    def __init__(self, folder: Path, stream: str) -> None:
        self.folder = folder
        self.stream = stream
        self.state = ArchiveState(number=-1)
        self._archive = Archive(folder)
        self._child: _ArchiveProcess | None = None
        self._why_not = ""

    async def start(self, address: str, scratch: Path) -> None:
        """Start the child; returns before Spark has started. Must be called on the main thread."""
        if importlib.util.find_spec("pyspark") is None:
            self._why_not = 'Spark is not installed: `pip install "bascule[spark]"`'
            return
        scratch.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "bascule.cli.main", "pipeline", "archive", str(self.folder), self.stream]
        command += ["--every", EVERY, "--server", address, "--master", "local[1]"]
        self._child = _ArchiveProcess(
            command, {"SPARK_LOCAL_DIRS": str(scratch), "NO_COLOR": "1", "BASCULE_CONTEXT": ""}
        )
        await self._child.watch()

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop()

    # ── what is shown ────────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Read the commits since the last call."""
        if self.folder.is_dir() and self.problem is None:
            try:
                self.state = self._archive.refresh(self.state)
            except BasculeError:
                return  # the archive is being created

    @property
    def problem(self) -> str | None:
        """The reason why nothing is archived; None while the archive works."""
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


class _ArchiveProcess(ChildProcess):
    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command]
        super().__init__(launcher, os.environ | environment, stop_seconds_max=STOP_SECONDS_MAX)

    @property
    def complaint(self) -> str:
        """The last error message of the process, else its last line, else its exit status."""
        lines = [_COLOUR.sub("", line).strip() for line in self.last_lines]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        said = (errors or [line for line in lines if line] or [f"status {self.status}"])[-1]
        return said[:REASON_CHARACTERS_MAX]
