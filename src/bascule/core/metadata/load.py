"""How much each broker carries: replicas hosted, partitions led, groups coordinated. Paused partitions weigh nothing."""

from __future__ import annotations

from collections import Counter

from bascule.core.metadata.streams import Partition, Stream


class Load:
    """Kept up to date by whoever changes a partition: take it out, change it, put it back."""

    __slots__ = ("hosted", "led")

    def __init__(self) -> None:
        self.hosted: Counter[str] = Counter()
        self.led: Counter[str] = Counter()

    def add(self, partition: Partition) -> None:
        self._count(partition, 1)

    def remove(self, partition: Partition) -> None:
        self._count(partition, -1)

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
