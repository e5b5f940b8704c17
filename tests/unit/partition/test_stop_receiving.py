"""A leader that stops receiving: what it may still acknowledge, and what it waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.partition.registry import Partitions


class Registry:
    """The collaborators of a registry; notes what happens in which order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.successions = SimpleNamespace(leave=lambda _: self.events.append("leave"))
        self._link = SimpleNamespace(unsubscribe=lambda _: self.events.append("unsubscribe"))
        self._ingest = SimpleNamespace(detach=self._detach)

    async def _round_trip(self) -> None:
        self.events.append("round trip")

    async def _detach(self, local: Any, *, is_deposed: bool) -> None:
        self.events.append(f"detach, holds LEADER acks: {local.leading.holds_leader_acks}, deposed: {is_deposed}")


@pytest.mark.parametrize(
    ("is_deposed", "expected"),
    [
        (True, ["leave", "unsubscribe", "detach, holds LEADER acks: True, deposed: True"]),
        (False, ["leave", "round trip", "unsubscribe", "detach, holds LEADER acks: False, deposed: False"]),
    ],
)
def test_a_deposed_leader_sends_no_leader_acks_for_its_last_messages(is_deposed: bool, expected: list[str]) -> None:
    registry = Registry()
    local = SimpleNamespace(leading=SimpleNamespace(holds_leader_acks=False), subscription_id=1)
    asyncio.run(Partitions._stop_receiving(cast(Any, registry), cast(Any, local), is_deposed=is_deposed))
    assert registry.events == expected
