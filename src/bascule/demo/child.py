"""Runs a command until it ends, or until whoever started this is gone, and takes everything along that the command has started.

    python -I -S demo_child.py <process id of the parent> <command>…

A Spark is a tree of processes: a driver, its Java, workers in Python. Some of them notice late, or after a minute, that the others are
gone. The kernel tells this one when its parent dies (PR_SET_PDEATHSIG) and gives it the orphans of its tree
(PR_SET_CHILD_SUBREAPER), so that it can end all of them. It imports nothing of the product: it has to be there before anything else is.
The kernel watches the *thread* that started this: it has to be the parent's main thread.
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
"""For processes to end in order: Java removes its temporary files."""
STEP_SECONDS: Final = 0.05
NICENESS: Final = 5
"""Spark starts with ten seconds of work: it must not be at the cost of what the demo serves meanwhile."""


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
    child = os.fork()  # nothing else runs here, so what follows is safe between fork and exec
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == me:
            os.execv(command[0], command)
        os._exit(1)
    return child


def _end_all(child: int | None) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    told: set[int] = set()
    while found := {*_descendants(os.getpid()), *([child] if child is not None else [])}:
        is_late = time.monotonic() > deadline
        for pid in found if is_late else found - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        told |= found
        time.sleep(STEP_SECONDS)
        if child in _reap():
            child = None


def _reap() -> dict[int, int]:
    """Those of our children that have ended, and how."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _descendants(pid: int) -> Iterator[int]:
    """Where there is no /proc, none are found: there the child alone is ended."""
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
