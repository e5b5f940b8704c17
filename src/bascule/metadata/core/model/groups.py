"""Consumer groups: their members, their coordinator, and the partitions that each member reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class GroupMember:
    id: str
    streams: list[str]
    """Sorted."""

    assignments: dict[str, list[int]] = field(default_factory=dict)
    """Stream → partitions; streams without a partition for this member are left out."""

    @property
    def load(self) -> int:
        return sum(len(partitions) for partitions in self.assignments.values())


@dataclass(slots=True)
class ConsumerGroup:
    id: str
    coordinator: str
    epoch: int
    members: dict[str, GroupMember] = field(default_factory=dict)

    def subscribers(self, stream: str) -> list[GroupMember]:
        return [self.members[name] for name in sorted(self.members) if stream in self.members[name].streams]


def rebalance(group: ConsumerGroup, streams: Iterable[str], partition_counts: Mapping[str, int]) -> None:
    """Assign the partitions of these streams anew. `partition_counts` says how many each has; an unknown stream has none.

    Each member gets as many partitions as if they were dealt out one by one to the member with the fewest, and keeps as many of its
    present ones as possible.
    """
    for stream in sorted(set(streams)):
        subscribers = group.subscribers(stream)
        before = {member.id: member.assignments.pop(stream, []) for member in group.members.values()}
        count = partition_counts.get(stream, 0)
        if subscribers and count:
            _deal(stream, subscribers, before, count)


def _deal(stream: str, subscribers: list[GroupMember], before: Mapping[str, list[int]], count: int) -> None:
    shares = _shares(subscribers, count)
    kept = {
        member.id: [number for number in before[member.id] if number < count][: shares[member.id]]
        for member in subscribers
    }
    taken = {number for numbers in kept.values() for number in numbers}
    free = iter([number for number in range(count) if number not in taken])
    for member in subscribers:
        missing = shares[member.id] - len(kept[member.id])
        numbers = sorted(kept[member.id] + [next(free) for _ in range(missing)])
        if numbers:
            member.assignments[stream] = numbers


def _shares(subscribers: list[GroupMember], count: int) -> dict[str, int]:
    """How many partitions each gets: one by one to the member with the fewest of all streams, ties by id."""
    loads = {member.id: member.load for member in subscribers}
    shares = dict.fromkeys(loads, 0)
    for _ in range(count):
        fewest = min(loads, key=lambda name: (loads[name], name))
        loads[fewest] += 1
        shares[fewest] += 1
    return shares
