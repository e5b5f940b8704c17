"""Controllers as real processes on a real nats-server: killed, restarted, joined; what they answered is judged afterwards."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import Unavailable
from bascule.metadata.bootstrap import by_joining
from bascule.net.nats.bus import NatsBus
from bascule.net.nats.subjects import ControlSubjects
from tests.chaos.raft.controller_cluster import ControllerCluster
from tests.support.linearizability import existence, is_linearizable
from tests.support.nats_server import NatsServer

ENOUGH = 10


@asynccontextmanager
async def cluster_of(directory: Path, servers: list[str], **options: Any) -> AsyncIterator[ControllerCluster]:
    with NatsServer(directory / "nats") as nats:
        bus = await NatsBus.connect([nats.url], "test")
        cluster = ControllerCluster(directory, nats, bus, servers, **options)
        try:
            yield cluster
        finally:
            cluster.kill_all()
            await bus.close()


async def clients_work(cluster: ControllerCluster, rng: random.Random, until: float) -> None:
    """One client after the other asks any server; names change every half second, so that histories stay short."""
    number = rng.randrange(1 << 30)
    while time.monotonic() < until or asked(cluster) <= ENOUGH:  # most of the time there is no leader
        name = f"s{int(time.monotonic() * 2)}-{rng.randrange(3)}"
        await cluster.ask(number, rng.choice(cluster.servers), rng.choice(("create", "delete", "look")), name)
        await asyncio.sleep(0.002)


def asked(cluster: ControllerCluster) -> int:
    return sum(len(history) for history in cluster.history.values())


def check_history(cluster: ControllerCluster) -> int:
    for name, history in cluster.history.items():
        assert is_linearizable(history, False, existence), f"{name}: {sorted(history, key=lambda one: one.started)}"
    return asked(cluster)


async def kill_leaders(cluster: ControllerCluster, until: float) -> int:
    kills = 0
    while time.monotonic() < until or kills < 2:  # also on a machine that is slow today
        leader = await cluster.leader()
        cluster.kill(leader)
        kills += 1
        await asyncio.sleep(0.8)
        cluster.start(leader)
        await asyncio.sleep(0.7)
    return kills


@pytest.mark.parametrize("size", [3, 5])
def test_histories_are_linearizable_while_leaders_are_killed(tmp_path: Path, size: int) -> None:
    async def scenario() -> None:
        servers = [f"n{number}" for number in range(size)]
        async with cluster_of(tmp_path, servers, peers=servers, snapshot_entries=50) as cluster:
            for server in servers:
                cluster.start(server)
            await cluster.leader()
            until = time.monotonic() + 8
            seeds = [random.Random(number) for number in range(4)]
            clients = [asyncio.create_task(clients_work(cluster, rng, until)) for rng in seeds]
            kills = await kill_leaders(cluster, until - 2)
            await asyncio.gather(*clients)
            leader = await cluster.leader()
            await cluster.until(leader, "create", "the-end", {"created", "exists"})
            assert kills >= 2
            assert check_history(cluster) > ENOUGH

    asyncio.run(scenario())


def test_a_whole_cluster_that_is_killed_at_once_comes_back_with_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = ["a", "b", "c"]
        async with cluster_of(tmp_path, servers, peers=servers, snapshot_entries=10) as cluster:
            expected = set()
            for round_number in range(3):
                for server in servers:
                    cluster.start(server)
                leader = await cluster.leader()
                for number in range(15):
                    name = f"r{round_number}-{number}"
                    await cluster.until(leader, "create", name, {"created", "exists"})
                    expected.add(name)
                cluster.kill_all()
            for server in servers:
                cluster.start(server)
            for server in servers:
                await cluster.until(server, "look", "r0-0", {"present"})
                while (status := await cluster.status(server)) is None:
                    pass
                assert set(status["streams"]) == expected
                assert status["snapshot"] > 0

    asyncio.run(scenario())


def test_one_seed_and_joiners_become_a_cluster_with_a_bounded_quorum(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = ["a", "b", "c"]
        async with cluster_of(tmp_path, servers, voters_max=2) as cluster:
            cluster.start("a", is_seed=True)
            await cluster.until("a", "create", "before", {"created", "exists"})
            cluster.start("b")
            await cluster.until("b", "look", "before", {"present"})
            cluster.start("c")
            await cluster.until("c", "create", "after", {"created", "exists"})
            status = await cluster.status("a")
            while status is None or (len(status["voters"]), len(status["learners"])) != (2, 1):
                await asyncio.sleep(0.05)
                status = await cluster.status("a")
            assert sorted(status["voters"] + status["learners"]) == servers
            assert "a" in status["voters"]

    asyncio.run(asyncio.wait_for(scenario(), 180))


def test_two_seeds_do_not_live_side_by_side(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, ["a", "b"]) as cluster:
            cluster.start("a", is_seed=True)
            await cluster.until("a", "create", "first", {"created", "exists"})
            cluster.start("b", is_seed=True)
            second = cluster.processes["b"]
            while second.poll() is None:
                await asyncio.sleep(0.05)
            assert second.returncode == 3
            assert second.stdout is not None
            assert b"another seed is there: a" in second.stdout.read()
            await cluster.until("a", "look", "first", {"present"})

    asyncio.run(asyncio.wait_for(scenario(), 180))


def test_a_server_with_nobody_to_join_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, []) as cluster:
            with pytest.raises(Unavailable, match="failed to join metadata Raft group"):
                await by_joining(cluster.bus, ControlSubjects("test"), "lonely", attempts=2, wait_seconds=0.05)

    asyncio.run(scenario())


def test_the_cluster_outlives_a_restart_of_nats(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = ["a", "b", "c"]
        async with cluster_of(tmp_path, servers, peers=servers) as cluster:
            for server in servers:
                cluster.start(server)
            await cluster.until(await cluster.leader(), "create", "before", {"created", "exists"})
            cluster.nats.stop()
            cluster.nats.start()
            for server in servers:
                await cluster.until(server, "look", "before", {"present"})
            await cluster.until("b", "create", "after", {"created", "exists"})

    asyncio.run(asyncio.wait_for(scenario(), 180))
