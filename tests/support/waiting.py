"""Waiting for what will be true soon: asked again and again until a deadline, never slept through."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

PATIENCE_SECONDS: Final = 60.0
"""How long anything may take on a busy machine before it counts as never."""

_T = TypeVar("_T")


def eventually(look: Callable[[], _T | None], what: str, timeout: float = PATIENCE_SECONDS) -> _T:
    """The first true answer of `look`. `what` ends the sentence `it never came true that …`."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came true that {what} (waited {timeout:g} s, last answer {found!r})")
        time.sleep(0.01)


class Signalled(Protocol):
    """A process of `subprocess` or of the fork server: a signal never reaches another one that has its number by now."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, number: int, /) -> None: ...


def pause(pid: int) -> None:
    """SIGSTOP, and return when every thread of the process is stopped: `kill` itself does not wait for that."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _is_stopped(pid), f"process {pid} is stopped")


def pause_process(process: Signalled) -> None:
    """The same for a process that may have ended."""
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: process.poll() is not None or _is_stopped(process.pid), f"process {process.pid} is stopped")


def _is_stopped(pid: int) -> bool:
    try:
        return all(_state(task) in "TZ" for task in Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return False


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
