"""Deadlines of thousands of partitions, in coarse steps: few wake-ups, and none without a deadline.

An armed owner is called at or shortly after its deadline, and arms itself again. A deadline that moves into the future costs nothing:
the owner finds that the call is early.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import Final, Protocol

STEP_NS: Final = 25_000_000
FAR_NS: Final = 1_000_000_000
FAR_STEPS: Final = 20
"""Deadlines more than a second away are rounded up to half a second, so that many share one call."""


class Timed(Protocol):
    armed_step: int
    """Used by the timers only; 0 if the owner is not armed."""

    def on_time(self, now_ns: int) -> None: ...


class CoarseTimers:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: dict[int, list[Timed]] = {}
        self._order: list[int] = []
        self._handle: asyncio.TimerHandle | None = None
        self._due_step = 0
        self._is_closed = False

    def arm(self, owner: Timed, deadline_ns: int | None) -> None:
        """Call `owner.on_time` at the deadline, unless an earlier call is due."""
        if deadline_ns is None or self._is_closed:
            return
        step = max(deadline_ns, 0) // STEP_NS + 1
        if deadline_ns - time.monotonic_ns() > FAR_NS:
            step = -(-step // FAR_STEPS) * FAR_STEPS
        if owner.armed_step and owner.armed_step <= step:
            return
        owner.armed_step = step
        waiting = self._steps.get(step)
        if waiting is None:
            self._steps[step] = [owner]
            heapq.heappush(self._order, step)
            self._schedule()
        else:
            waiting.append(owner)

    def disarm(self, owner: Timed) -> None:
        owner.armed_step = 0

    def _schedule(self) -> None:
        if not self._order or (self._handle is not None and self._due_step <= self._order[0]):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._due_step = self._order[0]
        delay_ns = self._due_step * STEP_NS - time.monotonic_ns()
        self._handle = self._loop.call_later(max(delay_ns, 0) / 1e9, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now_ns = time.monotonic_ns()
        while self._order and self._order[0] * STEP_NS <= now_ns:
            step = heapq.heappop(self._order)
            for owner in self._steps.pop(step):
                if owner.armed_step == step:
                    owner.armed_step = 0
                    owner.on_time(now_ns)
        self._schedule()

    def close(self) -> None:
        self._is_closed = True
        if self._handle is not None:
            self._handle.cancel()
