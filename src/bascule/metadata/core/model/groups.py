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
    present ones as possible. Takes O(partitions + members log members) for each stream.
    """
    wanted = sorted(set(streams))
    subscribers: dict[str, list[GroupMember]] = {stream: [] for stream in wanted}
    holders: dict[str, list[GroupMember]] = {stream: [] for stream in wanted}
    loads: dict[str, int] = {}
    for name in sorted(group.members):
        member = group.members[name]
        loads[name] = member.load
        for stream in member.streams:
            if stream in subscribers:
                subscribers[stream].append(member)
        for stream in member.assignments:
            if stream in holders:
                holders[stream].append(member)
    for stream in wanted:
        before = {member.id: member.assignments.pop(stream) for member in holders[stream]}
        for name, numbers in before.items():
            loads[name] -= len(numbers)
        count = partition_counts.get(stream, 0)
        if subscribers[stream] and count:
            _deal(stream, subscribers[stream], loads, before, count)


def _deal(
    stream: str,
    subscribers: list[GroupMember],
    loads: dict[str, int],
    before: Mapping[str, list[int]],
    count: int,
) -> None:
    shares = _shares([(member.id, loads[member.id]) for member in subscribers], count)
    kept = {
        member.id: [number for number in before.get(member.id, ()) if number < count][: shares[member.id]]
        for member in subscribers
    }
    taken = {number for numbers in kept.values() for number in numbers}
    free = iter([number for number in range(count) if number not in taken])
    for member in subscribers:
        missing = shares[member.id] - len(kept[member.id])
        numbers = sorted(kept[member.id] + [next(free) for _ in range(missing)])
        if numbers:
            member.assignments[stream] = numbers
            loads[member.id] += len(numbers)


def _shares(loads: list[tuple[str, int]], count: int) -> dict[str, int]:
    """How many partitions each member gets, as if they were dealt out one by one to the member with the fewest, ties by id.

    The members with the fewest are filled up to a common level; the rest goes to the first of them by id. `loads` is sorted by id.
    """
    filled = total = 0
    for _, load in sorted(loads, key=lambda member: member[1]):
        if filled and load * filled - total >= count:
            break
        filled, total = filled + 1, total + load
    level, rest = divmod(count + total, filled)
    shares = {}
    for name, load in loads:
        share = max(0, level - load)
        if load <= level and rest:
            share, rest = share + 1, rest - 1
        shares[name] = share
    return shares
