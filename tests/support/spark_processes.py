"""The processes of a Spark: its Java, the daemon that forks Python workers, and the workers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


def children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)


def parent(pid: int) -> int:
    return int(_fields(pid)[1])


class Process(NamedTuple):
    """A process that is told from a later one with the same id."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        try:
            return cls(pid, int(_fields(pid)[19]))
        except OSError:
            return None

    @property
    def runs(self) -> bool:
        """Also not one that is over and that nobody has buried."""
        return Process.of(self.pid) == self and command_line(self.pid) != ""

    def kill(self) -> None:
        """If it is still there."""
        if Process.of(self.pid) == self:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _fields(pid: int) -> list[str]:
    """Of /proc/<pid>/stat, from the state on: behind the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def workers(java: int) -> list[int]:
    """Python workers that run tasks. The daemon that forks them looks the same: it is their parent."""
    daemons = [pid for pid in children(java) if "pyspark.daemon" in command_line(pid)]
    return [pid for daemon in daemons for pid in children(daemon)]


def kill_workers(java: int) -> int:
    """kill -9 of every worker; how many there were. One that was idle may leave by itself meanwhile."""
    count = 0
    for pid in workers(java):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count
