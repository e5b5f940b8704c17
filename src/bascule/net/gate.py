"""A port that opens before the parts that its answers need, and closes after they have stopped."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from bascule.errors import Unavailable

STARTING: Final = "the server is starting"
STOPPING: Final = "the server is stopping"

P = TypeVar("P")


class Gate(Generic[P]):
    """Gives the parts to calls while the server runs; before and after that, calls get Unavailable. Safe for threads."""

    def __init__(self) -> None:
        self._parts: P | None = None
        self.why_closed: str | None = STARTING

    def open(self, parts: P) -> None:
        self._parts = parts
        self.why_closed = None

    def close(self) -> None:
        self.why_closed = STOPPING

    @property
    def is_stopping(self) -> bool:
        return self.why_closed == STOPPING

    def parts(self) -> P:
        why = self.why_closed
        if why is not None or self._parts is None:
            raise Unavailable(why or STARTING, hint="retry in a moment, or ask another server")
        return self._parts
