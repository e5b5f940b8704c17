"""The assignment of partitions to the members of a group, compared with the rule as it is written: one by one to the member with the
fewest partitions of all streams, ties by id."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from bascule.metadata.core.model.groups import ConsumerGroup, GroupMember, rebalance


def rebalance_one_by_one(group: ConsumerGroup, streams: set[str], counts: Mapping[str, int]) -> None:
    for stream in sorted(streams):
        subscribers = group.subscribers(stream)
        before = {member.id: member.assignments.pop(stream, []) for member in group.members.values()}
        count = counts.get(stream, 0)
        if not subscribers or not count:
            continue
        loads = {member.id: member.load for member in subscribers}
        shares = dict.fromkeys(loads, 0)
        for _ in range(count):
            fewest = min(loads, key=lambda name: (loads[name], name))
            loads[fewest] += 1
            shares[fewest] += 1
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


STREAMS = "abcd"
CHANGES = st.lists(
    st.tuples(st.integers(0, 9), st.sets(st.sampled_from(STREAMS), min_size=1), st.booleans()), min_size=1, max_size=25
)


@given(changes=CHANGES, counts=st.fixed_dictionaries({stream: st.integers(0, 40) for stream in STREAMS[:3]}))
def test_every_join_and_leave_assigns_as_if_partitions_were_dealt_out_one_by_one(
    changes: list[tuple[int, set[str], bool]], counts: dict[str, int]
) -> None:
    group = ConsumerGroup("g", "broker", 0)
    expected = copy.deepcopy(group)
    for number, streams, joins in changes:
        name = f"c{number}"
        if joins and name not in group.members:
            for one in (group, expected):
                one.members[name] = GroupMember(name, sorted(streams))
        elif not joins and name in group.members:
            streams = set(group.members[name].streams)
            for one in (group, expected):
                del one.members[name]
        else:
            continue
        rebalance(group, streams, counts)
        rebalance_one_by_one(expected, streams, counts)
        assert group == expected


def test_a_join_of_a_large_group_takes_a_fraction_of_a_second() -> None:
    streams = [f"s{number:03}" for number in range(20)]
    counts = dict.fromkeys(streams, 1_000)
    group = ConsumerGroup("g", "broker", 0)
    for number in range(1_000):
        group.members[f"c{number:04}"] = GroupMember(f"c{number:04}", list(streams))
    rebalance(group, streams, counts)
    group.members["new"] = GroupMember("new", list(streams))
    began = time.process_time()
    rebalance(group, streams, counts)
    assert time.process_time() - began < 1.0  # one by one: twenty million comparisons
    assert sum(member.load for member in group.members.values()) == 20_000
    assert {member.load for member in group.members.values()} == {19, 20}
