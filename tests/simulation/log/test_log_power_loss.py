"""Power that fails at any operation: what was synced is there, what was not is there up to some point, and nothing else is.

A failing seed is printed; `BASCULE_POWER_SEED=<seed> pytest tests/simulation/log/test_log_power_loss.py` runs it alone.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bascule.log import LogStore
from bascule.log.disk.operations import PosixDisk
from tests.simulation.log.power_loss_world import World
from tests.simulation.log.simulated_disk import PowerLoss
from tests.support.logs import small_limits

ONLY: Final = os.environ.get("BASCULE_POWER_SEED")
PARTS: Final = 8
SEEDS_PER_PART: Final = 300
FIRST: Final = int(os.environ.get("BASCULE_FIRST_SEED", "0"))
"""The same seeds in every run, so that a red run means a change that broke something; soaks take new ones."""


@pytest.fixture(autouse=True)
def _small_limits() -> Iterator[None]:
    with small_limits(index_interval=200, scan_chunk=2000):
        yield


def run_seed(seed: int) -> World:
    """A few lives, each ended by a power failure or a kill, also in the middle of recovery."""
    world = World(seed)
    rng = world.rng
    try:
        for _ in range(rng.randint(1, 4)):
            world.disk.power_fails_at = world.disk.operations + rng.choice((3, 30, 100, 300, 1000)) * rng.randint(1, 3)
            world.live(rng.randint(1, 40))
            if rng.random() < 0.8:
                world.lose_power()
            else:
                world.kill()
        settle_down(world)
    except BaseException:
        print(f"BASCULE_POWER_SEED={seed}: after {world.crashes} crashes, {world.doing}; {world.options}")
        raise
    return world


def settle_down(world: World) -> None:
    """The power stays on: the log opens and goes on."""
    world.disk.power_fails_at = None
    try:
        world.live(0)
        for _ in range(3):
            world.append()
        world.sync()
        world.compact()
        world.restart()
        world.append()
    except PowerLoss:
        raise AssertionError("the power did not fail") from None


@pytest.mark.parametrize("part", range(PARTS))
def test_power_loss_takes_nothing_that_was_synced_and_invents_nothing(part: int) -> None:
    seeds = [int(ONLY)] if ONLY else range(FIRST + part * SEEDS_PER_PART, FIRST + (part + 1) * SEEDS_PER_PART)
    crashes = sum(run_seed(seed).crashes for seed in seeds)
    assert crashes >= len(seeds)


def test_a_log_that_ends_with_a_gap_after_power_loss_continues_in_a_new_segment() -> None:
    run_seed(920000004500)


def test_a_new_data_directory_is_synced_into_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(PosixDisk, "sync_directory", lambda _disk, path: synced.append(path))
    LogStore(tmp_path / "new" / "data").close()
    assert sorted(synced) == [str(tmp_path), str(tmp_path / "new")]
    LogStore(tmp_path / "new" / "data").close()
    assert len(synced) == 2


@pytest.mark.soak
def test_power_loss_takes_nothing_that_was_synced_for_a_long_time(soak_seconds: float) -> None:
    stop = time.monotonic() + soak_seconds
    seed = random.SystemRandom().randrange(1 << 40)
    while time.monotonic() < stop:
        run_seed(seed)
        seed += 1
