"""Partitioners: they choose the partition of a message that names none.

The hash of a key is the IEEE CRC-32 modulo the number of partitions, as in every client of Liftbridge: with each of them a key reaches
the same partition.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

from bascule.client.connection.options import INT32_MAX, integer, wrong

KEYED: Final = (None, "key")
"""The choice of partitions by key."""

Partitioner = Callable[[bytes | None, bytes, int], int]
"""From key, value and number of partitions to a partition."""


def by_key(key: bytes | None, _value: bytes, partitions: int) -> int:
    """By the hash of the key. A message without a key counts as one with an empty key: partition 0."""
    return zlib.crc32(key or b"") % partitions


class RoundRobin:
    """Each partition in turn, from 0."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, _key: bytes | None, _value: bytes, partitions: int) -> int:
        chosen = self._next % partitions
        self._next = chosen + 1
        return chosen


def partitioner(choice: Any) -> Partitioner:
    """`"key"`, which is the default, `"round-robin"`, or a function of key, value and the number of partitions."""
    if choice in KEYED:
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
