"""What holds of the metadata after any op, and ops that hit what is there."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from bascule.metadata.core.model.ops import Op
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.state import ClusterMetadata


def sequences(of: st.SearchStrategy[Op], most: int) -> st.SearchStrategy[list[Op]]:
    """Long ones as often as short ones: left to itself Hypothesis seldom goes far enough for a second failure to meet the first."""
    return st.integers(0, most).flatmap(lambda count: st.lists(of, min_size=count, max_size=count))


def aim(op: Op, state: ClusterMetadata) -> Op:
    """The op with the leader and the epochs of its partition as they are."""
    said: dict[str, Any] = {field.name: getattr(op, field.name) for field in fields(op)}
    partition = state.find(said["stream"], said["partition"]) if {"stream", "partition"} <= set(said) else None
    if partition is None:
        return op
    present: dict[str, Any] = {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.epoch,
        "replica_epoch": state.replica_epoch(partition, said.get("replica", "")),
    }
    return type(op)(**{name: present.get(name, value) for name, value in said.items()})


def check_invariants(state: ClusterMetadata) -> None:
    hosted: Counter[str] = Counter()
    led: Counter[str] = Counter()
    for stream in state.streams.values():
        for partition in stream.partitions:
            check_partition(partition, state.applied_index)
            if not partition.paused:
                hosted.update(partition.replicas)
                led[partition.leader] += 1
    assert +state.load.hosted == hosted
    assert +state.load.led == led
    assert all(0 < epoch <= state.applied_index for epoch in state.server_epochs.values())
    assert state.replication_throttle >= 0
    check_activity(state)
    for group in state.groups.values():
        assert group.members
        check_assignments(state, group.id)


def check_partition(partition: Partition, applied_index: int) -> None:
    assert partition.leader in partition.in_sync_replicas
    assert set(partition.in_sync_replicas) <= set(partition.replicas)
    for servers in (
        partition.replicas,
        partition.in_sync_replicas,
        partition.target_replicas,
        partition.original_replicas,
    ):
        assert len(set(servers)) == len(servers)
        assert all(servers)
    assert set(partition.replica_epochs) <= set(partition.replicas)
    assert all(0 < epoch <= partition.epoch for epoch in partition.replica_epochs.values())
    assert partition.data_loss_epoch <= partition.leader_epoch <= partition.epoch <= applied_index
    if partition.target_replicas:
        # The leader may be left over from a move that was replaced.
        both = {*partition.original_replicas, *partition.target_replicas}
        assert both <= set(partition.replicas)
        assert partition.replicas[: len(partition.original_replicas)] == partition.original_replicas
    else:
        assert not partition.original_replicas


def check_activity(state: ClusterMetadata) -> None:
    ids = [event.id for event in state.activity]
    assert ids == sorted(set(ids))
    assert "__activity" in state.streams or not ids
    assert all(index <= state.applied_index for index in ids)


def check_assignments(state: ClusterMetadata, name: str) -> None:
    """Every partition of a stream that is read is read by one of its subscribers."""
    members = state.groups[name].members.values()
    for stream in {stream for member in members for stream in member.streams}:
        assigned = sorted(number for member in members for number in member.assignments.get(stream, []))
        assert assigned == list(range(len(state.streams[stream].partitions)))
    for member in members:
        assert set(member.assignments) <= set(member.streams)
        assert all(stream in state.streams for stream in member.streams)
