"""How long something may take, and how long to wait before it is tried again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

FIRST_WAIT_SECONDS: Final = 0.05
LONGEST_WAIT_SECONDS: Final = 1.0

LEADER_CHECK_SECONDS: Final = 1.0
"""Whoever waits so long for an ack looks whether another broker leads the partition meanwhile. An ack of all replicas may take as long
as a dead one needs to be noticed: time alone is no reason to send anything again."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A moment on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> TimeLimit:
        return cls(monotonic() + seconds)

    @property
    def left(self) -> float:
        return max(0.0, self.at - monotonic())

    @property
    def has_passed(self) -> bool:
        return monotonic() >= self.at


@dataclass(slots=True)
class Backoff:
    """Waits that double up to a second; a random half of each, so that not all clients come back at once."""

    tries: int = field(default=0)

    def reset(self) -> None:
        self.tries = 0

    def next_seconds(self) -> float:
        wait = min(FIRST_WAIT_SECONDS * 2.0 ** min(self.tries, 10), LONGEST_WAIT_SECONDS)
        self.tries += 1
        return wait * (0.5 + random.random() / 2)

    async def wait(self, deadline: TimeLimit) -> bool:
        """False when the deadline leaves no time for another try."""
        pause = self.next_seconds()
        if pause >= deadline.left:
            return False
        await asyncio.sleep(pause)
        return True
