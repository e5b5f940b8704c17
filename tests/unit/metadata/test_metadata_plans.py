"""Plans for a cluster that grows, shrinks or has been through something: as an operator would check them by hand."""

from __future__ import annotations

from bascule.metadata.core.model.ops import (
    BrokerPlace,
    ChangeLeader,
    PauseStream,
    Reassign,
    SetServerState,
    StopServer,
)
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.rebalance import (
    LeaderMove,
    Plan,
    ReplicaMove,
    plan_leaders,
    plan_rebalance,
    plan_removal,
    plan_replication_factor,
)
from tests.unit.metadata.metadata_helpers import BROKERS, Cluster

FOUR = (*BROKERS, BrokerPlace("d"))


def three_servers() -> Cluster:
    """Eight partitions of two replicas each on a, b and c."""
    cluster = Cluster()
    cluster.create("orders", 4, 2)
    cluster.create("bills", 4, 2)
    return cluster


def planned(plan: Plan | Refusal) -> Plan:
    assert isinstance(plan, Plan), plan
    return plan


def test_a_new_server_gets_its_share_and_no_replica_moves_between_the_old_ones() -> None:
    cluster = three_servers()
    plan = plan_rebalance(cluster.state, FOUR)
    assert plan.before == {"a": 6, "b": 5, "c": 5, "d": 0}
    assert plan.after == {"a": 4, "b": 4, "c": 4, "d": 4}
    assert plan.copies == len(plan.moves) == 4
    assert all("d" in move.replicas for move in plan.moves)
    assert {move.stream for move in plan.moves} == {"orders", "bills"}


def test_only_the_streams_that_were_named_move() -> None:
    cluster = three_servers()
    plan = plan_rebalance(cluster.state, FOUR, streams=["bills"])
    assert plan.moves
    assert {move.stream for move in plan.moves} == {"bills"}


def test_nothing_moves_where_everything_is_even() -> None:
    cluster = three_servers()
    assert plan_rebalance(cluster.state, BROKERS) == Plan((), {"a": 6, "b": 5, "c": 5}, {"a": 6, "b": 5, "c": 5}, 0)


def test_followers_move_rather_than_leaders() -> None:
    cluster = Cluster()
    cluster.create("orders", 4, 2, brokers=BROKERS[:2])
    plan = plan_rebalance(cluster.state, BROKERS)
    assert plan.after == {"a": 3, "b": 3, "c": 2}
    leaders = {move.partition: cluster.partition("orders", move.partition).leader for move in plan.moves}
    assert all(leaders[move.partition] in move.replicas for move in plan.moves)


def test_a_partition_that_is_under_way_counts_where_it_is_going() -> None:
    cluster = Cluster()
    cluster.create("orders", 2, 1, brokers=BROKERS[:1])
    cluster.must(Reassign("orders", 0, ("b",)))
    plan = plan_rebalance(cluster.state, BROKERS[:2])
    assert (plan.moves, plan.before) == ((), {"a": 1, "b": 1})


def test_racks_are_left_as_they_are_spread_and_spread_where_they_are_not() -> None:
    brokers = (BrokerPlace("a", "1"), BrokerPlace("b", "1"), BrokerPlace("c", "2"), BrokerPlace("d", "2"))
    cluster = Cluster()
    cluster.create("orders", 2, 2, brokers=brokers[:2])
    plan = plan_rebalance(cluster.state, brokers)
    assert plan.after == {"a": 1, "b": 1, "c": 1, "d": 1}
    for move in plan.moves:
        assert {replica in "ab" for replica in move.replicas} == {True, False}


def test_a_partition_goes_into_another_rack_also_where_counts_gain_nothing_but_not_where_they_lose() -> None:
    brokers = (BrokerPlace("a", "1"), BrokerPlace("b", "1"), BrokerPlace("c", "2"))
    cluster = Cluster()
    cluster.create("orders", 1, 2, brokers=brokers[:2])
    cluster.create("other", 1, 1, brokers=brokers[2:])
    assert plan_rebalance(cluster.state, brokers).moves == ()
    cluster.create("more", 1, 1, brokers=brokers[:1])
    plan = plan_rebalance(cluster.state, brokers)
    assert plan.moves == (ReplicaMove("orders", 0, ("c", "b")),)
    assert (plan.before, plan.after) == ({"a": 2, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 2})


def test_paused_partitions_count_and_stay() -> None:
    cluster = Cluster()
    cluster.create("resting", 4, 1, brokers=BROKERS[:1])
    cluster.must(PauseStream("resting", 1))
    plan = plan_rebalance(cluster.state, BROKERS)
    assert (plan.moves, plan.before) == ((), {"a": 4, "b": 0, "c": 0})


def test_counts_stay_uneven_rather_than_two_replicas_share_a_rack() -> None:
    brokers = (BrokerPlace("a", "1"), BrokerPlace("b", "2"), BrokerPlace("c", "2"))
    cluster = Cluster()
    cluster.create("orders", 4, 2, brokers=brokers)
    assert plan_rebalance(cluster.state, brokers) == Plan((), {"a": 4, "b": 2, "c": 2}, {"a": 4, "b": 2, "c": 2}, 0)


# ── taking a server away ─────────────────────────────────────────────────────────────────────────


def test_a_server_is_emptied_paused_partitions_and_all() -> None:
    cluster = three_servers()
    cluster.must(PauseStream("bills", 1))
    plan = planned(plan_removal(cluster.state, "b", FOUR))
    assert plan.after == {"a": 6, "b": 0, "c": 5, "d": 5}
    assert {move.stream for move in plan.moves} == {"orders", "bills"}
    cluster.must(Reassign(plan.moves[0].stream, plan.moves[0].partition, plan.moves[0].replicas))
    assert planned(plan_removal(cluster.state, "b", FOUR)).moves == plan.moves[1:]


def test_a_server_that_cannot_be_replaced_is_not_planned_away() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 3)
    refusal = plan_removal(cluster.state, "b", BROKERS)
    assert refusal == Refusal(
        "FAILED_PRECONDITION",
        "no other server can have the replica [stream=orders, partition=0]: the stream is on 3 servers; "
        "add a server or lower its replication factor first",
    )
    cluster.must(SetServerState("d", "leaving"))
    assert isinstance(plan_removal(cluster.state, "b", FOUR), Refusal)


def test_a_replacement_comes_from_the_rack_that_was_lost_if_it_can() -> None:
    brokers = (BrokerPlace("a", "1"), BrokerPlace("b", "2"), BrokerPlace("c", "1"), BrokerPlace("d", "2"))
    cluster = Cluster()
    cluster.create("busy", 3, 1, brokers=brokers[3:])
    cluster.create("orders", 1, 2, brokers=brokers[:2])
    plan = planned(plan_removal(cluster.state, "b", brokers))
    assert plan.moves == (ReplicaMove("orders", 0, ("a", "d")),)


# ── more replicas, fewer replicas ────────────────────────────────────────────────────────────────


def test_more_replicas_go_behind_those_that_are_there() -> None:
    cluster = Cluster()
    cluster.create("busy", 3, 1, brokers=BROKERS[1:2])
    cluster.create("orders", 1, 1, brokers=BROKERS[:1])
    plan = planned(plan_replication_factor(cluster.state, "orders", 2, BROKERS))
    assert plan.moves == (ReplicaMove("orders", 0, ("a", "c")),)
    everywhere = planned(plan_replication_factor(cluster.state, "orders", -1, BROKERS))
    assert everywhere.moves == (ReplicaMove("orders", 0, ("a", "c", "b")),)
    assert everywhere.copies == 2


def test_the_leader_and_replicas_in_sync_are_kept() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 3)
    cluster.must(ChangeLeader("orders", 0, "a", 1, ("c",)))
    assert cluster.partition("orders").in_sync_replicas == ["b", "c"]
    assert planned(plan_replication_factor(cluster.state, "orders", 2, BROKERS)).moves == (
        ReplicaMove("orders", 0, ("b", "c")),
    )
    assert planned(plan_replication_factor(cluster.state, "orders", 1, BROKERS)).moves == (
        ReplicaMove("orders", 0, ("c",)),
    )


def test_a_factor_that_the_cluster_has_no_servers_for_is_refused() -> None:
    cluster = three_servers()
    refusal = plan_replication_factor(cluster.state, "orders", 4, BROKERS)
    assert refusal == Refusal(
        "INVALID_ARGUMENT", "Invalid replicationFactor 4, cluster size 3: use 1 to 3, or -1 for all"
    )
    assert plan_replication_factor(cluster.state, "none", 1, BROKERS) == Refusal("NOT_FOUND", "stream does not exist")


# ── leaders ──────────────────────────────────────────────────────────────────────────────────────


def test_preferred_leaders_lead_again_when_they_are_back_in_sync() -> None:
    cluster = Cluster()
    cluster.create("orders", 3, 3)
    cluster.must(StopServer("a"))
    cluster.must(StopServer("b"))
    assert [cluster.partition("orders", number).leader for number in range(3)] == ["c", "c", "c"]
    assert plan_leaders(cluster.state) == []
    epoch = cluster.partition("orders").leader_epoch
    for number in range(3):
        cluster.expand("orders", "a", number)
    assert plan_leaders(cluster.state) == [LeaderMove("orders", 0, "c", epoch, "a")]


def test_leaders_spread_through_others_where_there_is_no_direct_way() -> None:
    """a leads three that b could lead, b leads one that c could: a hands to b what b hands on to c."""
    cluster = Cluster()
    cluster.create("first", 3, 2, brokers=BROKERS[:2])
    for number in range(3):
        if cluster.partition("first", number).leader != "a":
            cluster.hand_over("first", "a", number)
        cluster.must(Reassign("first", number, ("a", "b")))
    cluster.create("second", 1, 2, brokers=BROKERS[1:])
    if cluster.partition("second").leader != "b":
        cluster.hand_over("second", "b")
    assert +cluster.state.load.led == {"a": 3, "b": 1}
    for move in plan_leaders(cluster.state):
        cluster.hand_over(move.stream, move.successor, move.partition)
    assert sorted(cluster.state.load.led[broker.id] for broker in BROKERS) == [1, 1, 2]


def test_a_partition_that_moves_is_left_to_its_leader() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 2)
    cluster.hand_over("orders", "b")
    assert [move.successor for move in plan_leaders(cluster.state)] == ["a"]
    cluster.must(Reassign("orders", 0, ("a", "c")))
    assert plan_leaders(cluster.state) == []


def test_a_server_that_leaves_hands_over_all_that_others_can_lead() -> None:
    cluster = Cluster()
    cluster.create("orders", 3, 3)
    cluster.create("alone", 1, 1, brokers=BROKERS[:1])
    cluster.must(SetServerState("a", "leaving"))
    assert [(move.partition, move.leader) for move in plan_leaders(cluster.state)] == [(0, "a")]
