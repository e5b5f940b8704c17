"""Compaction among damage, crashes, failing disks and company: appends, readers, truncation and closing at the same time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import CorruptBatch, FormatTooNew, LogClosed, LogDeleted, StorageError
from bascule.kernels.records import records
from bascule.kernels.records.records import Record
from bascule.log import LogReader, PartitionLog
from bascule.log.cleaning.compactor import CompactionReport, compact
from bascule.log.disk.master_keys import MasterKeys
from tests.unit.log.log_helpers import (
    NOW,
    ONE_RECORD_PER_SEGMENT,
    PATIENCE,
    SECOND,
    Logs,
    WatchedDisk,
    bases,
    batch_positions,
    commit_all,
    everything,
    flip,
    in_thread,
    log_files,
    offsets,
    outcome_of,
    pairs,
    put,
    put_batch,
    put_values,
    refuse,
    resealed,
    snapshot,
)


def compacted(log: PartitionLog, now_ns: int | None = None) -> CompactionReport:
    report = compact(log, now_ns)
    assert report is not None
    return report


def readable(log: PartitionLog) -> list[Record]:
    """Everything but what is damaged."""
    found: list[Record] = []
    reader = LogReader(log, 0, committed=False, bytes_max=1)
    while True:
        try:
            piece = reader.poll()
            if piece is None:
                break
            found += piece.records()
        except CorruptBatch as error:
            assert error.next_offset is not None
            reader.skip_to(error.next_offset)
    return found


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


def three_segments(logs: Logs, segment_bytes_max: int) -> PartitionLog:
    """Three sealed segments in each of which `a` is written four times, between records that stay."""
    log = logs.open(compact=True, segment_bytes_max=segment_bytes_max)
    for segment in range(3):
        for number in range(4):
            put_batch(log, (b"a", b"%d" % number), (b"s%d-%d" % (segment, number), b"stays"))
        log.roll()
    put(log, (b"z", b"1"))
    commit_all(log)
    assert bases(log) == [0, 8, 16, 24]
    return log


@pytest.mark.parametrize("segment_bytes_max", [400, 100_000], ids=["apart", "mergeable"])
@pytest.mark.parametrize("byte", [0, 5, 8, 10, 12, 16, 25, 40, 60])
@pytest.mark.parametrize("batch", [0, 2])
def test_a_damaged_segment_is_left_alone_and_reported_and_the_rest_is_compacted(
    logs: Logs, segment_bytes_max: int, byte: int, batch: int
) -> None:
    log = three_segments(logs, segment_bytes_max)
    path = log_files(log)[1]
    flip(path, batch_positions(path)[batch] + byte)
    damaged = path.read_bytes()
    report = compacted(log)
    assert len(report.left_alone) == 1
    assert path.name in report.left_alone[0]
    assert path.read_bytes() == damaged
    first = [record.key for record in everything_below(log, 8)]
    assert first == [b"s0-0", b"s0-1", b"s0-2", b"s0-3"]
    last = [(record.key, record.value) for record in readable(log) if record.offset >= 16]
    assert [key for key, _ in last] == [b"s2-0", b"s2-1", b"s2-2", b"a", b"s2-3", b"z"]
    assert (b"a", b"3") in last


def everything_below(log: PartitionLog, offset: int) -> list[Record]:
    return [record for record in readable(log) if record.offset < offset]


def test_a_repaired_log_is_compacted_like_any_other(logs: Logs) -> None:
    log = three_segments(logs, 400)
    path = log_files(log)[1]
    flip(path, 60)
    compacted(log)
    flip(path, 60)
    put(log, (b"a", b"newest"))
    log.roll()
    commit_all(log)
    report = compacted(log)
    assert report.left_alone == []
    assert [value for key, value in pairs(log) if key == b"a"] == [b"newest"]


@pytest.mark.parametrize("choices", [{"compression": "zstd"}, {"encryption": True}])
def test_a_batch_that_passes_its_checksum_but_cannot_be_opened_is_left_alone(
    logs: Logs, choices: dict[str, Any]
) -> None:
    log = logs.open(compact=True, keys=MasterKeys(b"k" * 32), **choices)
    for number in range(3):
        put_batch(log, (b"a", b"%d" % number * 200), (b"b%d" % number, b"x" * 200))
        log.roll()
    commit_all(log)
    path = log_files(log)[1]
    batch = bytearray(path.read_bytes())
    batch[-5] ^= 0xFF
    path.write_bytes(resealed(batch))
    report = compacted(log)
    assert len(report.left_alone) == 1
    assert path.read_bytes() == resealed(batch)
    assert [record.offset for record in readable(log)] == [1, 4, 5]


def test_a_tombstone_stays_while_damage_in_front_of_it_may_hide_what_it_deletes(logs: Logs) -> None:
    log = logs.open(compact=True, segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact_tombstone_retention_ns=0)
    put_batch(log, (b"a", b"secret"), (b"b", b"1"))
    put(log, (b"a", None), (b"z", b"1"))
    commit_all(log)
    path = log_files(log)[0]
    flip(path, 60)
    compacted(log, NOW + SECOND)
    flip(path, 60)
    state: dict[bytes | None, bytes | None] = dict(pairs(log))
    assert state[b"a"] is None


def test_a_future_batch_is_not_rewritten(logs: Logs) -> None:
    log = three_segments(logs, 400)
    path = log_files(log)[1]
    data = bytearray(path.read_bytes())
    data[10] = 9
    length = records.read_header(bytes(path.read_bytes())).length
    path.write_bytes(resealed(data[:length]) + bytes(data[length:]))
    before = path.read_bytes()
    with pytest.raises(FormatTooNew):
        compact(log)
    assert path.read_bytes() == before


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────


class Crash(Exception):
    """The process stops here."""


def crash_at(count: int) -> Callable[[str, str], None]:
    """A `before` that stops at the operation with this number which changes something on disk."""
    left = [count]

    def before(operation: str, path: str) -> None:
        if operation in ("create", "write", "truncate", "rename", "remove", "sync"):
            if left[0] == 0:
                raise Crash(f"{operation} {path}")
            left[0] -= 1

    return before


def mixed_log(logs: Logs, disk: WatchedDisk, segment_bytes_max: int) -> PartitionLog:
    """Segments that lose all, some and nothing."""
    log = logs.open(compact=True, disk=disk, segment_bytes_max=segment_bytes_max)
    put_batch(log, (b"a", b"1"), (b"b", b"1"))
    put_batch(log, (b"a", b"2"), (b"s1", b"1"))
    log.roll()
    put_batch(log, (None, b"no key"), (b"s2", b"1"))
    log.roll()
    put_batch(log, (b"a", b"3"), (b"s3", b"1"), (b"b", b"2"))
    log.roll()
    put(log, (b"a", b"4"), (b"b", b"3"))
    commit_all(log)
    log.settle()
    return log


SURVIVORS = [3, 4, 5, 7, 9, 10]


@pytest.mark.parametrize("segment_bytes_max", [200, 100_000], ids=["one by one", "merged"])
def test_a_crash_at_any_moment_of_a_compaction_loses_nothing(logs: Logs, segment_bytes_max: int) -> None:
    seen: set[str] = set()
    for count in range(200):
        disk = WatchedDisk()
        log = mixed_log(logs, disk, segment_bytes_max)
        before = {record.offset: record for record in everything(log)}
        disk.before = crash_at(count)
        try:
            compact(log)
        except Crash as crash:
            seen.add(str(crash).split()[0])
        else:
            break
        disk.before = None
        found = after_crash(logs, log, f"crash-{count}")
        assert all(before[record.offset] == record for record in found)
        assert set(SURVIVORS) <= {record.offset for record in found}
        log.delete()
    else:
        pytest.fail("never came to an end")
    assert offsets(log) == SURVIVORS
    assert seen >= {"create", "write", "rename", "remove", "sync"}


def after_crash(logs: Logs, log: PartitionLog, name: str) -> list[Record]:
    """What a crash leaves behind, opened; compacting it again brings it to the same end."""
    crashed = logs.after_crash(log, name)
    report = crashed.open()
    assert report.damage == []
    assert report.missing == []
    assert not list(Path(crashed.directory).glob("*.cleaned"))
    assert not list(Path(crashed.directory).glob("*.swap"))
    found = everything(crashed)
    compact(crashed, force=True)
    assert offsets(crashed) == SURVIVORS
    crashed.delete()
    return found


def test_unfinished_output_is_removed_at_the_next_open(logs: Logs) -> None:
    log = logs.open(compact=True)
    put_values(log, 3)
    log.close()
    leftover = Path(log.directory, f"{0:020d}.log.cleaned")
    leftover.write_bytes(b"half a batch")
    log = logs.reopen(log)
    assert offsets(log) == [0, 1, 2]
    assert not leftover.exists()


def swap_states(logs: Logs) -> tuple[PartitionLog, bytes, dict[str, bytes]]:
    """A log of segments 0, 3, 6 and 9; the swap file that is to replace the first three; the files before it."""
    log = logs.open("target", compact=True)
    merged = logs.open("merged", compact=True)
    for number in range(9):
        if number and number % 3 == 0:
            log.roll()
        put(log, (b"k%d" % number, b"v"))
        put(merged, (b"k%d" % number, b"v"))
    log.roll()
    put(log, (b"z", b"1"))
    log.close()
    merged.close()
    return log, log_files(merged)[0].read_bytes(), snapshot(log.directory)


@pytest.mark.parametrize("removed", range(7))
def test_a_swap_is_completed_from_every_intermediate_state(logs: Logs, removed: int) -> None:
    log, content, _ = swap_states(logs)
    directory = Path(log.directory)
    # In the order in which they go: the index of each segment, then its log unless the swap file takes that name.
    order = [f"{0:020d}.index"] + [f"{base:020d}{suffix}" for base in (3, 6) for suffix in (".index", ".log")]
    for name in order[: min(removed, 5)]:
        (directory / name).unlink()
    swap = directory / f"{0:020d}-{9:020d}.swap"
    swap.write_bytes(content)
    if removed == 6:
        swap.rename(directory / f"{0:020d}.log")
    log = logs.reopen(log)
    assert offsets(log) == list(range(10))
    assert bases(log) == [0, 9]
    assert log_files(log)[0].read_bytes() == content
    assert not swap.exists()


def test_two_swaps_at_once_are_both_completed(logs: Logs) -> None:
    log, _, files = swap_states(logs)
    directory = Path(log.directory)
    for base, end in ((0, 3), (3, 6)):
        (directory / f"{base:020d}-{end:020d}.swap").write_bytes(files[f"{base:020d}.log"])
    log = logs.reopen(log)
    assert offsets(log) == list(range(10))
    assert not list(directory.glob("*.swap"))


# ── a disk that fails while the process goes on ──────────────────────────────────────────────────


@pytest.mark.parametrize("segment_bytes_max", [200, 100_000], ids=["one by one", "merged"])
@pytest.mark.parametrize(
    ("operation", "suffix"),
    [("create", ".cleaned"), ("write", ".cleaned"), ("sync", ".cleaned"), ("rename", ".cleaned")],
)
def test_a_failing_disk_leaves_the_log_as_it_was(
    logs: Logs, segment_bytes_max: int, operation: str, suffix: str
) -> None:
    disk = WatchedDisk()
    log = mixed_log(logs, disk, segment_bytes_max)
    before = everything(log)
    disk.before = refuse(operation, suffix)
    with pytest.raises(StorageError):
        compact(log)
    assert everything(log) == before
    disk.before = None
    compacted(log)
    assert offsets(log) == SURVIVORS
    assert not list(Path(log.directory).glob("*.cleaned"))


@pytest.mark.parametrize("segment_bytes_max", [200, 100_000], ids=["one by one", "merged"])
@pytest.mark.parametrize(("operation", "suffix"), [("remove", ".index"), ("remove", ".log"), ("rename", ".swap")])
def test_a_disk_that_fails_in_the_middle_of_a_swap_keeps_the_log_readable(
    logs: Logs, segment_bytes_max: int, operation: str, suffix: str
) -> None:
    disk = WatchedDisk()
    log = mixed_log(logs, disk, segment_bytes_max)
    disk.before = refuse(operation, suffix)
    with pytest.raises(StorageError):
        compact(log)
    disk.before = None
    found = outcome_of(*in_thread(lambda: offsets(log)))
    assert isinstance(found, list), found
    assert set(SURVIVORS) <= set(found)
    # What is half done is completed by the next open; until then nothing may be built upon it.
    with pytest.raises(StorageError, match="refuses appends"):
        put(log, (b"a", b"5"))
    with pytest.raises(StorageError, match="refuses appends"):
        log.truncate(9, allow_committed=True)
    log = logs.reopen(log)
    assert set(SURVIVORS) <= set(offsets(log))
    compact(log, force=True)
    assert offsets(log) == SURVIVORS


# ── company ──────────────────────────────────────────────────────────────────────────────────────


def test_readers_and_appends_go_on_while_compaction_runs(logs: Logs) -> None:
    log = logs.open(compact=True, segment_bytes_max=1_500)
    stop = threading.Event()
    newest: dict[bytes, bytes] = {}

    def write() -> int:
        chance, count = random.Random(1), 0
        while count < 3_000:
            key, value = b"k%d" % chance.randrange(40), b"%d" % count
            put(log, (key, value))
            commit_all(log)
            newest[key] = value
            count += 1
        stop.set()
        return count

    def read(start: int) -> dict[bytes | None, bytes | None]:
        state: dict[bytes | None, bytes | None] = {}
        reader, last = LogReader(log, start, bytes_max=3_000), -1
        while last < 2_999:
            piece = reader.read(PATIENCE)
            assert piece is not None
            for record in piece.records():
                assert record.offset > last, "offsets must rise"
                last = record.offset
                state[record.key] = record.value
        return state

    def clean() -> int:
        runs = 0
        while not stop.is_set():
            runs += compact(log) is not None
        return runs + (compact(log, force=True) is not None)

    readers = [in_thread(lambda: read(0)) for _ in range(3)]
    cleaner = in_thread(clean)
    writer = in_thread(write)
    assert outcome_of(*writer) == 3_000
    runs = outcome_of(*cleaner)
    assert isinstance(runs, int), runs
    assert runs > 0
    for reader in readers:
        assert outcome_of(*reader) == newest
    assert dict(pairs(log)) == newest
    assert log.record_count < 3_000


def held_up(logs: Logs) -> tuple[PartitionLog, WatchedDisk, threading.Event, threading.Event]:
    """A log whose compaction stops before it writes, until it is let go."""
    reached, go_on = threading.Event(), threading.Event()

    def before(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(".cleaned"):
            reached.set()
            assert go_on.wait(PATIENCE)

    disk = WatchedDisk()
    log = logs.open(compact=True, disk=disk, segment_bytes_max=200)
    put(log, *((b"k%d" % (number % 3), b"%d" % number) for number in range(30)))
    log.advance_high_watermark(20)
    disk.before = before
    return log, disk, reached, go_on


def interrupting(log: PartitionLog, action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Begin it in a thread; returns when it has asked compaction to stop."""
    started = in_thread(action)
    assert log.interrupt_cleaning.wait(PATIENCE)
    return started


def test_truncation_interrupts_a_compaction(logs: Logs) -> None:
    log, _, reached, go_on = held_up(logs)
    compaction = in_thread(lambda: compact(log))
    assert reached.wait(PATIENCE)
    truncation = interrupting(log, lambda: log.truncate(25))
    go_on.set()
    report = outcome_of(*compaction)
    assert outcome_of(*truncation) is None
    assert isinstance(report, CompactionReport), report
    assert report.interrupted
    assert log.log_end_offset == 25
    assert offsets(log)[-1] == 24
    assert not list(Path(log.directory).glob("*.cleaned"))
    compacted(log)
    assert [offset for offset in offsets(log) if offset <= 20] == [18, 19, 20]


@pytest.mark.parametrize(("leave", "error"), [(PartitionLog.close, LogClosed), (PartitionLog.delete, LogDeleted)])
def test_closing_and_deleting_interrupt_a_compaction(
    logs: Logs, leave: Callable[[PartitionLog], None], error: type[Exception]
) -> None:
    log, _, reached, go_on = held_up(logs)
    compaction = in_thread(lambda: compact(log))
    assert reached.wait(PATIENCE)
    leaving = interrupting(log, lambda: leave(log))
    go_on.set()
    report = outcome_of(*compaction)
    assert outcome_of(*leaving) is None
    assert isinstance(report, CompactionReport), report
    assert report.interrupted
    with pytest.raises(error):
        compact(log)


def test_truncation_and_compaction_at_the_same_time_are_safe(logs: Logs) -> None:
    log = logs.open(compact=True, segment_bytes_max=300)
    chance = random.Random(7)
    for _ in range(60):
        put(log, *((b"k%d" % chance.randrange(9), b"%d" % number) for number in range(12)))
        log.advance_high_watermark(log.newest_offset - 6)
        expected = {record.offset: record for record in everything(log)}
        compaction = in_thread(lambda: compact(log))
        log.truncate(log.high_watermark + 1 + chance.randrange(5))
        outcome = outcome_of(*compaction)
        assert outcome is None or isinstance(outcome, CompactionReport), outcome
        assert all(expected[record.offset] == record for record in everything(log))
        assert log.newest_offset >= log.high_watermark
    before = everything(log)
    assert everything(logs.reopen(log)) == before


def test_what_is_appended_during_a_compaction_is_kept(logs: Logs) -> None:
    log, _, reached, go_on = held_up(logs)
    compaction = in_thread(lambda: compact(log))
    assert reached.wait(PATIENCE)
    put(log, *[(b"k0", b"new")] * 10)
    go_on.set()
    assert isinstance(outcome_of(*compaction), CompactionReport)
    assert offsets(log)[-19:] == list(range(21, 40))
