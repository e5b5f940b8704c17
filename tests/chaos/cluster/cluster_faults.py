"""Faults of brokers, lines and NATS servers: each strikes, lasts for a while and is put right again. `make chaos` counts their names.

Clocks, disks and limits of processes fail in machine_faults.py; operators.py does what operators do.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from tests.chaos.cluster.cluster_history import PartitionHistory
from tests.support.cluster import Cluster
from tests.support.tcp_proxy import HOLD, RESET, SWALLOW

SHORT_SECONDS: Final = (0.1, 1.0)
LONG_SECONDS: Final = (3.0, 6.0)
"""Longer than the time-outs of a test cluster: another leader is there before the fault is over."""
SLOW_LINE_SECONDS: Final = 0.2
"""Each way."""


@dataclass
class Scene:
    """Where a fault strikes: one partition, whose leader and followers are its victims."""

    cluster: Cluster
    history: PartitionHistory
    rng: random.Random

    def leader(self) -> str:
        return self.cluster.leader_of(self.history.stream, self.history.partition)

    def follower(self) -> str:
        return self.rng.choice(self.cluster.followers_of(self.history.stream, self.history.partition))

    def anybody(self) -> str:
        return self.rng.choice(self.cluster.servers)

    def wait(self) -> None:
        """Return when the fault is to end: sometimes before any time-out, sometimes after."""
        time.sleep(self.rng.uniform(*self.rng.choice((SHORT_SECONDS, LONG_SECONDS))))


Fault = Callable[[Scene], None]


@contextmanager
def killed(cluster: Cluster, *names: str) -> Iterator[None]:
    cluster.kill(*names)
    try:
        yield
    finally:
        cluster.revive()


@contextmanager
def paused(cluster: Cluster, name: str) -> Iterator[None]:
    cluster.pause(name)
    try:
        yield
    finally:
        cluster.resume(name)


@contextmanager
def cut_off(cluster: Cluster, name: str, how: str) -> Iterator[None]:
    cluster.cut_off(name, how)
    try:
        yield
    finally:
        cluster.heal(name)
        cluster.revive()


@contextmanager
def full_disk(cluster: Cluster, name: str) -> Iterator[None]:
    cluster.fill_disk(name)
    try:
        yield
    finally:
        cluster.relieve_disk(name)
        cluster.revive()


@contextmanager
def nats_away(cluster: Cluster, number: int = 0) -> Iterator[None]:
    cluster.nats[number].stop()
    try:
        yield
    finally:
        cluster.nats[number].start()
        cluster.revive()


def kill_leader(scene: Scene) -> None:
    with killed(scene.cluster, scene.leader()):
        scene.wait()


def kill_follower(scene: Scene) -> None:
    with killed(scene.cluster, scene.follower()):
        scene.wait()


def kill_controller(scene: Scene) -> None:
    with killed(scene.cluster, scene.cluster.controller()):
        scene.wait()


def kill_two(scene: Scene) -> None:
    with killed(scene.cluster, *scene.rng.sample(scene.cluster.servers, 2)):
        scene.wait()


def kill_all(scene: Scene) -> None:
    with killed(scene.cluster, *scene.cluster.servers):
        scene.wait()


def kill_again_and_again(scene: Scene) -> None:
    """Each new leader is killed at once."""
    for _ in range(3):
        with killed(scene.cluster, scene.leader()):
            pass


def stop_leader(scene: Scene) -> None:
    """In good order."""
    leader = scene.leader()
    scene.cluster.stop(leader)
    scene.wait()
    scene.cluster.restart(leader)


def pause_leader(scene: Scene) -> None:
    with paused(scene.cluster, scene.leader()):
        scene.wait()


def pause_anybody(scene: Scene) -> None:
    with paused(scene.cluster, scene.anybody()):
        scene.wait()


def pause_leader_and_kill_the_next(scene: Scene) -> None:
    first = scene.leader()
    with paused(scene.cluster, first):
        time.sleep(LONG_SECONDS[0])
        with killed(scene.cluster, scene.leader()):
            scene.cluster.resume(first)
            scene.wait()


def cut_off_leader(scene: Scene) -> None:
    with cut_off(scene.cluster, scene.leader(), scene.rng.choice((HOLD, SWALLOW, RESET))):
        scene.wait()


def cut_off_anybody(scene: Scene) -> None:
    with cut_off(scene.cluster, scene.anybody(), scene.rng.choice((HOLD, SWALLOW, RESET))):
        scene.wait()


def cut_off_leader_and_kill_it(scene: Scene) -> None:
    """What it took alone must be gone when it comes back."""
    leader = scene.leader()
    with cut_off(scene.cluster, leader, HOLD):
        scene.wait()
        scene.cluster.kill(leader)


def restart_nats(scene: Scene) -> None:
    with nats_away(scene.cluster, scene.rng.randrange(len(scene.cluster.nats))):
        scene.wait()


def pause_nats(scene: Scene) -> None:
    """Connections stay, nothing moves."""
    server = scene.rng.choice(scene.cluster.nats)
    server.pause()
    try:
        scene.wait()
    finally:
        server.signal(signal.SIGCONT)


def slow_line(scene: Scene) -> None:
    name = scene.anybody()
    scene.cluster.slow_down(name, SLOW_LINE_SECONDS)
    try:
        scene.wait()
    finally:
        scene.cluster.heal(name)


def slow_lines(scene: Scene) -> None:
    """All brokers."""
    for name in scene.cluster.servers:
        scene.cluster.slow_down(name, SLOW_LINE_SECONDS)
    try:
        scene.wait()
    finally:
        for name in scene.cluster.servers:
            scene.cluster.heal(name)


@contextmanager
def routes_cut(scene: Scene, pairs: list[tuple[int, int]]) -> Iterator[None]:
    how = scene.rng.choice((HOLD, SWALLOW, RESET))
    for pair in pairs:
        scene.cluster.cut_routes(*pair, how)
    try:
        yield
    finally:
        for pair in pairs:
            scene.cluster.heal_routes(*pair)
        scene.cluster.revive()


def cut_one_route(scene: Scene) -> None:
    """Two NATS servers do not reach each other; both reach the third."""
    one, other = scene.rng.sample(range(len(scene.cluster.nats)), 2)
    with routes_cut(scene, [(one, other)]):
        scene.wait()


def cut_routes_of_one(scene: Scene) -> None:
    alone, *others = scene.rng.sample(range(len(scene.cluster.nats)), len(scene.cluster.nats))
    with routes_cut(scene, [(alone, other) for other in others]):
        scene.wait()


def cut_all_routes(scene: Scene) -> None:
    with routes_cut(scene, list(combinations(range(len(scene.cluster.nats)), 2))):
        scene.wait()


def fill_disk_of_leader(scene: Scene) -> None:
    leader = scene.leader()
    with full_disk(scene.cluster, leader if leader in scene.cluster.disks else _with_disk(scene)):
        scene.wait()


def fill_disk_of_anybody(scene: Scene) -> None:
    with full_disk(scene.cluster, _with_disk(scene)):
        scene.wait()


def fill_disk_and_kill(scene: Scene) -> None:
    victim = _with_disk(scene)
    with full_disk(scene.cluster, victim):
        scene.wait()
        scene.cluster.kill(victim)


def _with_disk(scene: Scene) -> str:
    return scene.rng.choice(sorted(scene.cluster.disks))


FAULTS: Final[dict[str, Fault]] = {
    "leader killed": kill_leader,
    "follower killed": kill_follower,
    "controller killed": kill_controller,
    "two killed at once": kill_two,
    "all killed at once": kill_all,
    "leaders killed one after the other": kill_again_and_again,
    "leader stopped": stop_leader,
    "leader paused": pause_leader,
    "broker paused": pause_anybody,
    "leader paused, the next killed": pause_leader_and_kill_the_next,
    "leader cut off": cut_off_leader,
    "broker cut off": cut_off_anybody,
    "leader cut off and killed": cut_off_leader_and_kill_it,
    "broker on a slow line": slow_line,
    "all brokers on slow lines": slow_lines,
    "NATS restarted": restart_nats,
    "NATS paused": pause_nats,
}
ROUTE_FAULTS: Final[dict[str, Fault]] = {
    "route between two NATS servers cut": cut_one_route,
    "routes of a NATS server cut": cut_routes_of_one,
    "all routes between NATS servers cut": cut_all_routes,
}
"""Only for a cluster with several NATS servers."""
DISK_FAULTS: Final[dict[str, Fault]] = {
    "disk of the leader full": fill_disk_of_leader,
    "disk full": fill_disk_of_anybody,
    "disk full, broker killed": fill_disk_and_kill,
}
"""Only for a cluster with small disks."""
