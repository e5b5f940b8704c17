"""Bytes that a refused append leaves in a file, if the disk also refuses to remove them: they cost no record and are no record."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest

from bascule.errors import DiskFull, StorageError
from bascule.log import LogOptions, PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from tests.simulation.log.simulated_disk import Operation, SimulatedDisk
from tests.support.logs import SECOND, Draft, ManualSyncer, batch_of, epoch_of, read_all

DIRECTORY: Final = "/data/streams/refused/0"
FIRST_SEGMENT: Final = f"{DIRECTORY}/{0:020d}.log"
FIRST_INDEX: Final = f"{DIRECTORY}/{0:020d}.index"


def opened(disk: SimulatedDisk, options: LogOptions | None = None) -> PartitionLog:
    return PartitionLog(DIRECTORY, options, disk=disk, syncer=ManualSyncer(), clock=lambda: SECOND)


def append(log: PartitionLog, count: int, leader_epoch: int = 1) -> None:
    log.append(batch_of([Draft(b"key", b"value %d" % number) for number in range(count)]), leader_epoch=leader_epoch)


def offsets(log: PartitionLog) -> list[int]:
    return [stored.offset for stored in read_all(log)]


def batch_after(disk: SimulatedDisk, leader_epoch: int = 1) -> bytes:
    """The batch that an append would add to the first segment now."""
    copy = disk.copy()
    before = len(copy.content(FIRST_SEGMENT))
    append(opened(copy), 2, leader_epoch)
    return copy.content(FIRST_SEGMENT)[before:]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("rubbish", ["bytes", "half a batch", "a batch"])
def test_rubbish_after_a_sealed_segment_costs_no_later_segment(
    rubbish: str, has_checkpoint: bool, has_index: bool
) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    append(log, 3)
    log.sync()
    if has_checkpoint:
        log.write_checkpoint(durable=True)
    refused = batch_after(disk)
    log.roll()
    append(log, 4)
    log.sync()
    disk = disk.kill()
    left = {"bytes": b"\x5a" * 50, "half a batch": refused[:-20], "a batch": refused}[rubbish]
    disk.put(FIRST_SEGMENT, disk.content(FIRST_SEGMENT) + left)
    if not has_index:
        disk.take_away(FIRST_INDEX)
    log = opened(disk)
    report = log.open()
    assert offsets(log) == list(range(7))
    assert not report.damage and not report.missing and report.cut_reason is None
    assert report.leftover_bytes == len(left)
    append(log, 1)
    log.close()
    again = opened(disk)
    assert again.open().is_clean
    assert offsets(again) == list(range(8))


def test_rubbish_before_the_gap_of_a_follower_costs_no_later_segment() -> None:
    """The segment before a gap ends where its index says, not where the next one begins."""
    disk = SimulatedDisk()
    with_gap(disk)
    disk = disk.kill()
    disk.put(FIRST_SEGMENT, disk.content(FIRST_SEGMENT) + b"\x5a" * 50)
    log = opened(disk, LogOptions(compact=True))
    assert log.open().leftover_bytes == 50
    assert offsets(log) == [0, 1, 2, 9, 10]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_refused_batch_does_not_come_back_under_a_newer_epoch(has_checkpoint: bool) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    append(log, 3)
    log.sync()
    if has_checkpoint:
        log.write_checkpoint(durable=True)
    refused = batch_after(disk)
    log.begin_epoch(2)
    log.epochs.save(begun=True)
    disk = disk.kill()
    disk.put(FIRST_SEGMENT, disk.content(FIRST_SEGMENT) + refused)
    log = opened(disk)
    log.open()
    assert offsets(log) == [0, 1, 2]
    append(log, 1, leader_epoch=2)
    assert [epoch_of(log.epoch_entries, stored.offset) for stored in read_all(log)] == [1, 1, 1, 2]


def test_a_clean_stop_removes_what_a_refused_append_left() -> None:
    disk = SimulatedDisk(3)
    log = opened(disk)
    append(log, 3)
    log.sync()
    before = disk.content(FIRST_SEGMENT)
    disk.refuse = refusing("write", "truncate")
    with pytest.raises(DiskFull):
        append(log, 40)
    assert len(disk.content(FIRST_SEGMENT)) > len(before), "the seed must leave a part of the batch"
    disk.refuse = None
    log.close()
    assert disk.content(FIRST_SEGMENT) == before


def test_a_segment_that_was_rolled_before_a_kill_is_synced_by_the_next_open() -> None:
    """Otherwise power loss brings back what a refused append had left in it, behind records that are synced later."""
    disk = SimulatedDisk()
    log = opened(disk)
    append(log, 3)
    log.sync()
    log.write_checkpoint(durable=True)
    log.roll()
    disk = disk.kill()
    synced: list[str] = []

    def watch(operation: Operation) -> None:
        if operation.kind == "sync":
            synced.append(operation.path)

    disk.refuse = watch
    opened(disk).open()
    assert FIRST_SEGMENT in synced


def refusing(*kinds: str, path: str = "") -> Callable[[Operation], StorageError | None]:
    def refuse(operation: Operation) -> StorageError | None:
        return DiskFull("planted") if operation.kind in kinds and operation.path.endswith(path) else None

    return refuse


def test_what_retention_removed_stays_removed_after_a_reset_that_failed() -> None:
    disk = SimulatedDisk()
    log = opened(disk, LogOptions(segment_bytes_max=1, retention_records_max=1))
    for _ in range(3):
        append(log, 2)
    log.advance_high_watermark(5)
    disk.refuse = refusing("remove")
    assert apply_retention(log).failures
    disk.refuse = refusing("open", path=f"{6:020d}.log")
    with pytest.raises(StorageError):
        log.reset_to(6)
    disk.refuse = None
    log = opened(disk.kill())
    log.open()
    assert log.log_start_offset >= 4
    assert offsets(log) == []


def test_a_reset_removes_the_file_that_a_failed_roll_left() -> None:
    """Alone in the directory, the empty file would decide where the log begins."""
    disk = SimulatedDisk()
    log = opened(disk)
    append(log, 12)
    disk.refuse = refusing("write", "remove")
    with pytest.raises(DiskFull):
        log.roll()
    disk.refuse = None
    log.truncate(5)
    disk.refuse = refusing("open", path=f"{8:020d}.log")
    with pytest.raises(StorageError):
        log.reset_to(8)
    disk.refuse = None
    log = opened(disk.kill())
    log.open()
    assert log.log_start_offset <= 8


def test_a_reset_to_the_place_of_a_segment_that_retention_could_not_remove() -> None:
    """The next tick of the cleaner removes no file of the new log."""
    disk = SimulatedDisk()
    log = opened(disk, LogOptions(segment_bytes_max=1, retention_records_max=1))
    for _ in range(3):
        append(log, 2)
    log.advance_high_watermark(5)
    disk.refuse = refusing("remove")
    assert apply_retention(log).failures
    disk.refuse = None
    log.reset_to(0)
    append(log, 1)
    apply_retention(log)
    log.sync()
    log.close()
    assert offsets(opened(disk)) == [0]


def test_an_epoch_that_power_loss_removed_does_not_remove_later_records() -> None:
    """Also if the disk is full when the log is opened, so that the file of epochs cannot be replaced."""
    disk = SimulatedDisk()
    log = opened(disk)
    append(log, 3)
    log.sync()
    log.write_checkpoint(durable=True)
    append(log, 2)
    append(log, 2, leader_epoch=2)
    log.epochs.save()
    left = disk.content(FIRST_SEGMENT)
    disk = disk.kill()
    disk.put(FIRST_SEGMENT, left[: len(left) // 2])  # power loss: epoch 2, which begins at 5, has no record any more
    disk.refuse = refusing("open", path=".tmp")
    log = opened(disk)
    log.open()
    end = log.log_end_offset
    assert end < 5 and log.latest_epoch == 1
    append(log, 6)
    log.sync()
    log = opened(disk.kill())
    log.open()
    assert offsets(log) == list(range(end + 6))
    assert [entry.epoch for entry in log.epoch_entries] == [1]


# ── gaps of a follower ───────────────────────────────────────────────────────────────────────────


def with_gap(disk: SimulatedDisk, *, rolled: bool = False) -> PartitionLog:
    """Offsets 0 to 2, and 9 to 10 after a gap that the leader's compaction left."""
    leader = opened(SimulatedDisk(), LogOptions(compact=True))
    append(leader, 9)
    append(leader, 2)
    data = leader.read(9, committed=False)
    log = opened(disk, LogOptions(compact=True))
    append(log, 3)
    if rolled:
        log.roll()
    log.sync()
    log.write_checkpoint(durable=True)
    assert data is not None
    log.append_replicated(data.data)
    log.sync()
    return log


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("opens", [0, 1])
@pytest.mark.parametrize("seed", range(12))
def test_synced_records_after_a_gap_survive_power_loss(seed: int, opens: int, rolled: bool) -> None:
    """Only the index of the segment before it has the end of the gap."""
    disk = SimulatedDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    with_gap(disk, rolled=rolled)
    for _ in range(opens):
        disk = disk.kill()
        opened(disk).open()
    log = opened(disk.crash(random.Random(seed)))
    report = log.open()
    assert offsets(log) == [0, 1, 2, 9, 10]
    assert not report.missing and not report.damage and report.cut_reason is None


def test_a_gap_is_not_reported_as_missing_if_its_index_is_lost_later() -> None:
    disk = SimulatedDisk()
    log = with_gap(disk)
    append(log, 1)
    log.close()
    disk.take_away(FIRST_INDEX)
    log = opened(disk)
    report = log.open()
    assert offsets(log) == [0, 1, 2, 9, 10, 11]
    assert not report.missing and not report.damage


def test_an_empty_file_of_a_failed_roll_in_a_gap_costs_no_record() -> None:
    disk = SimulatedDisk()
    with_gap(disk)
    disk = disk.kill()
    disk.put(f"{DIRECTORY}/{3:020d}.log", b"")
    log = opened(disk)
    log.open()
    assert offsets(log) == [0, 1, 2, 9, 10]


def test_without_a_checkpoint_rubbish_before_an_empty_file_is_no_damage() -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    append(log, 3)
    log.sync()
    disk = disk.kill()
    disk.put(FIRST_SEGMENT, disk.content(FIRST_SEGMENT) + b"\x5a" * 50)
    disk.put(f"{DIRECTORY}/{5:020d}.log", b"")
    log = opened(disk)
    report = log.open()
    assert not report.damage and not report.missing
    assert (offsets(log), log.log_end_offset) == ([0, 1, 2], 3)


def test_a_log_that_ends_with_a_gap_continues_in_a_new_segment() -> None:
    """Otherwise the next batch would follow the last record before the gap, and be taken for damage."""
    disk = SimulatedDisk()
    log = with_gap(disk)
    log.roll()
    append(log, 1)
    disk = disk.kill()
    disk.take_away(f"{DIRECTORY}/{9:020d}.log")  # power loss
    disk.take_away(f"{DIRECTORY}/{9:020d}.index")
    log = opened(disk)
    log.open()
    assert (offsets(log), log.log_end_offset) == ([0, 1, 2], 9)
    append(log, 2)
    log.sync()
    assert offsets(log) == [0, 1, 2, 9, 10]
    log = opened(disk.kill())
    log.open()
    assert offsets(log) == [0, 1, 2, 9, 10]


def test_an_index_of_a_roll_that_failed_hides_no_later_record() -> None:
    """The segment was sealed, the roll failed, and appends went on: power loss may bring back the index of that moment."""
    disk = SimulatedDisk()
    log = opened(disk)
    append(log, 1)
    log.segments.active.seal()
    stale = disk.content(FIRST_INDEX)
    append(log, 6)
    log.roll()
    append(log, 2)
    log.close()
    disk = disk.copy()
    disk.put(FIRST_INDEX, stale)
    log = opened(disk)
    report = log.open()
    assert offsets(log) == list(range(9))
    assert not report.missing and not report.damage
