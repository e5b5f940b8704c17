"""Bounds the records about refused calls: a client that is refused again and again gets a few records and a count. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 60.0
"""Window in which audit records about refused and failed calls are counted."""

REFUSALS_PER_CLIENT_MAX: Final = 20
"""Audit records about refused and failed calls of one client in a window; one more record counts the others."""

REFUSALS_MAX: Final = 500
"""Audit records about refused and failed calls of all clients in a window: at most about 500 MB a day while an attack lasts."""

CLIENTS_MAX: Final = 256
"""Clients whose refused calls are counted one by one in a window; all others are counted together."""
OTHERS: Final = ("", "others")
"""Stands for all clients beyond `CLIENTS_MAX`."""


@dataclass(slots=True)
class _Counts:
    written: int = 0
    left_out: int = 0


class RefusalBound:
    """Counts refusals by client, in windows of `WINDOW_SECONDS`. A client is its name, or the network of its address."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], _Counts] = {}
        self._written = 0
        self._ends = 0.0

    def admits(self, client: tuple[str, str], now: float) -> bool:
        """Count a refusal. Returns whether it gets a record of its own."""
        if not self._counts:
            self._ends = now + WINDOW_SECONDS
        if client not in self._counts and len(self._counts) >= CLIENTS_MAX:
            client = OTHERS
        counts = self._counts.setdefault(client, _Counts())
        if counts.written >= REFUSALS_PER_CLIENT_MAX or self._written >= REFUSALS_MAX:
            counts.left_out += 1
            return False
        counts.written += 1
        self._written += 1
        return True

    def summaries(self, now: float, *, at_once: bool = False) -> list[tuple[tuple[str, str], int]]:
        """Return the clients whose refusals were left out, and how many, when the window is over; begin the next one."""
        if not self._counts or (now < self._ends and not at_once):
            return []
        found = [(client, counts.left_out) for client, counts in self._counts.items() if counts.left_out]
        self._counts.clear()
        self._written = 0
        return found
