"""Moves of a partition to other servers. A move is part of the state, so that it continues after any failure or change of leader.

During the move the partition has its old replicas followed by the new ones, so that the preferred leader stays the same until the end.
When all new replicas are in sync and one of them leads, that leader submits `CompleteReassignment`, which removes the others.
"""

from __future__ import annotations

from bascule.metadata.core.model import ops
from bascule.metadata.core.model.changes import PartitionChanged
from bascule.metadata.core.model.contents import Contents, Outcome
from bascule.metadata.core.model.refusal import NO_PARTITION, NO_STREAM, Refusal, invalid, precondition
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.partition_ops import led_by


def _named(contents: Contents, op: ops.Reassign | ops.CancelReassignment) -> Partition | Refusal:
    if op.stream not in contents.streams:
        return NO_STREAM
    return contents.find(op.stream, op.partition) or NO_PARTITION


def reassign(contents: Contents, index: int, op: ops.Reassign) -> Outcome:
    partition = _named(contents, op)
    if isinstance(partition, Refusal):
        return partition
    if not all(op.replicas) or len(set(op.replicas)) != len(op.replicas) or not op.replicas:
        return invalid("the replicas to move to are missing, without a name or named twice")
    for server in op.replicas:
        if server in contents.leaving and server not in partition.replicas:
            return precondition(f"{server} is leaving the cluster and is given no new replicas")
    before = (partition.replicas, partition.target_replicas)
    with contents.load.changing(partition):
        _aim(partition, list(op.replicas))
    if before == (partition.replicas, partition.target_replicas):
        return ()
    for replica in set(partition.replicas) - set(before[0]):
        partition.replica_epochs[replica] = index  # it may have been one before, and its log deleted since
    _forget_epochs(partition)
    partition.epoch = index
    return (PartitionChanged(op.stream, op.partition),)


def _aim(partition: Partition, target: list[str]) -> None:
    original = partition.original_replicas or partition.replicas
    # Replicas that an earlier move added and this one does not need are removed, except the leader, which hands over first.
    useful = {*original, *target, partition.leader}
    kept = [replica for replica in partition.replicas if replica in useful]
    replicas = kept + [replica for replica in target if replica not in kept]
    if set(replicas) == set(original) == set(target):
        # No replica moves: a new order changes the preferred leader, and ends a move that was in progress.
        _settle(partition, target)
        return
    partition.original_replicas = original
    partition.target_replicas = target
    partition.replicas = replicas
    partition.in_sync_replicas = [replica for replica in partition.in_sync_replicas if replica in replicas]


def _forget_epochs(partition: Partition) -> None:
    """Remove the entries of servers that are no longer replicas."""
    partition.replica_epochs = {
        replica: epoch for replica, epoch in partition.replica_epochs.items() if replica in partition.replicas
    }


def _settle(partition: Partition, replicas: list[str]) -> None:
    """End the move: the partition has exactly these replicas, and one of them leads."""
    assert partition.leader in replicas
    partition.replicas = replicas
    partition.in_sync_replicas = [replica for replica in partition.in_sync_replicas if replica in replicas]
    partition.target_replicas = []
    partition.original_replicas = []
    _forget_epochs(partition)


def cancel_reassignment(contents: Contents, index: int, op: ops.CancelReassignment) -> Outcome:
    partition = _named(contents, op)
    if isinstance(partition, Refusal):
        return partition
    if not partition.target_replicas:
        return ()
    if partition.leader not in partition.original_replicas:
        return precondition(
            f"leader {partition.leader} is one of the added replicas; complete the reassignment or hand over first"
        )
    with contents.load.changing(partition):
        _settle(partition, partition.original_replicas)
    partition.epoch = index
    return (PartitionChanged(op.stream, op.partition),)


def complete_reassignment(contents: Contents, index: int, op: ops.CompleteReassignment) -> Outcome:
    partition = led_by(contents, op)
    if isinstance(partition, Refusal):
        return partition
    if not partition.target_replicas:
        return ()
    for replica in partition.target_replicas:
        if replica not in partition.in_sync_replicas:
            return precondition(f"{replica} is to have the partition and is not in sync yet")
    if partition.leader not in partition.target_replicas:
        return precondition(f"leader {partition.leader} is not to keep the partition; hand over first")
    with contents.load.changing(partition):
        _settle(partition, partition.target_replicas)
    partition.epoch = index
    return (PartitionChanged(op.stream, op.partition),)
