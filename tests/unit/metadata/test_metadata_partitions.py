"""In-sync replicas and leaders of one partition: who may come in, who may leave, and what an unclean election costs."""

from __future__ import annotations

import pytest

from bascule.metadata.core.model.ops import (
    ChangeLeader,
    ElectUnclean,
    ExpandIsr,
    LeaveIsr,
    Op,
    RestartServer,
    SetServerState,
)
from bascule.metadata.core.snapshot import encode_snapshot
from bascule.metadata.core.state import PartitionChanged
from tests.unit.metadata.metadata_helpers import Cluster

CHANGED = (PartitionChanged("orders", 0),)


def replicated() -> Cluster:
    """A stream that a leads, with b and c in sync."""
    cluster = Cluster()
    cluster.create("orders", 1, 3)
    assert cluster.partition("orders").replicas == ["a", "b", "c"]
    return cluster


# ── joining ──────────────────────────────────────────────────────────────────────────────────────


def test_a_replica_that_restarted_since_the_leader_saw_it_does_not_come_in() -> None:
    cluster = replicated()
    cluster.shrink("orders", "c")
    epoch = cluster.partition("orders").epoch
    cluster.must(RestartServer("c", intact=False))
    refusal = cluster.refusal(ExpandIsr("orders", 0, "c", "a", 1, 0, epoch))
    assert refusal.code == "FAILED_PRECONDITION"
    assert refusal.text == f"Replica generation mismatch, current epoch of c: {cluster.index - 1}, got epoch: 0"
    assert cluster.partition("orders").in_sync_replicas == ["a", "b"]
    cluster.must(ExpandIsr("orders", 0, "c", "a", 1, cluster.state.server_epochs["c"], epoch))
    assert cluster.partition("orders").in_sync_replicas == ["a", "b", "c"]


def test_a_replica_comes_into_the_in_sync_set_the_leader_knew_and_into_no_other() -> None:
    cluster = replicated()
    cluster.shrink("orders", "c")
    known = cluster.partition("orders").epoch
    cluster.shrink("orders", "b")
    refusal = cluster.refusal(ExpandIsr("orders", 0, "c", "a", 1, 0, known))
    assert refusal.code == "FAILED_PRECONDITION"
    assert refusal.text == f"Partition epoch mismatch, current epoch: {known + 1}, got epoch: {known}"
    cluster.must(ExpandIsr("orders", 0, "c", "a", 1, 0, known + 1))


def test_a_replica_that_is_in_is_never_refused_so_no_leader_stops_counting_it() -> None:
    cluster = replicated()
    cluster.shrink("orders", "c")
    op = ExpandIsr("orders", 0, "c", "a", 1, 0, cluster.partition("orders").epoch)
    assert cluster.must(op) == CHANGED
    assert cluster.must(op) == ()
    cluster.must(RestartServer("c", intact=True))
    assert cluster.must(op) == ()


# ── leaving ──────────────────────────────────────────────────────────────────────────────────────


def test_a_damaged_follower_leaves_the_in_sync_set_and_stays_a_replica() -> None:
    cluster = replicated()
    assert cluster.must(LeaveIsr("orders", 0, "b", 1)) == CHANGED
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, partition.epoch) == ("a", 1, cluster.index)
    assert (partition.in_sync_replicas, partition.replicas) == (["a", "c"], ["a", "b", "c"])


def test_a_damaged_replica_that_is_out_already_is_not_let_in_by_a_proposal_on_its_way() -> None:
    cluster = replicated()
    cluster.shrink("orders", "b")
    on_its_way = ExpandIsr("orders", 0, "b", "a", 1, 0, cluster.partition("orders").epoch)
    assert cluster.must(LeaveIsr("orders", 0, "b", 1)) == CHANGED
    assert "Replica generation mismatch" in cluster.refusal(on_its_way).text
    assert cluster.partition("orders").in_sync_replicas == ["a", "c"]


def test_a_replica_that_left_for_damage_is_not_let_in_for_what_it_said_before() -> None:
    cluster = replicated()
    cluster.must(LeaveIsr("orders", 0, "b", 1))
    partition = cluster.partition("orders")
    # The leader heard it after it had heard that it left.
    late = ExpandIsr("orders", 0, "b", "a", 1, 0, partition.epoch)
    assert "Replica generation mismatch, current epoch of b: 2, got epoch: 0" in cluster.refusal(late).text
    assert cluster.state.replica_epoch(partition, "b") == 2
    cluster.must(ExpandIsr("orders", 0, "b", "a", 1, 2, partition.epoch))
    assert partition.in_sync_replicas == ["a", "c", "b"]


def test_nobody_is_elected_who_is_not_in_sync() -> None:
    cluster = replicated()
    cluster.shrink("orders", "b")
    cluster.shrink("orders", "c")
    assert cluster.refusal(ChangeLeader("orders", 0, "a", 1)).text == "No ISR candidates"
    assert cluster.refusal(ChangeLeader("orders", 0, "a", 1, ("b",), failed=False)).text == "No ISR candidates"
    cluster.expand("orders", "c")
    cluster.must(ChangeLeader("orders", 0, "a", 1))
    assert cluster.partition("orders").leader == "c"


def test_a_damaged_leader_leaves_and_another_in_sync_replica_leads() -> None:
    cluster = replicated()
    cluster.must(LeaveIsr("orders", 0, "a", 1))
    partition = cluster.partition("orders")
    assert (partition.leader, partition.in_sync_replicas) == ("b", ["b", "c"])
    assert partition.leader_epoch == partition.epoch == cluster.index
    assert cluster.state.load.led == {"a": 0, "b": 1}


def test_the_last_in_sync_replica_cannot_leave() -> None:
    cluster = replicated()
    cluster.shrink("orders", "b")
    cluster.shrink("orders", "c")
    refusal = cluster.refusal(LeaveIsr("orders", 0, "a", 1))
    assert (refusal.code, refusal.text) == ("FAILED_PRECONDITION", "the last in-sync replica cannot leave")


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (LeaveIsr("orders", 0, "b", 0), "Leader generation mismatch, current leader: a epoch: 1, got epoch: 0"),
        (LeaveIsr("orders", 0, "x", 1), "x is not a replica"),
        (LeaveIsr("orders", 1, "b", 1), "No such partition"),
        (LeaveIsr("none", 0, "b", 1), "No such partition"),
        (ElectUnclean("orders", 0, "b", "a", 0), "Leader generation mismatch"),
        (ElectUnclean("orders", 0, "b", "c", 1), "Leader generation mismatch"),
        (ElectUnclean("orders", 0, "x", "a", 1), "x is not a replica"),
        (ElectUnclean("orders", 0, "a", "a", 1), "a leads the partition already"),
        (ElectUnclean("orders", -1, "b", "a", 1), "No such partition"),
    ],
    ids=str,
)
def test_what_is_fenced_or_makes_no_sense_is_refused_and_changes_nothing(op: Op, text: str) -> None:
    cluster = replicated()
    before = encode_snapshot(cluster.state)
    refusal = cluster.refusal(op)
    assert refusal.code == "FAILED_PRECONDITION"
    assert text in refusal.text
    cluster.state.applied_index -= 1
    assert encode_snapshot(cluster.state) == before


# ── elections ────────────────────────────────────────────────────────────────────────────────────


def test_an_unclean_election_leaves_one_in_sync_replica_and_says_that_records_may_be_lost() -> None:
    cluster = replicated()
    cluster.shrink("orders", "b")
    cluster.shrink("orders", "c")
    assert cluster.must(ElectUnclean("orders", 0, "c", "a", 1)) == CHANGED
    partition = cluster.partition("orders")
    assert (partition.leader, partition.in_sync_replicas) == ("c", ["c"])
    assert partition.data_loss_epoch == partition.leader_epoch == partition.epoch == cluster.index
    assert cluster.state.load.led == {"a": 0, "c": 1}


def test_electing_a_replica_that_is_in_sync_loses_nothing_and_is_an_ordinary_election() -> None:
    cluster = replicated()
    cluster.must(ElectUnclean("orders", 0, "c", "a", 1))
    partition = cluster.partition("orders")
    assert (partition.leader, partition.in_sync_replicas, partition.data_loss_epoch) == ("c", ["b", "c"], 0)
    assert partition.leader_epoch == cluster.index


def test_a_server_that_leaves_leads_nothing_new_unless_nobody_else_can() -> None:
    cluster = replicated()
    cluster.must(SetServerState("b", "leaving"))
    cluster.must(ChangeLeader("orders", 0, "a", 1))
    assert cluster.partition("orders").leader == "c"
    cluster.must(ChangeLeader("orders", 0, "c", cluster.partition("orders").leader_epoch))
    assert cluster.partition("orders").leader == "b"
