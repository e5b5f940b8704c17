"""When a new segment begins, and the sparse index beside each: its sizes, and how it heals."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.errors import DiskFull, StorageError
from bascule.log import PartitionLog
from bascule.log.core.sparse_index import SparseIndex
from bascule.log.segments.index_file import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SegmentTotals,
    decode_header,
    read_index,
    read_totals,
    write_index,
)
from tests.unit.log.log_helpers import (
    NOW,
    PATIENCE,
    SECOND,
    Logs,
    WatchedDisk,
    bases,
    everything,
    in_thread,
    index_files,
    log_files,
    offsets,
    outcome_of,
    put,
    put_batch,
    put_values,
    refuse,
    snapshot,
)

# ── when a segment is full ───────────────────────────────────────────────────────────────────────


def test_a_segment_is_split_before_a_batch_that_does_not_fit(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=2 * 63)
    put_values(log, 5)
    assert bases(log) == [0, 2, 4]
    assert [path.stat().st_size for path in log_files(log)] == [126, 126, 63]


def test_a_segment_of_exactly_the_limit_is_not_split_early(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=3 * 63)
    put_values(log, 3)
    assert bases(log) == [0]


def test_an_empty_segment_is_not_split_however_large_the_batch(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1)
    put_batch(log, *[(None, b"v" * 100)] * 10)
    assert bases(log) == [0]
    put_values(log, 1)
    assert bases(log) == [0, 10]


def test_rolling_an_empty_segment_does_nothing(logs: Logs) -> None:
    log = logs.open()
    log.roll()
    log.roll()
    assert bases(log) == [0]
    put_values(log, 1)
    log.roll()
    log.roll()
    assert bases(log) == [0, 1]


def test_the_new_base_is_the_next_offset(logs: Logs) -> None:
    log = logs.open()
    put_batch(log, *[(None, b"x")] * 7)
    log.roll()
    assert log.segments.active.base_offset == 7
    assert put_values(log, 1) == 7


# ── when a segment is old ────────────────────────────────────────────────────────────────────────


def test_without_a_maximum_age_a_segment_never_gets_too_old(logs: Logs) -> None:
    log = logs.open(segment_age_max_ns=0)
    put_values(log, 1)
    logs.clock.advance(10**6 * SECOND)
    assert not log.roll_if_due()
    put_values(log, 1)
    assert bases(log) == [0]


def test_a_segment_is_not_split_before_its_age(logs: Logs) -> None:
    log = logs.open(segment_age_max_ns=10 * SECOND)
    put_values(log, 1)
    logs.clock.advance(10 * SECOND - 1)
    assert not log.roll_if_due()
    put_values(log, 1)
    assert bases(log) == [0]


def test_a_segment_is_split_after_its_age(logs: Logs) -> None:
    log = logs.open(segment_age_max_ns=10 * SECOND)
    put_values(log, 1)
    logs.clock.advance(10 * SECOND)
    assert log.roll_if_due()
    assert bases(log) == [0, 1]
    assert not log.roll_if_due(), "an empty segment has no age"


def test_an_append_splits_a_segment_that_is_too_old(logs: Logs) -> None:
    log = logs.open(segment_age_max_ns=10 * SECOND)
    put_values(log, 2)
    logs.clock.advance(10 * SECOND)
    put_values(log, 1)
    assert bases(log) == [0, 2]


def test_the_age_counts_from_the_first_record_also_after_a_reopen(logs: Logs) -> None:
    log = logs.open(segment_age_max_ns=10 * SECOND)
    put_values(log, 1)
    logs.clock.advance(6 * SECOND)
    put_values(log, 1)
    log = logs.reopen(log)
    logs.clock.advance(4 * SECOND)
    assert log.roll_if_due()


def test_a_roll_that_fails_is_made_up_for_by_the_next_append(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk, segment_bytes_max=1)
    put_values(log, 2)
    disk.before = refuse("create", ".log", DiskFull("no room: planted"))
    with pytest.raises(DiskFull):
        put_values(log, 1)
    disk.before = refuse("rename", ".index.tmp")
    with pytest.raises(StorageError):
        put_values(log, 1)
    disk.before = None
    assert put_values(log, 1) == 2
    assert offsets(logs.reopen(log)) == [0, 1, 2]


# ── sealing and the sizes of the index ───────────────────────────────────────────────────────────


def entries(path: Path) -> int:
    return (path.stat().st_size - HEADER_BYTES) // ENTRY_BYTES


def test_a_new_index_is_a_header_and_nothing_else(logs: Logs) -> None:
    log = logs.open()
    log.open()
    assert index_files(log)[0].stat().st_size == HEADER_BYTES == 64
    assert ENTRY_BYTES == 24


def test_the_index_grows_by_an_entry_for_every_16_kib(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 100, size=8_136)  # batches of a little more than 8 KiB
    log.sync()
    path = index_files(log)[0]
    assert 48 <= entries(path) <= 52
    put_values(log, 100, size=8_136)
    log.sync()
    assert 98 <= entries(path) <= 102


def test_an_index_has_the_same_size_after_a_reopen_and_goes_on_growing(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 40, size=9_000)
    log.close()
    size = index_files(log)[0].stat().st_size
    log = logs.reopen(log)
    assert log.open().is_clean
    assert index_files(log)[0].stat().st_size == size
    put_values(log, 40, size=9_000)
    log.close()
    assert index_files(log)[0].stat().st_size > size


def test_sealing_twice_writes_the_same_index(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 40, size=9_000)
    log.roll()
    segment = log.segments.oldest
    before = index_files(log)[0].read_bytes()
    segment.seal()
    segment.seal()
    assert index_files(log)[0].read_bytes() == before
    assert len(offsets(log)) == 40


def test_a_sealed_index_holds_the_totals_of_its_segment_and_an_active_one_does_not(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 10)
    active = decode_header(index_files(log)[0].read_bytes(), 0)
    assert active == SegmentTotals(0)
    log.roll()
    sealed = decode_header(index_files(log)[0].read_bytes(), 0)
    assert sealed == SegmentTotals(0, 10, log.size_bytes, 10, NOW, NOW)


# ── an index that is lost or wrong ───────────────────────────────────────────────────────────────


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def header_only(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:HEADER_BYTES])


def half_a_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 8)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def wrong_magic(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4] ^= 0xFF
    path.write_bytes(data)


def bad_entry(path: Path) -> None:
    data = bytearray(path.read_bytes())
    path.write_bytes(data[: HEADER_BYTES + 10].ljust(len(data), b"\0"))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


FAULTS: list[Callable[[Path], None]] = [
    Path.unlink,
    cut_short,
    header_only,
    half_a_header,
    garbage,
    empty,
    wrong_magic,
    bad_entry,
    zeros,
]

faults = pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])


def large(logs: Logs) -> PartitionLog:
    """A sealed and an active segment, each with several index entries."""
    log = logs.open()
    put_values(log, 12, size=9_000)
    log.roll()
    put_values(log, 12, size=9_000)
    return log


def assert_everything_is_found(log: PartitionLog, count: int = 24) -> None:
    for offset in range(count):
        found = log.read(offset, committed=False, bytes_max=1)
        assert found is not None
        assert found.records()[0].offset == offset
    assert offsets(log) == list(range(count))


@faults
@pytest.mark.parametrize("number", [0, 1], ids=["sealed", "active"])
def test_a_lost_or_damaged_index_is_made_again_at_the_next_open(
    logs: Logs, fault: Callable[[Path], None], number: int
) -> None:
    log = large(logs)
    log.close()
    path = index_files(log)[number]
    intact = path.read_bytes()
    fault(path)
    log = logs.reopen(log)
    assert_everything_is_found(log)
    log.close()
    assert_everything_is_found(logs.reopen(log))
    assert path.stat().st_size <= len(intact) + ENTRY_BYTES


@faults
def test_an_index_that_goes_bad_under_a_running_log_does_not_keep_it_from_reading(
    logs: Logs, fault: Callable[[Path], None]
) -> None:
    log = logs.reopen(large(logs))
    log.open()
    for path in index_files(log):
        fault(path)
    assert_everything_is_found(log)


@faults
def test_the_index_of_an_empty_log_is_made_again(logs: Logs, fault: Callable[[Path], None]) -> None:
    log = logs.open()
    log.open()
    log.close()
    fault(index_files(log)[0])
    log = logs.reopen(log)
    assert offsets(log) == []
    assert put_values(log, 3) == 2
    assert_everything_is_found(logs.reopen(log), 3)


def test_all_indexes_can_be_lost_at_once(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=200)
    put_values(log, 20)
    log.close()
    before = snapshot(log.directory)
    for path in index_files(log):
        path.unlink()
    log = logs.reopen(log)
    assert_everything_is_found(log, 20)
    log.close()
    after = snapshot(log.directory)
    assert {name: data for name, data in after.items() if name.endswith(".index")} == {
        name: data for name, data in before.items() if name.endswith(".index")
    }


def test_an_index_without_a_log_is_removed(logs: Logs) -> None:
    log = large(logs)
    log.close()
    stray = Path(log.directory, f"{777:020d}.index")
    shutil.copy(index_files(log)[0], stray)
    log = logs.reopen(log)
    assert_everything_is_found(log)
    assert not stray.exists()


def test_the_index_of_another_segment_is_not_believed(logs: Logs) -> None:
    log = large(logs)
    log.close()
    sealed, active = index_files(log)
    shutil.copy(active, sealed)
    assert_everything_is_found(logs.reopen(log))


def test_an_index_that_points_at_the_wrong_places_heals(logs: Logs) -> None:
    log = large(logs)
    log.close()
    path = index_files(log)[0]
    totals = decode_header(path.read_bytes(), 0)
    assert totals is not None
    good = path.read_bytes()
    wrong = SparseIndex([(0, 0, NOW), (3, 777, NOW), (9, 20_001, NOW)])
    write_index(log.pool.disk, str(path), totals, wrong)
    log = logs.reopen(log)
    assert_everything_is_found(log)
    assert path.read_bytes() == good


def test_an_index_that_cannot_be_written_does_not_keep_anybody_from_reading(logs: Logs) -> None:
    log = large(logs)
    log.close()
    index_files(log)[0].unlink()
    disk = WatchedDisk()
    log = logs.reopen(log, disk=disk)
    log.open()
    log.segments.oldest.forget_index()
    index_files(log)[0].unlink()
    disk.before = refuse("write", ".index.tmp", DiskFull("no room: planted"))
    assert_everything_is_found(log)


def test_readers_that_make_the_same_index_again_at_the_same_time_do_not_disturb_each_other(logs: Logs) -> None:
    looked, made = threading.Barrier(2), threading.Barrier(2)

    def meet(operation: str, path: str) -> None:
        if operation == "open" and path.endswith(f"{0:020d}.index"):
            looked.wait(PATIENCE)
        if operation == "rename" and path.endswith(f"{0:020d}.index.tmp"):
            made.wait(PATIENCE)

    disk = WatchedDisk()
    log = large(logs)
    log = logs.reopen(log, disk=disk)
    log.open()
    index_files(log)[0].unlink()
    disk.before = meet
    readers = [in_thread(lambda: log.read(3, committed=False)) for _ in range(2)]
    for reader in readers:
        outcome = outcome_of(*reader)
        assert not isinstance(outcome, Exception), outcome
    disk.before = None
    index = read_index(log.pool.disk, str(index_files(log)[0]), 0)
    assert index is not None
    assert len(index) > 3
    assert len(everything(log)) == 24


def test_a_record_is_found_through_the_index_without_reading_the_whole_segment(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 400, size=4_000)
    disk.seen.clear()
    found = log.read(390, committed=False, bytes_max=1)
    assert found is not None
    assert found.records()[0].offset == 390
    assert disk.count("read") <= 3


def test_an_index_survives_a_put_with_a_far_timestamp(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, b"v" * 20_000), timestamp=5)
    put(log, (None, b"v" * 20_000), timestamp=(1 << 62))
    assert log.earliest_offset_at(6) == 1
    assert offsets(logs.reopen(log)) == [0, 1]


def test_a_roll_while_the_sync_thread_writes_a_missing_index_keeps_its_totals(logs: Logs) -> None:
    """The disk was full when the segment was created, so it has no index file yet; both threads write one."""
    is_renaming, may_rename = threading.Event(), threading.Event()

    def before(operation: str, _path: str) -> None:
        if operation == "rename" and threading.current_thread().name == "syncing":
            is_renaming.set()
            may_rename.wait(1.0)  # the roll comes in between, unless it waits

    disk = WatchedDisk(before)
    log = logs.open(disk=disk)
    put_values(log, 3)
    segment = log.segments.active
    index_path = segment.path.removesuffix(".log") + ".index"
    disk.remove(index_path)
    failures: list[BaseException] = []

    def flush() -> None:
        try:
            segment.flush_index()
        except BaseException as error:
            failures.append(error)

    syncing = threading.Thread(target=flush, name="syncing")
    syncing.start()
    assert is_renaming.wait(PATIENCE)
    log.roll()
    may_rename.set()
    syncing.join(PATIENCE)
    assert failures == []
    assert read_totals(disk, index_path, segment.base_offset) == segment.totals
