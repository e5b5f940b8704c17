"""What was done to streams and groups, kept until it was published to the activity stream.

An event follows from its op and from what the op changed; an op that changed nothing is no event. Events are part of the replicated
state, so that the next controller publishes what the last one did not get to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bascule.metadata.core.model import ops
from bascule.metadata.core.model.changes import Change, PartitionChanged

ACTIVITY_STREAM: Final = "__activity"


@dataclass(frozen=True, slots=True)
class ActivityEvent:
    id: int
    """Index of the op in the Raft log."""

    op: str
    """Name of the op's class."""

    stream: str = ""
    partitions: tuple[int, ...] = ()
    resume_all: bool = False
    readonly: bool = False
    group: str = ""
    consumer: str = ""
    streams: tuple[str, ...] = ()
    expired: bool = False


def event_of(index: int, op: ops.Op, changes: tuple[Change, ...]) -> ActivityEvent | None:
    """The event that an op is, None for ops that nobody is told about: in-sync replicas, leaders, coordinators."""
    if not changes:
        return None
    kind = type(op).__name__
    touched = tuple(change.partition for change in changes if isinstance(change, PartitionChanged))
    match op:
        case ops.CreateStream():
            return ActivityEvent(index, kind, op.name, tuple(range(op.partitions)))
        case ops.DeleteStream():
            return ActivityEvent(index, kind, op.name)
        case ops.PauseStream():
            return ActivityEvent(index, kind, op.stream, touched, resume_all=op.resume_all)
        case ops.ResumeStream():
            return ActivityEvent(index, kind, op.stream, touched)
        case ops.SetStreamReadonly():
            return ActivityEvent(index, kind, op.stream, touched, readonly=op.readonly)
        case ops.JoinConsumerGroup():
            return ActivityEvent(index, kind, group=op.group, consumer=op.consumer, streams=op.streams)
        case ops.LeaveConsumerGroup():
            return ActivityEvent(index, kind, group=op.group, consumer=op.consumer, expired=op.expired)
        case _:
            return None
