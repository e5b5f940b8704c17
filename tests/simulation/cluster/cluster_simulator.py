"""A whole cluster under everything that can happen to it, from a seed: production cores, everything around them simulated.

Production code: the partition's Leader and Follower, the rules of acks and of retention, the metadata state machine with its tallies
of failure reports, in a share of the runs the Raft node with its sessions, in another share the log on a disk that forgets
(simulated_disk.py), with its cleaner, compaction and idempotent producers. Simulated: time
(servers whose clocks run at different rates), the network (loss, duplicates, any order, delay, cuts in one or both directions),
processes (killed, paused, started again, drained), power, disks (slow, full, failing, rotting), and people (publishers, readers,
consumer groups, reassignments, elections). How much of each there is depends on the seed too.

What must hold is in cluster_checker.py. In the end the faults stop, and then everything has to come back: a leader for every
partition, all replicas in sync, an ALL ack, equal logs.

A failure names its seed: BASCULE_CLUSTER_SEED=… pytest -k replays runs it again, with a trace in BASCULE_CLUSTER_TRACE.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any, Final, TextIO

from bascule.log.core.options import LogOptions, SyncPolicy
from bascule.metadata.core.model import ops
from bascule.metadata.core.model.ops import Op
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.state import Outcome
from bascule.partition.core.leader import Leader
from bascule.partition.core.options import ReplicaOptions
from tests.simulation.cluster.cluster_checker import Checker, Violation
from tests.simulation.cluster.cluster_metadata import MetadataLog, OrderedLog, RaftLog, states_differ
from tests.simulation.cluster.cluster_people import People
from tests.simulation.cluster.cluster_replica import Key, Publish, Replica, StreamConfig
from tests.simulation.cluster.cluster_server import Server

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
RECOVERY_SECONDS: Final = 90
EVENTS_MAX: Final = 400_000


class ClusterSimulation:
    def __init__(self, seed: int, seconds: float, trace: TextIO | None = None) -> None:
        self.seed = seed
        self.seconds = seconds
        self.rng = rng = random.Random(seed)
        self.now_ns = 0
        self._trace = trace
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self.is_calm = False
        self.cut: set[tuple[str, str]] = set()
        self.acked_numbers: set[int] = set()
        self._draw_conditions(rng)
        self.checker = Checker(self)
        self.metadata_log: MetadataLog = RaftLog(self) if self.uses_raft else OrderedLog(self)
        self.servers = {name: Server(self, name) for name in self.names}
        self.people = People(self)

    def _draw_conditions(self, rng: random.Random) -> None:
        """What this run is like."""
        self.names = list("abcde")[: rng.choice((2, 3, 3, 3, 3, 3, 5))]
        self.uses_raft = rng.random() < 0.1
        self.uses_disks = rng.random() < 0.1
        self.partitions = rng.choice((1, 1, 2))
        self.replication_factor = rng.choice((min(3, len(self.names)), -1, 2))
        self.policy = rng.choice(tuple(SyncPolicy))
        self.is_stormy = rng.random() < 0.25
        """Leaders come and go, and write where no follower reaches them."""
        timeout_ns = (300 if self.is_stormy else rng.choice((600, 1000, 1500))) * MS
        self.options = ReplicaOptions(
            min_insync_replicas=rng.choice((1, 1, 2)),
            acks_wait_for_disk=self.policy is not SyncPolicy.INTERVAL,
            commits_wait_for_disk=self.policy is SyncPolicy.ALWAYS,
            max_lag_ns=rng.choice((300, 500, 1000)) * MS,
            leader_timeout_ns=timeout_ns,
            idle_wait_ns=rng.choice((300, 1000)) * MS,
            fetch_timeout_ns=300 * MS,
        )
        self.clock_rates = rng.choice(((1.0,), (0.9, 1.0, 1.1), (0.5, 1.0, 2.0)))
        self.loss = rng.choice((0, 0, 0.01, 0.1))
        self.duplication = rng.choice((0, 0, 0.02, 0.2))
        self.strays = rng.choice((0, 0.01, 0.1))
        """Share of messages that take far longer than others."""
        self.stray_ns = rng.choice((50, 400, 3000)) * MS
        self.latency_ns = rng.choice((1, 5, 20)) * MS
        self.disk_latency_ns = rng.choice((1, 5)) * MS
        self.is_in_order = rng.random() < 0.3
        self.sync_interval_ns = rng.choice((50, 300)) * MS
        self._config = StreamConfig(self.policy, self.options)
        self._draw_cleaning(random.Random(self.seed ^ 0xC1EA))

    def _draw_cleaning(self, rng: random.Random) -> None:
        """How long logs keep what: in half of the runs nothing is deleted; half of those with production's log are compacted."""
        records_max, age_max_ns = rng.choice(((0, 0), (rng.choice((4, 15, 60)), 0), (0, 0), (0, SECOND)))
        self.log_options = LogOptions(
            segment_bytes_max=rng.choice((150, 600, 2000)),
            segment_age_max_ns=rng.choice((0, SECOND)),
            retention_records_max=records_max,
            retention_age_max_ns=age_max_ns,
            compact=self.uses_disks and rng.random() < 0.5,
            sync=self.policy,
        )
        self.cleaner_interval_ns = rng.choice((100, 400, 1500)) * MS
        self.uses_producers = self.uses_disks and rng.random() < 0.5
        """Publishers are idempotent, and repeat what was not answered."""

    def config_of(self, _key: Key) -> StreamConfig:
        return self._config

    # ── time and network ─────────────────────────────────────────────────────────────────────────

    def at(self, delay_ns: int, action: Callable[..., None], *args: Any) -> None:
        self._scheduled += 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, self._scheduled, action, args))

    def delay_ns(self) -> int:
        return int(self.rng.random() * self.latency_ns) + 1

    def disk_ns(self) -> int:
        return int(self.rng.random() * self.disk_latency_ns) + 1

    def hop_ns(self) -> int:
        """From a thread to the event loop."""
        return 1 if self.rng.random() < 0.7 else self.delay_ns()

    read_ns = hop_ns
    notice_ns = hop_ns

    def is_cut(self, sender: str, to: str) -> bool:
        return (sender, to) in self.cut or (to, sender) in self.cut

    def transmit(self, sender: str, to: str, action: Callable[..., None], *args: Any) -> None:
        rng = self.rng
        if rng.random() < self.loss:
            return
        for _ in range(2 if rng.random() < self.duplication else 1):
            delay_ns = self.latency_ns if self.is_in_order else self.delay_ns()
            if self.strays and rng.random() < self.strays:
                delay_ns += int(rng.random() * self.stray_ns)
            self.at(delay_ns, self._deliver, sender, to, action, args)

    def _deliver(self, sender: str, to: str, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if (sender, to) not in self.cut:
            server = self.servers[to]
            server.run(server.life, action, args)

    # ── what servers tell ────────────────────────────────────────────────────────────────────────

    def decided(self, index: int, op: Op, outcome: Outcome) -> None:
        self.trace("op %d: %r -> %r", index, op, outcome)
        self.checker.counts["ops"] += 1
        self.checker.decided(op, outcome)

    def acked(self, _replica: Replica, publish: Publish) -> None:
        self.acked_numbers.update(publish.numbers)

    def last_is_damaged(self, replica: Replica) -> None:
        """The only in-sync replica cannot be read: an operator has to decide what is given up. Without another one, the machine is
        started anew and what it cannot read stays unreadable."""
        partition = replica.partition
        assert partition is not None
        others = [name for name in partition.replicas if name != replica.server.id]
        if others:
            op = ops.ElectUnclean(
                replica.stream, replica.key[1], self.rng.choice(others), partition.leader, partition.leader_epoch
            )
            replica.server.propose(op, lambda _outcome: None)
        else:
            self.hopeless.add(replica.key)

    def trace(self, text: str, *args: object) -> None:
        if self._trace is not None:
            print(f"{self.now_ns / SECOND:10.6f} {text % args}", file=self._trace)

    # ── one run ──────────────────────────────────────────────────────────────────────────────────

    def run(self) -> dict[str, int]:
        self.hopeless: set[Key] = set()
        try:
            for server in self.servers.values():
                server.start()
            for name in ("s", "t")[: self.rng.choice((1, 1, 2))]:
                self.at(500 * MS, self.people.create, name)
                self.at(900 * MS, self._create_again, name)
            self.people.begin()
            self._run_until(int(self.seconds * SECOND))
            self._recover()
        except Exception as error:
            again = f"BASCULE_CLUSTER_SEED={self.seed} BASCULE_CLUSTER_SECONDS={self.seconds:g} pytest -k replays"
            problem = f"{type(error).__name__}: {error}"
            raise Violation(f"seed {self.seed}, at {self.now_ns / SECOND:.6f} s: {problem}\n{again}") from error
        self.checker.counts["events"] = self._scheduled
        return dict(self.checker.counts)

    def _create_again(self, name: str) -> None:
        """Until it is there."""
        if name not in self.metadata_log.truth.streams and not self.is_calm:
            self.people.create(name)
            self.at(500 * MS, self._create_again, name)

    def _run_until(self, until_ns: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until_ns:
            self.now_ns, _, action, args = heapq.heappop(queue)
            action(*args)
            if self._scheduled > EVENTS_MAX:
                raise Violation(f"no rest: {EVENTS_MAX} events")
        self.now_ns = until_ns

    # ── liveness ─────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        """All faults stop, all servers are up. Then everything has to recover."""
        self.trace("calm")
        self.is_calm = True
        self.cut = set()
        self.loss = self.duplication = self.strays = 0
        self.metadata_log.calm()
        for server in self.servers.values():
            server.slowness = 1
            self.people.clean_disk(server)
            self.people.mend_syncs(server)
            if server.is_paused:
                server.resume()
        wanted: dict[Key, int] = {}
        for _ in range(RECOVERY_SECONDS * 4):
            for server in self.servers.values():
                if not server.is_up:
                    server.start()
            self.people.resume_stream()
            self._run_until(self.now_ns + SECOND // 4)
            problem = self._problem(wanted)
            if problem is None:
                self._check_states()
                return
        raise Violation(f"liveness: after {RECOVERY_SECONDS} s without faults {problem}")

    def _check_states(self) -> None:
        for server in self.servers.values():
            if states_differ(server.metadata, self.metadata_log.truth):
                raise Violation(f"{server.id} has another state after {server.metadata.applied_index}")

    def _problem(self, wanted: dict[Key, int]) -> str | None:
        """What is not as it should be yet."""
        for server in self.servers.values():
            if not server.is_ready:
                return f"{server.id} is not ready"
            if server.metadata.applied_index != self.metadata_log.truth.applied_index:
                return f"{server.id} has not applied everything"
        for stream in self.metadata_log.truth.streams.values():
            for partition in stream.partitions:
                key = (stream.id, partition.id)
                problem = None if key in self.hopeless else self._partition_problem(key, partition, wanted)
                if problem is not None:
                    return f"{stream.name}#{stream.id}/{partition.id}: {problem}"
        return None

    def _partition_problem(self, key: Key, partition: Partition, wanted: dict[Key, int]) -> str | None:
        if partition.target_replicas:
            return f"it still moves to {partition.target_replicas}"
        if set(partition.in_sync_replicas) != set(partition.replicas):
            return f"of {partition.replicas} only {partition.in_sync_replicas} are in sync"
        leader = self.servers[partition.leader].replicas.get(key)
        if leader is None or not isinstance(leader.role, Leader):
            return f"{partition.leader} does not lead"
        log = leader.log
        can_commit = len(partition.replicas) >= self.options.min_insync_replicas
        if can_commit and key not in wanted and log.high_watermark != log.log_end_offset - 1:
            return f"{leader} does not commit what all replicas have"
        if can_commit and wanted.get(key) not in self.acked_numbers:
            if key not in wanted or self.rng.random() < 0.2:
                wanted[key] = self.people.publish_one(leader)
            return "a publish was not acked"
        replicas = [self.servers[name].replicas[key] for name in partition.replicas]
        if can_commit and not self.checker.all_equal(replicas):
            return f"the replicas differ: {replicas}"
        return None


def simulate(seed: int, seconds: float, trace: TextIO | None = None) -> dict[str, int]:
    """Run one seed. Raises Violation, which names the seed."""
    return ClusterSimulation(seed, seconds, trace).run()
