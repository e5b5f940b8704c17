"""A simulated server: a process that comes and goes, with its replicas, its copy of the metadata, its clock and its disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import StorageError
from bascule.metadata.core.failures import CoordinatorFailures, LeaderFailures
from bascule.metadata.core.model import ops
from bascule.metadata.core.model.ops import Op
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.state import (
    Change,
    ClusterMetadata,
    PartitionChanged,
    ServerChanged,
    StreamCreated,
    StreamRemoved,
)
from bascule.partition.core.follower import Follower
from bascule.partition.core.leader import Leader
from bascule.partition.core.leader_events import ProposalOutcome
from bascule.partition.core.messages import EpochAnswer, EpochQuery, Fetch, FetchAnswer, Message, Verdict
from tests.simulation.cluster.cluster_log import DiskLog, DiskState, ModelLog, SimulatedLog, refusal
from tests.simulation.cluster.cluster_replica import Key, Replica
from tests.simulation.log.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_simulator import ClusterSimulation

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000


class Server:
    def __init__(self, world: ClusterSimulation, server_id: str) -> None:
        rng = world.rng
        self.world = world
        self.id = server_id
        self.metadata = ClusterMetadata()
        self.replicas: dict[Key, Replica] = {}
        self.logs: dict[Key, ModelLog] = {}
        """What is on the disk, in runs with the model of a log."""
        self.disk = SimulatedDisk(rng.randrange(1 << 32))
        self.disk_state = DiskState()
        self.directories: dict[Key, int] = {}
        """How often the log was made anew."""
        self.life = 0
        self.unclean_stops = 0
        self.power_losses = 0
        self.is_up = False
        self.is_ready = False
        """It may run replicas: whatever it lost, the metadata knows."""
        self.is_paused = False
        self.is_draining = False
        self.lost_power = False
        self.slowness = 1
        self._backlog: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self._clock_offset_ns = rng.randrange(SECOND, 10 * SECOND)
        self._clock_rate = rng.choice(world.clock_rates)
        self.forget_reports()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────

    def local_ns(self) -> int:
        return self._clock_offset_ns + int(self.world.now_ns * self._clock_rate)

    def until_ns(self, local_ns: int) -> int:
        """How long, for the world, until this server's clock shows that."""
        return max(0, int((local_ns - self.local_ns()) / self._clock_rate) + 1)

    def disk_ns(self) -> int:
        return self.world.disk_ns() * self.slowness

    def call(self, delay_ns: int, action: Callable[..., None], *args: Any) -> None:
        """Later, if this process still lives."""
        self.world.at(delay_ns, self.run, self.life, action, args)

    def run(self, life: int, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if life != self.life or not self.is_up:
            return
        if self.is_paused:
            self._backlog.append((life, action, args))
        else:
            action(*args)

    # ── starting and stopping ────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.is_ready = self.is_draining = self.is_paused = False
        self._backlog = []
        self.world.trace("%s starts", self.id)
        self.forget_reports()
        self.world.metadata_log.start(self)
        self._announce()
        self.call(self.world.sync_interval_ns, self._sync_all)
        self.call(self.world.cleaner_interval_ns, self._clean_all)

    def _announce(self) -> None:
        """Before any replica runs: what was lost has to be known, and so has what happened meanwhile. Also after a clean stop: what
        this server asked for and has forgotten may still be done."""
        self.propose(ops.RestartServer(self.id, intact=not self.lost_power), self._announced)

    def _announced(self, outcome: ProposalOutcome) -> None:
        if outcome is not ProposalOutcome.DONE:
            self.call(50 * MS, self._announce)
            return
        self.is_ready = True
        self.lost_power = False
        self.restored()
        self.world.checker.server_ready(self)

    def kill(self) -> None:
        self._stop_uncleanly()
        for log in self.logs.values():
            log.kill()
        self.disk = self.disk.kill()

    def lose_power(self) -> None:
        self._stop_uncleanly()
        self.lost_power = True
        self.power_losses += 1
        for key in sorted(self.logs):
            self.logs[key].lose_power(self.world.rng)
        self.disk = self.disk.crash(self.world.rng)

    def _stop_uncleanly(self) -> None:
        self.unclean_stops += 1
        self._end()

    def _end(self) -> None:
        self.world.trace("%s stops", self.id)
        self.is_up = self.is_ready = self.is_paused = False
        self.replicas = {}
        self.disk_state.is_full = self.disk_state.syncs_fail = False
        self.world.metadata_log.stop(self)

    def stop_cleanly(self) -> None:
        try:
            for replica in self.replicas.values():
                replica.log.close()
        except StorageError:
            self.lose_power()  # what could not be synced is not there when it starts again
            return
        self.disk = self.disk.kill()
        self._end()

    def pause(self) -> None:
        self.is_paused = True
        self.world.trace("%s is paused", self.id)

    def resume(self) -> None:
        """Everything that came meanwhile comes now, in its order."""
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        self.world.trace("%s goes on", self.id)
        for life, action, args in backlog:
            self.run(life, action, args)

    def drain(self) -> None:
        """Hand over what it leads, leave the in-sync sets, stop."""
        for replica in list(self.replicas.values()):
            partition = replica.partition
            if partition is not None and isinstance(replica.role, Leader):
                replica.hand_over(list(partition.in_sync_replicas))
        self.call(self.world.rng.choice((300, 1000)) * MS, self._drained)

    def _drained(self) -> None:
        self.is_draining = True
        self.propose(ops.StopServer(self.id), lambda _outcome: self.stop_cleanly())

    # ── logs ─────────────────────────────────────────────────────────────────────────────────────

    def open_log(self, key: Key) -> SimulatedLog:
        if not self.world.uses_disks:
            if key not in self.logs:
                self.logs[key] = ModelLog(self.disk_state, self.world.log_options, self.local_ns)
            return self.logs[key]
        self.disk.refuse = None
        directory = f"/data/{key[0]}/{key[1]}-{self.directories.get(key, 0)}"
        log = DiskLog(self.disk, directory, self.world.log_options, self.local_ns)
        self.disk.refuse = lambda operation: refusal(self.disk_state, operation)
        return log

    def new_log(self, key: Key) -> SimulatedLog:
        """The one there is set aside."""
        self.logs.pop(key, None)
        self.directories[key] = self.directories.get(key, 0) + 1
        return self.open_log(key)

    def log_of(self, key: Key) -> SimulatedLog | None:
        """As it is on this server's disk, if that can be told."""
        replica = self.replicas.get(key)
        return replica.log if replica is not None else self.logs.get(key)

    def _sync_all(self) -> None:
        """Records that no ack waits for are synced now and then."""
        self.call(self.world.sync_interval_ns, self._sync_all)
        for replica in self.replicas.values():
            if replica.log.synced_end_offset < replica.log.log_end_offset:
                replica.sync_later()

    def _clean_all(self) -> None:
        """The cleaner's thread: each replica deletes for itself."""
        self.call(self.world.cleaner_interval_ns, self._clean_all)
        for replica in self.replicas.values():
            replica.clean()

    # ── the metadata ─────────────────────────────────────────────────────────────────────────────

    def propose(self, op: Op, settle: Callable[[ProposalOutcome], None]) -> None:
        self.world.trace("%s proposes %r", self.id, op)
        self.world.metadata_log.propose(self, op, settle)

    def replica_epoch(self, partition: Partition) -> int:
        return self.metadata.replica_epoch(partition, self.id)

    def applied(self, _op: Op, changes: tuple[Change, ...]) -> None:
        """The own copy of the metadata has changed."""
        if not self.is_ready:
            return
        for change in changes:
            match change:
                case PartitionChanged(stream, number):
                    self._reconcile(stream, number)
                case StreamCreated(stream):
                    for number in range(len(self.metadata.streams[stream].partitions)):
                        self._reconcile(stream, number)
                case StreamRemoved():
                    self._drop_strangers()
                case ServerChanged(self.id):
                    for replica in list(self.replicas.values()):
                        replica.reconcile()

    def restored(self) -> None:
        """The metadata came as a whole."""
        if not self.is_ready:
            return
        self._drop_strangers()
        for name, stream in list(self.metadata.streams.items()):
            for number in range(len(stream.partitions)):
                self._reconcile(name, number)

    def _reconcile(self, name: str, number: int) -> None:
        stream = self.metadata.streams.get(name)
        if stream is None:
            return
        key = (stream.id, number)
        if self.id not in stream.partitions[number].replicas:
            self._drop(key)
            return
        if key in self.replicas:
            self.replicas[key].reconcile()
            return
        replica = self.replicas[key] = Replica(self, key, name, self.world.config_of(key), self.open_log(key))
        replica.reconcile()
        if replica.log.has_holes:
            replica.leave()

    def _drop_strangers(self) -> None:
        known = {stream.id for stream in self.metadata.streams.values()}
        for key in list(self.replicas):
            if key[0] not in known:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        """This server has no part in the partition any more: its data goes."""
        replica = self.replicas.pop(key, None)
        if replica is not None:
            replica.drop_role()
            replica.key = (-1, -1)
        if key in self.logs or replica is not None:
            self.logs.pop(key, None)
            self.directories[key] = self.directories.get(key, 0) + 1

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def send(self, to: str, key: Key, message: Message) -> None:
        self.world.transmit(self.id, to, self.world.servers[to].receive, self.id, key, message)

    def receive(self, sender: str, key: Key, message: Message) -> None:
        replica = self.replicas.get(key)
        if replica is not None:
            replica.receive(sender, message)
        elif isinstance(message, Fetch) and message.is_fetch:
            self.send(sender, key, FetchAnswer(message.leader_epoch, message.number, Verdict.NOT_LEADER))
        elif isinstance(message, EpochQuery):
            self.send(sender, key, EpochAnswer(message.leader_epoch, message.number, Verdict.NOT_LEADER))

    # ── reports ──────────────────────────────────────────────────────────────────────────────────

    def forget_reports(self) -> None:
        """It is controller no more, or has just become it."""
        timeout_ns = self.world.options.leader_timeout_ns
        self.leader_failures = LeaderFailures(timeout_ns)
        self.coordinator_failures = CoordinatorFailures(timeout_ns)

    def report_leader(self, replica: Replica, role: Follower) -> None:
        controller = self.world.metadata_log.controller
        self.world.trace("%r reports %s", replica, role.leader)
        if controller is not None:
            to = self.world.servers[controller]
            self.world.transmit(
                self.id,
                controller,
                to.leader_reported,
                replica.stream,
                replica.key[1],
                self.id,
                role.leader,
                replica.epoch,
            )

    def leader_reported(self, stream: str, number: int, reporter: str, leader: str, leader_epoch: int) -> None:
        if self.world.metadata_log.controller != self.id:
            return
        verdict = self.leader_failures.report(
            self.metadata, stream, number, reporter, leader, leader_epoch, self.local_ns()
        )
        if isinstance(verdict, ops.ChangeLeader):
            self.world.checker.counts["elections"] += 1
            self.propose(verdict, lambda _outcome: None)

    def coordinator_reported(self, group: str, consumer: str, coordinator: str, epoch: int) -> None:
        if self.world.metadata_log.controller != self.id:
            return
        verdict = self.coordinator_failures.report(
            self.metadata, group, consumer, coordinator, epoch, tuple(self.world.names), self.local_ns()
        )
        if isinstance(verdict, ops.ChangeCoordinator):
            self.propose(verdict, lambda _outcome: None)
