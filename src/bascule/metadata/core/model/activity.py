"""Events about streams and groups, kept until they are published to the activity stream.

An op that changes something creates an event. Events are part of the replicated state, so that a new controller publishes those that
its predecessor has not published.
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
    """The event of an op; None for ops about in-sync replicas, leaders and coordinators, which have none."""
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
