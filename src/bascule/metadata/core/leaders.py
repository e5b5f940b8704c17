"""Plans hand-overs after which all brokers lead as equal a number of partitions as possible.

An equal number comes first; within that, as many partitions as possible are led by their preferred leader, the first replica. Paused
and moving partitions are left alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from itertools import pairwise

from bascule.metadata.core.state import ClusterMetadata

_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LeaderMove:
    stream: str
    partition: int
    leader: str
    """The present leader, in `leader_epoch`, which hands over."""
    leader_epoch: int
    successor: str


def plan_leaders(state: ClusterMetadata) -> list[LeaderMove]:
    """The hand-overs to make. Only in-sync replicas may lead, and leaving servers only if there is no other."""
    candidates: dict[_Key, list[str]] = {}
    preferred: dict[_Key, str] = {}
    present: dict[_Key, str] = {}
    epochs: dict[_Key, int] = {}
    fixed: Counter[str] = Counter()
    for stream, partition in state.each_partition():
        key = (stream, partition.id)
        if partition.target_replicas and not partition.paused:
            fixed[partition.leader] += 1
        elif not partition.paused:
            candidates[key] = state.staying(partition.in_sync_replicas)
            preferred[key] = partition.replicas[0]
            present[key] = partition.leader
            epochs[key] = partition.leader_epoch
    leaders = _improved(candidates, preferred, present, fixed)
    return [
        LeaderMove(*key, leader, epochs[key], leaders[key]) for key, leader in present.items() if leaders[key] != leader
    ]


def _improved(
    candidates: dict[_Key, list[str]], preferred: dict[_Key, str], present: dict[_Key, str], fixed: Counter[str]
) -> dict[_Key, str]:
    """Improve the leaders until no further improvement is found, so that a second plan is empty."""

    def faults(leaders: dict[_Key, str]) -> tuple[int, int, int]:
        led = fixed + Counter(leaders.values())
        return (
            sum(leader not in candidates[key] for key, leader in leaders.items()),
            sum(count * count for count in led.values()),
            sum(leader != preferred[key] in candidates[key] for key, leader in leaders.items()),
        )

    best = present
    while True:
        spread = _Spread(candidates, preferred, best, fixed)
        spread.even_out()
        if faults(spread.leaders) >= faults(best):
            return best
        best = spread.leaders


class _Spread:
    """Leaderships that are handed over until they are even.

    They are even when no broker leads two partitions more than one that could take a partition, directly or through a chain of
    hand-overs. The candidates allow no better distribution.
    """

    def __init__(
        self,
        candidates: dict[_Key, list[str]],
        preferred: dict[_Key, str],
        present: dict[_Key, str],
        fixed: Counter[str],
    ) -> None:
        self._candidates = candidates
        self._preferred = preferred
        self._present = present
        self.leaders: dict[_Key, str] = {}
        self._led = Counter(fixed)
        self._could: defaultdict[str, defaultdict[str, dict[_Key, None]]] = defaultdict(lambda: defaultdict(dict))
        """Leader → other candidate → the partitions that the leader could hand over to it."""
        for key, able in candidates.items():
            leader = preferred[key] if preferred[key] in able else present[key]
            if leader not in able:
                leader = min(able, key=lambda server: (self._led[server], server))
            self._give(key, leader)

    def _give(self, key: _Key, leader: str) -> None:
        self.leaders[key] = leader
        self._led[leader] += 1
        for other in self._candidates[key]:
            if other != leader:
                self._could[leader][other][key] = None

    def _take(self, key: _Key) -> None:
        leader = self.leaders.pop(key)
        self._led[leader] -= 1
        for other in self._candidates[key]:
            if other != leader:
                del self._could[leader][other][key]

    def even_out(self) -> None:
        while (path := self._path()) is not None:
            for giver, taker in pairwise(path):
                key = min(self._could[giver][taker], key=lambda key: self._reluctance(key, giver, taker))
                self._take(key)
                self._give(key, taker)

    def _reluctance(self, key: _Key, giver: str, taker: str) -> tuple[bool, bool, _Key]:
        return self._preferred[key] == giver, self._present[key] != taker, key

    def _path(self) -> list[str] | None:
        """A chain of possible hand-overs from a broker that leads most to one that leads at least two fewer."""
        for first in sorted(self._led, key=lambda server: (-self._led[server], server)):
            came_from = {first: ""}
            queue = deque([first])
            while queue:
                giver = queue.popleft()
                if self._led[first] - self._led[giver] >= 2:
                    return _backwards(came_from, giver)
                for taker in sorted(self._could[giver]):
                    if taker not in came_from and self._could[giver][taker]:
                        came_from[taker] = giver
                        queue.append(taker)
        return None


def _backwards(came_from: dict[str, str], last: str) -> list[str]:
    path = [last]
    while came_from[path[-1]]:
        path.append(came_from[path[-1]])
    return path[::-1]
