"""Three brokers on one nats-server, and three nats-servers with JetStream beside them: what the replication suites measure."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import nats
from nats.js.api import RetentionPolicy, StorageType, StreamConfig

from bascule.broker.embedded_nats import EmbeddedNatsOptions, find_binary, read_version, render_config
from bench.processes import TICKS, Process, Usage, free_port, start_nats, wait_for_port
from tests.support.cluster import SERVERS, Cluster
from tests.support.nats_server import NatsServer

FACTOR: Final = 3
JETSTREAM_SECONDS: Final = 60.0
DEFAULT_TIMEOUTS: Final = {
    "clustering.replica.max.lag.time": "15s",
    "clustering.replica.max.leader.timeout": "15s",
    "clustering.replica.max.idle.wait": "10s",
}
_numbers = itertools.count()


class Meter:
    """What some processes use together: their CPU summed, the memory of the largest."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = list(pids)
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        self._began = self._cpu()

    def usage(self) -> Usage:
        user, system = self._cpu()
        return Usage(user - self._began[0], system - self._began[1], max(map(_peak_bytes, self._pids)))

    def _cpu(self) -> tuple[float, float]:
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._pids]
        return sum(int(one[11]) for one in fields) / TICKS, sum(int(one[12]) for one in fields) / TICKS


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


class BenchNats(NatsServer):
    """A nats-server with the settings that a broker gives its embedded one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server: Process | None = None

    @property
    def is_running(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        self._server, self.port = start_nats("nats-server", self._directory)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


@contextlib.contextmanager
def replicated_cluster(
    directory: Path, *, sync: str = "interval", config: Mapping[str, Any] | None = None
) -> Iterator[Cluster]:
    """Brokers `a`, `b` and `c`, with the time-outs that are the default unless `config` says otherwise."""
    with BenchNats(directory / "nats") as server:
        settings = {**DEFAULT_TIMEOUTS, "streams.sync": sync, **(config or {})}
        with Cluster(directory / f"cluster-{next(_numbers)}", servers=SERVERS, nats=server, config=settings) as cluster:
            yield cluster


@contextlib.contextmanager
def replicated_stream(cluster: Cluster, **settings: Any) -> Iterator[str]:
    """A new stream with three replicas, deleted in the end."""
    name = f"bench-{next(_numbers)}"
    cluster.create_stream(name, factor=FACTOR, **settings)
    yield name
    cluster.api(cluster.well[0]).DeleteStream(name=name)


def meter_of(cluster: Cluster) -> Meter:
    return Meter([broker.pid for broker in cluster.brokers.values()])


def port_of(cluster: Cluster, server: str) -> int:
    return int(cluster.brokers[server].address.rpartition(":")[2])


def subject_of(cluster: Cluster, stream: str) -> str:
    return cluster.subject_of(stream)


class JetStreamCluster:
    """Three nats-servers with routes between them and files for their streams."""

    name = "JetStream R3"

    def __init__(self, directory: Path) -> None:
        self.processes: list[Process] = []
        self.ports = [free_port() for _ in range(FACTOR)]
        routes = [free_port() for _ in range(FACTOR)]
        binary = find_binary()
        for number in range(FACTOR):
            home = directory / f"jetstream-{number}"
            home.mkdir(parents=True)
            options = EmbeddedNatsOptions(directory=home, port=self.ports[number])
            text = render_config(options, read_version(binary))
            text += f"server_name: js{number}\n"
            text += f"jetstream {{ store_dir: {json.dumps(str(home / 'store'))} }}\n"
            listed = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
            text += f'cluster {{ name: bench, listen: "127.0.0.1:{routes[number]}", routes: [{listed}] }}\n'
            config = home / "nats-server.conf"
            config.write_text(text)
            self.processes.append(Process(f"jetstream-{number}", [binary, "-c", str(config)], home))
        for process, port in zip(self.processes, self.ports, strict=True):
            wait_for_port(process, port)

    @contextlib.contextmanager
    def stream(self) -> Iterator[tuple[str, int]]:
        """A subject of a new stream with three replicas, and the port of the server that leads it."""
        name = f"js{next(_numbers)}"
        config = StreamConfig(
            name=name,
            subjects=[f"{name}.>"],
            storage=StorageType.FILE,
            retention=RetentionPolicy.LIMITS,
            num_replicas=FACTOR,
        )
        leader = asyncio.run(self._create(config))
        yield f"{name}.0", self.ports[int(leader.removeprefix("js"))]
        asyncio.run(self._delete(name))

    async def _create(self, config: StreamConfig) -> str:
        """The name of the leader. The servers need a while until they agree on anything."""
        deadline = time.monotonic() + JETSTREAM_SECONDS
        while True:
            try:
                client = await nats.connect(f"nats://127.0.0.1:{self.ports[0]}")
                try:
                    stream = await client.jetstream(timeout=5).add_stream(config)
                    assert stream.cluster is not None and stream.cluster.leader
                    return str(stream.cluster.leader)
                finally:
                    await client.close()
            except Exception:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def _delete(self, name: str) -> None:
        client = await nats.connect(f"nats://127.0.0.1:{self.ports[0]}")
        try:
            await client.jetstream(timeout=30).delete_stream(name)
        finally:
            await client.close()

    def meter(self) -> Meter:
        return Meter([process.pid for process in self.processes])

    def close(self) -> None:
        for process in self.processes:
            process.stop()


def log_bytes(cluster: Cluster, server: str, stream: str) -> int:
    """What one broker has of a stream."""
    directory = cluster.partition_directory(server, stream)
    return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(".log"))
