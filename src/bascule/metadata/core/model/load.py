"""The load of each broker: replicas hosted, partitions led, groups coordinated. Paused partitions do not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from bascule.metadata.core.model.streams import Partition, Stream


class Load:
    """Code that changes the replicas, leader or pause of a partition does so in `with load.changing(partition)`."""

    __slots__ = ("hosted", "led")

    def __init__(self) -> None:
        self.hosted: Counter[str] = Counter()
        self.led: Counter[str] = Counter()

    def add(self, partition: Partition) -> None:
        self._count(partition, 1)

    def remove(self, partition: Partition) -> None:
        self._count(partition, -1)

    @contextmanager
    def changing(self, partition: Partition) -> Iterator[None]:
        """Subtract the partition before the change and add it again after it."""
        self.remove(partition)
        yield
        self.add(partition)

    def add_stream(self, stream: Stream) -> None:
        for partition in stream.partitions:
            self.add(partition)

    def remove_stream(self, stream: Stream) -> None:
        for partition in stream.partitions:
            self.remove(partition)

    def _count(self, partition: Partition, sign: int) -> None:
        if partition.paused:
            return
        for replica in partition.replicas:
            self.hosted[replica] += sign
        self.led[partition.leader] += sign

    def least_led(self, brokers: list[str]) -> str:
        """The broker that leads the fewest partitions; of several, the one with the lowest id."""
        return min(brokers, key=lambda broker: (self.led[broker], broker))
