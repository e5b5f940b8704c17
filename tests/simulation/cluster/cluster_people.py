"""What people do to a simulated cluster: publish, read, join groups, run it; and what happens to it without their doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bascule.metadata.core.model import ops
from bascule.metadata.core.model.ops import BrokerPlace
from bascule.partition.core.leader import Leader
from tests.simulation.cluster.cluster_log import Sequenced
from tests.simulation.cluster.cluster_replica import Key, Publish, Replica

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_server import Server
    from tests.simulation.cluster.cluster_simulator import ClusterSimulation

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000


class People:
    """Every action happens again and again, at random times; how often depends on the seed, and some never do."""

    def __init__(self, world: ClusterSimulation) -> None:
        self.world = world
        self.rng = rng = world.rng
        self._numbers = 0
        self._consumers = 0
        self._sequenced: dict[Key, Publish] = {}
        self.rates: dict[Callable[[], None], float] = {
            self.publish: rng.choice((4, 12, 30)),
            self.read: rng.choice((2, 6)),
            self.kill: 0.12 * rng.choice((0, 1, 1, 4)),
            self.lose_power: 0.12 * rng.choice((0, 1, 1, 4)),
            self.lose_all_power: 0.05 * rng.choice((0, 0, 1, 2)),
            self.start: rng.choice((0.5, 1, 3)),
            self.pause: 0.12 * rng.choice((0, 0, 1, 4)),
            self.resume: rng.choice((0.5, 2)),
            self.cut: 0.15 * rng.choice((0, 0, 1, 3)),
            self.heal: rng.choice((0.3, 1)),
            self.reconnect: rng.choice((0, 0.2, 1)),
            self.slow_down: 0.1 * rng.choice((0, 0, 1, 3)),
            self.fill_disk: 0.1 * rng.choice((0, 0, 1, 3)),
            self.fail_syncs: 0.05 * rng.choice((0, 0, 1, 3)),
            self.damage: 0.15 * rng.choice((0, 0, 1, 4)),
            self.disturb_metadata: 0.2 * rng.choice((0, 1, 2)),
            self.drain: 0.1 * rng.choice((0, 0, 1, 3)),
            self.reassign: 0.15 * rng.choice((0, 0, 1, 4)),
            self.recreate: 0.03 * rng.choice((0, 0, 1, 3)),
            self.pause_stream: 0.08 * rng.choice((0, 0, 1, 3)),
            self.resume_stream: 1,
            self.elect_unclean: 0.05 * rng.choice((0, 0, 0, 1, 3)),
            self.change_group: 0.3 * rng.choice((0, 1, 2)),
            self.report_coordinator: 0.2 * rng.choice((0, 1)),
        }
        if world.is_stormy:
            self.rates |= {
                self.publish: 25,
                self.cut: rng.choice((0.5, 2)),
                self.heal: rng.choice((0.5, 2)),
                self.kill: rng.choice((0.1, 0.5)),
                self.pause: rng.choice((0, 0.5)),
                self.slow_down: rng.choice((0, 1, 3)),
                self.start: 3,
                self.resume: 2,
            }

    def begin(self) -> None:
        if self.world.uses_producers:
            self.rates[self.publish_sequenced] = 8
        for action, rate in self.rates.items():
            if rate:
                self.world.at(self._pause_ns(rate), self._again, action, rate)

    def _pause_ns(self, rate: float) -> int:
        return int(self.rng.expovariate(rate) * SECOND)

    def _again(self, action: Callable[[], None], rate: float) -> None:
        if not self.world.is_calm:
            self.world.at(self._pause_ns(rate), self._again, action, rate)
            action()

    # ── victims ───────────────────────────────────────────────────────────────────────

    def _up(self) -> Server | None:
        up = [server for server in self.world.servers.values() if server.is_up and not server.is_paused]
        return self.rng.choice(up) if up else None

    def _replica(self) -> Replica | None:
        server = self._up()
        return self.rng.choice(list(server.replicas.values())) if server is not None and server.replicas else None

    def _leader(self) -> Replica | None:
        """One that leads, or believes so: that is where publishers and faults hurt most."""
        leaders = [
            replica
            for server in self.world.servers.values()
            if server.is_up and not server.is_paused
            for replica in server.replicas.values()
            if isinstance(replica.role, Leader)
        ]
        return self.rng.choice(leaders) if leaders else None

    def _victim(self) -> Server | None:
        leader = self._leader() if self.rng.random() < 0.5 else None
        return leader.server if leader is not None else self._up()

    def submit(self, op: ops.Op) -> None:
        server = self._up()
        if server is not None and server.is_ready:
            server.propose(op, lambda _outcome: None)

    # ── publishers and readers ───────────────────────────────────────────────────────────────────

    def publish(self) -> None:
        leader = self._leader()
        if leader is not None:
            count = self.rng.choice((1, 1, 3))
            self._numbers += count
            numbers = list(range(self._numbers - count, self._numbers))
            leader.publish(Publish(numbers, self.rng.random() < 0.6))

    def publish_one(self, leader: Replica) -> int:
        self._numbers += 1
        leader.publish(Publish([self._numbers - 1], True))
        return self._numbers - 1

    def publish_sequenced(self) -> None:
        """An idempotent producer of each partition repeats its message until it is acked, then publishes the next one."""
        leader = self._leader()
        if leader is None:
            return
        due = self._sequenced.get(leader.key)
        if due is None or due.numbers[0] in self.world.acked_numbers:
            sequence = 0 if due is None or due.sequenced is None else due.sequenced.sequence + 1
            due = Publish([self._numbers], True, Sequenced(b"p", 0, sequence))
            self._sequenced[leader.key] = due
            self.world.checker.sequenced.add(self._numbers)
            self._numbers += 1
        leader.publish(due)

    def read(self) -> None:
        replica = self._replica()
        if replica is not None:
            replica.read()

    def change_group(self) -> None:
        truth = self.world.metadata_log.truth
        group = self.rng.choice(("g", "h"))
        known = truth.groups.get(group)
        if known is not None and self.rng.random() < 0.4:
            consumer = self.rng.choice(sorted(known.members))
            coordinator = self.rng.choice(("", known.coordinator, "a"))
            expired = self.rng.random() < 0.5
            self.submit(ops.LeaveConsumerGroup(group, consumer, expired, coordinator))
        elif truth.streams:
            self._consumers += 1
            streams = tuple(self.rng.sample(sorted(truth.streams), self.rng.randint(1, len(truth.streams))))
            self.submit(ops.JoinConsumerGroup(group, f"c{self._consumers}", streams, tuple(self.world.names)))

    def report_coordinator(self) -> None:
        truth, controller = self.world.metadata_log.truth, self.world.metadata_log.controller
        if not truth.groups or controller is None:
            return
        group = truth.groups[self.rng.choice(sorted(truth.groups))]
        to, sender = self.world.servers[controller], self.rng.choice(self.world.names)
        for consumer in self.rng.sample(sorted(group.members), self.rng.randint(1, len(group.members))):
            self.world.transmit(
                sender, controller, to.coordinator_reported, group.id, consumer, group.coordinator, group.epoch
            )

    # ── processes ────────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        server = self._victim()
        if server is not None:
            self.world.checker.counts["crashes"] += 1
            server.kill()

    def lose_power(self) -> None:
        server = self._victim()
        if server is not None:
            self.world.checker.counts["power losses"] += 1
            server.lose_power()

    def lose_all_power(self) -> None:
        """A room goes dark."""
        for server in self.world.servers.values():
            if server.is_up and self.rng.random() < 0.9:
                self.world.checker.counts["power losses"] += 1
                server.lose_power()

    def start(self) -> None:
        down = [server for server in self.world.servers.values() if not server.is_up]
        if down:
            self.rng.choice(down).start()

    def pause(self) -> None:
        server = self._victim()
        if server is not None:
            self.world.checker.counts["pauses"] += 1
            server.pause()

    def resume(self) -> None:
        paused = [server for server in self.world.servers.values() if server.is_up and server.is_paused]
        if paused:
            self.rng.choice(paused).resume()

    def drain(self) -> None:
        server = self._up()
        if server is not None and server.is_ready:
            self.world.checker.counts["drains"] += 1
            server.drain()

    # ── network and disks ────────────────────────────────────────────────────────────────────────

    def cut(self) -> None:
        rng, names = self.rng, self.world.names
        victim = self._victim()
        inside = {victim.id} if victim is not None and rng.random() < 0.6 else {n for n in names if rng.random() < 0.5}
        share = rng.choice((1, 1, 0.5))
        self.world.cut = {
            (a, b) for a in names for b in names if (a in inside) != (b in inside) and rng.random() < share
        }
        self.world.trace("cut %s", self.world.cut)

    def heal(self) -> None:
        self.world.cut = set()

    def reconnect(self) -> None:
        server = self._up()
        if server is not None:
            for replica in list(server.replicas.values()):
                replica.reconnected()

    def slow_down(self) -> None:
        server = self._victim()
        if server is not None:
            server.slowness = self.rng.choice((5, 50, 300))
            self.world.at(self.rng.randint(300, 3000) * MS, self._speed_up, server)

    def _speed_up(self, server: Server) -> None:
        server.slowness = 1

    def fill_disk(self) -> None:
        server = self._victim()
        if server is not None:
            server.disk_state.is_full = True
            self.world.at(self.rng.randint(300, 3000) * MS, self.clean_disk, server)

    def clean_disk(self, server: Server) -> None:
        server.disk_state.is_full = False

    def fail_syncs(self) -> None:
        server = self._victim()
        if server is not None:
            server.disk_state.syncs_fail = True
            self.world.at(self.rng.randint(50, 500) * MS, self.mend_syncs, server)

    def mend_syncs(self, server: Server) -> None:
        server.disk_state.syncs_fail = False

    def damage(self) -> None:
        """A batch rots on one disk."""
        replica = self._replica()
        if replica is None or replica.log.log_end_offset == replica.log.log_start_offset:
            return
        offset = self.rng.randrange(replica.log.log_start_offset, replica.log.log_end_offset)
        replica.log.damage(offset)
        self.world.checker.counts["damages"] += 1
        self.world.trace("%r is damaged at %d", replica, offset)

    def disturb_metadata(self) -> None:
        self.world.metadata_log.disturb()

    # ── running a cluster ────────────────────────────────────────────────────────────────────────

    def _partition(self) -> tuple[str, int] | None:
        streams = self.world.metadata_log.truth.streams
        if not streams:
            return None
        name = self.rng.choice(sorted(streams))
        return name, self.rng.randrange(len(streams[name].partitions))

    def reassign(self) -> None:
        chosen = self._partition()
        if chosen is None:
            return
        if self.rng.random() < 0.15:
            self.submit(ops.CancelReassignment(*chosen))
            return
        count = self.rng.randint(1, min(3, len(self.world.names)))
        self.world.checker.counts["reassignments"] += 1
        self.submit(ops.Reassign(*chosen, tuple(self.rng.sample(self.world.names, count))))

    def recreate(self) -> None:
        chosen = self._partition()
        if chosen is not None:
            self.submit(ops.DeleteStream(chosen[0]))
            self.world.at(self.rng.randint(10, 800) * MS, self.create, chosen[0])

    def create(self, name: str) -> None:
        brokers = tuple(BrokerPlace(server) for server in self.world.names)
        factor = self.world.replication_factor
        self.submit(ops.CreateStream(name, name, self.world.partitions, factor, brokers, 1))

    def pause_stream(self) -> None:
        chosen = self._partition()
        if chosen is not None:
            self.submit(ops.PauseStream(chosen[0], 1))

    def resume_stream(self) -> None:
        for name, stream in self.world.metadata_log.truth.streams.items():
            if any(partition.paused for partition in stream.partitions):
                self.submit(ops.ResumeStream(name, 1))

    def elect_unclean(self) -> None:
        chosen = self._partition()
        if chosen is None:
            return
        partition = self.world.metadata_log.truth.streams[chosen[0]].partitions[chosen[1]]
        replica = self.rng.choice(partition.replicas)
        self.submit(ops.ElectUnclean(*chosen, replica, partition.leader, partition.leader_epoch))
