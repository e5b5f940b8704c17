"""The metadata state machine: `apply(index, op)` is its one verb.

It never raises for an op, whatever it says: an op that cannot be done is refused, with the code and text for the client, at the same
index on every broker, and has then changed nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from bascule import limits
from bascule.core.metadata import ops
from bascule.core.metadata.activity import ACTIVITY_STREAM, ActivityEvent, event_of
from bascule.core.metadata.changes import Change, GroupChanged, PartitionChanged, StreamCreated, StreamDeleted
from bascule.core.metadata.groups import ConsumerGroup, Member, rebalance
from bascule.core.metadata.load import Load
from bascule.core.metadata.names import stream_name_fault, subject_fault
from bascule.core.metadata.placement import place
from bascule.core.metadata.refusal import (
    NO_CANDIDATES,
    NO_GROUP,
    NO_PARTITION,
    NO_STREAM,
    STREAM_EXISTS,
    Refusal,
    invalid,
    precondition,
)
from bascule.core.metadata.streams import Partition, Stream

__all__ = ["Change", "GroupChanged", "Metadata", "Outcome", "PartitionChanged", "StreamCreated", "StreamDeleted"]

Outcome = tuple[Change, ...] | Refusal


class Metadata:
    def __init__(self) -> None:
        self.applied_index = 0
        self.activity_index = 0
        """Up to which index activity events were published."""
        self.activity: deque[ActivityEvent] = deque(maxlen=limits.ACTIVITY_EVENTS_MAX)
        """Events that are still to be published, in the order of the log; none unless there is an activity stream."""
        self.streams: dict[str, Stream] = {}
        self.groups: dict[str, ConsumerGroup] = {}
        self.server_epochs: dict[str, int] = {}
        """Index of each server's last restart after an unclean stop; servers without one are at 0."""
        self.leaving: set[str] = set()
        """Servers that are given no new replicas and groups, and leaderships only when nobody else can have them."""
        self.replication_throttle = 0
        """Bytes a second that each server may fetch to catch up; 0: no bound."""
        self.load = Load()

    def apply(self, index: int, op: ops.Op) -> Outcome:
        """Do the op of log entry `index`: what changed, or why not. An index that was applied already changes nothing."""
        if index <= self.applied_index:
            return ()
        self.applied_index = index
        outcome: Outcome = _APPLY[type(op)](self, index, op)
        if not isinstance(outcome, Refusal):
            self._note_activity(index, op, outcome)
        return outcome

    def _note_activity(self, index: int, op: ops.Op, changes: tuple[Change, ...]) -> None:
        if ACTIVITY_STREAM not in self.streams:
            self.activity.clear()
            return
        event = event_of(index, op, changes)
        if event is not None:
            self.activity.append(event)

    def skip(self, index: int) -> None:
        """An entry that holds no op: it passes like one that changes nothing."""
        self.applied_index = max(self.applied_index, index)

    def coordinated(self, broker: str) -> int:
        """How many groups the broker coordinates."""
        return sum(1 for group in self.groups.values() if group.coordinator == broker)

    # ── streams ──────────────────────────────────────────────────────────────────────────────────

    def _create_stream(self, index: int, op: ops.CreateStream) -> Outcome:
        fault = _creation_fault(op)
        if fault is not None:
            return fault
        if op.name in self.streams:
            return STREAM_EXISTS
        factor = len(op.brokers) if op.replication_factor == -1 else op.replication_factor
        placements = place(op.partitions, factor, op.brokers, self.load)
        partitions = [
            Partition(number, list(where.replicas), where.leader, list(where.replicas), index, index)
            for number, where in enumerate(placements)
        ]
        stream = Stream(op.name, index, op.subject, op.group, op.created_ns, dict(op.config), partitions)
        self.streams[op.name] = stream
        self.load.add_stream(stream)
        return (StreamCreated(op.name),)

    def _delete_stream(self, index: int, op: ops.DeleteStream) -> Outcome:
        stream = self.streams.pop(op.name, None)
        if stream is None:
            return NO_STREAM
        self.load.remove_stream(stream)
        changes: list[Change] = [StreamDeleted(op.name, stream.id)]
        for name in sorted(self.groups):
            if self._unsubscribe_all(self.groups[name], op.name):
                self.groups[name].epoch = index
                changes.append(GroupChanged(name))
        return tuple(changes)

    def _unsubscribe_all(self, group: ConsumerGroup, stream: str) -> bool:
        """Take a deleted stream away from the members, and balance what they read besides."""
        subscribers = group.subscribers(stream)
        touched: set[str] = set()
        for member in subscribers:
            member.streams.remove(stream)
            member.assignments.pop(stream, None)
            touched.update(member.streams)
        rebalance(group, touched, self._partition_counts())
        return bool(subscribers)

    # ── partitions ───────────────────────────────────────────────────────────────────────────────

    def _find(self, stream: str, partition: int) -> Partition | None:
        found = self.streams.get(stream)
        return None if found is None else found.partition(partition)

    def _led_by(self, op: ops.ShrinkIsr | ops.ExpandIsr | ops.ChangeLeader) -> Partition | Refusal:
        """The partition, if the op's sender knows its present leader: the fence against deposed leaders."""
        partition = self._find(op.stream, op.partition)
        if partition is None:
            return precondition(f"No such partition [stream={op.stream}, partition={op.partition}]")
        if (partition.leader, partition.leader_epoch) != (op.leader, op.leader_epoch):
            return precondition(
                f"Leader generation mismatch, current leader: {partition.leader} epoch: {partition.leader_epoch}, "
                f"got leader: {op.leader} epoch: {op.leader_epoch}"
            )
        return partition

    def _shrink_isr(self, index: int, op: ops.ShrinkIsr) -> Outcome:
        partition = self._led_by(op)
        if isinstance(partition, Refusal):
            return partition
        if op.replica not in partition.replicas:
            return precondition(f"{op.replica} is not a replica")
        if op.replica == partition.leader:
            return precondition(f"{op.replica} leads the partition and cannot leave its in-sync replicas")
        if op.replica not in partition.in_sync_replicas:
            return ()
        partition.in_sync_replicas.remove(op.replica)
        partition.epoch = index
        return (PartitionChanged(op.stream, op.partition),)

    def _expand_isr(self, index: int, op: ops.ExpandIsr) -> Outcome:
        partition = self._led_by(op)
        if isinstance(partition, Refusal):
            return partition
        if op.replica not in partition.replicas:
            return precondition(f"{op.replica} is not a replica")
        if op.replica in partition.in_sync_replicas:
            return ()
        partition.in_sync_replicas.append(op.replica)
        partition.epoch = index
        return (PartitionChanged(op.stream, op.partition),)

    def _change_leader(self, index: int, op: ops.ChangeLeader) -> Outcome:
        partition = self._led_by(op)
        if isinstance(partition, Refusal):
            return partition
        candidates = [
            replica
            for replica in partition.in_sync_replicas
            if replica != partition.leader and (op.candidates is None or replica in op.candidates)
        ]
        if not candidates:
            return NO_CANDIDATES
        self.load.remove(partition)
        if op.failed:
            partition.in_sync_replicas.remove(partition.leader)
        partition.leader = self.load.least_led(candidates)
        partition.leader_epoch = partition.epoch = index
        self.load.add(partition)
        return (PartitionChanged(op.stream, op.partition),)

    def _chosen(self, name: str, numbers: tuple[int, ...]) -> tuple[Stream, list[Partition]] | Refusal:
        """The partitions an op names, all of them when it names none. One that does not exist refuses the whole op."""
        stream = self.streams.get(name)
        if stream is None:
            return NO_STREAM
        chosen = [stream.partition(number) for number in sorted(set(numbers))] if numbers else list(stream.partitions)
        if any(partition is None for partition in chosen):
            return NO_PARTITION
        return stream, [partition for partition in chosen if partition is not None]

    def _pause_stream(self, index: int, op: ops.PauseStream) -> Outcome:
        found = self._chosen(op.stream, op.partitions)
        if isinstance(found, Refusal):
            return found
        found[0].resume_all = op.resume_all
        return self._set_paused(index, found, True, op.at_ns)

    def _resume_stream(self, index: int, op: ops.ResumeStream) -> Outcome:
        found = self._chosen(op.stream, op.partitions)
        if isinstance(found, Refusal):
            return found
        changes = self._set_paused(index, found, False, op.at_ns)
        if not any(partition.paused for partition in found[0].partitions):
            found[0].resume_all = False
        return changes

    def _set_paused(self, index: int, found: tuple[Stream, list[Partition]], paused: bool, at_ns: int) -> Outcome:
        stream, partitions = found
        changed = [partition for partition in partitions if partition.paused != paused]
        for partition in changed:
            self.load.remove(partition)
            partition.paused = paused
            partition.epoch = index
            partition.pause_times.note(at_ns)
            self.load.add(partition)
        return tuple(PartitionChanged(stream.name, partition.id) for partition in changed)

    def _set_readonly(self, index: int, op: ops.SetStreamReadonly) -> Outcome:
        found = self._chosen(op.stream, op.partitions)
        if isinstance(found, Refusal):
            return found
        changed = [partition for partition in found[1] if partition.readonly != op.readonly]
        for partition in changed:
            partition.readonly = op.readonly
            partition.epoch = index
            partition.readonly_times.note(op.at_ns)
        return tuple(PartitionChanged(op.stream, partition.id) for partition in changed)

    # ── consumer groups ──────────────────────────────────────────────────────────────────────────

    def _partition_counts(self) -> dict[str, int]:
        return {name: len(stream.partitions) for name, stream in self.streams.items()}

    def _join_group(self, index: int, op: ops.JoinConsumerGroup) -> Outcome:
        if not op.group or not op.consumer or not op.streams:
            return invalid("a group id, a consumer id and at least one stream are required")
        unknown = [stream for stream in op.streams if stream not in self.streams]
        if unknown:
            return precondition(f"stream {unknown[0]} does not exist")
        group = self.groups.get(op.group)
        if group is not None and op.consumer in group.members:
            return precondition(f"{op.consumer} is already a member of group {op.group}")
        if group is None:
            if not op.brokers:
                return precondition("no broker can coordinate the group")
            # A new group begins with epoch 0, as clients know it.
            group = self.groups[op.group] = ConsumerGroup(op.group, self._coordinator_of(op.brokers), 0)
        else:
            group.epoch = index
        member = Member(op.consumer, sorted(set(op.streams)))
        group.members[op.consumer] = member
        rebalance(group, member.streams, self._partition_counts())
        return (GroupChanged(op.group),)

    def _coordinator_of(self, brokers: tuple[str, ...]) -> str:
        return min(brokers, key=lambda broker: (self.coordinated(broker), broker))

    def _leave_group(self, index: int, op: ops.LeaveConsumerGroup) -> Outcome:
        group = self.groups.get(op.group)
        if group is None:
            return NO_GROUP
        if op.coordinator and op.coordinator != group.coordinator:
            return precondition(f"{op.coordinator} does not coordinate group {op.group} any more")
        member = group.members.pop(op.consumer, None)
        if member is None:
            return precondition(f"{op.consumer} is not a member of group {op.group}")
        group.epoch = index
        if not group.members:
            del self.groups[op.group]
        else:
            rebalance(group, member.streams, self._partition_counts())
        return (GroupChanged(op.group),)

    def _change_coordinator(self, index: int, op: ops.ChangeCoordinator) -> Outcome:
        group = self.groups.get(op.group)
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
        group.coordinator = self._coordinator_of(others)
        group.epoch = index
        return (GroupChanged(op.group),)

    def _publish_activity(self, _index: int, op: ops.PublishActivity) -> Outcome:
        self.activity_index = max(self.activity_index, op.index)
        while self.activity and self.activity[0].id <= self.activity_index:
            self.activity.popleft()
        return ()


_APPLY: dict[type[Any], Callable[[Metadata, int, Any], Outcome]] = {
    ops.CreateStream: Metadata._create_stream,
    ops.DeleteStream: Metadata._delete_stream,
    ops.ShrinkIsr: Metadata._shrink_isr,
    ops.ExpandIsr: Metadata._expand_isr,
    ops.ChangeLeader: Metadata._change_leader,
    ops.PauseStream: Metadata._pause_stream,
    ops.ResumeStream: Metadata._resume_stream,
    ops.SetStreamReadonly: Metadata._set_readonly,
    ops.JoinConsumerGroup: Metadata._join_group,
    ops.LeaveConsumerGroup: Metadata._leave_group,
    ops.ChangeCoordinator: Metadata._change_coordinator,
    ops.PublishActivity: Metadata._publish_activity,
}


def _creation_fault(op: ops.CreateStream) -> Refusal | None:
    """What is wrong with a request to create a stream, in the order clients expect to hear of it."""
    if not op.name:
        return invalid("Name cannot be empty")
    if subject_fault(op.subject):
        return invalid("Subject is invalid")
    if (fault := stream_name_fault(op.name)) is not None:
        return invalid(f"Name is invalid: {fault}")
    if not 1 <= op.partitions <= limits.STREAM_PARTITIONS_MAX:
        return invalid(f"partitions is {op.partitions}, it must be from 1 to {limits.STREAM_PARTITIONS_MAX}")
    if len({broker.id for broker in op.brokers}) != len(op.brokers) or not op.brokers:
        return invalid("the brokers to place the stream on are missing or named twice")
    if op.replication_factor != -1 and not 1 <= op.replication_factor <= len(op.brokers):
        return invalid(
            f"Invalid replicationFactor {op.replication_factor}, cluster size {len(op.brokers)}: use 1 to "
            f"{len(op.brokers)}, or -1 for all"
        )
    return None
