"""The ops of servers that stop, restart or leave, and their effect on the partitions of these servers."""

from __future__ import annotations

from bascule.metadata.core.model import ops
from bascule.metadata.core.model.changes import Change, PartitionChanged, ServerChanged, ThrottleChanged
from bascule.metadata.core.model.contents import Contents, Outcome
from bascule.metadata.core.model.refusal import Refusal, invalid, precondition
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.partition_ops import lead, withdraw

ACTIVE = "active"
LEAVING = "leaving"

_NO_SERVER: Refusal = invalid("a server id is required")


def restart_server(contents: Contents, index: int, op: ops.RestartServer) -> Outcome:
    if not op.server:
        return _NO_SERVER
    contents.server_epochs[op.server] = index
    changes: list[Change] = [ServerChanged(op.server)]
    for stream, partition in contents.each_partition():
        if op.intact:
            changed = _renew_leadership(contents, index, partition, op.server)
        else:
            changed = _step_aside(contents, index, partition, op.server) or _own_loss(
                contents, index, partition, op.server
            )
        if changed:
            changes.append(PartitionChanged(stream, partition.id))
    return tuple(changes)


def _renew_leadership(contents: Contents, index: int, partition: Partition, server: str) -> bool:
    """A restarted leader gets a new epoch: records that it wrote and its followers did not fetch may be lost."""
    if partition.leader != server:
        return False
    lead(contents, index, partition, [server])
    return True


def _step_aside(contents: Contents, index: int, partition: Partition, server: str) -> bool:
    """Leave the in-sync set, unless it is the only member."""
    if server not in partition.in_sync_replicas or len(partition.in_sync_replicas) == 1:
        return False
    withdraw(contents, index, partition, server)
    return True


def _own_loss(contents: Contents, index: int, partition: Partition, server: str) -> bool:
    """The only in-sync replica may have lost records that were not synced; no other replica has more of the committed ones."""
    if not _renew_leadership(contents, index, partition, server):
        return False
    partition.data_loss_epoch = index
    return True


def stop_server(contents: Contents, index: int, op: ops.StopServer) -> Outcome:
    if not op.server:
        return _NO_SERVER
    return tuple(
        PartitionChanged(stream, partition.id)
        for stream, partition in contents.each_partition()
        if _step_aside(contents, index, partition, op.server)
    )


def set_server_state(contents: Contents, _index: int, op: ops.SetServerState) -> Outcome:
    if not op.server:
        return _NO_SERVER
    if op.state not in (ACTIVE, LEAVING):
        return invalid(f"{op.state!r} is no state of a server: use {ACTIVE} or {LEAVING}")
    if (op.server in contents.leaving) == (op.state == LEAVING):
        return ()
    contents.leaving ^= {op.server}
    return (ServerChanged(op.server),)


def set_replication_throttle(contents: Contents, _index: int, op: ops.SetReplicationThrottle) -> Outcome:
    if op.bytes_per_second < 0:
        return invalid(f"the throttle is {op.bytes_per_second}, it must be 0 (none) or more bytes a second")
    if op.bytes_per_second == contents.replication_throttle:
        return ()
    contents.replication_throttle = op.bytes_per_second
    return (ThrottleChanged(op.bytes_per_second),)


def forget_server(contents: Contents, _index: int, op: ops.ForgetServer) -> Outcome:
    if not op.server:
        return _NO_SERVER
    for stream, partition in contents.each_partition():
        if op.server in partition.replicas:
            return precondition(
                f"{op.server} still has a replica [stream={stream}, partition={partition.id}]: move it away first"
            )
    if op.server not in contents.server_epochs and op.server not in contents.leaving:
        return ()
    contents.server_epochs.pop(op.server, None)
    contents.leaving.discard(op.server)
    return (ServerChanged(op.server),)
