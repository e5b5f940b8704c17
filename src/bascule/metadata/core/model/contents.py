"""The contents of the metadata, and the queries that many ops use. The `*_ops` files change it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from bascule import limits
from bascule.metadata.core.model.activity import ActivityEvent
from bascule.metadata.core.model.changes import Change
from bascule.metadata.core.model.groups import ConsumerGroup
from bascule.metadata.core.model.load import Load
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Partition, Stream

Outcome = tuple[Change, ...] | Refusal


class Contents:
    def __init__(self) -> None:
        self.applied_index = 0
        self.activity_index = 0
        """Activity events up to this index are published."""
        self.activity: deque[ActivityEvent] = deque(maxlen=limits.ACTIVITY_EVENTS_MAX)
        """Events not yet published, in the order of the log; empty without an activity stream."""
        self.streams: dict[str, Stream] = {}
        self.groups: dict[str, ConsumerGroup] = {}
        self.server_epochs: dict[str, int] = {}
        """Index of each server's last restart after an unclean stop; servers without one are at 0."""
        self.leaving: set[str] = set()
        """Servers that get no new replicas, and get groups and leaderships only when no other server can."""
        self.replication_throttle = 0
        """Bytes per second that each server may fetch to catch up; 0 for no limit."""
        self.policies: set[str] = set()
        """Lines of the policy of clients, in canonical form."""
        self.load = Load()

    def find(self, stream: str, partition: int) -> Partition | None:
        found = self.streams.get(stream)
        return None if found is None else found.partition(partition)

    def replica_epoch(self, partition: Partition, server: str) -> int:
        """Reports of a replica before this index do not count: its log, or the end of it, may have been lost since."""
        return max(self.server_epochs.get(server, 0), partition.replica_epochs.get(server, 0))

    def each_partition(self) -> Iterator[tuple[str, Partition]]:
        """All partitions with their stream, sorted by name: a snapshot does not keep the order in which streams were created."""
        for name in sorted(self.streams):
            for partition in self.streams[name].partitions:
                yield name, partition

    def partition_counts(self) -> dict[str, int]:
        return {name: len(stream.partitions) for name, stream in self.streams.items()}

    def coordinated(self, broker: str) -> int:
        """How many groups the broker coordinates."""
        return sum(1 for group in self.groups.values() if group.coordinator == broker)

    def staying(self, servers: Sequence[str]) -> list[str]:
        """The servers that are not leaving; all of them when all are leaving."""
        return [server for server in servers if server not in self.leaving] or list(servers)
