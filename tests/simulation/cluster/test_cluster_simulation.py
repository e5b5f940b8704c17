"""Thousands of clusters under faults, none of which breaks an invariant. See cluster_simulator.py for what happens, cluster_checker.py
for what must hold.

Every run tries the same seeds, so that a red one means a change that broke something; a soak tries new ones.
A failure names its seed and how to run it again: `BASCULE_CLUSTER_SEED=… BASCULE_CLUSTER_SECONDS=… pytest -k replays`, and with
`BASCULE_CLUSTER_TRACE=file` everything that happened is written there.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.cluster.cluster_checker import Violation
from tests.simulation.cluster.cluster_simulator import simulate

SECONDS: Final = 6.0
SEEDS: Final = 4800
PARTS: Final = 16
SOAK_SECONDS: Final = 12.0

LEAST: Final = {
    "leaders": 4,
    "commits": 40,
    "ALL acks": 20,
    "reads": 5,
    "elections": 0.3,
    "crashes": 0.5,
    "power losses": 0.7,
    "pauses": 0.3,
    "drains": 0.2,
    "truncations": 0.2,
    "rebuilds": 0.2,
    "losses": 0.03,
    "resets": 0.05,
    "reassignments": 0.4,
    "failed syncs": 0.2,
    "unreadable": 0.05,
    "damage read": 0.05,
    "group changes": 0.5,
    "joins": 2,
    "LEADER acks": 10,
    "hand-overs": 0.15,
    "retentions": 3,
    "outdated logs": 0.2,
    "duplicates": 0.3,
    "gaps read": 0.5,
}
"""Minimum number of events in a seed, on average: a simulation in which nothing happens proves nothing."""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_invariant_breaks_in_thousands_of_clusters(part: int) -> None:
    run_seeds(range(part, SEEDS, PARTS))


def run_seeds(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts.update(simulate(seed, SECONDS))
    for what, least in LEAST.items():
        assert counts[what] > least * len(seeds) / 2, (what, counts)


def test_a_seed_is_one_history() -> None:
    for seed in range(15):
        assert simulate(seed, SECONDS) == simulate(seed, SECONDS)


@pytest.mark.skipif("BASCULE_CLUSTER_SEED" not in os.environ, reason="only to repeat a failure")
def test_a_cluster_that_failed_replays() -> None:
    seconds = float(os.environ.get("BASCULE_CLUSTER_SECONDS", SECONDS))
    with ExitStack() as stack:
        path = os.environ.get("BASCULE_CLUSTER_TRACE")
        trace = None if path is None else stack.enter_context(Path(path).open("w", encoding="utf-8"))
        simulate(int(os.environ["BASCULE_CLUSTER_SEED"]), seconds, trace)


def test_a_failure_names_its_seed() -> None:
    def raise_it(*_: object) -> None:
        raise KeyError("something is wrong")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.simulation.cluster.cluster_checker.Checker.committed", raise_it)
        with pytest.raises(Violation, match=r"seed 7, at \d+\.\d+ s: KeyError: .*\nBASCULE_CLUSTER_SEED=7"):
            simulate(7, SECONDS)


@pytest.mark.soak
def test_no_cluster_breaks_for_as_long_as_asked(soak_seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    first = random.SystemRandom().randrange(1 << 48)
    counts: Counter[str] = Counter()
    seeds = 0
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < soak_seconds:
        counts.update(simulate(first + seeds, SOAK_SECONDS))
        seeds += 1
    with capsys.disabled():
        what = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        print(
            f"\ncluster: {seeds:,} seeds from {first} × {SOAK_SECONDS:g} s without a violation, "
            f"{counts['events'] / seconds:,.0f} events/s: {what}"
        )
