"""The ops of consumer groups: members join and leave, coordinators change."""

from __future__ import annotations

from bascule.metadata.core.model import ops
from bascule.metadata.core.model.changes import GroupChanged
from bascule.metadata.core.model.contents import Contents, Outcome
from bascule.metadata.core.model.groups import ConsumerGroup, GroupMember, rebalance
from bascule.metadata.core.model.refusal import NO_GROUP, invalid, precondition


def join_group(contents: Contents, index: int, op: ops.JoinConsumerGroup) -> Outcome:
    if not op.group or not op.consumer or not op.streams:
        return invalid("a group id, a consumer id and at least one stream are required")
    unknown = [stream for stream in op.streams if stream not in contents.streams]
    if unknown:
        return precondition(f"stream {unknown[0]} does not exist")
    group = contents.groups.get(op.group)
    if group is not None and op.consumer in group.members:
        return precondition(f"{op.consumer} is already a member of group {op.group}")
    if group is None:
        if not op.brokers:
            return precondition("no broker can coordinate the group")
        # A new group begins with epoch 0, which clients rely on.
        group = contents.groups[op.group] = ConsumerGroup(op.group, _coordinator_of(contents, op.brokers), 0)
    else:
        group.epoch = index
    member = GroupMember(op.consumer, sorted(set(op.streams)))
    group.members[op.consumer] = member
    rebalance(group, member.streams, contents.partition_counts())
    return (GroupChanged(op.group),)


def _coordinator_of(contents: Contents, brokers: tuple[str, ...]) -> str:
    return min(contents.staying(brokers), key=lambda broker: (contents.coordinated(broker), broker))


def leave_group(contents: Contents, index: int, op: ops.LeaveConsumerGroup) -> Outcome:
    group = contents.groups.get(op.group)
    if group is None:
        return NO_GROUP
    if op.coordinator and op.coordinator != group.coordinator:
        return precondition(f"{op.coordinator} does not coordinate group {op.group} any more")
    member = group.members.pop(op.consumer, None)
    if member is None:
        return precondition(f"{op.consumer} is not a member of group {op.group}")
    group.epoch = index
    if not group.members:
        del contents.groups[op.group]
    else:
        rebalance(group, member.streams, contents.partition_counts())
    return (GroupChanged(op.group),)


def change_coordinator(contents: Contents, index: int, op: ops.ChangeCoordinator) -> Outcome:
    group = contents.groups.get(op.group)
    if group is None:
        return precondition(f"No such consumer group [group={op.group}]")
    if (group.coordinator, group.epoch) != (op.coordinator, op.epoch):
        return precondition(
            f"Coordinator mismatch, current coordinator: {group.coordinator} epoch: {group.epoch}, "
            f"got coordinator: {op.coordinator} epoch: {op.epoch}"
        )
    others = tuple(broker for broker in op.brokers if broker != group.coordinator)
    if not others:
        return precondition("No candidates to become the new coordinator")
    group.coordinator = _coordinator_of(contents, others)
    group.epoch = index
    return (GroupChanged(op.group),)
