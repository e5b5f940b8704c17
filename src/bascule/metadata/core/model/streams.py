"""Streams and partitions as all brokers know them."""

from __future__ import annotations

from dataclasses import dataclass, field

from bascule.metadata.core.model.ops import ConfigValue


@dataclass(slots=True)
class EventTimestamps:
    """The first and the latest time of an event; 0 for never."""

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
    pause_times: EventTimestamps = field(default_factory=EventTimestamps)
    readonly_times: EventTimestamps = field(default_factory=EventTimestamps)

    data_loss_epoch: int = 0
    """The last leader epoch that may have started with fewer records than were committed, 0 for none. A replica whose latest epoch is
    lower may truncate records that it knows as committed."""

    target_replicas: list[str] = field(default_factory=list)
    """The servers that the partition moves to, the preferred leader first; a subset of `replicas`. Empty when it does not move."""

    replica_epochs: dict[str, int] = field(default_factory=dict)
    """For replicas that started with an empty log after the partition was created, because they were added or rebuilt: the index of the
    op. What such a replica reported before refers to a log that it no longer has."""

    original_replicas: list[str] = field(default_factory=list)
    """The replicas before the move, which a cancelled move restores; empty when the partition does not move."""

    @property
    def final_replicas(self) -> list[str]:
        """Its replicas after its present move."""
        return self.target_replicas or self.replicas

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync; those that a move adds are not missing yet."""
        return any(server not in self.in_sync_replicas for server in self.original_replicas or self.replicas)


@dataclass(slots=True)
class Stream:
    name: str
    id: int
    """Index of the op that created it; distinguishes it from an earlier stream of the same name."""

    subject: str
    group: str
    created_ns: int
    config: dict[str, ConfigValue]
    partitions: list[Partition]
    resume_all: bool = False
    """Publishing to one paused partition resumes all of them."""

    def partition(self, number: int) -> Partition | None:
        return self.partitions[number] if 0 <= number < len(self.partitions) else None
