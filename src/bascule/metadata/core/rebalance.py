"""Plans for moving replicas and leaderships. A plan changes nothing: its moves are what to propose, a `Reassign` or a hand-over each.

A plan starts from the targets of partitions that move, not from their present replicas: a plan made during an earlier move adds to it,
and the same request again gives no moves. Paused partitions count, because their data is on disk, but move only when they must.

Replicas spread over racks as in a new stream: a server without a rack counts as a rack of its own, and no plan reduces the number of
racks of a partition.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bascule.metadata.core.leaders import LeaderMove, plan_leaders
from bascule.metadata.core.model.ops import BrokerPlace
from bascule.metadata.core.model.refusal import NO_STREAM, Refusal, invalid, precondition
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.state import ClusterMetadata

__all__ = [
    "LeaderMove",
    "Plan",
    "ReplicaMove",
    "plan_leaders",
    "plan_rebalance",
    "plan_removal",
    "plan_replication_factor",
]

_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    stream: str
    partition: int
    replicas: tuple[str, ...]
    """The new replicas, the preferred leader first."""


@dataclass(frozen=True, slots=True)
class Plan:
    moves: tuple[ReplicaMove, ...]
    before: Mapping[str, int]
    """Replicas of each server after all moves."""
    after: Mapping[str, int]
    copies: int
    """Replicas that a server has to fetch."""


def plan_rebalance(
    state: ClusterMetadata, brokers: Sequence[BrokerPlace], *, streams: Collection[str] | None = None
) -> Plan:
    """Equalise the number of replicas per broker with as few moves as possible. Only replicas of `streams` move, but all count.

    Leaving brokers get nothing. Their replicas, and those of unknown servers, stay; `plan_removal` moves them.
    """
    board = _Board(state, brokers)
    movable = {
        key
        for key, partition in board.partitions.items()
        if not partition.paused and (streams is None or key[0] in streams)
    }
    while board.spread_over_racks(movable) or board.even_out(movable):
        pass
    return board.plan()


def plan_removal(state: ClusterMetadata, server: str, brokers: Sequence[BrokerPlace]) -> Plan | Refusal:
    """Move all replicas of `server` to the other brokers. Refused when these are too few for a replication factor."""
    board = _Board(state, [broker for broker in brokers if broker.id != server])
    for key, replicas in list(board.replicas.items()):
        if server in replicas:
            found = board.best([replica for replica in replicas if replica != server])
            if found is None:
                return precondition(
                    f"no other server can have the replica [stream={key[0]}, partition={key[1]}]: the stream is on {len(replicas)} "
                    "servers; add a server or lower its replication factor first"
                )
            board.replace(key, server, found)
    return board.plan()


def plan_replication_factor(
    state: ClusterMetadata, stream: str, factor: int, brokers: Sequence[BrokerPlace]
) -> Plan | Refusal:
    """Give every partition of the stream `factor` replicas, −1 for one on every broker. Keeps as many present replicas as possible."""
    if stream not in state.streams:
        return NO_STREAM
    board = _Board(state, brokers)
    size = len(board.racks)
    factor = size if factor == -1 else factor
    if not 1 <= factor <= size:
        return invalid(f"Invalid replicationFactor {factor}, cluster size {size}: use 1 to {size}, or -1 for all")
    for partition in state.streams[stream].partitions:
        key = (stream, partition.id)
        while len(board.replicas[key]) > factor:
            board.set(key, board.without_least_needed(key))
        while len(board.replicas[key]) < factor:
            found = board.best(board.replicas[key])
            assert found is not None, "there are more servers than replicas"
            board.set(key, [*board.replicas[key], found])
    return board.plan()


class _Board:
    """The targets of all replicas, as a draft that moves are made on."""

    def __init__(self, state: ClusterMetadata, brokers: Sequence[BrokerPlace]) -> None:
        self.racks = {broker.id: broker.rack for broker in brokers if broker.id not in state.leaving}
        """For the servers that may get replicas."""
        self._known_racks = {broker.id: broker.rack for broker in brokers}
        self.partitions: dict[_Key, Partition] = {
            (stream, partition.id): partition for stream, partition in state.each_partition()
        }
        self._first = {key: partition.final_replicas for key, partition in self.partitions.items()}
        self.replicas = {key: list(replicas) for key, replicas in self._first.items()}
        self._hosted: Counter[str] = Counter(dict.fromkeys(self.racks, 0))
        self._on: defaultdict[str, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        """Server → stream → its partitions on the server."""
        for key, replicas in self.replicas.items():
            self._count(key, replicas, 1)
        self._before = dict(self._hosted)

    # ── changing it ──────────────────────────────────────────────────────────────────────────────

    def set(self, key: _Key, replicas: list[str]) -> None:
        self._count(key, self.replicas[key], -1)
        self.replicas[key] = replicas
        self._count(key, replicas, 1)

    def replace(self, key: _Key, server: str, by: str) -> None:
        self.set(key, [by if replica == server else replica for replica in self.replicas[key]])

    def _count(self, key: _Key, replicas: Sequence[str], sign: int) -> None:
        stream, number = key
        for replica in replicas:
            self._hosted[replica] += sign
            self._on[replica][stream] ^= {number}

    def plan(self) -> Plan:
        changed = [key for key, replicas in self.replicas.items() if replicas != self._first[key]]
        moves = tuple(ReplicaMove(*key, tuple(self.replicas[key])) for key in changed)
        copies = sum(len(set(self.replicas[key]) - set(self.partitions[key].replicas)) for key in changed)
        return Plan(moves, self._before, dict(self._hosted), copies)

    # ── racks ────────────────────────────────────────────────────────────────────────────────────

    def _rack(self, server: str) -> tuple[bool, str]:
        rack = self._known_racks.get(server, "")
        return (True, rack) if rack else (False, server)

    def _racks_of(self, replicas: Collection[str]) -> int:
        return len({self._rack(replica) for replica in replicas})

    def _racks_gained(self, key: _Key, server: str, by: str) -> int:
        replicas = self.replicas[key]
        others = [replica for replica in replicas if replica != server]
        return self._racks_of([*others, by]) - self._racks_of(replicas)

    # ── choosing ─────────────────────────────────────────────────────────────────────────────────

    def best(self, replicas: Collection[str]) -> str | None:
        """The server to add to these replicas: from another rack if there is one, and with the fewest replicas."""
        used = {self._rack(replica) for replica in replicas}
        free = [server for server in self.racks if server not in replicas]
        return min(free, key=lambda server: (self._rack(server) in used, self._hosted[server], server), default=None)

    def without_least_needed(self, key: _Key) -> list[str]:
        """The replicas without the one to drop first: on a leaving server, not in sync, in a rack with others, on the busiest server.

        The leader is dropped last, and the preferred leader before it."""
        partition, replicas = self.partitions[key], self.replicas[key]

        def dispensable(replica: str) -> tuple[bool, bool, bool, bool, int, int, str]:
            others = [other for other in replicas if other != replica]
            return (
                replica not in self.racks,
                replica != partition.leader and replica not in partition.in_sync_replicas,
                replica != partition.leader,
                replica != replicas[0],
                self._racks_of(others),
                self._hosted[replica],
                replica,
            )

        least = max(replicas, key=dispensable)
        return [replica for replica in replicas if replica != least]

    def even_out(self, movable: Collection[_Key]) -> bool:
        """Move replicas from the server with most to the one with least until they are even. Returns whether any moved."""
        moved = False
        while (found := self._evening_move(movable)) is not None:
            self.replace(*found)
            moved = True
        return moved

    def _evening_move(self, movable: Collection[_Key]) -> tuple[_Key, str, str] | None:
        for giver, taker in self._uneven_pairs():
            has, misses = self._on[giver], self._on[taker]
            # From the stream with the largest difference between the two servers, so that each stream is spread as well.
            for stream in sorted(has, key=lambda name: (len(misses.get(name, ())) - len(has[name]), name)):
                keys = [
                    (stream, number)
                    for number in has[stream]
                    if (stream, number) in movable and self._may_move((stream, number), giver, taker)
                ]
                if keys:
                    # Preferably a partition that does not need a new leader for it.
                    return min(keys, key=lambda key: (self.partitions[key].leader == giver, key)), giver, taker
        return None

    def _may_move(self, key: _Key, giver: str, taker: str) -> bool:
        return taker not in self.replicas[key] and self._racks_gained(key, giver, taker) >= 0

    def _uneven_pairs(self) -> Iterator[tuple[str, str]]:
        """Pairs of servers that differ by at least two replicas, the largest difference first."""
        ordered = sorted(self.racks, key=lambda server: (self._hosted[server], server))
        for giver in reversed(ordered):
            for taker in ordered:
                if self._hosted[giver] - self._hosted[taker] < 2:
                    break
                yield giver, taker

    def spread_over_racks(self, movable: Collection[_Key]) -> bool:
        """Move replicas into racks where their partition has none, if the counts stay even. Returns whether any moved."""
        racks = {self._rack(server) for server in self.racks}
        moved = False
        for key, replicas in list(self.replicas.items()):
            if key in movable and self._racks_of(replicas) < min(len(replicas), len(racks)):
                moved |= self._spread(key)
        return moved

    def _spread(self, key: _Key) -> bool:
        replicas = self.replicas[key]
        pairs = [
            (giver, taker)
            for giver in replicas
            for taker in self.racks
            if giver in self.racks
            and taker not in replicas
            and self._hosted[giver] > self._hosted[taker]
            and self._racks_gained(key, giver, taker) > 0
        ]
        if not pairs:
            return False
        giver, taker = min(pairs, key=lambda pair: (self._hosted[pair[1]] - self._hosted[pair[0]], pair))
        self.replace(key, giver, taker)
        return True
