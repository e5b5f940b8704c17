"""Servers that crash, stop and leave: what becomes of the partitions they have a part in."""

from __future__ import annotations

import pytest

from bascule.metadata.core.model.ops import (
    BrokerPlace,
    ForgetServer,
    JoinConsumerGroup,
    Op,
    PauseStream,
    Reassign,
    RestartServer,
    SetReplicationThrottle,
    SetServerState,
    StopServer,
)
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from bascule.metadata.core.state import PartitionChanged, ServerChanged, ThrottleChanged
from tests.unit.metadata.metadata_helpers import BROKERS, IDS, Cluster, creation


def replicated() -> Cluster:
    """Three partitions on three servers, each led by another: 0 by a, 1 by b, 2 by c."""
    cluster = Cluster()
    cluster.create("orders", 3, 3)
    assert [cluster.partition("orders", number).leader for number in range(3)] == ["a", "b", "c"]
    return cluster


# ── restarts ─────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_lost_what_was_not_synced_leaves_every_in_sync_set_and_leads_nothing() -> None:
    cluster = replicated()
    changes = cluster.must(RestartServer("a", intact=False))
    assert changes == (ServerChanged("a"), *(PartitionChanged("orders", number) for number in range(3)))
    first, second, third = (cluster.partition("orders", number) for number in range(3))
    assert first.leader == "b"  # of b and c, which lead one each, the lower
    assert first.leader_epoch == first.epoch == cluster.index
    for partition in (first, second, third):
        assert sorted(partition.in_sync_replicas) == ["b", "c"]
        assert sorted(partition.replicas) == list(IDS)
        assert partition.epoch == cluster.index
        assert partition.data_loss_epoch == 0
    assert (second.leader, second.leader_epoch, third.leader, third.leader_epoch) == ("b", 1, "c", 1)
    assert cluster.state.server_epochs == {"a": cluster.index}


def test_the_only_in_sync_replica_leads_on_in_a_new_epoch_that_admits_the_loss() -> None:
    cluster = replicated()
    cluster.shrink("orders", "b")
    cluster.shrink("orders", "c")
    cluster.must(RestartServer("a", intact=False))
    partition = cluster.partition("orders")
    assert (partition.leader, partition.in_sync_replicas) == ("a", ["a"])
    assert partition.data_loss_epoch == partition.leader_epoch == partition.epoch == cluster.index


def test_a_server_whose_machine_stayed_up_keeps_what_it_leads_in_a_new_epoch() -> None:
    cluster = replicated()
    assert cluster.must(RestartServer("a", intact=True)) == (ServerChanged("a"), PartitionChanged("orders", 0))
    led, followed = cluster.partition("orders", 0), cluster.partition("orders", 1)
    assert (led.leader, led.in_sync_replicas, led.data_loss_epoch) == ("a", ["a", "b", "c"], 0)
    assert led.leader_epoch == led.epoch == cluster.index
    assert (followed.epoch, followed.leader_epoch) == (1, 1)
    assert cluster.state.server_epochs == {"a": cluster.index}


def test_a_server_that_has_no_replica_restarts_too() -> None:
    cluster = replicated()
    assert cluster.must(RestartServer("new", intact=False)) == (ServerChanged("new"),)
    assert cluster.state.server_epochs == {"new": cluster.index}


def test_the_epoch_of_a_server_is_its_last_restart() -> None:
    cluster = replicated()
    cluster.must(RestartServer("a", intact=True))
    cluster.must(RestartServer("a", intact=True))
    assert cluster.state.server_epochs == {"a": cluster.index}


@pytest.mark.parametrize("intact", [True, False])
def test_paused_partitions_are_treated_alike(intact: bool) -> None:
    cluster = replicated()
    cluster.must(PauseStream("orders", 1))
    cluster.must(RestartServer("a", intact))
    assert cluster.partition("orders").leader_epoch == cluster.index
    assert cluster.partition("orders").leader == ("a" if intact else "b")
    assert not +cluster.state.load.led


def test_leaderships_of_a_lost_server_are_spread_and_alike_behind_a_snapshot() -> None:
    cluster = Cluster()
    for name in ("zeta", "alpha", "mid"):
        cluster.create(name, 1, 3)
        while cluster.partition(name).leader != "a":
            cluster.hand_over(name, "a")
    restored = decode_snapshot(encode_snapshot(cluster.state))
    op = RestartServer("a", intact=False)
    assert restored.apply(cluster.index + 1, op) == cluster.must(op)
    assert encode_snapshot(restored) == encode_snapshot(cluster.state)
    assert {name: cluster.partition(name).leader for name in cluster.state.streams} == {
        "alpha": "b",
        "mid": "c",
        "zeta": "b",
    }


# ── stops ────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_stops_leaves_the_in_sync_sets_where_somebody_is_left() -> None:
    cluster = replicated()
    cluster.shrink("orders", "b", 0)
    cluster.shrink("orders", "c", 0)
    alone = cluster.partition("orders", 0).epoch
    assert cluster.must(StopServer("a")) == (PartitionChanged("orders", 1), PartitionChanged("orders", 2))
    first = cluster.partition("orders", 0)
    assert (first.leader, first.leader_epoch, first.epoch, first.data_loss_epoch) == ("a", 1, alone, 0)
    for number in (1, 2):
        assert sorted(cluster.partition("orders", number).in_sync_replicas) == ["b", "c"]
        assert cluster.partition("orders", number).leader_epoch == 1
    assert not cluster.state.server_epochs
    assert cluster.must(StopServer("a")) == ()


def test_what_a_stopping_server_still_leads_goes_to_the_others() -> None:
    cluster = replicated()
    cluster.must(StopServer("a"))
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch) == ("b", cluster.index)
    assert +cluster.state.load.led == {"b": 2, "c": 1}


# ── servers that leave ───────────────────────────────────────────────────────────────────────────


def test_new_streams_go_round_servers_that_leave() -> None:
    cluster = Cluster()
    assert cluster.must(SetServerState("a", "leaving")) == (ServerChanged("a"),)
    cluster.create("orders", 4, 2)
    assert sorted(cluster.partition("orders").replicas) == ["b", "c"]
    assert cluster.state.load.hosted["a"] == 0
    cluster.create("everywhere", 1, -1)
    assert sorted(cluster.partition("everywhere").replicas) == ["b", "c"]
    refusal = cluster.refusal(creation("three", 1, 3))
    assert refusal.text == "Invalid replicationFactor 3, cluster size 2 (without 1 leaving): use 1 to 2, or -1 for all"
    cluster.must(SetServerState("a", "active"))
    cluster.create("three", 1, 3)


def test_a_stream_is_not_placed_where_everybody_is_leaving() -> None:
    cluster = Cluster()
    cluster.must(SetServerState("a", "leaving"))
    refusal = cluster.refusal(creation("orders", brokers=(BrokerPlace("a"),)))
    assert refusal == Refusal(
        "INVALID_ARGUMENT", "all brokers that the stream could be placed on are leaving the cluster"
    )


def test_groups_are_coordinated_by_servers_that_stay_unless_there_are_none() -> None:
    cluster = Cluster()
    cluster.create("orders")
    cluster.must(SetServerState("a", "leaving"))
    cluster.must(JoinConsumerGroup("g", "c1", ("orders",), IDS))
    assert cluster.state.groups["g"].coordinator == "b"
    cluster.must(JoinConsumerGroup("h", "c1", ("orders",), ("a",)))
    assert cluster.state.groups["h"].coordinator == "a"


def test_partitions_are_not_moved_to_a_server_that_leaves_but_may_stay_there() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 2)
    assert cluster.partition("orders").replicas == ["a", "b"]
    cluster.must(SetServerState("b", "leaving"))
    cluster.must(SetServerState("c", "leaving"))
    refusal = cluster.refusal(Reassign("orders", 0, ("a", "c")))
    assert refusal == Refusal("FAILED_PRECONDITION", "c is leaving the cluster and is given no new replicas")
    cluster.must(Reassign("orders", 0, ("a", "b", "d")))


def test_a_forgotten_server_leaves_no_trace() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 2, brokers=BROKERS[:2])
    cluster.must(RestartServer("c", intact=False))
    cluster.must(SetServerState("c", "leaving"))
    assert cluster.must(ForgetServer("c")) == (ServerChanged("c"),)
    assert (cluster.state.server_epochs, cluster.state.leaving) == ({}, set())
    assert cluster.must(ForgetServer("c")) == ()


def test_a_server_with_a_replica_is_not_forgotten_also_if_it_is_paused_or_on_its_way() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 2, brokers=BROKERS[:2])
    cluster.must(PauseStream("orders", 1))
    refusal = cluster.refusal(ForgetServer("b"))
    assert refusal == Refusal(
        "FAILED_PRECONDITION", "b still has a replica [stream=orders, partition=0]: move it away first"
    )
    cluster.must(Reassign("orders", 0, ("a", "c")))
    assert isinstance(cluster.apply(ForgetServer("b")), Refusal)
    assert isinstance(cluster.apply(ForgetServer("c")), Refusal)


def test_states_and_the_throttle_are_set_once() -> None:
    cluster = Cluster()
    assert cluster.must(SetServerState("a", "active")) == ()
    assert cluster.must(SetServerState("a", "leaving")) == (ServerChanged("a"),)
    assert cluster.must(SetServerState("a", "leaving")) == ()
    assert cluster.must(SetReplicationThrottle(5_000_000)) == (ThrottleChanged(5_000_000),)
    assert cluster.must(SetReplicationThrottle(5_000_000)) == ()
    assert cluster.state.replication_throttle == 5_000_000
    assert cluster.must(SetReplicationThrottle(0)) == (ThrottleChanged(0),)


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (RestartServer("", intact=True), "a server id is required"),
        (StopServer(""), "a server id is required"),
        (SetServerState("", "leaving"), "a server id is required"),
        (ForgetServer(""), "a server id is required"),
        (SetServerState("a", "gone"), "'gone' is no state of a server: use active or leaving"),
        (SetReplicationThrottle(-1), "the throttle is -1, it must be 0 (none) or more bytes a second"),
    ],
    ids=str,
)
def test_nonsense_is_refused(op: Op, text: str) -> None:
    assert Cluster().refusal(op) == Refusal("INVALID_ARGUMENT", text)


def test_nothing_of_this_is_told_to_the_activity_stream() -> None:
    cluster = replicated()
    cluster.create("__activity", brokers=(BrokerPlace("d"),))
    cluster.must(RestartServer("a", intact=False))
    cluster.must(StopServer("b"))
    cluster.must(SetServerState("b", "leaving"))
    cluster.must(SetReplicationThrottle(7))
    cluster.must(Reassign("orders", 0, ("c", "d")))
    assert [event.op for event in cluster.state.activity] == ["CreateStream"]
