"""What the metadata holds, and the few questions that every op asks it. Who changes it: the files of ops beside this one."""

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
        """Up to which index activity events were published."""
        self.activity: deque[ActivityEvent] = deque(maxlen=limits.ACTIVITY_EVENTS_MAX)
        """Events that are still to be published, in the order of the log; none unless there is an activity stream."""
        self.streams: dict[str, Stream] = {}
        self.groups: dict[str, ConsumerGroup] = {}
        self.server_epochs: dict[str, int] = {}
        """Index of each server's last restart after an unclean stop; servers without one are at 0."""
        self.leaving: set[str] = set()
        """Servers that are given no new replicas, and groups and leaderships only when nobody else can have them."""
        self.replication_throttle = 0
        """Bytes a second that each server may fetch to catch up; 0: no bound."""
        self.load = Load()

    def find(self, stream: str, partition: int) -> Partition | None:
        found = self.streams.get(stream)
        return None if found is None else found.partition(partition)

    def replica_epoch(self, partition: Partition, server: str) -> int:
        """What a replica said before this index does not count: its log, or the end of it, may have been lost since."""
        return max(self.server_epochs.get(server, 0), partition.replica_epochs.get(server, 0))

    def each_partition(self) -> Iterator[tuple[str, Partition]]:
        """All partitions with their stream, by name: the order in which streams were created is lost in a snapshot."""
        for name in sorted(self.streams):
            for partition in self.streams[name].partitions:
                yield name, partition

    def partition_counts(self) -> dict[str, int]:
        return {name: len(stream.partitions) for name, stream in self.streams.items()}

    def coordinated(self, broker: str) -> int:
        """How many groups the broker coordinates."""
        return sum(1 for group in self.groups.values() if group.coordinator == broker)

    def staying(self, servers: Sequence[str]) -> list[str]:
        """Those of the servers that are not leaving; all of them when all are: somebody has to do it."""
        return [server for server in servers if server not in self.leaving] or list(servers)
