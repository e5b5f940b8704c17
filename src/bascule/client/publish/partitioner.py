"""Which partition a message goes to, when its publisher does not say so itself.

The key's hash is CRC-32 of IEEE modulo the number of partitions, as every client of Liftbridge has it: the same key reaches the same
partition whoever publishes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from bascule.client.connection.options import INT32_MAX, integer, wrong

Partitioner = Callable[[bytes | None, bytes, int], int]
"""From key, value and number of partitions to a partition."""


def by_key(key: bytes | None, _value: bytes, partitions: int) -> int:
    """The same key, the same partition. Messages without a key all go to that of the empty one, which is 0."""
    return zlib.crc32(key or b"") % partitions


class RoundRobin:
    """One after the other, beginning with 0."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, _key: bytes | None, _value: bytes, partitions: int) -> int:
        chosen = self._next % partitions
        self._next = chosen + 1
        return chosen


def to_first(_key: bytes | None, _value: bytes, _partitions: int) -> int:
    """Partition 0, where Liftbridge's clients publish unless told otherwise."""
    return 0


def partitioner(choice: Any) -> Partitioner:
    """`"key"`, `"round-robin"`, or a function of key, value and the number of partitions."""
    if choice is None:
        return to_first
    if choice == "key":
        return by_key
    if choice == "round-robin":
        return RoundRobin()
    if callable(choice):
        found: Partitioner = choice
        return found
    raise wrong("partitioner", choice, "'key', 'round-robin', or a function of key, value and number of partitions")


def choose(choice: Partitioner, key: bytes | None, value: bytes, partitions: int) -> int:
    chosen = choice(key, value, partitions)
    return integer("partition that the partitioner chose", chosen, 0, min(partitions - 1, INT32_MAX))
