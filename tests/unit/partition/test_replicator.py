"""What the leader is told of its proposals, and with which numbers a follower begins."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.errors import BasculeError, OutcomeUnknown, Unavailable
from bascule.metadata.core.model.ops import ExpandIsr, Op
from bascule.metadata.core.model.refusal import Refusal, precondition
from bascule.partition.core.leader_events import Expand, ProposalOutcome
from bascule.partition.replication.replicator import Replicator
from tests.unit.metadata.metadata_helpers import Cluster

OUTCOMES: list[tuple[Refusal | BasculeError | None, ProposalOutcome]] = [
    (None, ProposalOutcome.DONE),
    (precondition("Partition epoch mismatch"), ProposalOutcome.REFUSED),
    (OutcomeUnknown("nobody knows"), ProposalOutcome.UNKNOWN),
    # This attempt was not made, but an earlier one may still be under way: the leader must go on counting the replica.
    (Unavailable("there is no controller"), ProposalOutcome.UNKNOWN),
]


class ControllerThatSays:
    """A controller whose answer is known before; `metadata` changes with it."""

    def __init__(self, answer: Refusal | BasculeError | None, cluster: Cluster) -> None:
        self.answer = answer
        self.cluster = cluster
        self.metadata = cluster.state
        self.submitted: list[Op] = []

    async def submit(self, op: Op) -> Refusal | None:
        self.submitted.append(op)
        if isinstance(self.answer, BasculeError):
            raise self.answer
        if self.answer is None:
            self.cluster.must(op)
        return self.answer


class LeadingThatListens:
    def __init__(self) -> None:
        self.stream, self.key, self.name, self.leader_epoch = "orders", (1, 0), "orders/0", 1
        self.heard: list[Any] = []

    def refresh(self, partition: Any) -> None:
        self.heard.append(tuple(partition.in_sync_replicas))

    def settled(self, replica: str, outcome: ProposalOutcome) -> None:
        self.heard.append((replica, outcome))


def replicator(controller: Any = None) -> Replicator:
    return Replicator(SimpleNamespace(), "a", controller, lambda: None, lambda *_: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("answer", "outcome"), OUTCOMES)
def test_a_leader_hears_the_metadata_of_now_and_then_what_became_of_its_proposal(
    answer: Refusal | BasculeError | None, outcome: ProposalOutcome
) -> None:
    cluster = Cluster()
    cluster.create("orders", 1, 3)
    cluster.shrink("orders", "c")
    controller, leading = ControllerThatSays(answer, cluster), LeadingThatListens()

    async def propose() -> None:
        shared = replicator(controller)
        shared.propose(leading, Expand("c", 0, 2))  # type: ignore[arg-type]
        while len(leading.heard) < 2:
            await asyncio.sleep(0)
        shared.close()

    asyncio.run(asyncio.wait_for(propose(), 30))
    assert controller.submitted == [ExpandIsr("orders", 0, "c", "a", 1, 0, 2)]
    in_sync = ("a", "b", "c") if answer is None else ("a", "b")
    assert leading.heard == [in_sync, ("c", outcome)]


def test_a_follower_begins_with_numbers_above_those_of_the_process_before() -> None:
    async def next_number() -> int:
        shared = replicator()
        shared.close()
        return shared.next_number((1, 0))

    before = time.time_ns()
    first = asyncio.run(next_number())
    assert first >= before
    assert asyncio.run(next_number()) >= first
