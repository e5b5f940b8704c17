"""What acks wait for: the table of `ack_waits` in partition/core/leader.py."""

from __future__ import annotations

import pytest

from bascule.partition.core.leader import AckWaits, ack_waits


@pytest.mark.parametrize("hands_over", [False, True])
@pytest.mark.parametrize("syncs_all", [False, True])
def test_all_acks_wait_for_all_in_sync_replicas(syncs_all: bool, hands_over: bool) -> None:
    waits = ack_waits(wants_leader=False, wants_all=True, syncs_all=syncs_all, hands_over=hands_over)
    assert waits == AckWaits(False, False, True, False)


def test_leader_acks_are_due_at_once() -> None:
    waits = ack_waits(wants_leader=True, wants_all=False, syncs_all=False, hands_over=False)
    assert waits == AckWaits(True, False, False, False)


def test_with_always_leader_acks_wait_for_the_own_disk() -> None:
    waits = ack_waits(wants_leader=True, wants_all=True, syncs_all=True, hands_over=False)
    assert waits == AckWaits(False, True, True, False)


@pytest.mark.parametrize("syncs_all", [False, True])
def test_leader_acks_wait_for_all_replicas_while_the_leader_hands_over(syncs_all: bool) -> None:
    waits = ack_waits(wants_leader=True, wants_all=False, syncs_all=syncs_all, hands_over=True)
    assert waits == AckWaits(False, False, True, True)
