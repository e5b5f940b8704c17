"""A progress bar on stderr for long commands: shown only on a terminal, and only after half a second."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_SECONDS: Final = 0.5
"""A command that ends sooner shows no bar."""


class ProgressBar:
    """A progress bar; `total` is None if the end is not known."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._visible_from = monotonic() + QUIET_SECONDS if sys.stderr.isatty() else float("inf")
        self._bar: tuple[Progress, TaskID] | None = None

    def update(self, done: int, what: str | None = None) -> None:
        self._what = what or self._what
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=done, description=self._what)
        elif monotonic() >= self._visible_from:
            self._bar = self._start(done)

    def _start(self, done: int) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        progress.start()
        return progress, progress.add_task(self._what, total=self._total, completed=done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()
