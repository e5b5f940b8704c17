"""The ops on one partition: changes of its leader and of its in-sync replicas.

Each op is fenced: it names the leader epoch that its sender knows, and is refused in any other epoch. The leader of a partition is
always one of its in-sync replicas, and these are always a subset of its replicas.
"""

from __future__ import annotations

from bascule.metadata.core.model import ops
from bascule.metadata.core.model.changes import PartitionChanged
from bascule.metadata.core.model.contents import Contents, Outcome
from bascule.metadata.core.model.refusal import NO_CANDIDATES, Refusal, precondition
from bascule.metadata.core.model.streams import Partition

Fenced = ops.ShrinkIsr | ops.ExpandIsr | ops.ChangeLeader | ops.ElectUnclean | ops.CompleteReassignment


def led_by(contents: Contents, op: Fenced) -> Partition | Refusal:
    """The partition, if the op's sender knows its present leader: the fence against deposed leaders."""
    partition = contents.find(op.stream, op.partition)
    if partition is None:
        return _no_partition(op.stream, op.partition)
    if (partition.leader, partition.leader_epoch) != (op.leader, op.leader_epoch):
        return precondition(
            f"Leader generation mismatch, current leader: {partition.leader} epoch: {partition.leader_epoch}, "
            f"got leader: {op.leader} epoch: {op.leader_epoch}"
        )
    return partition


def _no_partition(stream: str, partition: int) -> Refusal:
    return precondition(f"No such partition [stream={stream}, partition={partition}]")


def withdraw(contents: Contents, index: int, partition: Partition, replica: str) -> None:
    """Take a replica out of an in-sync set of several. If it led the partition, another in-sync replica leads now."""
    assert len(partition.in_sync_replicas) > 1
    partition.in_sync_replicas.remove(replica)
    partition.epoch = index
    if partition.leader == replica:
        lead(contents, index, partition, partition.in_sync_replicas)


def lead(contents: Contents, index: int, partition: Partition, candidates: list[str]) -> None:
    """A new leader epoch with one of the candidates: the one that leads the fewest partitions, of those that are not leaving."""
    with contents.load.changing(partition):
        partition.leader = contents.load.least_led(contents.staying(candidates))
    partition.leader_epoch = partition.epoch = index


def shrink_isr(contents: Contents, index: int, op: ops.ShrinkIsr) -> Outcome:
    partition = led_by(contents, op)
    if isinstance(partition, Refusal):
        return partition
    if op.replica not in partition.replicas:
        return precondition(f"{op.replica} is not a replica")
    if op.replica == partition.leader:
        return precondition(f"{op.replica} leads the partition and cannot leave its in-sync replicas")
    if op.replica not in partition.in_sync_replicas:
        return ()
    withdraw(contents, index, partition, op.replica)
    return (PartitionChanged(op.stream, op.partition),)


def expand_isr(contents: Contents, index: int, op: ops.ExpandIsr) -> Outcome:
    partition = led_by(contents, op)
    if isinstance(partition, Refusal):
        return partition
    if op.replica not in partition.replicas:
        return precondition(f"{op.replica} is not a replica")
    if op.replica in partition.in_sync_replicas:
        # Checked before the epochs: a leader whose op is refused stops counting the replica, which must not happen to an in-sync one.
        return ()
    replica_epoch = contents.replica_epoch(partition, op.replica)
    if op.replica_epoch != replica_epoch:
        return precondition(
            f"Replica generation mismatch, current epoch of {op.replica}: {replica_epoch}, got epoch: {op.replica_epoch}"
        )
    if op.partition_epoch not in (0, partition.epoch):
        return precondition(
            f"Partition epoch mismatch, current epoch: {partition.epoch}, got epoch: {op.partition_epoch}"
        )
    partition.in_sync_replicas.append(op.replica)
    partition.epoch = index
    return (PartitionChanged(op.stream, op.partition),)


def change_leader(contents: Contents, index: int, op: ops.ChangeLeader) -> Outcome:
    partition = led_by(contents, op)
    if isinstance(partition, Refusal):
        return partition
    candidates = [
        replica
        for replica in partition.in_sync_replicas
        if replica != partition.leader and (op.candidates is None or replica in op.candidates)
    ]
    if not candidates:
        return NO_CANDIDATES
    if op.failed:
        partition.in_sync_replicas.remove(partition.leader)
    lead(contents, index, partition, candidates)
    return (PartitionChanged(op.stream, op.partition),)


def leave_isr(contents: Contents, index: int, op: ops.LeaveIsr) -> Outcome:
    partition = contents.find(op.stream, op.partition)
    if partition is None:
        return _no_partition(op.stream, op.partition)
    if partition.leader_epoch != op.leader_epoch:
        return precondition(
            f"Leader generation mismatch, current leader: {partition.leader} epoch: {partition.leader_epoch}, "
            f"got epoch: {op.leader_epoch}"
        )
    if op.replica not in partition.replicas:
        return precondition(f"{op.replica} is not a replica")
    if partition.in_sync_replicas == [op.replica]:
        return precondition("the last in-sync replica cannot leave")
    if op.replica in partition.in_sync_replicas:
        withdraw(contents, index, partition, op.replica)
    # Also when it is not in sync: its leader may be about to propose it because of the log that it no longer has.
    partition.replica_epochs[op.replica] = partition.epoch = index
    return (PartitionChanged(op.stream, op.partition),)


def elect_unclean(contents: Contents, index: int, op: ops.ElectUnclean) -> Outcome:
    partition = led_by(contents, op)
    if isinstance(partition, Refusal):
        return partition
    if op.replica not in partition.replicas:
        return precondition(f"{op.replica} is not a replica")
    if op.replica == partition.leader:
        return precondition(f"{op.replica} leads the partition already")
    if op.replica in partition.in_sync_replicas:
        # No record is lost, so no replica may truncate records that it knows as committed.
        return change_leader(
            contents, index, ops.ChangeLeader(op.stream, op.partition, op.leader, op.leader_epoch, (op.replica,))
        )
    partition.in_sync_replicas = [op.replica]
    lead(contents, index, partition, [op.replica])
    partition.data_loss_epoch = index
    return (PartitionChanged(op.stream, op.partition),)
