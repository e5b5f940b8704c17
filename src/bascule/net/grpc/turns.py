"""Turns of the event loop that connections and calls share, so that one client's work does not delay the calls of others.

`ReadTurns` serves connections whose last read made more work than fits into one turn: one of them in each turn. `CallTurns` begins
unary calls: few in each turn while turns take long, and the connections one after another.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from bascule import limits

CALLS_FIRST: Final = 4
"""Calls that begin in the first turn, before the loop has measured how long they take."""


class HasBacklog(Protocol):
    def go_on(self) -> None: ...


class ReadTurns:
    def __init__(self) -> None:
        self._waiting: deque[HasBacklog] = deque()
        self._is_scheduled = False

    def add(self, connection: HasBacklog) -> None:
        """Call the connection's `go_on` when its turn has come."""
        self._waiting.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_scheduled = False
        try:
            self._waiting.popleft().go_on()  # which may add it again, at the end
        finally:
            self._schedule()


class Startable(Protocol):
    @property
    def closed(self) -> bool: ...


class CallTurns:
    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._call_soon = loop.call_soon
        self._clock = clock
        self._waiting: dict[Hashable, deque[tuple[Startable, Callable[[], None]]]] = {}
        """Calls that have not begun, by connection. The connection whose turn is next comes first."""
        self._allowed = CALLS_FIRST
        self._begun = 0
        self._turn_began = 0.0
        self._is_scheduled = False

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> CallTurns:
        """Return the one that all calls of a loop share."""
        if (found := _turns.get(loop)) is None:
            found = _turns[loop] = cls(loop)
        return found

    def begin(self, connection: Hashable, call: Startable, start: Callable[[], None]) -> None:
        """Start a call now, or in a later turn unless it is closed by then."""
        if not self._is_scheduled:
            self._allowed = CALLS_FIRST
            self._schedule()
        if self._begun < self._allowed and not self._waiting:
            self._begun += 1
            start()
        else:
            self._waiting.setdefault(connection, deque()).append((call, start))

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._turn_began = self._clock()
        self._call_soon(self._next)

    def _next(self) -> None:
        is_slow = self._clock() - self._turn_began > limits.GRPC_CALLS_TURN_SECONDS
        self._allowed = (
            max(1, self._allowed // 2) if is_slow else min(limits.GRPC_CALLS_PER_TURN_MAX, self._allowed * 2)
        )
        has_begun, self._begun = self._begun > 0, 0
        while self._waiting and self._begun < self._allowed:
            connection = next(iter(self._waiting))
            calls = self._waiting.pop(connection)
            call, start = calls.popleft()
            if calls:
                self._waiting[connection] = calls  # at the end
            if not call.closed:
                self._begun += 1
                start()
        self._is_scheduled = False
        if self._begun or has_begun or self._waiting:
            self._schedule()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, CallTurns] = WeakKeyDictionary()
