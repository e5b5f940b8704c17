"""Faults of the machines under brokers: clocks that jump, disks that are slow, refuse or cannot be read, few handles, little memory.

How a clock or a disk fails: tests/support/broker_faults.py. Only for a cluster with `machines`.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.chaos.cluster.cluster_faults import Fault, Scene

JUMPS_SECONDS: Final = (0.5, 5.0, 90.0, 3600.0, 3 * 86400.0)
CHANCES: Final = (0.02, 0.2, 1.0)
SPARE_HANDLES: Final = (0, 3)
SPARE_MEMORY_BYTES: Final = 2 << 20


@contextmanager
def broken(scene: Scene, name: str, **settings: float) -> Iterator[None]:
    machine = scene.cluster.machines[name]
    machine.set(**settings)
    try:
        yield
    finally:
        machine.heal()
        scene.cluster.revive()


def jump(scene: Scene, sign: int) -> None:
    name = scene.anybody()
    with broken(scene, name, clock_seconds=sign * scene.rng.choice(JUMPS_SECONDS)):
        scene.wait()


def jump_ahead(scene: Scene) -> None:
    jump(scene, 1)


def jump_back(scene: Scene) -> None:
    jump(scene, -1)


def jump_apart(scene: Scene) -> None:
    """The clocks of all brokers, and a kill: the next leader has another time."""
    cluster = scene.cluster
    for name in cluster.servers:
        cluster.machines[name].set(clock_seconds=scene.rng.choice((-1, 1)) * scene.rng.choice(JUMPS_SECONDS))
    try:
        scene.wait()
        cluster.kill(scene.leader())
        scene.wait()
    finally:
        for machine in cluster.machines.values():
            machine.heal()
        cluster.revive()


def slow_disk(scene: Scene) -> None:
    delay = scene.rng.choice((0.001, 0.01))
    sync_delay = scene.rng.choice((0.05, 0.5))
    with broken(
        scene, scene.rng.choice((scene.leader, scene.anybody))(), delay_seconds=delay, sync_delay_seconds=sync_delay
    ):
        scene.wait()


def refused_writes(scene: Scene) -> None:
    error = scene.rng.choice((errno.EIO, errno.EIO, errno.ENOSPC))
    with broken(
        scene, scene.rng.choice((scene.leader, scene.anybody))(), write_chance=scene.rng.choice(CHANCES), error=error
    ):
        scene.wait()


def refused_syncs(scene: Scene) -> None:
    with broken(scene, scene.rng.choice((scene.leader, scene.anybody))(), sync_chance=scene.rng.choice(CHANCES)):
        scene.wait()


def refused_reads(scene: Scene) -> None:
    with broken(scene, scene.rng.choice((scene.leader, scene.anybody))(), read_chance=scene.rng.choice(CHANCES)):
        scene.wait()


def failing_disk(scene: Scene) -> None:
    """Everything fails now and then, and at last the broker is killed."""
    name = scene.anybody()
    chance = scene.rng.choice(CHANCES[:2])
    with broken(scene, name, read_chance=chance, write_chance=chance, sync_chance=chance, delay_seconds=0.001):
        scene.wait()
        scene.cluster.kill(name)


@contextmanager
def limited(scene: Scene, name: str, limit: int, value: int) -> Iterator[None]:
    """The soft limit of a broker's process, for a while. A broker that leaves is started again without it."""
    process = scene.cluster.brokers[name].process
    assert process is not None
    before = resource.prlimit(process.pid, limit)
    try:
        if process.poll() is None:
            resource.prlimit(process.pid, limit, (value, before[1]))
        yield
    finally:
        if process.poll() is None:  # its number may belong to another process by now
            resource.prlimit(process.pid, limit, before)
        scene.cluster.revive()


def few_handles(scene: Scene) -> None:
    """A broker cannot open more files and connections than it has, or a few more."""
    name = scene.anybody()
    used = max(int(one.name) for one in Path(f"/proc/{scene.cluster.brokers[name].pid}/fd").iterdir()) + 1
    with limited(scene, name, resource.RLIMIT_NOFILE, used + scene.rng.choice(SPARE_HANDLES)):
        scene.wait()


def little_memory(scene: Scene) -> None:
    """A broker gets little more memory than it has."""
    name = scene.anybody()
    status = Path(f"/proc/{scene.cluster.brokers[name].pid}/status").read_text()
    used = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
    with limited(scene, name, resource.RLIMIT_DATA, used + SPARE_MEMORY_BYTES):
        scene.wait()


MACHINE_FAULTS: Final[dict[str, Fault]] = {
    "clock ahead": jump_ahead,
    "clock back": jump_back,
    "clocks apart, leader killed": jump_apart,
    "slow disk": slow_disk,
    "disk refuses writes": refused_writes,
    "disk refuses syncs": refused_syncs,
    "disk refuses reads (EIO)": refused_reads,
    "failing disk, broker killed": failing_disk,
    "few file handles": few_handles,
    "little memory": little_memory,
}
