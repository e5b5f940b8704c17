"""Leader epochs: the cache, its file, and the leaders it keeps out."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bascule.errors import EpochFenced, StorageError
from bascule.log import PartitionLog
from bascule.log.core.epochs import EpochCache, EpochEntry, format_epochs, parse_epochs
from bascule.log.disk.operations import PosixDisk
from bascule.log.recovery.leader_epochs import read_epochs
from tests.unit.log.log_helpers import (
    Logs,
    WatchedDisk,
    batch_of,
    batch_positions,
    epoch_starts,
    everything,
    flip,
    log_files,
    offsets,
    put,
    put_values,
    refuse,
    stored,
)


def cache(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(EpochEntry(*entry) for entry in entries)


# ── the cache ────────────────────────────────────────────────────────────────────────────────────


def test_epochs_are_assigned_only_forward() -> None:
    known = cache((2, 0), (4, 10))
    assert not known.assign(4, 20)
    assert not known.assign(3, 20)
    assert known == cache((2, 0), (4, 10))
    assert known.assign(5, 20)
    assert known == cache((2, 0), (4, 10), (5, 20))


def test_an_epoch_that_held_nothing_is_dropped_by_the_next() -> None:
    known = cache((1, 0), (2, 10))
    assert known.assign(3, 10)
    assert known == cache((1, 0), (3, 10))
    assert known.assign(4, 5)
    assert known == cache((1, 0), (4, 5))


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (100, [(1, 0), (2, 10), (3, 20)]),
        (21, [(1, 0), (2, 10), (3, 20)]),
        (20, [(1, 0), (2, 10)]),
        (1, [(1, 0)]),
        (0, []),
    ],
)
def test_clearing_the_latest_forgets_what_begins_at_or_behind(offset: int, left: list[tuple[int, int]]) -> None:
    known = cache((1, 0), (2, 10), (3, 20))
    assert known.clear_latest(offset) == (len(left) < 3)
    assert known == cache(*left)


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (0, [(1, 0), (2, 10), (3, 20)]),
        (5, [(1, 5), (2, 10), (3, 20)]),
        (9, [(1, 9), (2, 10), (3, 20)]),
        (10, [(2, 10), (3, 20)]),
        (15, [(2, 15), (3, 20)]),
        (20, [(3, 20)]),
        (99, [(3, 99)]),
    ],
)
def test_clearing_the_earliest_rebases_the_epoch_that_holds_the_new_start(
    offset: int, left: list[tuple[int, int]]
) -> None:
    known = cache((1, 0), (2, 10), (3, 20))
    assert known.clear_earliest(offset) == (offset != 0)
    assert known == cache(*left)


def test_clearing_the_earliest_before_all_epochs_changes_nothing() -> None:
    known = cache((1, 50))
    assert not known.clear_earliest(10)
    assert known == cache((1, 50))
    assert not EpochCache().clear_earliest(10)


@pytest.mark.parametrize(("epoch", "end"), [(0, 0), (1, 10), (2, 20), (3, 20), (4, 20), (5, 33), (9, 33)])
def test_an_epoch_ends_where_the_next_one_starts(epoch: int, end: int) -> None:
    assert cache((1, 0), (2, 10), (5, 20)).end_offset(epoch, 33) == end


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (4, 0), (5, 1), (9, 1), (10, 2), (99, 2)])
def test_every_offset_belongs_to_the_epoch_that_wrote_it(offset: int, epoch: int) -> None:
    assert cache((1, 5), (2, 10)).epoch_of(offset) == epoch


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("entries", [[], [(1, 0)], [(1, 0), (2, 10), (900, 12345678901)]])
def test_what_is_written_is_read_back(entries: list[tuple[int, int]]) -> None:
    assert parse_epochs(format_epochs(cache(*entries))) == cache(*entries)


def test_the_file_is_the_text_that_was_documented() -> None:
    assert format_epochs(cache((1, 0), (3, 25))) == "0\n2\n1 0\n3 25\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("0", 1),
        ("1\n0\n", 1),
        ("x\n0\n", 1),
        ("0\n1\n", 2),
        ("0\n2\n1 0\n", 2),
        ("0\n0\n1 0\n", 2),
        ("0\n-1\n", 2),
        ("0\nx\n", 2),
        ("0\n1\n1\n", 3),
        ("0\n1\n1 0 0\n", 3),
        ("0\n1\na b\n", 3),
        ("0\n1\n-1 0\n", 3),
        ("0\n1\n1 -5\n", 3),
        ("0\n1\n0 0\n", 3),
        ("0\n2\n1 0\n1 5\n", 4),
        ("0\n2\n2 0\n1 5\n", 4),
        ("0\n2\n1 5\n2 5\n", 4),
        ("0\n2\n1 5\n2 4\n", 4),
    ],
)
def test_the_parser_names_the_line_that_is_wrong(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"line {line}:"):
        parse_epochs(text)


def epochs_file(log: PartitionLog) -> Path:
    return Path(log.directory, "leader-epoch-checkpoint")


def checkpoint_file(log: PartitionLog) -> Path:
    return Path(log.directory, "checkpoint")


def with_epochs(logs: Logs, segment_bytes_max: int = 200) -> PartitionLog:
    log = logs.open(segment_bytes_max=segment_bytes_max)
    for epoch, count in ((1, 4), (3, 2), (4, 5)):
        put(log, *[(None, b"x")] * count, epoch=epoch)
    assert log.epoch_entries == (EpochEntry(1, 0), EpochEntry(3, 4), EpochEntry(4, 6))
    return log


GARBAGE = [None, b"", b"garbage\n", b"0\n9\n1 0\n", b"\xff\xfe\x00" * 50, b"1\n1\n1 0\n"]


@pytest.mark.parametrize("content", GARBAGE)
def test_a_file_that_is_lost_or_garbage_is_made_again_from_the_batches(logs: Logs, content: bytes | None) -> None:
    log = with_epochs(logs)
    before = log.epoch_entries
    log.close()
    intact = epochs_file(log).read_bytes()
    epochs_file(log).unlink() if content is None else epochs_file(log).write_bytes(content)
    log = logs.reopen(log)
    assert "leader-epoch-checkpoint" in log.open().rebuilt
    assert log.epoch_entries == before
    assert epochs_file(log).read_bytes() == intact


def test_a_rebuilt_cache_steps_over_damage(logs: Logs) -> None:
    log = with_epochs(logs, segment_bytes_max=100_000)
    log.close()
    path = log_files(log)[0]
    flip(path, batch_positions(path)[2] + 8)
    epochs_file(log).unlink()
    assert logs.reopen(log).epoch_entries == (EpochEntry(1, 0), EpochEntry(3, 4), EpochEntry(4, 6))


def test_an_epoch_whose_records_were_torn_off_is_forgotten(logs: Logs) -> None:
    log = with_epochs(logs, segment_bytes_max=100_000)
    crashed = logs.after_crash(log)
    path = log_files(crashed)[0]
    with path.open("r+b") as file:
        file.truncate(batch_positions(path)[5] + 30)
    assert offsets(crashed) == [0, 1, 2, 3, 4]
    assert crashed.epoch_entries == (EpochEntry(1, 0), EpochEntry(3, 4))


def test_a_leader_that_wrote_nothing_yet_is_remembered(logs: Logs) -> None:
    log = with_epochs(logs)
    log.begin_epoch(9)
    log = logs.reopen(log)
    assert log.latest_epoch == 9
    assert log.end_offset_of_epoch(4) == 11
    assert log.end_offset_of_epoch(9) == 11


def test_a_leader_that_died_before_its_first_record_does_not_cut_what_its_successor_wrote(logs: Logs) -> None:
    """Its epoch was not on disk; a checkpoint that knew it made records of the former epoch, which came from elsewhere, look bad."""
    log = logs.open()
    put(log, (None, b"first"), epoch=3)
    log.begin_epoch(4)
    log.sync()
    log.write_checkpoint()
    log = logs.after_crash(log)
    assert log.latest_epoch == 3
    put(log, (None, b"of another replica"), epoch=3)
    log.sync()
    assert [record.value for record in everything(logs.after_crash(log, "crashed again"))] == [
        b"first",
        b"of another replica",
    ]


def test_an_epoch_is_on_the_platter_before_a_checkpoint_covers_its_first_record(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 1)
    log.sync()
    disk.seen.clear()
    put(log, (None, b"x"), epoch=5)
    log.sync()
    log.write_checkpoint()
    synced = disk.seen.index(("sync", "leader-epoch-checkpoint.tmp"))
    renamed = disk.seen.index(("rename", "leader-epoch-checkpoint.tmp"))
    on_the_platter = disk.seen.index(("sync_directory", Path(log.directory).name), renamed)
    covered = disk.seen.index(("rename", "checkpoint.tmp"))
    assert synced < renamed < on_the_platter < covered


def test_an_append_in_a_new_epoch_syncs_nothing(logs: Logs) -> None:
    """The event loop of a broker appends."""
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    log.begin_epoch(1)
    disk.seen.clear()
    put(log, (None, b"x"), epoch=1)
    put(log, (None, b"x"), epoch=2)
    log.begin_epoch(3)
    put(log, (None, b"x"), epoch=3)
    assert set(disk.seen) == {("open", f"{0:020d}.log"), ("write", f"{0:020d}.log")}


@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_an_append_in_a_new_epoch_does_not_wait_for_a_slow_disk(logs: Logs, operation: str) -> None:
    """While the sync thread saves the epoch before, or the records."""
    is_syncing, may_go_on = threading.Event(), threading.Event()

    def wait(doing: str, _path: str) -> None:
        if doing == operation:
            is_syncing.set()
            assert may_go_on.wait(60)

    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put(log, (None, b"x"), epoch=1)
    log.sync()
    disk.before = wait
    saving = threading.Thread(target=log.settle)
    saving.start()
    assert is_syncing.wait(60)
    put(log, (None, b"x"), epoch=2)
    put(log, (None, b"x"), epoch=3)
    log.begin_epoch(4)
    assert log.log_end_offset == 3
    may_go_on.set()
    saving.join()
    log.settle()
    assert read_epochs(PosixDisk(), log.directory) == cache((1, 0), (2, 1), (3, 2))


@pytest.mark.parametrize("was_rolled", [False, True])
@pytest.mark.parametrize("is_covered", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_epoch_that_follows_a_gap_begins_with_the_gap_also_after_a_crash(
    logs: Logs, was_rolled: bool, is_covered: bool, is_lost: bool
) -> None:
    leader = logs.open("leader")
    leader.reset_to(5)
    put(leader, (b"k", b"x"), epoch=7)
    log = logs.open(compact=True)
    put(log, (b"k", b"x"), (b"k", b"y"), epoch=3)
    if was_rolled:
        log.roll()
    log.sync()
    if is_covered:
        log.write_checkpoint()
    log.append_replicated(stored(leader))
    assert log.epoch_entries == (EpochEntry(3, 0), EpochEntry(7, 2))
    crashed = logs.after_crash(log)
    if is_lost and epochs_file(crashed).exists():
        epochs_file(crashed).unlink()
    assert crashed.epoch_entries == (EpochEntry(3, 0), EpochEntry(7, 2))
    assert offsets(crashed) == [0, 1, 5]


def test_an_epoch_without_records_that_a_truncation_removed_does_not_come_back(logs: Logs) -> None:
    """From the file it would: records of an earlier epoch, which came from another replica, would look refused."""
    log = logs.open()
    put(log, (None, b"first"), epoch=3)
    log.begin_epoch(9)
    log = logs.reopen(log)
    assert read_epochs(PosixDisk(), log.directory) == cache((3, 0), (9, 1))
    log.truncate(1)
    put(log, (None, b"of another replica"), epoch=4)
    log.sync()
    crashed = logs.after_crash(log)
    assert [record.value for record in everything(crashed)] == [b"first", b"of another replica"]
    assert crashed.epoch_entries == (EpochEntry(3, 0), EpochEntry(4, 1))


@pytest.mark.parametrize("is_covered", [False, True])
def test_an_epoch_is_known_after_a_crash_with_and_without_a_checkpoint(logs: Logs, is_covered: bool) -> None:
    log = logs.open()
    put(log, (None, b"x"), epoch=1)
    log.sync()
    log.write_checkpoint()
    put(log, (None, b"x"), epoch=4)
    log.sync()
    if is_covered:
        log.write_checkpoint()
    log = logs.after_crash(log)
    assert log.epoch_entries == (EpochEntry(1, 0), EpochEntry(4, 1))
    with pytest.raises(EpochFenced):
        put(log, (None, b"late"), epoch=3)


def test_a_checkpoint_waits_for_epochs_that_cannot_be_saved(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put(log, (None, b"x"), epoch=1)
    log.sync()
    log.write_checkpoint()
    before = checkpoint_file(log).read_bytes()
    put(log, (None, b"x"), epoch=2)
    log.sync()
    disk.before = refuse("write", "leader-epoch-checkpoint.tmp")
    with pytest.raises(StorageError):
        log.write_checkpoint()
    assert checkpoint_file(log).read_bytes() == before
    put(log, (None, b"x"), epoch=2)
    disk.before = None
    log.write_checkpoint()
    assert checkpoint_file(log).read_bytes() != before
    assert read_epochs(PosixDisk(), log.directory) == cache((1, 0), (2, 1))


# ── fencing ──────────────────────────────────────────────────────────────────────────────────────


def test_a_deposed_leader_cannot_append(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, b"old"), epoch=3)
    put(log, (None, b"new"), epoch=5)
    for epoch in (3, 4, 0):
        with pytest.raises(EpochFenced, match="older than 5"):
            log.append(batch_of([(None, b"late")]), leader_epoch=epoch)
    with pytest.raises(EpochFenced):
        log.begin_epoch(4)
    assert [record.value for record in everything(log)] == [b"old", b"new"]


def test_fencing_survives_a_reopen_and_the_loss_of_the_file(logs: Logs) -> None:
    log = with_epochs(logs)
    log.close()
    epochs_file(log).unlink()
    with pytest.raises(EpochFenced):
        put(logs.reopen(log), (None, b"late"), epoch=3)


def test_without_an_epoch_records_belong_to_the_latest_one(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, b"before any"))
    put(log, (None, b"a"), epoch=2)
    put(log, (None, b"b"))
    assert [record.leader_epoch for record in everything(log)] == [0, 2, 2]


def test_the_same_leader_may_go_on(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, b"a"), (None, b"b"), epoch=2)
    log.begin_epoch(2)
    assert log.epoch_entries == (EpochEntry(2, 0),)
    assert epoch_starts(log) == {2: 0}


def test_epoch_numbers_may_be_as_large_as_a_raft_index(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, b"a"), epoch=(1 << 63) + 5)
    assert logs.reopen(log).latest_epoch == (1 << 63) + 5
