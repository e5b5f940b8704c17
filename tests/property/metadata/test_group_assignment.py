"""The assignment of partitions to the members of a group: each stream is spread first, then the members' totals, with few moves."""

from __future__ import annotations

import copy
import time

from hypothesis import given
from hypothesis import strategies as st

from bascule.metadata.core.model.groups import ConsumerGroup, GroupMember, rebalance

STREAMS = "abcd"
CHANGES = st.lists(
    st.tuples(st.integers(0, 9), st.sets(st.sampled_from(STREAMS), min_size=1), st.booleans()), min_size=1, max_size=25
)


COUNTS = st.fixed_dictionaries({stream: st.integers(0, 40) for stream in STREAMS[:3]})

Assigned = dict[str, dict[str, list[int]]]
"""Member and stream → partitions."""


def assigned(group: ConsumerGroup) -> Assigned:
    return {name: copy.deepcopy(member.assignments) for name, member in group.members.items()}


def check_spread(group: ConsumerGroup, counts: dict[str, int]) -> None:
    """Every partition has one reader, and the shares of a stream differ by one at most."""
    for stream in STREAMS:
        subscribers = group.subscribers(stream)
        shares = [member.assignments.get(stream, []) for member in subscribers]
        everything = sorted(number for share in shares for number in share)
        assert everything == (list(range(counts.get(stream, 0))) if subscribers else [])
        if subscribers:
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for member in group.members.values():
        assert set(member.assignments) <= set(member.streams)
        assert all(member.assignments.values())


def check_moves(before: Assigned, after: Assigned) -> None:
    """A member that gets partitions of a stream loses none of them: no partition moves without need."""
    for name in before.keys() & after.keys():
        for stream in before[name].keys() | after[name].keys():
            held, holds = set(before[name].get(stream, [])), set(after[name].get(stream, []))
            assert not (held - holds and holds - held), (name, stream, held, holds)


@given(changes=CHANGES, counts=COUNTS)
def test_every_join_and_leave_spreads_each_stream_and_moves_few_partitions(
    changes: list[tuple[int, set[str], bool]], counts: dict[str, int]
) -> None:
    group = ConsumerGroup("g", "broker", 0)
    for number, streams, joins in changes:
        name = f"c{number}"
        if joins and name not in group.members:
            group.members[name] = GroupMember(name, sorted(streams))
        elif not joins and name in group.members:
            streams = set(group.members.pop(name).streams)
        else:
            continue
        before = assigned(group)
        rebalance(group, streams, counts)
        check_spread(group, counts)
        check_moves(before, assigned(group))
        after = assigned(group)
        rebalance(group, streams, counts)
        assert assigned(group) == after, "the same again moves nothing"


@given(joins=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=20), counts=COUNTS)
def test_members_that_read_the_same_streams_have_as_many_partitions(
    joins: list[tuple[int, bool]], counts: dict[str, int]
) -> None:
    group = ConsumerGroup("g", "broker", 0)
    streams = sorted(counts)
    for number, joins_group in joins:
        name = f"c{number}"
        if joins_group:
            group.members.setdefault(name, GroupMember(name, streams))
        else:
            group.members.pop(name, None)
        rebalance(group, streams, counts)
        loads = [member.load for member in group.members.values()]
        assert not loads or max(loads) - min(loads) <= 1


@given(joins=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=20), count=st.integers(0, 40))
def test_of_one_stream_a_join_takes_and_a_leave_gives_only(joins: list[tuple[int, bool]], count: int) -> None:
    group = ConsumerGroup("g", "broker", 0)
    for number, joins_group in joins:
        name, before = f"c{number}", assigned(group)
        if joins_group == (name in group.members):
            continue
        if joins_group:
            group.members[name] = GroupMember(name, ["a"])
        else:
            del group.members[name]
        rebalance(group, ["a"], {"a": count})
        for other in before.keys() & group.members.keys():
            held, holds = (set(one.get("a", [])) for one in (before[other], group.members[other].assignments))
            assert holds <= held if joins_group else held <= holds


def test_two_members_share_each_of_two_streams() -> None:
    group = ConsumerGroup("g", "broker", 0)
    for name in ("one", "two"):
        group.members[name] = GroupMember(name, ["busy", "idle"])
        rebalance(group, ["busy", "idle"], {"busy": 3, "idle": 3})
    shares = {name: {stream: len(numbers) for stream, numbers in one.items()} for name, one in assigned(group).items()}
    assert shares == {"one": {"busy": 2, "idle": 1}, "two": {"busy": 1, "idle": 2}}


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
    assert time.process_time() - began < 1.0
    assert sum(member.load for member in group.members.values()) == 20_000
    assert {member.load for member in group.members.values()} == {19, 20}
