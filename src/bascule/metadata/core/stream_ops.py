"""The ops that create, delete, pause, resume and close streams."""

from __future__ import annotations

from collections.abc import Sequence

from bascule import limits
from bascule.metadata.core.model import ops
from bascule.metadata.core.model.changes import Change, GroupChanged, PartitionChanged, StreamCreated, StreamRemoved
from bascule.metadata.core.model.contents import Contents, Outcome
from bascule.metadata.core.model.groups import ConsumerGroup, rebalance
from bascule.metadata.core.model.ops import BrokerPlace
from bascule.metadata.core.model.placement import place
from bascule.metadata.core.model.refusal import NO_PARTITION, NO_STREAM, STREAM_EXISTS, Refusal, invalid
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.names import applied_subject_fault, stream_name_fault


def create_stream(contents: Contents, index: int, op: ops.CreateStream) -> Outcome:
    brokers = [broker for broker in op.brokers if broker.id not in contents.leaving]
    fault = _creation_fault(op, brokers)
    if fault is not None:
        return fault
    if op.name in contents.streams:
        return STREAM_EXISTS
    factor = len(brokers) if op.replication_factor == -1 else op.replication_factor
    partitions = [
        Partition(number, list(where.replicas), where.leader, list(where.replicas), index, index)
        for number, where in enumerate(place(op.partitions, factor, brokers, contents.load))
    ]
    stream = Stream(op.name, index, op.subject, op.group, op.created_ns, dict(op.config), partitions)
    contents.streams[op.name] = stream
    contents.load.add_stream(stream)
    return (StreamCreated(op.name),)


def _creation_fault(op: ops.CreateStream, staying: Sequence[BrokerPlace]) -> Refusal | None:
    """The first fault of a request to create a stream, in the order that clients rely on; None if there is none."""
    if not op.name:
        return invalid("Name cannot be empty")
    if applied_subject_fault(op.subject):
        return invalid("Subject is invalid")
    if (fault := stream_name_fault(op.name)) is not None:
        return invalid(f"Name is invalid: {fault}")
    if not 1 <= op.partitions <= limits.STREAM_PARTITIONS_MAX:
        return invalid(f"partitions is {op.partitions}, it must be from 1 to {limits.STREAM_PARTITIONS_MAX}")
    if len({broker.id for broker in op.brokers}) != len(op.brokers) or not op.brokers:
        return invalid("the brokers to place the stream on are missing or named twice")
    return _factor_fault(op, len(staying))


def _factor_fault(op: ops.CreateStream, size: int) -> Refusal | None:
    if size == 0:
        return invalid("all brokers that the stream could be placed on are leaving the cluster")
    if op.replication_factor == -1 or 1 <= op.replication_factor <= size:
        return None
    leaving = len(op.brokers) - size
    without = f" (without {leaving} leaving)" if leaving else ""
    return invalid(
        f"Invalid replicationFactor {op.replication_factor}, cluster size {size}{without}: use 1 to {size}, or -1 for all"
    )


def delete_stream(contents: Contents, index: int, op: ops.DeleteStream) -> Outcome:
    stream = contents.streams.pop(op.name, None)
    if stream is None:
        return NO_STREAM
    contents.load.remove_stream(stream)
    changes: list[Change] = [StreamRemoved(op.name, stream.id)]
    for name in sorted(contents.groups):
        if _unsubscribe_all(contents, contents.groups[name], op.name):
            contents.groups[name].epoch = index
            changes.append(GroupChanged(name))
    return tuple(changes)


def _unsubscribe_all(contents: Contents, group: ConsumerGroup, stream: str) -> bool:
    """Remove a deleted stream from the members of groups and rebalance their other streams."""
    subscribers = group.subscribers(stream)
    touched: set[str] = set()
    for member in subscribers:
        member.streams.remove(stream)
        member.assignments.pop(stream, None)
        touched.update(member.streams)
    rebalance(group, touched, contents.partition_counts())
    return bool(subscribers)


def _chosen(contents: Contents, name: str, numbers: tuple[int, ...]) -> tuple[Stream, list[Partition]] | Refusal:
    """The partitions that an op names, or all. A partition that does not exist refuses the whole op."""
    stream = contents.streams.get(name)
    if stream is None:
        return NO_STREAM
    chosen = [stream.partition(number) for number in sorted(set(numbers))] if numbers else list(stream.partitions)
    if any(partition is None for partition in chosen):
        return NO_PARTITION
    return stream, [partition for partition in chosen if partition is not None]


def pause_stream(contents: Contents, index: int, op: ops.PauseStream) -> Outcome:
    found = _chosen(contents, op.stream, op.partitions)
    if isinstance(found, Refusal):
        return found
    found[0].resume_all = op.resume_all
    return _set_paused(contents, index, found, True, op.at_ns)


def resume_stream(contents: Contents, index: int, op: ops.ResumeStream) -> Outcome:
    found = _chosen(contents, op.stream, op.partitions)
    if isinstance(found, Refusal):
        return found
    changes = _set_paused(contents, index, found, False, op.at_ns)
    if not any(partition.paused for partition in found[0].partitions):
        found[0].resume_all = False
    return changes


def _set_paused(
    contents: Contents, index: int, found: tuple[Stream, list[Partition]], paused: bool, at_ns: int
) -> Outcome:
    stream, partitions = found
    changed = [partition for partition in partitions if partition.paused != paused]
    for partition in changed:
        with contents.load.changing(partition):
            partition.paused = paused
        partition.epoch = index
        partition.pause_times.note(at_ns)
    return tuple(PartitionChanged(stream.name, partition.id) for partition in changed)


def set_readonly(contents: Contents, index: int, op: ops.SetStreamReadonly) -> Outcome:
    found = _chosen(contents, op.stream, op.partitions)
    if isinstance(found, Refusal):
        return found
    changed = [partition for partition in found[1] if partition.readonly != op.readonly]
    for partition in changed:
        partition.readonly = op.readonly
        partition.epoch = index
        partition.readonly_times.note(op.at_ns)
    return tuple(PartitionChanged(op.stream, partition.id) for partition in changed)


def set_config(contents: Contents, index: int, op: ops.SetStreamConfig) -> Outcome:
    """The epochs of the partitions rise: caches of their metadata depend on them."""
    stream = contents.streams.get(op.stream)
    if stream is None:
        return NO_STREAM
    if all(stream.config.get(name) == value for name, value in op.config.items()):
        return ()
    stream.config.update(op.config)
    for partition in stream.partitions:
        partition.epoch = index
    return tuple(PartitionChanged(stream.name, partition.id) for partition in stream.partitions)
