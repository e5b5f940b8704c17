"""Which ops are events, and how long they are kept."""

from __future__ import annotations

import pytest

from bascule import limits
from bascule.metadata.core.model.activity import ActivityEvent
from bascule.metadata.core.model.ops import (
    DeleteStream,
    JoinConsumerGroup,
    LeaveConsumerGroup,
    PauseStream,
    PublishActivity,
    ResumeStream,
    SetStreamReadonly,
    ShrinkIsr,
)
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from tests.unit.metadata.metadata_helpers import Cluster, creation


@pytest.fixture
def cluster() -> Cluster:
    """With an activity stream, whose creation was the op of index 1."""
    made = Cluster()
    made.create("__activity")
    return made


def test_the_first_event_is_the_creation_of_the_activity_stream(cluster: Cluster) -> None:
    assert list(cluster.state.activity) == [ActivityEvent(1, "CreateStream", "__activity", (0,))]


def test_without_an_activity_stream_nothing_is_kept() -> None:
    cluster = Cluster()
    cluster.create("orders")
    assert not cluster.state.activity
    cluster.create("__activity")
    cluster.must(DeleteStream("__activity"))
    assert not cluster.state.activity


def test_every_op_that_clients_cause_is_an_event(cluster: Cluster) -> None:
    cluster.create("orders", 3)
    cluster.must(PauseStream("orders", 5, (1,), resume_all=True))
    cluster.must(ResumeStream("orders", 6))
    cluster.must(SetStreamReadonly("orders", 7, True))
    cluster.must(SetStreamReadonly("orders", 8, False, (2,)))
    cluster.must(JoinConsumerGroup("g", "c", ("orders",), ("a",)))
    cluster.must(LeaveConsumerGroup("g", "c", expired=True))
    cluster.must(DeleteStream("orders"))
    assert list(cluster.state.activity)[1:] == [
        ActivityEvent(2, "CreateStream", "orders", (0, 1, 2)),
        ActivityEvent(3, "PauseStream", "orders", (1,), resume_all=True),
        ActivityEvent(4, "ResumeStream", "orders", (1,)),
        ActivityEvent(5, "SetStreamReadonly", "orders", (0, 1, 2), readonly=True),
        ActivityEvent(6, "SetStreamReadonly", "orders", (2,)),
        ActivityEvent(7, "JoinConsumerGroup", group="g", consumer="c", streams=("orders",)),
        ActivityEvent(8, "LeaveConsumerGroup", group="g", consumer="c", expired=True),
        ActivityEvent(9, "DeleteStream", "orders"),
    ]


def test_what_changed_nothing_or_was_refused_is_no_event(cluster: Cluster) -> None:
    cluster.create("orders", 1, 2)
    cluster.must(PauseStream("orders", 5))
    before = list(cluster.state.activity)
    cluster.must(PauseStream("orders", 6))
    cluster.refusal(creation("orders"))
    cluster.refusal(DeleteStream("nobody"))
    partition = cluster.partition("orders")
    follower = next(replica for replica in partition.replicas if replica != partition.leader)
    cluster.must(ShrinkIsr("orders", 0, follower, partition.leader, partition.leader_epoch))
    assert list(cluster.state.activity) == before


def test_events_go_once_they_were_published(cluster: Cluster) -> None:
    for name in ("x", "y", "z"):
        cluster.create(name)
    cluster.must(PublishActivity(3))
    assert [event.stream for event in cluster.state.activity] == ["z"]
    cluster.must(PublishActivity(2))
    assert [event.stream for event in cluster.state.activity] == ["z"]


def test_events_that_wait_survive_a_snapshot(cluster: Cluster) -> None:
    cluster.create("orders", 2)
    cluster.must(JoinConsumerGroup("g", "c", ("orders",), ("a",)))
    restored = decode_snapshot(encode_snapshot(cluster.state))
    assert restored.activity == cluster.state.activity
    assert encode_snapshot(restored) == encode_snapshot(cluster.state)


def test_a_snapshot_from_before_there_were_events_has_none(cluster: Cluster) -> None:
    old = encode_snapshot(cluster.state).replace(b'"activity":[', b'"activities":[')
    assert not decode_snapshot(old).activity


def test_events_that_nobody_publishes_are_bounded(cluster: Cluster) -> None:
    cluster.create("orders")
    for number in range(limits.ACTIVITY_EVENTS_MAX):
        cluster.must(SetStreamReadonly("orders", 1, number % 2 == 0))
    assert len(cluster.state.activity) == limits.ACTIVITY_EVENTS_MAX
    assert cluster.state.activity[-1].id == cluster.index


def test_a_member_is_put_out_only_by_its_coordinator_of_now() -> None:
    cluster = Cluster()
    cluster.create("orders")
    cluster.must(JoinConsumerGroup("g", "c", ("orders",), ("a",)))
    assert "any more" in cluster.refusal(LeaveConsumerGroup("g", "c", True, "b")).text
    cluster.must(LeaveConsumerGroup("g", "c", True, "a"))
    assert not cluster.state.groups
