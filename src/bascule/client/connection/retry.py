"""Deadlines, and the pause between two attempts: used by everything in the client that retries."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

FIRST_WAIT_SECONDS: Final = 0.05
LONGEST_WAIT_SECONDS: Final = 1.0

ATTEMPT_SECONDS_MIN: Final = 0.1
"""With less time no attempt begins: it would hardly be answered, and the caller learns more from the error of the last one."""

LEADER_CHECK_SECONDS: Final = 1.0
"""After this time without an ack the client checks whether another broker leads the partition. An ack of all replicas may take as long
as the removal of a dead one: time alone is no reason to send again."""


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
    """Pauses that double from 50 ms to 1 s. Half of each is random, so that clients do not retry all at once."""

    tries: int = field(default=0)

    def reset(self) -> None:
        self.tries = 0

    def next_seconds(self) -> float:
        wait = min(FIRST_WAIT_SECONDS * 2.0 ** min(self.tries, 10), LONGEST_WAIT_SECONDS)
        self.tries += 1
        return wait * (0.5 + random.random() / 2)

    async def pause(self) -> None:
        await asyncio.sleep(self.next_seconds())

    async def wait(self, deadline: TimeLimit) -> bool:
        """Pause. False when the deadline leaves no time for another attempt."""
        pause = self.next_seconds()
        if pause + ATTEMPT_SECONDS_MIN >= deadline.left:
            return False
        await asyncio.sleep(pause)
        return True
