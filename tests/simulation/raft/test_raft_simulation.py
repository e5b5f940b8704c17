"""Thousands of Raft groups under faults, none of which breaks an invariant. See raft_simulator.py for what happens and what must hold.

Every run tries the same seeds, so that a red one means a change that broke something; a soak tries new ones.
A failure names its seed and how to run it again: `BASCULE_RAFT_SEED=… BASCULE_RAFT_STEPS=… pytest -k replays`.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import Final

import pytest

from tests.simulation.raft.raft_server import Violation
from tests.simulation.raft.raft_simulator import simulate

STEPS: Final = 1500
SEEDS_PER_PART: Final = 100
SOAK_STEPS: Final = 2000


@pytest.mark.parametrize("part", range(8))
def test_no_invariant_breaks_in_thousands_of_histories(part: int) -> None:
    run_seeds(range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART))


def run_seeds(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts.update(simulate(seed, STEPS))
    # A simulation in which nothing happens proves nothing.
    for what, least in (("elections", 2), ("commits", 15), ("writes", 5), ("reads", 5), ("crashes", 5), ("changes", 3)):
        assert counts[what] > least * len(seeds) / 2, counts
    assert counts["duplicates"] and counts["snapshots installed"], counts


def test_a_seed_is_one_history() -> None:
    for seed in range(20):
        assert simulate(seed, STEPS) == simulate(seed, STEPS)


@pytest.mark.skipif("BASCULE_RAFT_SEED" not in os.environ, reason="only to repeat a failure")
def test_a_seed_that_failed_replays() -> None:
    simulate(int(os.environ["BASCULE_RAFT_SEED"]), int(os.environ.get("BASCULE_RAFT_STEPS", STEPS)))


def test_a_failure_names_its_seed() -> None:
    class Broken(Exception):
        pass

    def raise_it(*_: object) -> None:
        raise Broken("something is wrong")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.simulation.raft.raft_simulator.Simulation.check_applied", raise_it)
        with pytest.raises(
            Violation, match=r"seed 7, step \d+ of 500: Broken: something is wrong\nBASCULE_RAFT_SEED=7"
        ):
            simulate(7, 500)


@pytest.mark.soak
def test_no_invariant_breaks_for_as_long_as_asked(soak_seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    first = random.SystemRandom().randrange(1 << 48)
    counts: Counter[str] = Counter()
    seeds = 0
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < soak_seconds:
        counts.update(simulate(first + seeds, SOAK_STEPS))
        seeds += 1
    with capsys.disabled():
        what = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        print(
            f"\nraft: {seeds:,} seeds from {first} × {SOAK_STEPS:,} steps without a violation, "
            f"{seeds * SOAK_STEPS / seconds:,.0f} steps/s: {what}"
        )
