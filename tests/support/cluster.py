"""Some brokers as real processes on one nats-server, or on one each with routes between them, and everything that can happen to them.

    with Cluster(tmp_path) as cluster:
        cluster.create_stream("orders", factor=3)
        cluster.kill(cluster.leader_of("orders"))

A broker that was killed, paused or cut off is not asked anything until it was put right again. Addresses stay what they were when a
broker first started, as those of a service do.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from bascule.raft.core.model.codec import U8, U16, Reader
from bascule.raft.core.model.message_codec import decode_message
from bascule.raft.core.model.messages import AppendEntries, Heartbeat
from tests.support.api_client import Api, Status, grpc, pb
from tests.support.broker_faults import Machine
from tests.support.broker_process import BrokerProcess
from tests.support.nats_client import NatsClient
from tests.support.nats_cluster import NatsCluster
from tests.support.nats_server import NatsServer
from tests.support.small_disk import SmallDisk
from tests.support.tcp_proxy import DELAY_SECONDS, ProxyProcess
from tests.support.waiting import eventually, pause_process

SERVERS: Final = ("a", "b", "c")
SHORT_TIMEOUTS: Final = {
    "clustering.replica.max.lag.time": "2s",
    "clustering.replica.max.leader.timeout": "2s",
    "clustering.replica.max.idle.wait": "500ms",
}
"""For tests in which somebody is away. Who is only slow, on a machine that is busy, is not put out yet."""
LONG_TIMEOUTS: Final = {
    "clustering.replica.max.lag.time": "120s",
    "clustering.replica.max.leader.timeout": "120s",
    "clustering.replica.max.idle.wait": "60s",
}
"""For tests in which everybody is well: whoever waits for one of these is noticed, and a slow machine puts nobody out."""
PRODUCT_TIMEOUTS: Final = {
    "clustering.replica.max.lag.time": "5s",
    "clustering.replica.max.leader.timeout": "5s",
    "clustering.replica.max.idle.wait": "2s",
}
"""The defaults of the product."""
ASK_SECONDS: Final = 5.0
RECOVERY_SECONDS: Final = 90.0
"""How long a cluster may take to be whole again on a busy machine, with time-outs of two seconds."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as one broker sees it."""

    leader: str
    replicas: frozenset[str]
    in_sync: frozenset[str]


class Cluster:
    """`nats_servers` 3: each broker lives on a nats-server of its own and knows the others. `proxied`: a line that can be cut between
    each broker and NATS. `disks`: bytes of the small disk that a broker is given, see small_disk.py. `nats`: one that runs already.
    `seeded`: the first server begins the cluster and the others join it; else they begin it together. `machines`: clocks and disks of
    brokers can fail, see broker_faults.py. `handles`, `memory_bytes`: limits of each broker."""

    def __init__(
        self,
        directory: Path,
        *,
        servers: Sequence[str] = SERVERS,
        nats: NatsServer | None = None,
        nats_servers: int = 1,
        proxied: bool = False,
        seeded: bool = False,
        disks: Mapping[str, int] | None = None,
        machines: bool = False,
        handles: int | None = None,
        memory_bytes: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        self.servers = tuple(servers)
        self.namespace = directory.name
        self.proxy: ProxyProcess | None = None
        self.disks: dict[str, SmallDisk] = {}
        self.machines: dict[str, Machine] = {}
        self.paused: set[str] = set()
        self.cut: set[str] = set()
        self.brokers: dict[str, BrokerProcess] = {}
        self._lines: dict[str, list[str]] = {server: [] for server in servers}
        self._apis: dict[str, Api] = {}
        self._stack = ExitStack()
        self._config = {**SHORT_TIMEOUTS, **(config or {})}
        self.routes = NatsCluster(directory, nats_servers) if nats is None and nats_servers > 1 else None
        self.nats = [nats] if nats is not None else self._new_nats()
        self._nats_is_ours = nats is None
        self._proxied = proxied
        self._is_seeded = seeded
        self._disk_bytes = dict(disks or {})
        self._has_machines = machines
        self._handles = handles
        self._memory_bytes = memory_bytes

    def _new_nats(self) -> list[NatsServer]:
        return [NatsServer(self.directory / "nats")] if self.routes is None else [*self.routes.servers]

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        if self._proxied:
            self.proxy = ProxyProcess()
            self._stack.callback(self.proxy.close)
            if self.routes is not None:
                self.routes.route_through(self.proxy)
        if self._nats_is_ours:
            for server in self.nats:
                self._stack.callback(server.stop)
                server.start()
        for number, name in enumerate(self.servers):
            self.brokers[name] = self._make_broker(name, number)
            self._stack.callback(self.brokers[name].kill)
        for broker in self.brokers.values():
            broker.launch()
        for name, broker in self.brokers.items():
            broker.wait_ready()
            broker.config["listen"] = broker.address
            self._apis[name] = broker.api()
            self._stack.callback(self._apis[name].close)
        self.wait_for_members()
        self.wait_for_cursors()

    def _make_broker(self, name: str, number: int) -> BrokerProcess:
        settings = {
            "clustering.namespace": self.namespace,
            "clustering.server.id": name,
            **({} if self._is_seeded else {"clustering.raft.bootstrap.peers": list(self.servers)}),
            **self._config,
        }
        if self._has_machines:
            self.machines[name] = Machine(self.directory / name / "machine")
        broker = BrokerProcess(
            self.directory / name,
            nats_url=",".join(self._nats_urls(name, number)),
            config=settings,
            env=self.machines[name].environ if self._has_machines else None,
            seed=self._is_seeded and number == 0,
            handles=self._handles,
            memory_bytes=self._memory_bytes,
        )
        if name in self._disk_bytes:
            disk = self.disks[name] = SmallDisk(self.directory / name / "disk", self._disk_bytes[name])
            self._stack.callback(disk.close)
            broker.data = disk.path / "data"
        return broker

    def _nats_urls(self, name: str, number: int) -> list[str]:
        """Its own server first, then the others."""
        found = []
        for step in range(len(self.nats)):
            place = (number + step) % len(self.nats)
            port = self.nats[place].port
            if self.proxy is not None:
                line = f"{name}/{place}"
                port = self.proxy.open(line, port)
                self._lines[name].append(line)
            found.append(f"nats://127.0.0.1:{port}")
        return found

    def close(self) -> None:
        for name in list(self.paused):
            self.resume(name)
        self._stack.close()

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    # ── what can happen ──────────────────────────────────────────────────────────────────────────

    def kill(self, *names: str) -> None:
        """kill -9 of all of them at once."""
        for name in names:
            process = self.brokers[name].process
            if process is not None:
                process.kill()
            self.paused.discard(name)
        for name in names:
            self.brokers[name].kill()

    def launch(self, *names: str) -> None:
        """Start again what was killed; `wait_ready` waits."""
        for name in names:
            self.brokers[name].launch()

    def restart(self, *names: str) -> None:
        """Start again what was killed or stopped, and wait until it serves, and our own connection to it is back."""
        self.launch(*names)
        for name in names:
            self.brokers[name].wait_ready(RECOVERY_SECONDS)
            eventually(lambda name=name: self._answers(name), f"{name} answers again")  # type: ignore[misc]

    def _answers(self, name: str) -> bool:
        return _quietly(lambda: bool(self._apis[name].FetchMetadata(timeout=ASK_SECONDS).brokers))

    def revive(self) -> None:
        """Start every broker that was killed or has left by itself, as whoever supervises services does."""
        away = [name for name in self.servers if not self.brokers[name].is_running]
        for name in away:
            self.brokers[name].kill()  # one that left by itself still has to be buried
        self.restart(*away)

    def stop(self, name: str) -> int:
        """SIGTERM; its exit code."""
        return self.brokers[name].stop()

    def pause(self, name: str) -> None:
        """SIGSTOP: it is there and does nothing."""
        self.paused.add(name)
        process = self.brokers[name].process
        if process is not None:
            pause_process(process)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)
        self.paused.discard(name)

    def _signal(self, name: str, number: int) -> None:
        process = self.brokers[name].process
        if process is not None:
            process.send_signal(number)

    def cut_off(self, name: str, how: str) -> None:
        """From NATS, and so from all other brokers; its clients still reach it. See tcp_proxy.py for `how`."""
        assert self.proxy is not None, "the cluster has no lines that can be cut"
        self.cut.add(name)
        for line in self._lines[name]:
            self.proxy.cut(line, how)

    def slow_down(self, name: str, seconds: float = DELAY_SECONDS) -> None:
        """Everything that it sends to NATS and receives from it is late, until it is healed."""
        assert self.proxy is not None, "the cluster has no lines that can be slow"
        for line in self._lines[name]:
            self.proxy.slow_down(line, seconds)

    def cut_routes(self, one: int, other: int, how: str) -> None:
        """Between two NATS servers; clients still reach both."""
        assert self.proxy is not None and self.routes is not None, "the cluster has no routes that can be cut"
        for line in self.routes.lines_between(one, other):
            self.proxy.cut(line, how)

    def heal_routes(self, one: int, other: int) -> None:
        assert self.proxy is not None and self.routes is not None
        for line in self.routes.lines_between(one, other):
            self.proxy.heal(line)

    def heal(self, name: str) -> None:
        assert self.proxy is not None
        for line in self._lines[name]:
            self.proxy.heal(line)
        self.cut.discard(name)

    def fill_disk(self, name: str) -> None:
        self.disks[name].fill()

    def relieve_disk(self, name: str) -> None:
        self.disks[name].relieve()

    def restart_nats(self, number: int = 0, *, while_away: Callable[[], None] | None = None) -> None:
        """kill -9 and start it again on the same port."""
        self.nats[number].stop()
        if while_away is not None:
            while_away()
        self.nats[number].start()

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    @property
    def well(self) -> list[str]:
        """Those that run, are not paused and not cut off."""
        away = self.paused | self.cut
        return [name for name in self.servers if name not in away and self.brokers[name].is_running]

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    def api(self, name: str) -> Api:
        """A connection that the cluster closes; it comes back by itself when the broker does."""
        return self._apis[name]

    def ask(self, question: Callable[[Api], Any]) -> Any:
        """The answer of the first broker that gives one; None when nobody does."""
        for name in self.well:
            with suppress(grpc.RpcError):
                return question(self._apis[name])
        return None

    def wait_for_members(self) -> None:
        def all_known() -> bool:
            return all(
                len(self._apis[name].FetchMetadata(timeout=ASK_SECONDS).brokers) == len(self.servers)
                for name in self.well
            )

        eventually(lambda: _quietly(all_known), "every broker knows every other", RECOVERY_SECONDS)

    def wait_for_cursors(self) -> None:
        """The controller makes their stream as soon as it can, and gives it more replicas as servers join: who leads it, and who has
        it, can be told when that is over."""
        factor = self._config.get("cursors.stream.replication.factor", len(self.servers))
        for partition in range(self._config.get("cursors.stream.partitions", 0)):
            self.wait_until_in_sync("__cursors", partition, replicas=factor)

    def subject_of(self, stream: str) -> str:
        """The subject of a stream that `create_stream` made: no other cluster on the same NATS server has it."""
        return f"{self.namespace}-streams.{stream}"

    def create_stream(self, name: str, *, factor: int = 3, **fields: Any) -> None:
        """Done when every broker that is well has heard of it, and whoever is to lead its partitions does."""
        fields.setdefault("subject", self.subject_of(name))
        eventually(lambda: self._create(name, factor, fields), f"the stream {name} can be created", RECOVERY_SECONDS)
        eventually(
            lambda: all(
                _quietly(lambda one=one: self._apis[one].stream(name).error == pb.StreamMetadata.OK)  # type: ignore[misc]
                for one in self.well
            ),
            f"every broker knows the stream {name}",
        )
        eventually(lambda: self._is_led(name), f"the stream {name} is led", RECOVERY_SECONDS)

    def _create(self, name: str, factor: int, fields: Mapping[str, Any]) -> bool:
        """False when too few servers answer: one that has just come back, or stood still for a second, may not have been heard yet."""
        try:
            self._apis[self.well[0]].CreateStream(name=name, replicationFactor=factor, **fields)
        except grpc.RpcError as error:
            if error.code() is not Status.UNAVAILABLE:
                raise
            return False
        return True

    def _is_led(self, name: str) -> bool:
        """As far as leaders are well. A creation does not wait for one that is slow to begin."""

        def asked() -> bool:
            leaders = {number: one.leader for number, one in self._apis[self.well[0]].stream(name).partitions.items()}
            for number, leader in leaders.items():
                if leader in self.well:
                    self._apis[leader].partition(name, number)
            return bool(leaders)

        return _quietly(asked)

    def view(self, stream: str, partition: int = 0, *, of: str | None = None) -> PartitionView | None:
        """What one broker says (`of`), or the first that answers."""

        def look(api: Api) -> PartitionView:
            (found,) = api.FetchMetadata(streams=[stream], timeout=ASK_SECONDS).streamMetadata
            one = found.partitions[partition]
            return PartitionView(one.leader, frozenset(one.replicas), frozenset(one.isr))

        if of is None:
            seen: PartitionView | None = self.ask(look)
            return seen
        with suppress(grpc.RpcError):
            return look(self._apis[of])
        return None

    def leader_of(self, stream: str, partition: int = 0) -> str:
        """The leader that a broker which is well names, once it names one that is well too."""

        def find() -> str:
            seen = self.view(stream, partition)
            return seen.leader if seen is not None and seen.leader in self.well else ""

        return eventually(find, f"{stream}/{partition} has a leader that is well", RECOVERY_SECONDS)

    def followers_of(self, stream: str, partition: int = 0) -> list[str]:
        leader = self.leader_of(stream, partition)
        seen = self.view(stream, partition)
        assert seen is not None
        return sorted(seen.replicas - {leader})

    def wait_until_in_sync(
        self,
        stream: str,
        partition: int = 0,
        timeout: float = RECOVERY_SECONDS,
        *,
        revive: bool = False,
        replicas: int = 0,
    ) -> None:
        """Every replica is, and every broker that is well knows it. `revive`: brokers that leave meanwhile are started again.
        `replicas`: how many there are to be."""

        def all_in_sync() -> bool:
            if revive:
                self.revive()
            views = [self.view(stream, partition, of=name) for name in self.well]
            return bool(views) and all(
                one is not None and one.replicas == one.in_sync and len(one.replicas) >= max(1, replicas)
                for one in views
            )

        eventually(all_in_sync, f"all replicas of {stream}/{partition} are in sync", timeout)

    def controller(self, timeout: float = RECOVERY_SECONDS) -> str:
        """Who leads the metadata group, told by the messages that only a leader sends."""
        deadline = time.monotonic() + timeout
        with NatsClient(self._nats_that_runs().url) as nats:
            nats.subscribe(f"{self.namespace}.control.*.message")
            while time.monotonic() < deadline:
                message = nats.poll(0.5)
                if message is not None and (sender := _leader_in(message.payload)) in self.well:
                    return sender
        raise AssertionError("nobody leads the metadata group")

    def _nats_that_runs(self) -> NatsServer:
        return next(server for server in self.nats if server.is_running)

    def partition_directory(self, name: str, stream: str, partition: int = 0) -> Path:
        """Where one broker keeps it."""
        return self.brokers[name].data / "streams" / stream / str(partition)


def _leader_in(data: bytes) -> str:
    reader = Reader(data)
    reader.number(U16)
    reader.number(U8)
    reader.number(U8)
    message = decode_message(data, reader.string())
    return message.sender if isinstance(message, Heartbeat | AppendEntries) else ""


def _quietly(question: Callable[[], bool]) -> bool:
    """False when nobody answers."""
    try:
        return question()
    except grpc.RpcError:
        return False
