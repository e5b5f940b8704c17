"""Placement of the replicas of a new stream: the same op and state give the same placement on every broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bascule.metadata.core.model.load import Load
from bascule.metadata.core.model.ops import BrokerPlace


@dataclass(frozen=True, slots=True)
class Placement:
    replicas: tuple[str, ...]
    """The leader first."""

    @property
    def leader(self) -> str:
        return self.replicas[0]


def place(partitions: int, replication_factor: int, brokers: Sequence[BrokerPlace], load: Load) -> list[Placement]:
    """Spread the partitions of a new stream over brokers and racks, by the present load and by each other."""
    hosted, led = Counter(load.hosted), Counter(load.led)
    placements = []
    for _ in range(partitions):
        replicas = _choose_replicas(replication_factor, brokers, hosted)
        leader = min(replicas, key=lambda broker: (led[broker], broker))
        hosted.update(replicas)
        led[leader] += 1
        placements.append(Placement((leader, *(replica for replica in replicas if replica != leader))))
    return placements


def _choose_replicas(count: int, brokers: Sequence[BrokerPlace], hosted: Counter[str]) -> list[str]:
    chosen: list[BrokerPlace] = []
    racks: set[str] = set()
    while len(chosen) < count:
        # A broker without a rack counts as a rack of its own.
        best = min(
            (broker for broker in brokers if broker not in chosen),
            key=lambda broker: (bool(broker.rack) and broker.rack in racks, hosted[broker.id], broker.id),
        )
        chosen.append(best)
        racks.add(best.rack)
    return [broker.id for broker in chosen]
