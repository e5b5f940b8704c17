"""Streams and partitions in the replicated state: what each op does, and with which code and text it is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bascule import limits
from bascule.metadata.core.model.ops import (
    BrokerPlace,
    ChangeLeader,
    DeleteStream,
    ExpandIsr,
    JoinConsumerGroup,
    PauseStream,
    PublishActivity,
    ResumeStream,
    SetStreamConfig,
    SetStreamReadonly,
    ShrinkIsr,
    decode_op,
    encode_op,
)
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.snapshot import encode_snapshot
from bascule.metadata.core.state import PartitionChanged, StreamCreated, StreamRemoved
from tests.unit.metadata.metadata_helpers import IDS, Cluster, creation


def test_a_created_stream_has_all_its_partitions_and_epochs_of_its_index() -> None:
    cluster = Cluster()
    cluster.state.skip(6)
    cluster.index = 6
    assert cluster.must(creation("orders", 3, 2, group="workers", config={"encryption": True})) == (
        StreamCreated("orders"),
    )
    stream = cluster.state.streams["orders"]
    assert (stream.id, stream.group, stream.config, stream.created_ns) == (7, "workers", {"encryption": True}, 1)
    assert [partition.id for partition in stream.partitions] == [0, 1, 2]
    for partition in stream.partitions:
        assert partition.leader_epoch == partition.epoch == 7
        assert partition.in_sync_replicas == partition.replicas
        assert partition.leader == partition.replicas[0]


def test_replication_factor_minus_one_means_every_broker() -> None:
    cluster = Cluster()
    cluster.create("orders", 1, -1)
    assert sorted(cluster.partition("orders").replicas) == list(IDS)


CREATION_FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"name": ""}, "INVALID_ARGUMENT", "Name cannot be empty"),
    ({"subject": ""}, "INVALID_ARGUMENT", "Subject is invalid"),
    ({"subject": "foo bar"}, "INVALID_ARGUMENT", "Subject is invalid"),
    ({"subject": "foo..bar"}, "INVALID_ARGUMENT", "Subject is invalid"),
    ({"subject": "foo\r\n"}, "INVALID_ARGUMENT", "Subject is invalid"),
    ({"name": ".."}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"name": "a/b"}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"name": "a*"}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"name": "a>"}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"name": "a b"}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"name": "a\0"}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"name": "\ud800"}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"name": "a..b"}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"name": "x" * 201}, "INVALID_ARGUMENT", "Name is invalid"),
    ({"partitions": 0}, "INVALID_ARGUMENT", "partitions is 0"),
    ({"partitions": -5}, "INVALID_ARGUMENT", "partitions is -5"),
    ({"partitions": limits.STREAM_PARTITIONS_MAX + 1}, "INVALID_ARGUMENT", "partitions is"),
    ({"factor": 4}, "INVALID_ARGUMENT", "Invalid replicationFactor 4, cluster size 3"),
    ({"factor": -2}, "INVALID_ARGUMENT", "Invalid replicationFactor -2"),
    ({"factor": 0}, "INVALID_ARGUMENT", "Invalid replicationFactor 0"),
    ({"brokers": ()}, "INVALID_ARGUMENT", "brokers"),
    ({"brokers": (BrokerPlace("a"), BrokerPlace("a"))}, "INVALID_ARGUMENT", "brokers"),
]


@pytest.mark.parametrize(("wrong", "code", "text"), CREATION_FAULTS, ids=[str(case[0]) for case in CREATION_FAULTS])
def test_a_creation_that_cannot_be_is_refused_and_changes_nothing(wrong: dict[str, Any], code: str, text: str) -> None:
    cluster = Cluster()
    refusal = cluster.refusal(creation(**{"name": "orders", **wrong}))
    assert refusal.code == code
    assert text in refusal.text
    assert not cluster.state.streams
    assert not +cluster.state.load.hosted


@pytest.mark.parametrize("name", ["events.DGT", "ems.helb.sensors", "__activity", "größe", "a-b_c"])
def test_names_that_people_use_are_fine(name: str) -> None:
    cluster = Cluster()
    cluster.create(name)
    assert [*cluster.state.streams] == [name]


def test_the_second_creation_of_a_name_is_refused_whatever_its_subject() -> None:
    cluster = Cluster()
    cluster.create("orders")
    assert cluster.refusal(creation("orders", subject="other")) == Refusal("ALREADY_EXISTS", "stream already exists")


def test_a_deleted_stream_is_gone_and_a_new_one_of_its_name_is_another() -> None:
    cluster = Cluster()
    cluster.create("orders", 2, 3)
    first = cluster.state.streams["orders"].id
    assert cluster.must(DeleteStream("orders")) == (StreamRemoved("orders", first),)
    assert cluster.refusal(DeleteStream("orders")) == Refusal("NOT_FOUND", "stream does not exist")
    assert not +cluster.state.load.hosted
    cluster.create("orders")
    assert cluster.state.streams["orders"].id != first


# ── in-sync replicas and leaders ─────────────────────────────────────────────────────────────────


def replicated() -> Cluster:
    cluster = Cluster()
    cluster.create("orders", 1, 3)
    return cluster


def test_the_isr_shrinks_and_grows_and_both_are_idempotent() -> None:
    cluster = replicated()
    leader, epoch = cluster.partition("orders").leader, cluster.partition("orders").leader_epoch
    follower = cluster.partition("orders").replicas[1]
    changed = (PartitionChanged("orders", 0),)
    assert cluster.must(ShrinkIsr("orders", 0, follower, leader, epoch)) == changed
    assert follower not in cluster.partition("orders").in_sync_replicas
    assert cluster.partition("orders").epoch == cluster.index
    assert cluster.must(ShrinkIsr("orders", 0, follower, leader, epoch)) == ()
    assert cluster.must(ExpandIsr("orders", 0, follower, leader, epoch)) == changed
    assert cluster.must(ExpandIsr("orders", 0, follower, leader, epoch)) == ()
    assert sorted(cluster.partition("orders").in_sync_replicas) == list(IDS)


@pytest.mark.parametrize("kind", [ShrinkIsr, ExpandIsr])
def test_isr_changes_of_a_deposed_leader_are_fenced(kind: type[ShrinkIsr] | type[ExpandIsr]) -> None:
    cluster = replicated()
    leader, epoch = cluster.partition("orders").leader, cluster.partition("orders").leader_epoch
    follower = cluster.partition("orders").replicas[1]
    before = encode_snapshot(cluster.state)
    for op in (
        kind("orders", 0, follower, leader, epoch - 1),
        kind("orders", 0, follower, follower, epoch),
        kind("orders", 1, follower, leader, epoch),
        kind("orders", -1, follower, leader, epoch),
        kind("nothing", 0, follower, leader, epoch),
        kind("orders", 0, "stranger", leader, epoch),
    ):
        assert cluster.refusal(op).code == "FAILED_PRECONDITION"
    cluster.state.applied_index = 1
    assert encode_snapshot(cluster.state) == before


def test_a_leader_cannot_leave_its_own_isr() -> None:
    cluster = replicated()
    leader, epoch = cluster.partition("orders").leader, cluster.partition("orders").leader_epoch
    assert cluster.refusal(ShrinkIsr("orders", 0, leader, leader, epoch)).code == "FAILED_PRECONDITION"


def test_a_failed_leader_leaves_the_isr_in_the_op_that_replaces_it() -> None:
    cluster = replicated()
    old, epoch = cluster.partition("orders").leader, cluster.partition("orders").leader_epoch
    cluster.must(ChangeLeader("orders", 0, old, epoch))
    partition = cluster.partition("orders")
    assert partition.leader != old
    assert old not in partition.in_sync_replicas
    assert old in partition.replicas
    assert partition.leader_epoch == partition.epoch == cluster.index
    assert cluster.refusal(ChangeLeader("orders", 0, old, epoch)).code == "FAILED_PRECONDITION"


def test_a_leader_that_hands_over_stays_in_the_isr() -> None:
    cluster = replicated()
    old, epoch = cluster.partition("orders").leader, cluster.partition("orders").leader_epoch
    target = cluster.partition("orders").replicas[2]
    cluster.must(ChangeLeader("orders", 0, old, epoch, candidates=(target,), failed=False))
    assert cluster.partition("orders").leader == target
    assert old in cluster.partition("orders").in_sync_replicas


def test_only_in_sync_replicas_are_elected() -> None:
    cluster = replicated()
    leader, epoch = cluster.partition("orders").leader, cluster.partition("orders").leader_epoch
    first, second = (replica for replica in cluster.partition("orders").replicas if replica != leader)
    cluster.must(ShrinkIsr("orders", 0, first, leader, epoch))
    refused = cluster.refusal(ChangeLeader("orders", 0, leader, epoch, candidates=(first,)))
    assert refused == Refusal("FAILED_PRECONDITION", "No ISR candidates")
    cluster.must(ShrinkIsr("orders", 0, second, leader, epoch))
    assert cluster.refusal(ChangeLeader("orders", 0, leader, epoch)).text == "No ISR candidates"
    assert cluster.partition("orders").leader == leader


def test_the_candidate_that_leads_the_fewest_partitions_is_elected() -> None:
    cluster = Cluster()
    for number in range(4):
        cluster.create(f"other{number}", brokers=(BrokerPlace("b"),))
    cluster.create("orders", 1, 3)
    partition = cluster.partition("orders")
    assert partition.leader == "a"
    cluster.must(ChangeLeader("orders", 0, "a", partition.leader_epoch))
    assert cluster.partition("orders").leader == "c"


# ── pause and readonly ───────────────────────────────────────────────────────────────────────────


def test_pause_takes_all_or_some_partitions_and_is_idempotent() -> None:
    cluster = Cluster()
    cluster.create("orders", 3)
    assert cluster.must(PauseStream("orders", 10, (1,))) == (PartitionChanged("orders", 1),)
    assert [cluster.partition("orders", number).paused for number in range(3)] == [False, True, False]
    assert len(cluster.must(PauseStream("orders", 20))) == 2
    assert cluster.must(PauseStream("orders", 30)) == ()
    assert not +cluster.state.load.hosted
    assert (
        cluster.partition("orders", 1).pause_times.first_ns,
        cluster.partition("orders", 1).pause_times.latest_ns,
    ) == (10, 10)
    assert len(cluster.must(ResumeStream("orders", 40, (0, 1)))) == 2
    assert cluster.partition("orders", 1).pause_times.latest_ns == 40
    assert sum(cluster.state.load.hosted.values()) == 2


def test_resume_all_is_of_the_last_pause_and_ends_with_the_last_resume() -> None:
    cluster = Cluster()
    cluster.create("orders", 2)
    cluster.must(PauseStream("orders", 1, (), resume_all=True))
    assert cluster.state.streams["orders"].resume_all
    cluster.must(ResumeStream("orders", 2, (0,)))
    assert cluster.state.streams["orders"].resume_all
    cluster.must(ResumeStream("orders", 3))
    assert not cluster.state.streams["orders"].resume_all
    cluster.must(PauseStream("orders", 4, (), resume_all=True))
    cluster.must(PauseStream("orders", 5, (0,)))
    assert not cluster.state.streams["orders"].resume_all


def test_readonly_is_kept_through_pause_and_resume() -> None:
    cluster = Cluster()
    cluster.create("orders", 2)
    cluster.must(SetStreamReadonly("orders", 5, True, (1,)))
    cluster.must(PauseStream("orders", 6))
    cluster.must(ResumeStream("orders", 7))
    assert [cluster.partition("orders", number).readonly for number in range(2)] == [False, True]
    assert cluster.must(SetStreamReadonly("orders", 8, True, (1,))) == ()
    assert cluster.partition("orders", 1).readonly_times.latest_ns == 5


def test_one_unknown_partition_refuses_the_whole_op() -> None:
    cluster = Cluster()
    cluster.create("orders", 2)
    for op in (
        PauseStream("orders", 1, (0, 2)),
        ResumeStream("orders", 1, (-1,)),
        SetStreamReadonly("orders", 1, True, (0, 7)),
        PauseStream("nothing", 1),
        ResumeStream("nothing", 1),
        SetStreamReadonly("nothing", 1, True),
    ):
        assert cluster.refusal(op).code == "NOT_FOUND"
    assert not any(partition.paused or partition.readonly for partition in cluster.state.streams["orders"].partitions)


# ── the log ──────────────────────────────────────────────────────────────────────────────────────


def test_an_index_is_applied_once() -> None:
    cluster = Cluster()
    cluster.create("orders")
    assert cluster.state.apply(1, DeleteStream("orders")) == ()
    assert "orders" in cluster.state.streams


def test_the_activity_index_never_goes_back() -> None:
    cluster = Cluster()
    cluster.must(PublishActivity(9))
    cluster.must(PublishActivity(4))
    assert cluster.state.activity_index == 9


# ── placement ────────────────────────────────────────────────────────────────────────────────────


def test_the_partitions_of_one_request_spread_over_brokers_and_leaders() -> None:
    cluster = Cluster()
    cluster.create("orders", 6, 2)
    partitions = cluster.state.streams["orders"].partitions
    assert Counter(partition.leader for partition in partitions) == {"a": 2, "b": 2, "c": 2}
    assert Counter(replica for partition in partitions for replica in partition.replicas) == {"a": 4, "b": 4, "c": 4}
    assert all(len(set(partition.replicas)) == 2 for partition in partitions)


def test_replicas_go_to_the_least_loaded_brokers() -> None:
    cluster = Cluster()
    cluster.create("busy", 5, brokers=(BrokerPlace("a"),))
    cluster.create("orders", 1, 2)
    assert sorted(cluster.partition("orders").replicas) == ["b", "c"]


def test_paused_partitions_do_not_count() -> None:
    cluster = Cluster()
    cluster.create("busy", 5, brokers=(BrokerPlace("a"),))
    cluster.must(PauseStream("busy", 1))
    cluster.create("orders")
    assert cluster.partition("orders").leader == "a"


def test_replicas_spread_over_racks_before_they_share_one() -> None:
    brokers = tuple(BrokerPlace(name, rack) for name, rack in zip("abcdef", "112233", strict=True))
    cluster = Cluster()
    cluster.create("orders", 12, 3, brokers=brokers)
    racks = {broker.id: broker.rack for broker in brokers}
    for partition in cluster.state.streams["orders"].partitions:
        assert {racks[replica] for replica in partition.replicas} == {"1", "2", "3"}
    hosted = Counter(
        replica for partition in cluster.state.streams["orders"].partitions for replica in partition.replicas
    )
    assert set(hosted.values()) == {6}


def test_more_replicas_than_racks_still_find_their_brokers() -> None:
    brokers = tuple(BrokerPlace(name, "one") for name in "abc")
    cluster = Cluster()
    cluster.create("orders", 1, 3, brokers=brokers)
    assert sorted(cluster.partition("orders").replicas) == ["a", "b", "c"]


def test_deleting_a_stream_takes_it_from_its_groups() -> None:
    cluster = Cluster()
    cluster.create("foo", 2)
    cluster.create("bar", 2)
    cluster.must(JoinConsumerGroup("g", "c1", ("foo", "bar"), IDS))
    cluster.must(DeleteStream("foo"))
    group = cluster.state.groups["g"]
    assert group.members["c1"].streams == ["bar"]
    assert group.members["c1"].assignments == {"bar": [0, 1]}
    assert group.epoch == cluster.index


def test_settings_change_and_every_partition_learns_of_it() -> None:
    cluster = Cluster()
    cluster.must(creation("orders", 2, 1, config={"retention_max_bytes": 5, "encryption": True}))
    before = [partition.epoch for partition in cluster.state.streams["orders"].partitions]
    op = SetStreamConfig("orders", {"retention_max_bytes": 1, "sync_interval_ns": 7})
    assert decode_op(encode_op(op)) == op
    assert cluster.must(op) == (PartitionChanged("orders", 0), PartitionChanged("orders", 1))
    stream = cluster.state.streams["orders"]
    assert stream.config == {"retention_max_bytes": 1, "encryption": True, "sync_interval_ns": 7}
    assert all(partition.epoch > old for partition, old in zip(stream.partitions, before, strict=True))
    assert cluster.must(op) == (), "nothing is left to change"
    assert cluster.refusal(SetStreamConfig("nothing", {"retention_max_bytes": 1})).code == "NOT_FOUND"
