"""Lines about the commits of a job, for a terminal."""

from __future__ import annotations

from time import monotonic

from bascule.cli.terminal.output import note
from bascule.config.values.shown import iso_ns


class Narrator:
    """Notes each commit with its time, and how long it took since the one before."""

    def __init__(self) -> None:
        self._last = monotonic()

    def commit(self, at_ns: int, text: str) -> None:
        seconds, self._last = monotonic() - self._last, monotonic()
        self.remark(at_ns, f"{text}, {seconds:.1f} s")

    def remark(self, at_ns: int, text: str) -> None:
        """Note something that is no commit of its own."""
        note(f"{iso_ns(at_ns)}  {text}")
