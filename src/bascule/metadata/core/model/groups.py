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

    Each stream is spread over its members first: their shares of it differ by one partition at most, so that a busy stream is work for
    all of them. The larger shares go to the members with the fewest partitions of other streams, and among equals to those that have
    most of the stream now. Each member keeps as many of its present partitions as its share allows. Takes O(partitions + members log
    members) for each stream.
    """
    wanted = sorted(set(streams))
    subscribers: dict[str, list[GroupMember]] = {stream: [] for stream in wanted}
    before: dict[str, dict[str, list[int]]] = {stream: {} for stream in wanted}
    loads: dict[str, int] = {}
    for name in sorted(group.members):
        member = group.members[name]
        for stream in member.streams:
            if stream in subscribers:
                subscribers[stream].append(member)
        for stream in [stream for stream in member.assignments if stream in before]:
            before[stream][name] = member.assignments.pop(stream)
        loads[name] = member.load
    for stream in wanted:
        count = partition_counts.get(stream, 0)
        if subscribers[stream] and count:
            _deal(stream, subscribers[stream], loads, before[stream], count)


def _deal(
    stream: str,
    subscribers: list[GroupMember],
    loads: dict[str, int],
    before: Mapping[str, list[int]],
    count: int,
) -> None:
    present = {member.id: [number for number in before.get(member.id, ()) if number < count] for member in subscribers}
    share, larger = divmod(count, len(subscribers))
    order = sorted(present, key=lambda name: (loads[name], -len(present[name]), name))
    shares = {name: share + (place < larger) for place, name in enumerate(order)}
    kept = {name: numbers[: shares[name]] for name, numbers in present.items()}
    taken = {number for numbers in kept.values() for number in numbers}
    free = iter([number for number in range(count) if number not in taken])
    for member in subscribers:
        missing = shares[member.id] - len(kept[member.id])
        numbers = sorted(kept[member.id] + [next(free) for _ in range(missing)])
        if numbers:
            member.assignments[stream] = numbers
            loads[member.id] += len(numbers)
