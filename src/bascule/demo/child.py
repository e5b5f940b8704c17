"""Runs a command until it ends or the parent of this process ends, then ends every process that the command has started.

    python -I -S child.py <process id of the parent> <command>…

Spark is a tree of processes: a driver, its Java, Python workers. Some of them notice only after a minute that the others have ended.
The kernel signals this process when its parent dies (PR_SET_PDEATHSIG) and makes it the parent of the tree's orphans
(PR_SET_CHILD_SUBREAPER), so that it can end all of them. It imports nothing of the product, to start quickly. The kernel watches the
*thread* that started this process: it must be the parent's main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
GRACE_SECONDS: Final = 5.0
"""Time between SIGTERM and SIGKILL: Java removes its temporary files."""
STEP_SECONDS: Final = 0.05
NICENESS: Final = 5
"""Spark needs ten seconds of CPU to start: the broker must not be slowed down by it."""


def main(parent: int, command: list[str]) -> int:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.nice(NICENESS)
    child = _start(command)
    status: int | None = None
    while status is None and not ending and os.getppid() == parent:
        time.sleep(STEP_SECONDS)
        status = _reap().get(child)
    _end_all(child if status is None else None)
    return 0 if status is None else os.waitstatus_to_exitcode(status) & 0xFF


def _start(command: list[str]) -> int:
    me = os.getpid()
    child = os.fork()  # safe: this process has a single thread
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == me:
            os.execv(command[0], command)
        os._exit(1)
    return child


def _end_all(child: int | None) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    signalled: set[int] = set()
    while found := {*_descendants(os.getpid()), *([child] if child is not None else [])}:
        is_late = time.monotonic() > deadline
        for pid in found if is_late else found - signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        signalled |= found
        time.sleep(STEP_SECONDS)
        if child in _reap():
            child = None


def _reap() -> dict[int, int]:
    """The children that have ended, with their wait statuses."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _descendants(pid: int) -> Iterator[int]:
    """The descendants of a process; none without /proc, so that only the child is ended there."""
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = thread.read_text("ascii").split()
        except OSError:
            continue  # it has ended
        for child in children:
            yield int(child)
            yield from _descendants(int(child))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
