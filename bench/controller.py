"""The metadata group as real processes: how long it is without a leader after kill -9, and what an op costs."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bascule.net.nats.bus import NatsBus
from bench.report import Row, at_most, measured
from tests.chaos.raft.controller_cluster import ControllerCluster
from tests.support.nats_server import NatsServer

FAILOVERS = 9
OPS = 300
TARGET_SECONDS = 1.5
SERVERS = ["a", "b", "c"]


def rows(directory: Path) -> Iterator[Row]:
    directory = directory / "controller"
    directory.mkdir()
    times, latencies = asyncio.run(_measure(directory))
    conditions = f"3 servers, {FAILOVERS} × kill -9 of the leader until the next op is done, default time-outs"
    yield at_most("controller failover, median", statistics.median(times), "s", conditions, TARGET_SECONDS)
    yield measured("controller failover, worst", max(times), "s", conditions)
    label = f"3 servers, {OPS} stream creations one after the other, synced on a majority"
    yield measured("controller op, median", statistics.median(latencies) * 1000, "ms", label)
    yield measured("controller op, 99th percentile", sorted(latencies)[int(0.99 * OPS)] * 1000, "ms", label)


async def _measure(directory: Path) -> tuple[list[float], list[float]]:
    with NatsServer(directory / "nats") as nats:
        bus = await NatsBus.connect([nats.url], "bench")
        cluster = ControllerCluster(directory, nats, bus, SERVERS, peers=SERVERS)
        try:
            for server in SERVERS:
                cluster.start(server)
            leader = await cluster.leader()
            latencies = [await _timed(cluster, leader, f"op-{number}") for number in range(OPS)]
            times = [await _fail_over(cluster, number) for number in range(FAILOVERS)]
            return times, latencies
        finally:
            cluster.kill_all()
            await bus.close()


async def _timed(cluster: ControllerCluster, server: str, name: str) -> float:
    started = time.perf_counter()
    assert await cluster.ask(0, server, "create", name) == "created"
    return time.perf_counter() - started


async def _fail_over(cluster: ControllerCluster, number: int) -> float:
    leader = await cluster.leader()
    survivor = next(server for server in SERVERS if server != leader)
    cluster.kill(leader)
    started = time.perf_counter()
    await cluster.until(survivor, "create", f"failover-{number}", {"created", "exists"})
    seconds = time.perf_counter() - started
    cluster.start(leader)
    await cluster.until(leader, "look", f"failover-{number}", {"present"})
    return seconds
