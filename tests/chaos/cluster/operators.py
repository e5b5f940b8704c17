"""What operators do with a cluster while it works, and while it fails: drain, move, rebalance. A refused operation is no violation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import bascule
from bascule.client.admin.cluster import ClusterAdmin
from bascule.errors import BasculeError
from tests.chaos.cluster.cluster_faults import Fault, Scene, killed
from tests.support.cluster import RECOVERY_SECONDS, Cluster
from tests.support.waiting import eventually

CALL_SECONDS: Final = 20.0
MOVED: Final = "moved"
"""The stream whose replicas are moved."""


def operate(cluster: Cluster, call: Callable[[ClusterAdmin], Awaitable[Any]]) -> Any:
    """The result of a call of the cluster's admin; None if it fails."""

    async def work() -> Any:
        addresses = [cluster.brokers[name].address for name in cluster.well]
        async with bascule.connect(addresses, timeout=CALL_SECONDS) as client:
            return await call(ClusterAdmin(client))

    with suppress(BasculeError):
        return asyncio.run(work())
    return None


def drain(scene: Scene) -> None:
    """The leader hands over and stops; then it is started again."""
    cluster, leader = scene.cluster, scene.leader()
    if operate(cluster, lambda admin: admin.drain(leader)) is not None:
        eventually(lambda: not cluster.brokers[leader].is_running, f"{leader} stops", RECOVERY_SECONDS)
        scene.wait()
    cluster.revive()


def drain_and_undo(scene: Scene) -> None:
    leader = scene.leader()
    operate(scene.cluster, lambda admin: admin.drain(leader, keep_running=True))
    scene.wait()
    undone = eventually(
        lambda: operate(scene.cluster, lambda admin: admin.drain(leader, undo=True)) is not None or None,
        "the drain is undone",
        RECOVERY_SECONDS,
    )
    assert undone


def new_place(scene: Scene) -> list[str]:
    return scene.rng.sample(scene.cluster.servers, scene.rng.choice((2, 2, 3)))


def move(scene: Scene) -> None:
    """The next fault may strike before the move is done."""
    place = new_place(scene)
    operate(scene.cluster, lambda admin: admin.reassign(MOVED, [0], replicas=place))


def move_and_kill(scene: Scene) -> None:
    place = new_place(scene)
    operate(scene.cluster, lambda admin: admin.reassign(MOVED, [0], replicas=place))
    with killed(scene.cluster, place[0]):
        scene.wait()


def move_and_cancel(scene: Scene) -> None:
    place = new_place(scene)
    operate(scene.cluster, lambda admin: admin.reassign(MOVED, [0], replicas=place))
    operate(scene.cluster, lambda admin: admin.cancel(MOVED))


def rebalance(scene: Scene) -> None:
    leaders_only = scene.rng.random() < 0.5
    operate(scene.cluster, lambda admin: admin.rebalance(leaders_only=leaders_only))


def wait_for_moves(cluster: Cluster) -> None:
    def is_done() -> bool:
        status = operate(cluster, lambda admin: admin.status())
        return status is not None and not status.is_moving

    eventually(is_done, "all moves are done", RECOVERY_SECONDS)


OPERATIONS: Final[dict[str, Fault]] = {
    "leader drained and stopped": drain,
    "leader drained, and undone": drain_and_undo,
    "replicas moved": move,
    "replicas moved, broker killed": move_and_kill,
    "replicas moved, and cancelled": move_and_cancel,
    "partitions rebalanced": rebalance,
}
