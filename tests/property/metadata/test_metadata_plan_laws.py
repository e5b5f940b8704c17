"""Plans for moving replicas and leaders: what holds of every plan, from whatever state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from hypothesis import assume, given
from hypothesis import strategies as st

from bascule.metadata.core.model import ops
from bascule.metadata.core.model.ops import BrokerPlace, Op
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.rebalance import (
    Plan,
    plan_leaders,
    plan_rebalance,
    plan_removal,
    plan_replication_factor,
)
from bascule.metadata.core.state import ClusterMetadata
from tests.property.metadata.metadata_laws import aim, check_invariants

SERVERS = "abcdef"
_Key = tuple[str, int]


@dataclass
class Case:
    state: ClusterMetadata
    brokers: tuple[BrokerPlace, ...]

    def do(self, op: Op) -> bool:
        return not isinstance(self.state.apply(self.state.applied_index + 1, aim(op, self.state)), Refusal)

    @property
    def able(self) -> dict[str, BrokerPlace]:
        """Who may be given replicas."""
        return {broker.id: broker for broker in self.brokers if broker.id not in self.state.leaving}

    def going_to(self) -> dict[_Key, list[str]]:
        return {
            (name, partition.id): list(partition.target_replicas or partition.replicas)
            for name, partition in self.state.each_partition()
        }

    def racks_of(self, replicas: list[str]) -> int:
        racks = {broker.id: broker.rack for broker in self.brokers}
        return len({racks.get(replica) or (replica,) for replica in replicas})

    def carry_out(self, plan: Plan) -> None:
        for move in plan.moves:
            assert self.do(ops.Reassign(move.stream, move.partition, move.replicas))
        check_invariants(self.state)

    def finish_moves(self) -> None:
        for name, partition in self.state.each_partition():
            for server in partition.target_replicas:
                assert self.do(ops.ExpandIsr(name, partition.id, server, "", 0))
            if partition.target_replicas and partition.leader not in partition.target_replicas:
                targets = tuple(partition.target_replicas)
                assert self.do(ops.ChangeLeader(name, partition.id, "", 0, targets, False))
            assert self.do(ops.CompleteReassignment(name, partition.id, "", 0))
            assert not partition.target_replicas


@st.composite
def plain_cases(draw: st.DrawFn) -> Case:
    """Streams on some of the servers, all in order; more servers beside them."""
    brokers = tuple(BrokerPlace(name) for name in SERVERS[: draw(st.integers(1, len(SERVERS)))])
    case = Case(ClusterMetadata(), brokers)
    for number in range(draw(st.integers(0, 5))):
        where = draw(st.lists(st.sampled_from(brokers), min_size=1, unique=True).map(tuple))
        factor, partitions = draw(st.integers(1, len(where))), draw(st.integers(1, 6))
        assert case.do(ops.CreateStream(f"s{number}", "s", partitions, factor, where, 0))
    return case


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """The same with racks, and all that can happen to streams."""
    case = draw(plain_cases())
    racks = st.sampled_from(["", "r1", "r2", "r3"])
    case.brokers = tuple(BrokerPlace(broker.id, draw(racks)) for broker in case.brokers)
    stream, server = st.sampled_from(["s0", "s1", "s2"]), st.sampled_from(SERVERS)
    happens = st.one_of(
        st.builds(ops.PauseStream, stream, st.just(1)),
        st.builds(ops.ShrinkIsr, stream, st.integers(0, 5), server, st.just(""), st.just(0)),
        st.builds(ops.StopServer, server),
        st.builds(ops.ChangeLeader, stream, st.integers(0, 5), st.just(""), st.just(0)),
        st.builds(
            ops.Reassign, stream, st.integers(0, 5), st.lists(server, min_size=1, max_size=3, unique=True).map(tuple)
        ),
        st.builds(ops.SetServerState, server, st.just("leaving")),
    )
    for op in draw(st.lists(happens, max_size=8)):
        case.do(op)
    return case


def squares(counts: Mapping[str, int]) -> int:
    return sum(count * count for count in counts.values())


def check_plan(case: Case, plan: Plan, before: dict[_Key, list[str]]) -> None:
    """What every plan keeps to: no server twice, nobody new who may not, counts as they come out, and no second plan of the same."""
    for move in plan.moves:
        old = before[move.stream, move.partition]
        assert list(move.replicas) != old
        assert len(set(move.replicas)) == len(move.replicas) > 0
        assert set(move.replicas) - set(old) <= set(case.able)
    assert len({(move.stream, move.partition) for move in plan.moves}) == len(plan.moves)
    case.carry_out(plan)
    hosted = Counter(replica for replicas in case.going_to().values() for replica in replicas)
    assert +Counter(plan.after) == hosted
    assert +Counter(plan.before) == Counter(replica for replicas in before.values() for replica in replicas)


@given(cases(), st.none() | st.sets(st.sampled_from(["s0", "s1", "s2"])))
def test_rebalancing_never_makes_counts_less_even_and_keeps_factors_and_racks(
    case: Case, streams: set[str] | None
) -> None:
    before = case.going_to()
    plan = plan_rebalance(case.state, case.brokers, streams=streams)
    for move in plan.moves:
        old = before[move.stream, move.partition]
        assert len(move.replicas) == len(old)
        assert case.racks_of(list(move.replicas)) >= case.racks_of(old)
        assert streams is None or move.stream in streams
        assert set(old) - set(move.replicas) <= set(case.able)
    counts = [[counts[name] for name in case.able] for counts in (plan.before, plan.after)]
    assert squares(plan.after) <= squares(plan.before)
    if case.able:
        assert max(counts[1]) - min(counts[1]) <= max(counts[0]) - min(counts[0])
    check_plan(case, plan, before)
    assert not plan_rebalance(case.state, case.brokers, streams=streams).moves
    case.finish_moves()
    assert not plan_rebalance(case.state, case.brokers, streams=streams).moves


@given(plain_cases())
def test_rebalancing_ends_within_one_replica_of_each_other_with_the_fewest_copies(case: Case) -> None:
    plan = plan_rebalance(case.state, case.brokers)
    counts = list(plan.after.values())
    assert max(counts) - min(counts) <= 1
    mean = sum(counts) / len(counts)
    surplus = sum(max(0, count - math.ceil(mean)) for count in plan.before.values())
    deficit = sum(max(0, math.floor(mean) - count) for count in plan.before.values())
    assert plan.copies == max(surplus, deficit)


@given(cases(), st.sampled_from(SERVERS))
def test_a_removed_server_has_nothing_left_and_nothing_else_moves(case: Case, server: str) -> None:
    before = case.going_to()
    plan = plan_removal(case.state, server, case.brokers)
    able = set(case.able) - {server}
    tight = [key for key, replicas in before.items() if server in replicas and able <= set(replicas)]
    if isinstance(plan, Refusal):
        assert plan.code == "FAILED_PRECONDITION"
        assert tight
        return
    assert not tight
    assert not plan.after.get(server, 0)
    assert {(move.stream, move.partition) for move in plan.moves} == {
        key for key, replicas in before.items() if server in replicas
    }
    for move in plan.moves:
        old = before[move.stream, move.partition]
        assert len(move.replicas) == len(old)
        assert len(set(old) - set(move.replicas)) == 1
    check_plan(case, plan, before)
    again = plan_removal(case.state, server, case.brokers)
    assert isinstance(again, Plan)
    assert not again.moves


@given(cases(), st.sampled_from(["s0", "s1", "none"]), st.integers(-2, 7))
def test_a_new_replication_factor_adds_to_the_replicas_or_takes_from_them(case: Case, stream: str, factor: int) -> None:
    before = case.going_to()
    plan = plan_replication_factor(case.state, stream, factor, case.brokers)
    size = len(case.able)
    if isinstance(plan, Refusal):
        if plan.code == "NOT_FOUND":
            assert stream not in case.state.streams
        else:
            assert not 1 <= (size if factor == -1 else factor) <= size
        return
    wanted = size if factor == -1 else factor
    check_plan(case, plan, before)
    for key, replicas in case.going_to().items():
        if key[0] != stream:
            assert replicas == before[key]
            continue
        assert len(replicas) == wanted
        assert set(replicas) <= set(before[key]) or set(before[key]) <= set(replicas)
        leader = case.state.streams[stream].partitions[key[1]].leader
        assert leader in replicas or leader not in before[key] or leader not in case.able
    again = plan_replication_factor(case.state, stream, factor, case.brokers)
    assert isinstance(again, Plan)
    assert not again.moves


@given(cases())
def test_leaders_are_as_even_as_the_in_sync_replicas_allow_and_a_second_plan_is_empty(case: Case) -> None:
    movable = {
        (name, partition.id): partition
        for name, partition in case.state.each_partition()
        if not partition.paused and not partition.target_replicas
    }
    choices = [case.state.staying(partition.in_sync_replicas) for partition in movable.values()]
    for move in plan_leaders(case.state):
        partition = movable[move.stream, move.partition]
        assert (move.leader, move.leader_epoch) == (partition.leader, partition.leader_epoch)
        assert move.successor != move.leader
        assert move.successor in case.state.staying(partition.in_sync_replicas)
        assert case.do(ops.ChangeLeader(move.stream, move.partition, "", 0, (move.successor,), False))
    assert not plan_leaders(case.state)
    assert all(partition.leader in choice for partition, choice in zip(movable.values(), choices, strict=True))
    assume(math.prod(len(choice) for choice in choices) <= 3_000)
    elsewhere = case.state.load.led - Counter(partition.leader for partition in movable.values())
    assert squares(case.state.load.led) == min(squares(elsewhere + Counter(leaders)) for leaders in product(*choices))


@given(plain_cases())
def test_preferred_leaders_lead_again_when_they_are_even(case: Case) -> None:
    partitions = [partition for _, partition in case.state.each_partition()]
    preferred = Counter(partition.replicas[0] for partition in partitions)
    assume(
        not preferred
        or (len(preferred) == len(case.brokers) and max(preferred.values()) - min(preferred.values()) <= 1)
    )
    for name, partition in case.state.each_partition():
        case.do(ops.ChangeLeader(name, partition.id, "", 0, None, False))
    for move in plan_leaders(case.state):
        assert case.do(ops.ChangeLeader(move.stream, move.partition, "", 0, (move.successor,), False))
    counts = [case.state.load.led[broker.id] for broker in case.brokers]
    assert max(counts) - min(counts) <= 1
    assert all(partition.leader == partition.replicas[0] for partition in partitions)
