"""Answers whose data did not fit one NATS message, until their last piece has arrived.

A leader sends the pieces of an answer one after the other, and NATS keeps the order of a connection: so there is one half answer for
each leader, and a piece that does not continue it means that a piece was lost. The follower then fetches again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bascule import limits
from bascule.partition.core.codec import PartitionKey
from bascule.partition.core.messages import FetchAnswer


@dataclass(slots=True)
class _Half:
    key: PartitionKey
    first: FetchAnswer
    """The answer with its first piece."""
    total_bytes: int
    data: bytearray = field(default_factory=bytearray)
    """Grows with the pieces that arrive; the announced size is not trusted."""

    def continues_with(self, key: PartitionKey, piece: FetchAnswer, total_bytes: int, position: int) -> bool:
        return (
            position == len(self.data)
            and total_bytes == self.total_bytes
            and piece.number == self.first.number
            and piece.leader_epoch == self.first.leader_epoch
            and key == self.key
        )


class HalfAnswers:
    def __init__(self, bytes_max: int = limits.REPLICATION_HALF_ANSWERS_BYTES_MAX) -> None:
        self.broken = 0
        """Answers that were dropped because a piece was missing, or memory was short."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._halves: dict[str, _Half] = {}
        """By sender, oldest first."""

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def add(
        self, sender: str, key: PartitionKey, piece: FetchAnswer, total_bytes: int, position: int
    ) -> FetchAnswer | None:
        """The whole answer if this was its last piece, else None."""
        half = self._halves.get(sender)
        if half is None or not half.continues_with(key, piece, total_bytes, position):
            if half is not None or position:
                self.broken += 1
            self._forget(sender)
            if position:
                return None
            half = self._halves[sender] = _Half(key, piece, total_bytes)
        half.data += piece.data
        self._bytes += len(piece.data)
        if len(half.data) == total_bytes:
            self._forget(sender)
            return replace(half.first, data=memoryview(half.data))
        self._make_room()
        return None

    def drop(self, sender: str) -> None:
        """Another message of this sender has arrived: the rest of its half answer is lost."""
        if sender in self._halves:
            self.broken += 1
            self._forget(sender)

    def clear(self) -> None:
        self.broken += len(self._halves)
        self._halves.clear()
        self._bytes = 0

    def _forget(self, sender: str) -> None:
        half = self._halves.pop(sender, None)
        if half is not None:
            self._bytes -= len(half.data)

    def _make_room(self) -> None:
        while self._bytes > self._bytes_max or len(self._halves) > limits.RAFT_MEMBERS_MAX:
            self.drop(next(iter(self._halves)))
