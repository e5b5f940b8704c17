"""A replica that cannot be relied on leaves the in-sync set, and only then its log is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.metadata.core.model.ops import LeaveIsr, Op
from bascule.metadata.core.model.refusal import Refusal
from bascule.partition import repairs as module
from bascule.partition.core.follower_events import Flaw
from bascule.partition.repairs import Repairs
from tests.unit.metadata.metadata_helpers import Cluster

KEY = (1, 0)


class Repaired:
    """Server `c` with its replica of `orders`, which `a` leads. Ops are applied when the test lets the controller answer."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.create("orders", 1, 3)
        self.metadata = self.cluster.state
        self.restarted: list[tuple[str, int]] = []
        self.submitted: list[Op] = []
        self.answers = asyncio.Event()
        self.repairs = Repairs("c", self, lambda stream, number: self.restarted.append((stream, number)))  # type: ignore[arg-type]

    async def submit(self, op: Op) -> Refusal | None:
        self.submitted.append(op)
        await self.answers.wait()
        outcome = self.cluster.apply(op)
        return outcome if isinstance(outcome, Refusal) else None

    def breaks(self, flaw: Flaw | None) -> None:
        epoch = self.cluster.partition("orders").leader_epoch
        role: Any = SimpleNamespace(key=KEY, stream="orders", name="orders/0", core=SimpleNamespace(leader_epoch=epoch))
        self.repairs.on_broken(role, "of a reason", flaw)

    @property
    def removes(self) -> Flaw | None:
        return self.repairs.flaw_of(KEY, self.cluster.partition("orders"))

    async def until_idle(self) -> None:
        while self.repairs._tasks:
            await asyncio.sleep(0)


def run(scenario: Callable[[Repaired], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(Repaired()), 60)

    asyncio.run(limited())


@pytest.mark.parametrize("flaw", list(Flaw))
def test_must_hold_a_log_is_removed_only_after_its_replica_has_left_the_set(flaw: Flaw) -> None:
    async def scenario(replica: Repaired) -> None:
        replica.breaks(flaw)
        while not replica.submitted:
            await asyncio.sleep(0)
        assert replica.removes is None
        replica.answers.set()
        await replica.until_idle()
        assert "c" not in replica.cluster.partition("orders").in_sync_replicas
        assert replica.restarted == [("orders", 0)]
        assert replica.removes is flaw
        replica.repairs.was_removed(KEY)
        assert replica.removes is None

    run(scenario)


def test_a_leader_that_steps_down_keeps_its_log() -> None:
    async def scenario(replica: Repaired) -> None:
        replica.answers.set()
        replica.breaks(None)
        await replica.until_idle()
        assert replica.submitted == [LeaveIsr("orders", 0, "c", 1)]
        assert replica.removes is None

    run(scenario)


@pytest.mark.parametrize("flaw", [Flaw.DIVERGED, Flaw.OUTDATED])
def test_a_comparison_with_a_deposed_leader_does_not_count(flaw: Flaw, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be part of the new leader's, or be the new leader's."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0)

    async def scenario(replica: Repaired) -> None:
        replica.breaks(flaw)
        while not replica.submitted:
            await asyncio.sleep(0)
        replica.cluster.hand_over("orders", "c")
        replica.answers.set()
        await replica.until_idle()
        assert len(replica.submitted) == 1
        assert "c" in replica.cluster.partition("orders").in_sync_replicas
        replica.cluster.hand_over("orders", "a")
        replica.cluster.shrink("orders", "c")
        assert replica.removes is None

    run(scenario)


def test_damage_counts_whichever_server_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0)

    async def scenario(replica: Repaired) -> None:
        replica.breaks(Flaw.DAMAGED)
        while not replica.submitted:
            await asyncio.sleep(0)
        replica.breaks(Flaw.OUTDATED)
        replica.cluster.hand_over("orders", "b")
        replica.answers.set()
        await replica.until_idle()
        assert len(replica.submitted) == 2
        assert replica.removes is Flaw.DAMAGED

    run(scenario)


def test_a_flaw_that_is_found_while_the_replica_leaves_is_not_forgotten() -> None:
    async def scenario(replica: Repaired) -> None:
        replica.breaks(None)
        while not replica.submitted:
            await asyncio.sleep(0)
        replica.breaks(Flaw.OUTDATED)
        replica.answers.set()
        await replica.until_idle()
        assert replica.removes is Flaw.OUTDATED

    run(scenario)


def test_must_hold_a_flaw_that_is_found_in_a_new_replica_epoch_needs_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader may have had a fetch of this epoch and be about to add the replica, because of the log that is to be removed."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0)

    async def scenario(replica: Repaired) -> None:
        replica.breaks(Flaw.DAMAGED)
        while not replica.submitted:
            await asyncio.sleep(0)
        replica.cluster.must(
            replica.submitted[0]
        )  # an earlier attempt: the replica starts again, and its new log is damaged too
        replica.repairs.was_removed(KEY)
        replica.breaks(Flaw.DAMAGED)
        assert replica.removes is None
        replica.answers.set()
        await replica.until_idle()
        assert replica.removes is Flaw.DAMAGED

    run(scenario)
