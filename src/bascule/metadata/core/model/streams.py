"""Streams and partitions as all brokers know them."""

from __future__ import annotations

from dataclasses import dataclass, field

from bascule.metadata.core.model.ops import ConfigValue


@dataclass(slots=True)
class EventTimes:
    """When something happened first and last; 0 for never."""

    first_ns: int = 0
    latest_ns: int = 0

    def note(self, at_ns: int) -> None:
        self.first_ns = self.first_ns or at_ns
        self.latest_ns = max(self.latest_ns, at_ns)


@dataclass(slots=True)
class Partition:
    id: int
    replicas: list[str]
    """The first is the preferred leader."""

    leader: str
    in_sync_replicas: list[str]
    leader_epoch: int
    """Index of the op that made the present leader."""

    epoch: int
    """Index of the last op that changed this partition."""

    paused: bool = False
    readonly: bool = False
    pause_times: EventTimes = field(default_factory=EventTimes)
    readonly_times: EventTimes = field(default_factory=EventTimes)

    data_loss_epoch: int = 0
    """The last leader epoch that may have begun with fewer records than were committed: a replica whose own latest epoch is below it
    may cut what it took for committed. 0: none."""

    target_replicas: list[str] = field(default_factory=list)
    """Where the partition is moving to, the preferred leader first; empty when it is not moving. All of them are among `replicas`."""

    replica_epochs: dict[str, int] = field(default_factory=dict)
    """Of replicas that began anew, the index of the op by which they did: they were added, or left to be rebuilt. What such a replica
    said before is of a log that it no longer has. The others began with the partition."""

    original_replicas: list[str] = field(default_factory=list)
    """Where it came from, and goes back to when the move is cancelled; empty when it is not moving."""


@dataclass(slots=True)
class Stream:
    name: str
    id: int
    """Index of the op that created it: tells it from an earlier stream of the same name."""

    subject: str
    group: str
    created_ns: int
    config: dict[str, ConfigValue]
    partitions: list[Partition]
    resume_all: bool = False
    """Publishing to one paused partition resumes all of them."""

    def partition(self, number: int) -> Partition | None:
        return self.partitions[number] if 0 <= number < len(self.partitions) else None
