"""Retention deletes whole segments from the oldest on, never the active one, and what it took away never comes back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import StorageError
from bascule.log import LogReader, PartitionLog
from bascule.log.cleaning.cleaner import CleaningReport, apply_retention, clean
from bascule.log.cleaning.compactor import compact
from bascule.log.core.retention import RetentionLimits, SegmentFacts, plan_retention
from tests.unit.log.log_helpers import (
    NOW,
    ONE_RECORD_PER_SEGMENT,
    SECOND,
    Logs,
    WatchedDisk,
    bases,
    commit_all,
    epoch_starts,
    everything,
    index_files,
    offsets,
    put,
    put_batch,
    put_values,
    refuse,
)


def segments(*sizes: tuple[int, int, int]) -> list[SegmentFacts]:
    """(bytes, records, last timestamp) of each, the active one last."""
    bases = accumulate((records for _, records, _ in sizes), initial=0)
    return [SegmentFacts(base, *size) for base, size in zip(bases, sizes, strict=False)]


ALL = 1 << 62
"""More offsets than any log has: everything is committed."""

FIVE = segments(*[(100, 10, 1_000 * (number + 1)) for number in range(5)])


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ([], RetentionLimits(1, 1, 1)),
        (FIVE[:1], RetentionLimits(1, 1, 1)),
        (FIVE, RetentionLimits()),
        (FIVE, RetentionLimits(10_000, 50, 500)),
    ],
    ids=["no segment", "one segment", "limits unset", "below the limits"],
)
def test_there_is_nothing_to_delete(given: Sequence[SegmentFacts], limits: RetentionLimits) -> None:
    assert plan_retention(given, limits, now_ns=5_000, committed_end_offset=ALL) == 0


@pytest.mark.parametrize(("limit", "deleted"), [(500, 0), (499, 1), (300, 2), (299, 3), (100, 4), (1, 4)])
def test_bytes_keep_as_many_segments_as_fit(limit: int, deleted: int) -> None:
    assert plan_retention(FIVE, RetentionLimits(bytes_max=limit), now_ns=0, committed_end_offset=ALL) == deleted


@pytest.mark.parametrize(("limit", "deleted"), [(50, 0), (49, 1), (30, 2), (29, 3), (10, 4), (1, 4)])
def test_messages_keep_as_many_segments_as_fit(limit: int, deleted: int) -> None:
    assert plan_retention(FIVE, RetentionLimits(records_max=limit), now_ns=0, committed_end_offset=ALL) == deleted


@pytest.mark.parametrize(("age", "deleted"), [(4_000, 0), (3_999, 1), (2_000, 2), (1_999, 3), (1, 4)])
def test_age_deletes_segments_whose_last_record_is_too_old(age: int, deleted: int) -> None:
    assert plan_retention(FIVE, RetentionLimits(age_max_ns=age), now_ns=5_000, committed_end_offset=ALL) == deleted


def test_age_stops_at_the_first_segment_that_is_young_enough() -> None:
    given = segments((1, 1, 10), (1, 1, 90), (1, 1, 20), (1, 1, 99))
    assert plan_retention(given, RetentionLimits(age_max_ns=50), now_ns=100, committed_end_offset=ALL) == 1


@pytest.mark.parametrize(
    ("limits", "deleted"),
    [
        (RetentionLimits(bytes_max=200, records_max=40), 3),
        (RetentionLimits(bytes_max=400, records_max=20), 3),
        (RetentionLimits(bytes_max=400, records_max=40, age_max_ns=500), 4),
    ],
)
def test_with_several_limits_the_strictest_decides(limits: RetentionLimits, deleted: int) -> None:
    assert plan_retention(FIVE, limits, now_ns=5_000, committed_end_offset=ALL) == deleted


@pytest.mark.parametrize(
    ("committed", "deleted"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (39, 3), (40, 4), (50, 4)]
)
def test_no_limit_deletes_a_segment_that_is_not_committed(committed: int, deleted: int) -> None:
    for limits in (RetentionLimits(age_max_ns=1), RetentionLimits(records_max=1), RetentionLimits(bytes_max=1)):
        assert plan_retention(FIVE, limits, now_ns=5_000, committed_end_offset=committed) == deleted


# ── on a log ─────────────────────────────────────────────────────────────────────────────────────


def ten_segments(logs: Logs, *, disk: WatchedDisk | None = None, **limits: Any) -> PartitionLog:
    """Ten records a second apart, each in a segment of its own; one takes 63 bytes."""
    log = logs.open(disk=disk, segment_bytes_max=ONE_RECORD_PER_SEGMENT, **limits)
    for number in range(10):
        put(log, (None, b"x"), timestamp=NOW + number * SECOND)
    assert log.size_bytes == 10 * 63
    commit_all(log)
    return log


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        ({"retention_bytes_max": 100}, 9),
        ({"retention_records_max": 5}, 5),
        ({"retention_age_max_ns": 1}, 9),
        ({"retention_bytes_max": 63 * 4}, 6),
        ({"retention_bytes_max": 63 * 4, "retention_records_max": 2}, 8),
        ({"retention_bytes_max": 63 * 2, "retention_records_max": 4}, 8),
        ({"retention_age_max_ns": 3 * SECOND, "retention_records_max": 9}, 7),
        ({"retention_bytes_max": 63 * 10}, 0),
        ({"retention_records_max": 10}, 0),
        ({}, 0),
    ],
)
def test_the_first_readable_offset_is_the_first_one_kept(logs: Logs, limits: dict[str, Any], first: int) -> None:
    log = ten_segments(logs, **limits)
    report = apply_retention(log, NOW + 10 * SECOND)
    assert report.deleted == list(range(first))
    assert bases(log) == list(range(first, 10))
    found = LogReader(log, 0).poll()
    assert found is not None
    assert found.records()[0].offset == first
    assert (log.oldest_offset, log.log_start_offset, log.newest_offset) == (first, first, 9)


def test_a_log_without_records_and_one_with_a_single_segment_stay_as_they_are(logs: Logs) -> None:
    limits: dict[str, Any] = {"retention_records_max": 1, "retention_bytes_max": 1, "retention_age_max_ns": 1}
    assert apply_retention(logs.open("empty", **limits), NOW * 2).deleted == []
    log = logs.open("one", **limits)
    put_values(log, 10)
    assert apply_retention(log, NOW * 2).deleted == []
    assert offsets(log) == list(range(10))


def test_the_active_segment_is_kept_whatever_the_limits_say(logs: Logs) -> None:
    log = logs.open(retention_records_max=1, retention_bytes_max=1, retention_age_max_ns=1)
    put_values(log, 5)
    log.roll()
    put_values(log, 5)
    commit_all(log)
    assert apply_retention(log, NOW * 2).deleted == [0]
    assert offsets(log) == [5, 6, 7, 8, 9]


def test_an_empty_active_segment_leaves_a_log_without_an_oldest_record(logs: Logs) -> None:
    log = logs.open(retention_age_max_ns=1)
    put_values(log, 5)
    log.roll()
    commit_all(log)
    apply_retention(log, NOW * 2)
    assert (log.oldest_offset, log.newest_offset, log.log_start_offset) == (-1, 4, 5)
    assert put_values(log, 1) == 5


def test_must_hold_retention_deletes_nothing_that_is_not_committed(logs: Logs) -> None:
    """A replica of the in-sync set may still have to fetch it, and would begin after it as if it were committed."""
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, retention_records_max=3)
    put_values(log, 10)
    assert apply_retention(log).deleted == []
    log.advance_high_watermark(4)
    assert apply_retention(log).deleted == [0, 1, 2, 3, 4]
    assert offsets(log) == [5, 6, 7, 8, 9]
    log.advance_high_watermark(9)
    assert apply_retention(log).deleted == [5, 6]


def test_counts_are_right_after_a_compaction(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1, compact=True, retention_records_max=4)
    put_batch(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    put_batch(log, (b"a", b"2"), (b"b", b"2"), (b"d", b"1"))
    put_batch(log, (b"e", b"1"))
    commit_all(log)
    compact(log)
    assert offsets(log) == [2, 3, 4, 5, 6]
    assert log.record_count == 5
    # 1 + 3 records fit, the fifth does not; before compaction the middle segment would have been over the limit too.
    assert apply_retention(log).deleted == [0]
    assert offsets(log) == [3, 4, 5, 6]


def test_a_compacted_log_within_the_limit_loses_nothing(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True, retention_records_max=3)
    put(log, *((b"k%d" % (number % 3), b"%d" % number) for number in range(9)))
    commit_all(log)
    compact(log)
    assert offsets(log) == [6, 7, 8]
    assert apply_retention(log).deleted == []


def test_the_files_go_with_their_segments(logs: Logs) -> None:
    log = ten_segments(logs, retention_records_max=2)
    apply_retention(log)
    assert [int(path.stem) for path in index_files(log)] == [8, 9]


def test_epoch_entries_go_with_their_segments(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, retention_records_max=5)
    for epoch, count in ((1, 3), (2, 4), (5, 3)):
        put(log, *[(None, b"x")] * count, epoch=epoch)
    commit_all(log)
    apply_retention(log)
    assert [(entry.epoch, entry.start_offset) for entry in log.epoch_entries] == [(2, 5), (5, 7)]
    assert epoch_starts(log) == {2: 5, 5: 7}
    reopened = logs.reopen(log)
    assert epoch_starts(reopened) == {2: 5, 5: 7}


def test_what_was_deleted_stays_deleted_after_a_reopen(logs: Logs) -> None:
    log = ten_segments(logs, retention_records_max=3)
    apply_retention(log)
    log = logs.reopen(log)
    assert log.open().is_clean
    assert offsets(log) == [7, 8, 9]


# ── marked first, then deleted ───────────────────────────────────────────────────────────────────


def test_segments_are_invisible_before_the_first_file_goes(logs: Logs) -> None:
    seen: list[tuple[int, list[int]]] = []

    def look(operation: str, path: str) -> None:
        if operation == "remove" and path.endswith(".log"):
            found = log.read(0, committed=False)
            assert found is not None
            seen.append((found.records()[0].offset, bases(log)))

    disk = WatchedDisk()
    log = ten_segments(logs, disk=disk, retention_records_max=7)
    disk.before = look
    apply_retention(log)
    assert [first for first, _ in seen] == [3] * 3
    assert seen[0][1] == list(range(10)), "no file was gone when the first one was about to go"


def failing_to_remove(logs: Logs, suffix: str) -> tuple[PartitionLog, WatchedDisk, CleaningReport]:
    disk = WatchedDisk()
    log = ten_segments(logs, disk=disk, retention_records_max=4)
    disk.before = refuse("remove", suffix)
    return log, disk, apply_retention(log)


def test_a_failed_deletion_is_reported_and_the_segments_stay_invisible(logs: Logs) -> None:
    log, _, report = failing_to_remove(logs, "00002.log")
    assert report.deleted == [0, 1, 2, 3, 4, 5]
    assert len(report.failures) == 1
    assert "00002.log" in report.failures[0]
    assert offsets(log) == [6, 7, 8, 9]
    assert bases(log) == [2, 6, 7, 8, 9]


def test_a_failed_deletion_is_tried_again_with_the_next_tick(logs: Logs) -> None:
    log, disk, _ = failing_to_remove(logs, ".log")
    assert len(apply_retention(log).failures) == 6
    disk.before = None
    report = apply_retention(log)
    assert report.failures == []
    assert report.deleted == []
    assert bases(log) == [6, 7, 8, 9]
    assert [int(path.stem) for path in index_files(log)] == [6, 7, 8, 9]


def test_segments_that_could_not_be_deleted_do_not_reappear_after_a_reopen(logs: Logs) -> None:
    log, _, _ = failing_to_remove(logs, ".log")
    log = logs.reopen(log)
    assert offsets(log) == [6, 7, 8, 9]
    assert (log.oldest_offset, log.record_count) == (6, 4)
    assert bases(log) == [6, 7, 8, 9]


def test_segments_that_could_not_be_deleted_do_not_reappear_after_a_crash(logs: Logs) -> None:
    log, _, _ = failing_to_remove(logs, ".log")
    assert offsets(logs.after_crash(log)) == [6, 7, 8, 9]


def test_a_log_opens_although_old_segments_still_cannot_be_deleted(logs: Logs) -> None:
    log, _, _ = failing_to_remove(logs, ".log")
    disk = WatchedDisk(refuse("remove", ".log"))
    log = logs.reopen(log, disk=disk)
    assert offsets(log) == [6, 7, 8, 9]
    disk.before = None
    log = logs.reopen(log)
    log.open()
    assert bases(log) == [6, 7, 8, 9]


@pytest.mark.parametrize("count", range(7))
def test_a_crash_in_the_middle_of_deleting_leaves_the_log_as_it_was_decided(logs: Logs, count: int) -> None:
    class Crash(Exception):
        pass

    removed: list[str] = []

    def stop(operation: str, path: str) -> None:
        if operation == "remove" and path.endswith(".log"):
            if len(removed) == count:
                raise Crash
            removed.append(Path(path).name)

    disk = WatchedDisk()
    log = ten_segments(logs, disk=disk, retention_records_max=3)
    disk.before = stop
    with pytest.raises(Crash):
        apply_retention(log)
    disk.before = None
    crashed = logs.after_crash(log)
    assert offsets(crashed) == [7, 8, 9]
    assert crashed.log_start_offset == 7


def test_a_reader_in_a_segment_that_goes_finishes_what_it_has(logs: Logs) -> None:
    log = ten_segments(logs, retention_records_max=2)
    found = log.read(0, committed=False)
    apply_retention(log)
    assert found is not None
    assert [record.offset for record in found.records()] == [0]


def test_retention_on_a_failed_disk_changes_nothing(logs: Logs) -> None:
    disk = WatchedDisk()
    log = ten_segments(logs, disk=disk, retention_records_max=2)
    disk.before = refuse("sync")
    with pytest.raises(StorageError):
        apply_retention(log)
    assert len(everything(log)) == 10
    assert bases(log) == list(range(10))


# ── ticks ────────────────────────────────────────────────────────────────────────────────────────


def test_a_tick_that_rolls_does_nothing_else(logs: Logs) -> None:
    log = logs.open(segment_age_max_ns=SECOND, retention_age_max_ns=SECOND)
    put_values(log, 3)
    log.roll()
    put_values(log, 3)
    commit_all(log)
    logs.clock.advance(10 * SECOND)
    report = clean(log)
    assert report.rolled
    assert report.deleted == []
    assert offsets(log) == [0, 1, 2, 3, 4, 5]
    report = clean(log)
    assert not report.rolled
    assert report.deleted == [0, 3]
    assert offsets(log) == []


def test_a_tick_deletes_first_and_then_compacts_what_is_left(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=200, compact=True, retention_records_max=8)
    put(log, *((b"k%d" % (number % 2), b"%d" % number) for number in range(12)))
    commit_all(log)
    report = clean(log)
    assert report.deleted
    assert report.compaction is not None
    assert report.compaction.removed > 0
    assert offsets(log)[-2:] == [10, 11]


def test_a_tick_on_a_quiet_log_does_nothing(logs: Logs) -> None:
    log = ten_segments(logs, retention_records_max=5)
    log.roll()
    apply_retention(log)
    report = clean(log)
    assert (report.rolled, report.deleted, report.failures, report.compaction) == (False, [], [], None)
