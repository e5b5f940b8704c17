"""Linearizable reads by ReadIndex (thesis §6.4): no entry is written, but a quorum confirms that the leader still leads.

A read gets the present commit index and the number of the next heartbeat round. When a quorum has answered that round, no newer leader
can have acknowledged a change before the read was requested, so the state at that index is current. A leader that has not committed
an entry of its own term does not know the commit index; the read then waits for its first entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PendingRead:
    request: int
    origin: str
    """The member that requested the read."""

    round: int
    index: int


class ReadQueue:
    __slots__ = ("_pending", "round")

    def __init__(self) -> None:
        self.round = 0
        self._pending: deque[PendingRead] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, request: int, origin: str, index: int) -> None:
        self.round += 1
        self._pending.append(PendingRead(request, origin, self.round, index))

    def confirmed(self, is_confirmed: Callable[[int], bool], commit_index: int) -> Iterator[PendingRead]:
        """Remove and yield the reads whose round a quorum has answered and whose index is committed. Both rise along the queue."""
        while self._pending:
            first = self._pending[0]
            if first.index > commit_index or not is_confirmed(first.round):
                return
            yield self._pending.popleft()

    def drain(self) -> list[PendingRead]:
        pending = list(self._pending)
        self._pending.clear()
        return pending
