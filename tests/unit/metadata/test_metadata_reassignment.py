"""A partition moves to other servers, step by step, and back when somebody changes his mind."""

from __future__ import annotations

import pytest

from bascule.metadata.core.model.ops import (
    BrokerPlace,
    CancelReassignment,
    CompleteReassignment,
    ExpandIsr,
    Op,
    PauseStream,
    Reassign,
)
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.snapshot import encode_snapshot
from bascule.metadata.core.state import PartitionChanged
from tests.unit.metadata.metadata_helpers import Cluster

CHANGED = (PartitionChanged("orders", 0),)


def replicated() -> Cluster:
    """A stream on a and b, led by a."""
    cluster = Cluster()
    cluster.create("orders", 1, 2, brokers=(BrokerPlace("a"), BrokerPlace("b")))
    return cluster


def completion(cluster: Cluster) -> CompleteReassignment:
    partition = cluster.partition("orders")
    return CompleteReassignment("orders", 0, partition.leader, partition.leader_epoch)


def servers(partition: Partition) -> tuple[list[str], list[str], list[str]]:
    return partition.replicas, partition.in_sync_replicas, partition.target_replicas


def test_a_partition_moves_its_followers_with_its_leader_unchanged() -> None:
    cluster = replicated()
    assert cluster.must(Reassign("orders", 0, ("a", "c"))) == CHANGED
    partition = cluster.partition("orders")
    assert servers(partition) == (["a", "b", "c"], ["a", "b"], ["a", "c"])
    assert (partition.epoch, partition.leader_epoch) == (cluster.index, 1)
    assert cluster.state.load.hosted == {"a": 1, "b": 1, "c": 1}
    cluster.expand("orders", "c")
    assert cluster.must(completion(cluster)) == CHANGED
    assert servers(partition) == (["a", "c"], ["a", "c"], [])
    assert (partition.leader, partition.leader_epoch, partition.epoch) == ("a", 1, cluster.index)
    assert +cluster.state.load.hosted == {"a": 1, "c": 1}
    assert cluster.must(completion(cluster)) == ()


def test_a_partition_moves_away_altogether_and_its_preferred_leader_changes_at_the_end() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("d", "c")))
    assert cluster.partition("orders").replicas == ["a", "b", "d", "c"]
    cluster.expand("orders", "c")
    assert "d is to have the partition and is not in sync yet" in cluster.refusal(completion(cluster)).text
    cluster.expand("orders", "d")
    assert "leader a is not to keep the partition; hand over first" in cluster.refusal(completion(cluster)).text
    cluster.hand_over("orders", "d")
    cluster.must(completion(cluster))
    assert servers(cluster.partition("orders")) == (["d", "c"], ["c", "d"], [])
    assert +cluster.state.load.led == {"d": 1}


def test_a_replica_that_comes_back_is_not_let_in_for_what_it_said_when_it_was_one_before() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("a",)))
    cluster.must(completion(cluster))
    cluster.must(Reassign("orders", 0, ("a", "b")))
    partition = cluster.partition("orders")
    late = ExpandIsr("orders", 0, "b", "a", 1, 0, partition.epoch)
    assert "Replica generation mismatch" in cluster.refusal(late).text
    cluster.expand("orders", "b")
    assert partition.in_sync_replicas == ["a", "b"]


def test_a_deposed_leader_does_not_complete_a_move() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("a", "b", "c")))
    cluster.expand("orders", "c")
    stale = completion(cluster)
    cluster.hand_over("orders", "b")
    assert cluster.refusal(stale).code == "FAILED_PRECONDITION"


def test_fewer_replicas_are_a_move_too_that_waits_for_those_that_stay() -> None:
    cluster = replicated()
    cluster.shrink("orders", "b")
    cluster.must(Reassign("orders", 0, ("b",)))
    assert servers(cluster.partition("orders")) == (["a", "b"], ["a"], ["b"])
    assert cluster.refusal(completion(cluster)).code == "FAILED_PRECONDITION"
    cluster.expand("orders", "b")
    cluster.hand_over("orders", "b")
    cluster.must(completion(cluster))
    assert servers(cluster.partition("orders")) == (["b"], ["b"], [])


def test_the_same_replicas_are_no_move_and_another_order_is_another_preferred_leader() -> None:
    cluster = replicated()
    assert cluster.must(Reassign("orders", 0, ("a", "b"))) == ()
    assert cluster.partition("orders").epoch == 1
    assert cluster.must(Reassign("orders", 0, ("b", "a"))) == CHANGED
    partition = cluster.partition("orders")
    assert servers(partition) == (["b", "a"], ["a", "b"], [])
    assert (partition.leader, partition.epoch) == ("a", cluster.index)


def test_asking_for_the_move_that_is_under_way_changes_nothing() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("b", "c")))
    assert cluster.must(Reassign("orders", 0, ("b", "c"))) == ()
    assert cluster.must(Reassign("orders", 0, ("c", "b"))) == CHANGED
    assert cluster.partition("orders").target_replicas == ["c", "b"]


# ── changing one's mind ──────────────────────────────────────────────────────────────────────────


def test_a_cancelled_move_gives_back_what_was() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("c", "d")))
    cluster.expand("orders", "c")
    assert cluster.must(CancelReassignment("orders", 0)) == CHANGED
    assert servers(cluster.partition("orders")) == (["a", "b"], ["a", "b"], [])
    assert +cluster.state.load.hosted == {"a": 1, "b": 1}
    assert cluster.must(CancelReassignment("orders", 0)) == ()


def test_a_move_whose_leader_is_new_is_not_cancelled_before_he_handed_over() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("c",)))
    cluster.expand("orders", "c")
    cluster.hand_over("orders", "c")
    refusal = cluster.refusal(CancelReassignment("orders", 0))
    assert refusal == Refusal(
        "FAILED_PRECONDITION",
        "leader c is one of the added replicas; complete the reassignment or hand over first",
    )
    cluster.hand_over("orders", "b")
    cluster.must(CancelReassignment("orders", 0))
    assert servers(cluster.partition("orders")) == (["a", "b"], ["a", "b"], [])


def test_another_move_replaces_the_first_and_lets_go_of_what_it_added() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("c", "d")))
    cluster.expand("orders", "c")
    cluster.must(Reassign("orders", 0, ("a", "e")))
    assert servers(cluster.partition("orders")) == (["a", "b", "e"], ["a", "b"], ["a", "e"])
    assert +cluster.state.load.hosted == {"a": 1, "b": 1, "e": 1}
    cluster.must(CancelReassignment("orders", 0))
    assert cluster.partition("orders").replicas == ["a", "b"]


def test_a_move_that_is_replaced_keeps_its_leader_until_he_handed_over() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("c",)))
    cluster.expand("orders", "c")
    cluster.hand_over("orders", "c")
    cluster.must(Reassign("orders", 0, ("a", "b")))
    assert servers(cluster.partition("orders")) == (["a", "b", "c"], ["a", "b", "c"], ["a", "b"])
    cluster.hand_over("orders", "a")
    cluster.must(completion(cluster))
    assert servers(cluster.partition("orders")) == (["a", "b"], ["a", "b"], [])


def test_a_move_back_to_where_it_began_is_over_at_once() -> None:
    cluster = replicated()
    cluster.must(Reassign("orders", 0, ("c", "d")))
    cluster.must(Reassign("orders", 0, ("b", "a")))
    assert servers(cluster.partition("orders")) == (["b", "a"], ["a", "b"], [])
    assert cluster.partition("orders").original_replicas == []


def test_a_paused_partition_can_be_moved_and_weighs_nothing() -> None:
    cluster = replicated()
    cluster.must(PauseStream("orders", 1))
    cluster.must(Reassign("orders", 0, ("c",)))
    assert not +cluster.state.load.hosted
    assert cluster.partition("orders").replicas == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("op", "code"),
    [
        (Reassign("none", 0, ("a",)), "NOT_FOUND"),
        (Reassign("orders", 1, ("a",)), "NOT_FOUND"),
        (Reassign("orders", -1, ("a",)), "NOT_FOUND"),
        (Reassign("orders", 0, ()), "INVALID_ARGUMENT"),
        (Reassign("orders", 0, ("",)), "INVALID_ARGUMENT"),
        (Reassign("orders", 0, ("c", "c")), "INVALID_ARGUMENT"),
        (CancelReassignment("none", 0), "NOT_FOUND"),
        (CancelReassignment("orders", 9), "NOT_FOUND"),
        (CompleteReassignment("orders", 9, "a", 1), "FAILED_PRECONDITION"),
        (CompleteReassignment("orders", 0, "b", 1), "FAILED_PRECONDITION"),
    ],
    ids=str,
)
def test_moves_that_cannot_be_are_refused_and_change_nothing(op: Op, code: str) -> None:
    cluster = replicated()
    before = encode_snapshot(cluster.state)
    assert cluster.refusal(op).code == code
    cluster.state.applied_index -= 1
    assert encode_snapshot(cluster.state) == before
