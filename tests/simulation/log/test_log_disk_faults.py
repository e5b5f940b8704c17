"""A disk that refuses: any operation may fail, a write after a part of it. Nothing acknowledged is lost, nothing half is kept.

A failing seed is printed; `BASCULE_FAULT_SEED=<seed> pytest tests/simulation/log/test_log_disk_faults.py` runs it alone.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from bascule.errors import DiskFull, LogClosed, StorageError
from bascule.log import LogOptions, PartitionLog
from tests.simulation.log.power_loss_world import ACTIONS, MORE_ACTIONS, MORE_WEIGHTS, WEIGHTS, World
from tests.simulation.log.simulated_disk import Operation, PowerLoss, SimulatedDisk
from tests.support.logs import SECOND, Draft, ManualSyncer, batch_of, read_all, small_limits
from tests.support.seeds import try_new_seeds, try_seeds

ONLY: Final = os.environ.get("BASCULE_FAULT_SEED")
PARTS: Final = 4
SEEDS_PER_PART: Final = 500
FIRST: Final = int(os.environ.get("BASCULE_FIRST_SEED", "0"))
"""The same seeds in every run, so that a red run means a change that broke something; soaks take new ones."""
DIRECTORY: Final = "/data/streams/full/0"


@pytest.fixture(autouse=True)
def _small_limits() -> Iterator[None]:
    with small_limits(index_interval=200, scan_chunk=2000):
        yield


class Faults:
    """Which operations fail: none, those of a stretch, or each one with some probability."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.error: type[StorageError] = rng.choice((DiskFull, DiskFull, StorageError))
        self.probability = 0.0
        self.read_probability = 0.0
        self.refused: list[Operation] = []
        self.unread = 0

    def __call__(self, operation: Operation) -> StorageError | None:
        if self.rng.random() >= self.probability:
            return None
        if operation.kind in ("remove", "remove_directory") and self.error is DiskFull:
            return None
        self.refused.append(operation)
        return self.error(f"planted: {operation.kind} {operation.path}")

    def refuse_read(self, path: str) -> StorageError | None:
        if not self.read_probability or self.rng.random() >= self.read_probability:
            return None
        self.unread += 1
        return StorageError(f"planted: read {path}")


@dataclass(frozen=True)
class Work:
    actions: list[Callable[[World], None]]
    weights: tuple[int, ...]
    reads_fail: bool = False


WRITES: Final = Work(ACTIONS, WEIGHTS)
EVERYTHING: Final = Work(MORE_ACTIONS, MORE_WEIGHTS, reads_fail=True)


def work_on_a_bad_disk(world: World, faults: Faults, steps: int, work: Work) -> None:
    for _ in range(steps):
        faults.probability = world.rng.choice((0.0, 0.0, 0.05, 0.3, 1.0))
        if work.reads_fail:
            faults.read_probability = world.rng.choice((0.0, 0.0, 0.0, 0.05, 0.3, 1.0))
        action = world.rng.choices(work.actions, work.weights)[0]
        world.doing = f"{action.__name__} on a bad disk"
        before = world.log.log_end_offset
        try:
            action(world)
        except StorageError:
            faults.probability = faults.read_probability = 0.0
            if action is World.append:
                assert world.log.log_end_offset == before, "a part of an append that failed was kept"
            if action in (World.append, World.replicate):
                world.memory.failed |= set(world.memory.attempted)
            look_around(world)
        faults.probability = faults.read_probability = 0.0
        world.memory.synced_end = world.log.synced_end_offset
        world.now += world.rng.choice((0, SECOND))


def is_usable(log: PartitionLog) -> bool:
    try:
        return log.is_loaded and log.log_end_offset >= 0 and log.durability.failure is None
    except LogClosed:
        return False


def look_around(world: World) -> None:
    """What can be read now is right; if the log takes no more changes, a new start brings it back."""
    log, memory = world.log, world.memory
    if is_usable(log):
        found = {stored.offset: stored for stored in read_all(log)}
        assert all(memory.history[at] == stored for at, stored in found.items())
        memory.synced_end = log.synced_end_offset
        if memory.truncating is None:
            return
    with contextlib.suppress(StorageError):  # the failure that is known
        log.close()
    world.reopen()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_disk_that_refuses_costs_nothing_that_was_acknowledged(part: int) -> None:
    seeds = [int(ONLY)] if ONLY else range(FIRST + part * SEEDS_PER_PART, FIRST + (part + 1) * SEEDS_PER_PART)
    refused = 0
    for seed in seeds:
        try:
            refused += one_life(seed)
        except BaseException:
            print(f"BASCULE_FAULT_SEED={seed}")
            raise
    assert refused > len(seeds)


@pytest.mark.parametrize(
    "seed", [900000047287, 900000053807, 900000012141, 900000048294, 900000016125, 900000058116, 930000022596]
)
def test_a_seed_that_once_lost_something(seed: int) -> None:
    """A seed means another history when the log does other operations; test_log_refused_appends.py has these failures by hand."""
    one_life(seed)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(2704, id="the index with the end of a gap was not synced"),
        pytest.param(3374, id="a failed roll left an empty file in a gap"),
        pytest.param(2222, id="rubbish before the empty file of a failed roll"),
        pytest.param(960000000399, id="a reset that failed brought back what retention had removed"),
        pytest.param(110858, id="a truncation within a gap that did not begin"),
    ],
)
def test_a_seed_with_failing_reads_that_once_lost_something(seed: int) -> None:
    harder_life(seed)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_disk_that_fails_to_read_as_well_costs_nothing_that_was_acknowledged(part: int) -> None:
    """Reads fail or have the result that they have on a good disk; the log also follows a leader with gaps."""
    try_seeds(harder_life, range(FIRST + part * SEEDS_PER_PART, FIRST + (part + 1) * SEEDS_PER_PART))


@pytest.mark.soak
def test_a_disk_that_refuses_costs_nothing_for_a_long_time(soak_seconds: float) -> None:
    try_new_seeds(one_life, soak_seconds / 2)
    try_new_seeds(harder_life, soak_seconds / 2)


def one_life(seed: int, work: Work = WRITES) -> int:
    world = World(seed)
    faults = Faults(world.rng)
    world.live(0)
    world.disk.refuse, world.disk.refuse_read, world.has_bad_disk = faults, faults.refuse_read, True
    try:
        work_on_a_bad_disk(world, faults, 25, work)
        world.disk.refuse = world.disk.refuse_read = None
        if world.rng.random() < 0.5:
            world.lose_power()
        else:
            world.kill()
        world.live(3)
    except PowerLoss:
        raise AssertionError("the power did not fail") from None
    return len(faults.refused) + faults.unread


def harder_life(seed: int) -> int:
    """Reads fail, too; the log also follows a leader, and is read while it is written."""
    return one_life(seed, EVERYTHING)


# ── a full disk ──────────────────────────────────────────────────────────────────────────────────


def filled(disk: SimulatedDisk, segment_bytes_max: int = 1 << 20) -> PartitionLog:
    options = LogOptions(segment_bytes_max=segment_bytes_max)
    log = PartitionLog(DIRECTORY, options, disk=disk, syncer=ManualSyncer(), clock=lambda: SECOND)
    for number in range(5):
        log.append(batch_of([Draft(b"key", b"value %d" % number)] * 3), leader_epoch=1)
    return log


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: disk.content(f"{DIRECTORY}/{name}") for name in disk.list_directory(DIRECTORY)}


@pytest.mark.parametrize("segment_bytes_max", [1, 200, 1 << 20])
@pytest.mark.parametrize("leader_epoch", [1, 2])
@pytest.mark.parametrize("failing", range(1, 30))
def test_an_append_without_room_leaves_nothing_behind(segment_bytes_max: int, leader_epoch: int, failing: int) -> None:
    """Whichever of its operations fails: the next append, with room, gets the same offset."""
    disk = SimulatedDisk(failing)
    log = filled(disk, segment_bytes_max)
    stop = disk.operations + failing
    disk.refuse = lambda operation: DiskFull("planted") if operation.number >= stop else None
    more = batch_of([Draft(b"key", b"more" * 20)])
    try:
        appended = log.append(more, leader_epoch=leader_epoch)
    except DiskFull:
        disk.refuse = None
        assert log.log_end_offset == 15
        assert [stored.offset for stored in read_all(log)] == list(range(15))
        appended = log.append(more, leader_epoch=leader_epoch)
    disk.refuse = None
    assert appended.base_offset == 15
    log.sync()
    log.close()
    again = PartitionLog(DIRECTORY, disk=disk, syncer=ManualSyncer())
    assert again.open().is_clean
    assert [stored.offset for stored in read_all(again)] == list(range(16))
    assert again.latest_epoch == leader_epoch


def test_a_full_disk_refuses_again_and_again_and_the_file_does_not_grow() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    before = contents(disk)
    disk.refuse = lambda operation: DiskFull("planted") if operation.kind == "write" else None
    for _ in range(50):
        with pytest.raises(DiskFull):
            log.append(batch_of([Draft(None, b"no room")]))
    assert contents(disk) == before
    disk.refuse = None
    assert log.append(batch_of([Draft(None, b"room")])).base_offset == 15


def test_an_index_without_room_does_not_stop_the_log() -> None:
    """Data is synced; entries that could not be written are found by scanning."""
    disk = SimulatedDisk()
    log = filled(disk)
    disk.refuse = lambda operation: (
        DiskFull("planted") if operation.kind == "write" and operation.path.endswith(".index") else None
    )
    log.sync()
    assert log.synced_end_offset == 15
    log.append(batch_of([Draft(None, b"goes on")]))
    log.sync()
    disk.refuse = None
    log.close()
    assert len(read_all(PartitionLog(DIRECTORY, disk=disk, syncer=ManualSyncer()))) == 16
