"""Power loss at any moment: the durable Raft log is what the last completed save left, or what the interrupted one was to leave."""

from __future__ import annotations

import random

import pytest

from bascule.raft.core.model.effects import Effects
from bascule.raft.core.model.entries import Entry, HardState, RaftSnapshot
from tests.simulation.log.simulated_disk import PowerLoss, SimulatedDisk
from tests.support.raft_cluster import Stored
from tests.support.raft_wals import create, fresh, new_disk, random_effects, reopen, state_of, stored_state

State = tuple[HardState, RaftSnapshot, tuple[Entry, ...]]


def work(disk: SimulatedDisk, rng: random.Random, saves: int) -> tuple[Stored, list[State]]:
    """Create and save until the power fails. What the last completed save left, and every state the next one may leave."""
    before = fresh()
    possible = [stored_state(before)]
    try:
        create(disk)
        wal, _ = reopen(disk, segment_bytes=rng.choice((60, 200, 1000)))
        for _ in range(saves):
            after = copy_of(before)
            steps = []
            for _ in range(rng.choice((1, 1, 1, 3))):
                effects = random_effects(rng, after)
                steps.append(effects)
                after.save(effects)
            possible = [stored_state(before), *states_while_saving(before, steps)]
            wal.save(*steps)
            assert possible[-1] == stored_state(after)
            before = after
            possible = [stored_state(before)]
    except PowerLoss:
        pass
    return before, possible


def copy_of(stored: Stored) -> Stored:
    return Stored(stored.hard_state, stored.snapshot, list(stored.entries))


def states_while_saving(before: Stored, steps: list[Effects]) -> list[State]:
    """Hard state, snapshot and entries become durable one after the other, and none of them in part."""
    stored, states = copy_of(before), []
    entries: list[Effects] = []

    def save(*effects: Effects) -> None:
        for one in effects:
            stored.save(one)
        states.append(stored_state(stored))

    for step in steps:
        save(Effects(hard_state=step.hard_state))
        if step.snapshot_taken or step.snapshot_installed:
            save(*entries)
            entries = []
            save(Effects(snapshot_taken=step.snapshot_taken, snapshot_installed=step.snapshot_installed))
        entries.append(Effects(entries=step.entries))
    save(*entries)
    return states


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.soak) for n in range(20, 60))])
def test_power_loss_at_any_operation_loses_nothing_that_was_saved(seed: int) -> None:
    whole = new_disk(seed)
    work(whole, random.Random(seed), saves=12)
    for fails_at in range(1, whole.operations + 1):
        disk = new_disk(seed)
        disk.power_fails_at = fails_at
        before, possible = work(disk, random.Random(seed), saves=12)
        for again in range(2):
            rng = random.Random(seed * 1000 + fails_at * 10 + again)
            check(disk.crash(rng), before, possible, rng)
        check(disk.kill(), before, possible, random.Random(seed))


def check(behind: SimulatedDisk, before: Stored, possible: list[State], rng: random.Random) -> None:
    if not _was_created(behind):
        assert stored_state(before) == stored_state(fresh()), "something was saved, so there was a directory"
        create(behind)
    wal, recovered = reopen(behind)
    assert state_of(recovered) in possible
    # And life goes on: what is saved now is there after the next power failure.
    stored = Stored(recovered.hard_state, recovered.snapshot, list(recovered.entries))
    effects = random_effects(rng, stored)
    wal.save(effects)
    stored.save(effects)
    assert state_of(reopen(behind.crash(rng))[1]) == stored_state(stored)


def _was_created(disk: SimulatedDisk) -> bool:
    return "raft" in disk.list_directory("/data")
