"""Consumer groups in the replicated state: membership, coordinators, assignments; and the controller's tallies of failure reports."""

from __future__ import annotations

from typing import Any

import pytest

from bascule.metadata.core.failures import CoordinatorFailures, LeaderFailures, Noted
from bascule.metadata.core.model.ops import (
    BrokerPlace,
    ChangeCoordinator,
    ChangeLeader,
    JoinConsumerGroup,
    LeaveConsumerGroup,
    ShrinkIsr,
)
from bascule.metadata.core.model.refusal import Refusal
from tests.unit.metadata.metadata_helpers import IDS, Cluster

SECOND = 1_000_000_000


def joined(*members: tuple[str, tuple[str, ...]], **partitions: int) -> Cluster:
    cluster = Cluster()
    for stream, count in partitions.items():
        cluster.create(stream, count)
    for consumer, streams in members:
        cluster.must(JoinConsumerGroup("g", consumer, streams, IDS))
    return cluster


def assignments(cluster: Cluster) -> dict[str, dict[str, list[int]]]:
    return {name: member.assignments for name, member in cluster.state.groups["g"].members.items()}


def test_a_new_group_has_epoch_zero_and_later_changes_take_the_index() -> None:
    cluster = joined(("c1", ("foo",)), foo=1)
    assert cluster.state.groups["g"].epoch == 0
    cluster.must(JoinConsumerGroup("g", "c2", ("foo",), IDS))
    assert cluster.state.groups["g"].epoch == cluster.index
    cluster.must(LeaveConsumerGroup("g", "c1"))
    assert cluster.state.groups["g"].epoch == cluster.index


def test_the_lifecycle_that_clients_know() -> None:
    cluster = joined(("c1", ("foo", "bar")), foo=2, bar=2)
    assert assignments(cluster) == {"c1": {"foo": [0, 1], "bar": [0, 1]}}
    cluster.must(JoinConsumerGroup("g", "c2", ("foo",), IDS))
    assert assignments(cluster) == {"c1": {"foo": [0], "bar": [0, 1]}, "c2": {"foo": [1]}}
    cluster.must(LeaveConsumerGroup("g", "c2"))
    assert assignments(cluster) == {"c1": {"foo": [0, 1], "bar": [0, 1]}}


def test_a_member_keeps_what_it_has_where_balance_allows() -> None:
    cluster = joined(("c1", ("foo",)), ("c2", ("foo",)), foo=6)
    before = assignments(cluster)
    cluster.must(JoinConsumerGroup("g", "c0", ("foo",), IDS))
    after = assignments(cluster)
    assert sorted(len(member["foo"]) for member in after.values()) == [2, 2, 2]
    for member in ("c1", "c2"):
        assert set(after[member]["foo"]) <= set(before[member]["foo"])


def test_every_partition_has_one_reader_and_more_members_than_partitions_idle() -> None:
    cluster = joined(*((f"c{number}", ("foo",)) for number in range(5)), foo=3)
    owners = [number for member in assignments(cluster).values() for number in member.get("foo", [])]
    assert sorted(owners) == [0, 1, 2]


JOIN_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"group": ""}, "INVALID_ARGUMENT"),
    ({"consumer": ""}, "INVALID_ARGUMENT"),
    ({"streams": ()}, "INVALID_ARGUMENT"),
    ({"streams": ("foo", "nothing")}, "FAILED_PRECONDITION"),
    ({"consumer": "c1"}, "FAILED_PRECONDITION"),
    ({"group": "new", "brokers": ()}, "FAILED_PRECONDITION"),
]


@pytest.mark.parametrize(("wrong", "code"), JOIN_FAULTS, ids=[str(case[0]) for case in JOIN_FAULTS])
def test_a_join_that_cannot_be_is_refused(wrong: dict[str, Any], code: str) -> None:
    cluster = joined(("c1", ("foo",)), foo=2)
    given: dict[str, Any] = {"group": "g", "consumer": "c2", "streams": ("foo",), "brokers": IDS, **wrong}
    assert cluster.refusal(JoinConsumerGroup(**given)).code == code
    assert list(cluster.state.groups) == ["g"]
    assert list(cluster.state.groups["g"].members) == ["c1"]


def test_the_last_one_out_removes_the_group() -> None:
    cluster = joined(("c1", ("foo",)), foo=1)
    assert cluster.refusal(LeaveConsumerGroup("g", "c9")).code == "FAILED_PRECONDITION"
    cluster.must(LeaveConsumerGroup("g", "c1", expired=True))
    assert cluster.state.groups == {}
    assert cluster.refusal(LeaveConsumerGroup("g", "c1")).code == "NOT_FOUND"


def test_groups_are_coordinated_by_the_broker_with_the_fewest() -> None:
    cluster = joined(foo=1)
    for number in range(6):
        cluster.must(JoinConsumerGroup(f"g{number}", "c", ("foo",), IDS))
    assert sorted(group.coordinator for group in cluster.state.groups.values()) == ["a", "a", "b", "b", "c", "c"]


def test_a_coordinator_is_replaced_by_another_and_only_for_its_epoch() -> None:
    cluster = joined(("c1", ("foo",)), foo=1)
    group = cluster.state.groups["g"]
    assert cluster.refusal(ChangeCoordinator("g", group.coordinator, 7, IDS)).code == "FAILED_PRECONDITION"
    assert cluster.refusal(ChangeCoordinator("g", "b", 0, IDS)).code == "FAILED_PRECONDITION"
    assert cluster.refusal(ChangeCoordinator("x", "a", 0, IDS)).code == "FAILED_PRECONDITION"
    assert cluster.refusal(ChangeCoordinator("g", "a", 0, ("a",))).code == "FAILED_PRECONDITION"
    cluster.must(ChangeCoordinator("g", "a", 0, IDS))
    assert cluster.state.groups["g"].coordinator == "b"
    assert cluster.state.groups["g"].epoch == cluster.index


# ── failure reports ──────────────────────────────────────────────────────────────────────────────


def partition_with_isr(size: int) -> Cluster:
    cluster = Cluster()
    cluster.create("foo", 1, size, brokers=tuple(BrokerPlace(f"b{number}") for number in range(size)))
    return cluster


@pytest.mark.parametrize(("isr", "needed"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_a_leader_is_replaced_when_more_than_half_of_its_followers_report_it(isr: int, needed: int) -> None:
    cluster = partition_with_isr(isr)
    partition = cluster.partition("foo")
    failures = LeaderFailures(10 * SECOND)
    followers = partition.in_sync_replicas[1:]
    for number in range(needed - 1):
        answer = failures.report(cluster.state, "foo", 0, followers[number], partition.leader, 1, 0)
        assert answer == Noted(number + 1, needed)
        again = failures.report(cluster.state, "foo", 0, followers[number], partition.leader, 1, 0)
        assert again == Noted(number + 1, needed)
    op = failures.report(cluster.state, "foo", 0, followers[needed - 1], partition.leader, 1, 0)
    assert op == ChangeLeader("foo", 0, partition.leader, 1)
    assert len(failures) == 0


def test_the_next_election_needs_new_reports() -> None:
    cluster = partition_with_isr(5)
    failures = LeaderFailures(10 * SECOND)
    for _ in range(2):
        partition = cluster.partition("foo")
        followers = [replica for replica in partition.in_sync_replicas if replica != partition.leader]
        needed = (len(partition.in_sync_replicas) - 1) // 2 + 1
        answers = [
            failures.report(cluster.state, "foo", 0, one, partition.leader, partition.leader_epoch, 0)
            for one in followers[:needed]
        ]
        assert all(isinstance(answer, Noted) for answer in answers[:-1])
        op = answers[-1]
        assert isinstance(op, ChangeLeader)
        cluster.must(op)


def test_an_election_that_did_not_come_about_needs_new_reports_too() -> None:
    cluster = partition_with_isr(3)
    leader, (first, second) = cluster.partition("foo").leader, cluster.partition("foo").in_sync_replicas[1:]
    failures = LeaderFailures(10 * SECOND)
    failures.report(cluster.state, "foo", 0, first, leader, 1, 0)
    assert isinstance(failures.report(cluster.state, "foo", 0, second, leader, 1, 0), ChangeLeader)
    assert len(failures) == 0
    assert failures.report(cluster.state, "foo", 0, second, leader, 1, 0) == Noted(1, 2)


def test_a_tally_expires_after_the_last_report() -> None:
    cluster = partition_with_isr(3)
    leader, (first, second) = cluster.partition("foo").leader, cluster.partition("foo").in_sync_replicas[1:]
    failures = LeaderFailures(10 * SECOND)
    assert failures.report(cluster.state, "foo", 0, first, leader, 1, 0) == Noted(1, 2)
    assert failures.report(cluster.state, "foo", 0, second, leader, 1, 10 * SECOND) == Noted(1, 2)
    failures.expire(25 * SECOND)
    assert len(failures) == 0
    failures.report(cluster.state, "foo", 0, second, leader, 1, 30 * SECOND)
    failures.clear()
    assert len(failures) == 0


def test_only_in_sync_followers_are_believed_and_only_about_the_present_leader() -> None:
    cluster = partition_with_isr(3)
    leader, (first, second) = cluster.partition("foo").leader, cluster.partition("foo").in_sync_replicas[1:]
    cluster.must(ShrinkIsr("foo", 0, first, leader, 1))
    failures = LeaderFailures(10 * SECOND)
    for stream, number, reporter, named, epoch in (
        ("foo", 0, first, leader, 1),
        ("foo", 0, leader, leader, 1),
        ("foo", 0, "stranger", leader, 1),
        ("foo", 0, second, second, 1),
        ("foo", 0, second, leader, 2),
        ("foo", 3, second, leader, 1),
        ("bar", 0, second, leader, 1),
    ):
        answer = failures.report(cluster.state, stream, number, reporter, named, epoch, 0)
        assert isinstance(answer, Refusal)
        assert answer.code == "FAILED_PRECONDITION"
    assert len(failures) == 0


def test_a_coordinator_is_replaced_when_more_than_half_of_the_members_report_it() -> None:
    cluster = joined(*((f"c{number}", ("foo",)) for number in range(4)), foo=4)
    group = cluster.state.groups["g"]
    failures = CoordinatorFailures(10 * SECOND)

    def report(consumer: str, coordinator: str = group.coordinator, epoch: int = group.epoch) -> object:
        return failures.report(cluster.state, "g", consumer, coordinator, epoch, IDS, 0)

    assert isinstance(report("stranger"), Refusal)
    assert isinstance(report("c0", coordinator="z"), Refusal)
    assert isinstance(report("c0", epoch=0), Refusal)
    assert report("c0") == Noted(1, 3)
    assert report("c0") == Noted(1, 3)
    assert report("c1") == Noted(2, 3)
    op = report("c2")
    assert op == ChangeCoordinator("g", group.coordinator, group.epoch, IDS)
    assert isinstance(op, ChangeCoordinator)
    cluster.must(op)
    assert cluster.state.groups["g"].coordinator != op.coordinator
    unknown = failures.report(cluster.state, "x", "c0", "a", 0, IDS, 0)
    assert isinstance(unknown, Refusal)
    failures.expire(0)
    failures.clear()
