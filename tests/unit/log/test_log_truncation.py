"""Cutting a log back: where it may be cut, what goes with the records, and what has to be on the platter afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.errors import CallerError, CorruptBatch, OffsetOutOfRange, StorageError
from bascule.kernels.records.records import Record
from bascule.log import LogReader, PartitionLog
from bascule.log.cleaning.compactor import compact
from bascule.log.core.epochs import EpochEntry
from bascule.log.disk.master_keys import MasterKeys
from tests.unit.log.log_helpers import (
    ONE_RECORD_PER_SEGMENT,
    Logs,
    WatchedDisk,
    bases,
    batch_of,
    batch_positions,
    commit_all,
    everything,
    flip,
    index_files,
    log_files,
    offsets,
    pairs,
    put,
    put_batch,
    put_values,
    refuse,
)


def filled(logs: Logs, segment_bytes_max: int = 200) -> PartitionLog:
    """Ten records in segments of three."""
    log = logs.open(segment_bytes_max=segment_bytes_max)
    put_values(log, 10)
    return log


@pytest.mark.parametrize("offset", range(11))
@pytest.mark.parametrize("segment_bytes_max", [1, 200, 100_000], ids=["one each", "three each", "all in one"])
def test_everything_at_or_behind_the_offset_is_gone(logs: Logs, offset: int, segment_bytes_max: int) -> None:
    log = filled(logs, segment_bytes_max)
    before = everything(log)
    log.truncate(offset)
    assert everything(log) == before[:offset]
    assert (log.log_end_offset, log.record_count) == (offset, offset)
    assert put(log, (None, b"next")) == offset
    log = logs.reopen(log)
    assert log.open().is_clean
    assert offsets(log) == list(range(offset + 1))


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.parametrize("sealed", [False, True])
def test_a_batch_is_cut_in_its_middle(logs: Logs, offset: int, sealed: bool) -> None:
    keys = MasterKeys(b"k" * 32)
    log = logs.open(compression="zstd" if sealed else "none", encryption=sealed, keys=keys)
    for first in (0, 4):
        log.append(batch_of([(b"k%d" % first, b"v" * 100)] * 4, [0, 10, 20, 30]), timestamp=first * 100)
    before = everything(log)
    log.truncate(offset)
    assert everything(log) == before[:offset]
    assert log.last_timestamp == before[offset - 1].timestamp
    log = logs.reopen(log, keys=keys)
    assert everything(log) == before[:offset]
    assert put(log, (None, b"next")) == offset


def test_a_cut_into_a_sealed_segment_makes_it_active_again(logs: Logs) -> None:
    log = filled(logs)
    assert bases(log) == [0, 3, 6, 9]
    log.truncate(5)
    assert bases(log) == [0, 3]
    assert [int(path.stem) for path in index_files(log)] == [0, 3]
    put_values(log, 1)
    assert bases(log) == [0, 3]
    assert offsets(log) == list(range(6))


def test_truncating_at_or_behind_the_end_does_nothing(logs: Logs) -> None:
    log = filled(logs)
    before = {path.name: path.stat().st_mtime_ns for path in log_files(log)}
    log.truncate(10)
    log.truncate(5_000)
    assert {path.name: path.stat().st_mtime_ns for path in log_files(log)} == before
    assert log.log_end_offset == 10


def test_a_negative_offset_is_refused(logs: Logs) -> None:
    log = filled(logs)
    with pytest.raises(OffsetOutOfRange):
        log.truncate(-1)
    assert log.log_end_offset == 10


# ── committed records ────────────────────────────────────────────────────────────────────────────


def test_committed_records_are_not_truncated(logs: Logs) -> None:
    log = filled(logs)
    log.advance_high_watermark(6)
    with pytest.raises(CallerError, match="committed records up to 6"):
        log.truncate(6)
    assert offsets(log) == list(range(10))
    log.truncate(7)
    assert offsets(log) == list(range(7))
    assert log.high_watermark == 6


def test_committed_records_are_truncated_when_that_is_asked_for(logs: Logs) -> None:
    log = filled(logs)
    log.advance_high_watermark(6)
    log.truncate(4, allow_committed=True)
    assert (log.high_watermark, log.newest_offset) == (3, 3)
    assert logs.reopen(log).high_watermark == 3


def test_an_uncommitted_reader_behind_the_new_end_is_told(logs: Logs) -> None:
    log = filled(logs)
    reader = LogReader(log, 8, committed=False)
    log.truncate(5)
    with pytest.raises(OffsetOutOfRange):
        reader.poll()


# ── leader epochs ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("offset", "epochs"),
    [
        (10, [(1, 0), (2, 4), (5, 7)]),
        (8, [(1, 0), (2, 4), (5, 7)]),
        (7, [(1, 0), (2, 4)]),
        (5, [(1, 0), (2, 4)]),
        (4, [(1, 0)]),
        (0, []),
    ],
)
def test_truncation_trims_the_epoch_cache(logs: Logs, offset: int, epochs: list[tuple[int, int]]) -> None:
    log = logs.open(segment_bytes_max=200)
    for epoch, count in ((1, 4), (2, 3), (5, 3)):
        put(log, *[(None, b"x")] * count, epoch=epoch)
    log.truncate(offset)
    expected = tuple(EpochEntry(*entry) for entry in epochs)
    assert log.epoch_entries == expected
    assert logs.reopen(log).epoch_entries == expected


def test_an_epoch_that_was_truncated_away_does_not_fence_any_more(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, b"x"), epoch=1)
    put(log, (None, b"x"), epoch=9)
    log.truncate(1)
    put(log, (None, b"x"), epoch=4)
    assert log.latest_epoch == 4


# ── holes and damage ─────────────────────────────────────────────────────────────────────────────


def test_a_cut_into_a_hole_of_compaction_may_end_lower_than_asked(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"b", b"2"), (b"b", b"3"), (b"c", b"1"))
    commit_all(log)
    compact(log)
    assert offsets(log) == [0, 3, 4]
    log.truncate(2, allow_committed=True)
    assert offsets(log) == [0]
    assert log.log_end_offset in (1, 2)
    end = log.log_end_offset
    assert put(log, (b"d", b"1")) == end
    log = logs.reopen(log)
    assert log.open().missing == []
    assert offsets(log) == [0, end]


def test_a_cut_in_the_middle_of_a_compacted_batch_keeps_what_lies_before(logs: Logs) -> None:
    log = logs.open(compact=True)
    put_batch(log, *((b"k%d" % (number % 3), b"%d" % number) for number in range(9)))
    log.roll()
    put(log, (b"z", b"1"))
    log.advance_high_watermark(8)
    compact(log)
    assert offsets(log) == [6, 7, 8, 9]
    for cut, left in ((8, [6, 7]), (7, [6]), (6, []), (3, [])):
        log.truncate(cut, allow_committed=True)
        assert offsets(log) == left
        assert log.log_end_offset <= cut
    assert offsets(logs.reopen(log)) == []


@pytest.mark.parametrize("byte", [0, 8, 60])
def test_a_cut_behind_damage_keeps_what_lies_between(logs: Logs, byte: int) -> None:
    log = logs.open()
    put_values(log, 8)
    path = log_files(log)[0]
    flip(path, batch_positions(path)[3] + byte)
    log.truncate(6)
    assert log.log_end_offset == 6
    reader = LogReader(log, 4, committed=False)
    piece = reader.poll()
    assert piece is not None
    assert [record.offset for record in piece.records()] == [4, 5]
    with pytest.raises(CorruptBatch):
        log.read(3, committed=False)


def test_a_cut_at_the_end_removes_an_empty_epoch_and_no_damage(logs: Logs) -> None:
    """A follower asks for it; the damage has to stay damage, and must not become a gap that readers pass over."""
    log = logs.open()
    put_values(log, 4)
    log.begin_epoch(9)
    path = log_files(log)[0]
    flip(path, batch_positions(path)[3] + 60)
    log.truncate(4)
    assert log.latest_epoch < 9
    with pytest.raises(CorruptBatch):
        log.read(3, committed=False)


@pytest.mark.parametrize("byte", [0, 8, 60])
def test_a_cut_at_the_end_of_a_segment_with_a_damaged_tail_keeps_the_damage(logs: Logs, byte: int) -> None:
    log = logs.open()
    put_values(log, 4)
    path = log_files(log)[0]
    log.roll()
    put_values(log, 2)
    flip(path, batch_positions(path)[3] + byte)
    log.truncate(4)
    assert log.log_end_offset == 4
    put_values(log, 1)
    with pytest.raises(CorruptBatch):
        log.read(3, committed=False)
    assert [record.offset for record in everything_readable(log)] == [0, 1, 2]


def test_a_cut_within_damage_does_not_leave_a_gap_that_looks_compacted(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 2)
    path = log_files(log)[0]
    put_batch(log, *[(b"k", b"v")] * 5)
    flip(path, batch_positions(path)[2] + 60)
    log.truncate(4)
    assert log.log_end_offset == 2
    assert put(log, (None, b"next")) == 2


@pytest.mark.parametrize("byte", [0, 8, 60])
@pytest.mark.parametrize("offset", [3, 2])
def test_a_cut_at_or_before_damage_removes_it(logs: Logs, byte: int, offset: int) -> None:
    log = logs.open()
    put_values(log, 8)
    path = log_files(log)[0]
    flip(path, batch_positions(path)[3] + byte)
    log.truncate(offset)
    assert offsets(log) == list(range(offset))
    put_values(log, 3)
    assert offsets(logs.reopen(log)) == list(range(offset + 3))


def test_a_damaged_batch_that_has_to_be_cut_in_two_goes_as_a_whole(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 2)
    put_batch(log, *[(b"k", b"v")] * 5)
    path = log_files(log)[0]
    flip(path, path.stat().st_size - 1)
    log.truncate(4)
    assert log.log_end_offset in (2, 4)
    assert [record.offset for record in everything_readable(log)] == [0, 1]
    put(log, (None, b"next"))
    assert pairs_from(logs.reopen(log))[-1] == b"next"


def everything_readable(log: PartitionLog) -> list[Record]:
    piece = log.read(0, committed=False, bytes_max=1_000)
    assert piece is not None
    return piece.records()


def pairs_from(log: PartitionLog) -> list[bytes | None]:
    return [value for _, value in pairs(log)]


# ── durability ───────────────────────────────────────────────────────────────────────────────────


def test_a_truncation_is_on_the_platter_when_it_returns(logs: Logs) -> None:
    log = filled(logs)
    log.truncate(5)
    assert log.synced_end_offset == 5
    crashed = logs.after_crash(log)
    assert offsets(crashed) == [0, 1, 2, 3, 4]
    assert crashed.open().is_clean


def test_sealed_segments_that_were_never_synced_are_synced_by_a_truncation(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk, segment_bytes_max=200)
    put_values(log, 10)
    assert not [name for name in disk.names("sync") if name.endswith(".log")]
    log.truncate(8)
    assert log.synced_end_offset == 8
    synced = {name for name in disk.names("sync") if name.endswith(".log")}
    assert synced >= {f"{base:020d}.log" for base in (0, 3, 6)}


def test_newer_files_go_first_so_that_a_crash_leaves_no_hole(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk, segment_bytes_max=200)
    put_values(log, 10)
    disk.seen.clear()
    log.truncate(1)
    assert [name for name in disk.names("remove") if name.endswith(".log")] == [
        f"{base:020d}.log" for base in (9, 6, 3)
    ]


class Crash(Exception):
    pass


@pytest.mark.parametrize("count", range(12))
def test_a_crash_in_the_middle_of_a_truncation_leaves_a_log_without_holes(logs: Logs, count: int) -> None:
    left = [count]

    def before(operation: str, path: str) -> None:
        if operation in ("remove", "truncate", "rename", "write") and not path.endswith(".tmp"):
            if left[0] == 0:
                raise Crash
            left[0] -= 1

    disk = WatchedDisk()
    log = logs.open(disk=disk, segment_bytes_max=200)
    put_values(log, 10)
    log.settle()
    disk.before = before
    try:
        log.truncate(4)
    except Crash:
        disk.before = None
        end = len(offsets(log := logs.after_crash(log)))
        assert 4 <= end <= 10
        assert offsets(log) == list(range(end)), "no record below the end may be missing"
    disk.before = None
    log.truncate(4)
    assert offsets(log) == [0, 1, 2, 3]


def test_a_truncation_that_fails_half_way_takes_no_appends_until_the_log_is_opened_again(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk, segment_bytes_max=200)
    put_values(log, 10)
    log.settle()
    disk.before = refuse("remove", f"{6:020d}.log")
    with pytest.raises(StorageError):
        log.truncate(1)
    disk.before = None
    with pytest.raises(StorageError, match="refuses appends"):
        put_values(log, 1)
    log = logs.reopen(log)
    found = offsets(log)
    assert found == list(range(len(found)))
    assert put_values(log, 1) == log.newest_offset


def test_new_index_entries_reach_the_file_after_a_truncation(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 20, size=9_000)
    log.sync()
    log.truncate(4)
    put_values(log, 40, size=9_000)
    log.close()
    entries = (index_files(log)[0].stat().st_size - 64) // 24
    assert entries >= 20
    data = index_files(log)[0].read_bytes()
    assert data[64 + 24 * 10 : 64 + 24 * 11] != bytes(24)


# ── starting over ────────────────────────────────────────────────────────────────────────────────


def test_reset_deletes_everything_and_goes_on_at_the_offset(logs: Logs) -> None:
    log = filled(logs)
    commit_all(log)
    log.reset_to(500)
    assert offsets(log) == []
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (500, 500, 499)
    assert bases(log) == [500]
    assert put_values(log, 2) == 501
    log = logs.reopen(log)
    assert offsets(log) == [500, 501]


def test_a_reset_log_forgets_no_epoch_it_must_fence_by(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, b"x"), epoch=3)
    put(log, (None, b"x"), epoch=7)
    log.reset_to(100)
    assert log.latest_epoch == 7
    assert log.end_offset_of_epoch(3) == 100
    assert logs.reopen(log).epoch_entries == (EpochEntry(7, 100),)


def test_a_reset_to_a_negative_offset_is_refused(logs: Logs) -> None:
    log = filled(logs)
    with pytest.raises(OffsetOutOfRange):
        log.reset_to(-1)
    assert Path(log.directory).exists()
    assert len(offsets(log)) == 10
