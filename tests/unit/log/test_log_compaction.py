"""Compaction keeps the newest record of every key, everything without a key, everything not committed; and rewrites nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bascule.log import LogOptions, LogReader, PartitionLog
from bascule.log.cleaning.compactor import CompactionReport, compact
from bascule.log.core.compaction import group_segments, is_due
from bascule.log.core.retention import SegmentFacts
from bascule.log.disk.master_keys import MasterKeys
from tests.unit.log.log_helpers import (
    NOW,
    ONE_RECORD_PER_SEGMENT,
    SECOND,
    Logs,
    Pair,
    bases,
    commit_all,
    epoch_starts,
    everything,
    log_files,
    offsets,
    pairs,
    put,
    put_batch,
    put_values,
    snapshot,
)

EXAMPLE = [b"foo", b"bar", b"foo", b"foo", b"bar", b"baz", b"baz", b"qux", b"foo", b"baz"]


def compacted(log: PartitionLog, now_ns: int | None = None) -> CompactionReport:
    report = compact(log, now_ns)
    assert report is not None
    return report


def example(logs: Logs, segment_bytes_max: int = ONE_RECORD_PER_SEGMENT) -> PartitionLog:
    """The keys of the specification at offsets 0 to 9, `baz` at 9 in the active segment."""
    log = logs.open(segment_bytes_max=segment_bytes_max, compact=True)
    put(log, *((key, b"v%d" % number) for number, key in enumerate(EXAMPLE)))
    return log


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


def test_of_every_key_the_newest_record_is_kept(logs: Logs) -> None:
    log = example(logs)
    commit_all(log)
    report = compacted(log)
    assert offsets(log) == [4, 7, 8, 9]
    assert pairs(log) == [(b"bar", b"v4"), (b"qux", b"v7"), (b"foo", b"v8"), (b"baz", b"v9")]
    assert (report.kept, report.removed) == (3, 6)


def test_above_the_high_watermark_everything_is_kept(logs: Logs) -> None:
    log = example(logs)
    log.advance_high_watermark(5)
    compacted(log)
    assert offsets(log) == [3, 4, 5, 6, 7, 8, 9]


def test_a_high_watermark_that_moved_on_lets_the_next_run_go_on(logs: Logs) -> None:
    log = example(logs)
    log.advance_high_watermark(5)
    compacted(log)
    commit_all(log)
    compacted(log)
    assert offsets(log) == [4, 7, 8, 9]


def test_nothing_committed_means_nothing_removed(logs: Logs) -> None:
    log = example(logs)
    compact(log)
    assert offsets(log) == list(range(10))


def test_records_without_a_key_are_all_kept(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True)
    put_values(log, 10)
    commit_all(log)
    compact(log)
    assert offsets(log) == list(range(10))


def test_an_empty_key_is_a_key(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True)
    put(log, (b"", b"1"), (None, b"2"), (b"", b"3"), (b"a", b"4"))
    commit_all(log)
    compacted(log)
    assert offsets(log) == [1, 2, 3]


@pytest.mark.parametrize("count", [0, 1])
def test_a_log_with_no_or_one_segment_is_left_alone(logs: Logs, count: int) -> None:
    log = logs.open(compact=True)
    put(log, *[(b"k", b"v")] * (5 * count))
    commit_all(log)
    before = snapshot(log.directory)
    assert compact(log) is None
    assert snapshot(log.directory) == before


def test_the_active_segment_supersedes_but_is_not_rewritten(logs: Logs) -> None:
    log = logs.open(compact=True)
    put(log, (b"a", b"1"), (b"b", b"1"))
    log.roll()
    put(log, (b"a", b"2"), (b"a", b"3"))
    commit_all(log)
    compacted(log)
    assert offsets(log) == [1, 2, 3]


def test_records_are_removed_from_the_middle_of_a_batch(logs: Logs) -> None:
    log = logs.open(compact=True)
    put_batch(log, (b"a", b"1"), (b"b", b"1"), (None, b"x"), (b"a", b"2"), (b"c", b"1"))
    log.roll()
    put_batch(log, (b"c", b"2"), (b"d", b"1"))
    commit_all(log)
    compacted(log)
    assert [(record.offset, record.key, record.value) for record in everything(log)] == [
        (1, b"b", b"1"),
        (2, None, b"x"),
        (3, b"a", b"2"),
        (5, b"c", b"2"),
        (6, b"d", b"1"),
    ]


def test_a_kept_record_is_not_changed(logs: Logs) -> None:
    log = logs.open(compact=True)
    put(log, (b"a", b"1"), (b"b", b"1"), timestamp=NOW)
    put(log, (b"c", b"1"), epoch=4, timestamp=NOW + 5)
    put(log, (b"a", b"2"), epoch=6, timestamp=NOW + 9)
    log.roll()
    put(log, (b"z", b"1"))
    commit_all(log)
    before = {record.offset: record for record in everything(log)}
    compacted(log)
    after = everything(log)
    assert [record.offset for record in after] == [1, 2, 3, 4]
    assert all(before[record.offset] == record for record in after)


def test_segments_that_lose_everything_are_removed(logs: Logs) -> None:
    log = example(logs)
    commit_all(log)
    report = compacted(log)
    assert bases(log) == [4, 7, 8, 9]
    assert (report.segments_before, report.segments_after) == (10, 4)


def test_a_compacted_log_is_the_same_after_a_reopen_and_after_a_crash(logs: Logs) -> None:
    log = example(logs, segment_bytes_max=250)
    commit_all(log)
    compacted(log)
    before = everything(log)
    crashed = logs.after_crash(log)
    assert everything(crashed) == before
    assert crashed.open().missing == []
    reopened = logs.reopen(log)
    assert everything(reopened) == before
    assert reopened.open().is_clean
    assert (reopened.newest_offset, reopened.high_watermark) == (9, 9)


def test_appends_go_on_at_the_next_offset_even_when_the_end_was_compacted_away(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True, compact_tombstone_retention_ns=0)
    put(log, (b"a", b"1"), (b"a", None))
    log.roll()
    commit_all(log)
    compacted(log, NOW + 1)
    assert offsets(log) == []
    log = logs.reopen(log)
    assert put(log, (b"b", b"1")) == 2
    assert offsets(log) == [2]


@pytest.mark.parametrize(
    "choices", [{"compression": "zstd"}, {"encryption": True}, {"compression": "zstd", "encryption": True}]
)
def test_compressed_and_encrypted_logs_are_compacted_and_stay_so(logs: Logs, choices: dict[str, Any]) -> None:
    keys = MasterKeys(b"k" * 32)
    log = logs.open("sealed", LogOptions(compact=True, **choices), keys=keys)
    clear = logs.open("clear", compact=True)
    for one in (log, clear):
        for number in range(30):
            put_batch(one, (b"k%d" % (number % 4), b"%03d" % number * 60), (b"n%d" % number, b"y" * 200))
            if number % 7 == 0:
                one.roll()
        commit_all(one)
        compacted(one)
    assert 30 < len(offsets(clear)) < 60
    assert everything(log) == everything(clear)
    assert everything(logs.reopen(log, keys=keys)) == everything(clear)
    assert b"y" * 100 not in b"".join(path.read_bytes() for path in log_files(log))


# ── leader epochs ────────────────────────────────────────────────────────────────────────────────


def test_epoch_starts_move_to_the_first_surviving_record_of_each_epoch(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True)
    for epoch, key in ((1, b"foo"), (2, b"bar"), (3, b"baz")):
        put(log, *[(key, b"v")] * 5, epoch=epoch)
    commit_all(log)
    report = compacted(log)
    assert bases(log) == [4, 9, 14]
    assert report.segments_after == 3
    assert log.oldest_offset == 4
    assert epoch_starts(log) == {1: 4, 2: 9, 3: 14}


def test_epoch_boundaries_stay_where_kafka_puts_them(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True)
    for epoch, key in ((1, b"foo"), (2, b"bar"), (3, b"baz")):
        put(log, *[(key, b"v")] * 5, epoch=epoch)
    commit_all(log)
    compacted(log)
    assert [log.end_offset_of_epoch(epoch) for epoch in (1, 2, 3)] == [5, 10, 15]
    log = logs.reopen(log)
    assert [log.end_offset_of_epoch(epoch) for epoch in (1, 2, 3)] == [5, 10, 15]
    assert log.latest_epoch == 3


def test_an_epoch_without_surviving_records_has_no_start(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True)
    put(log, (b"a", b"1"), epoch=1)
    put(log, (b"b", b"1"), epoch=2)
    put(log, (b"b", b"2"), (b"c", b"1"), epoch=3)
    commit_all(log)
    compacted(log)
    assert epoch_starts(log) == {1: 0, 3: 2}


# ── tombstones ───────────────────────────────────────────────────────────────────────────────────


def with_tombstone(logs: Logs, **choices: Any) -> PartitionLog:
    """`a` is written and deleted, `b` stays; the active segment holds something else."""
    log = logs.open(compact=True, compact_tombstone_retention_ns=10 * SECOND, **choices)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", None), timestamp=NOW)
    log.roll()
    put(log, (b"z", b"1"), timestamp=NOW)
    commit_all(log)
    return log


def test_a_tombstone_deletes_what_its_key_had_and_is_kept_for_its_time(logs: Logs) -> None:
    log = with_tombstone(logs)
    compacted(log, NOW + 10 * SECOND)
    assert pairs(log) == [(b"b", b"1"), (b"a", None), (b"z", b"1")]


def test_a_tombstone_goes_when_its_time_is_over(logs: Logs) -> None:
    log = with_tombstone(logs)
    compacted(log, NOW + 5 * SECOND)
    assert compact(log, NOW + 10 * SECOND) is None, "nothing to do before its time is over"
    compacted(log, NOW + 10 * SECOND + 1)
    assert pairs(log) == [(b"b", b"1"), (b"z", b"1")]


def test_one_run_may_remove_a_tombstone_with_what_it_deleted(logs: Logs) -> None:
    log = with_tombstone(logs)
    compacted(log, NOW + 11 * SECOND)
    assert pairs(log) == [(b"b", b"1"), (b"z", b"1")]


def test_a_key_that_came_back_after_its_tombstone_stays(logs: Logs) -> None:
    log = logs.open(compact=True, segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact_tombstone_retention_ns=0)
    put(log, (b"a", b"1"), (b"a", None), (b"a", b"2"), (b"b", b"1"))
    commit_all(log)
    compacted(log, NOW + SECOND)
    assert pairs(log) == [(b"a", b"2"), (b"b", b"1")]


def test_a_tombstone_that_is_not_committed_deletes_nothing(logs: Logs) -> None:
    log = logs.open(compact=True, segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact_tombstone_retention_ns=0)
    put(log, (b"a", b"1"), (b"a", None), (b"b", b"1"))
    log.advance_high_watermark(0)
    compact(log, NOW + SECOND)
    assert offsets(log) == [0, 1, 2]


def test_a_record_with_neither_key_nor_value_is_no_tombstone(logs: Logs) -> None:
    log = logs.open(compact=True, segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact_tombstone_retention_ns=0)
    put(log, (None, None), (b"b", b""), (b"z", b"1"))
    commit_all(log)
    compact(log, NOW + SECOND)
    assert offsets(log) == [0, 1, 2]


def test_tombstones_are_removed_after_a_reopen_too(logs: Logs) -> None:
    log = with_tombstone(logs)
    compacted(log, NOW + 5 * SECOND)
    log = logs.reopen(log)
    compacted(log, NOW + 20 * SECOND)
    assert pairs(log) == [(b"b", b"1"), (b"z", b"1")]


# ── minimum lag ──────────────────────────────────────────────────────────────────────────────────


def test_records_younger_than_the_minimum_lag_are_kept(logs: Logs) -> None:
    log = logs.open(compact=True, segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact_min_lag_ns=10 * SECOND)
    for second in (0, 1, 8, 9):
        put(log, (b"a", b"%d" % second), timestamp=NOW + second * SECOND)
    put(log, (b"z", b"1"), timestamp=NOW + 9 * SECOND)
    commit_all(log)
    compacted(log, NOW + 15 * SECOND)
    assert offsets(log) == [2, 3, 4]


@pytest.mark.parametrize("reopened", [False, True])
def test_what_the_minimum_lag_held_back_goes_later_though_nothing_new_was_written(logs: Logs, reopened: bool) -> None:
    log = logs.open(compact=True, segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact_min_lag_ns=10 * SECOND)
    put(log, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"z", b"1"), timestamp=NOW)
    commit_all(log)
    compact(log, NOW + SECOND)
    assert offsets(log) == [0, 1, 2, 3]
    if reopened:
        log = logs.reopen(log)
    compacted(log, NOW + 11 * SECOND)
    assert offsets(log) == [2, 3]


# ── merging ──────────────────────────────────────────────────────────────────────────────────────


def test_small_neighbouring_segments_become_one(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1_000, compact=True)
    for _ in range(5):
        put(log, *((b"k%d" % number, b"v" * 20) for number in range(10)))
    commit_all(log)
    before = len(bases(log))
    report = compacted(log)
    compact(log, force=True)
    assert before > 4
    assert len(bases(log)) < before
    assert report.segments_after < report.segments_before
    assert [key for key, _ in pairs(log)] == [b"k%d" % number for number in range(10)]
    assert offsets(logs.reopen(log)) == list(range(40, 50))


def test_a_merged_segment_is_no_larger_than_a_segment_may_be(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=2_000, compact=True)
    for _ in range(40):
        put(log, (b"only", b"v" * 100), (None, b"v" * 100))
        log.roll()
    put(log, (b"only", b"v"))
    commit_all(log)
    for _ in range(4):
        compact(log, force=True)
    sizes = [path.stat().st_size for path in log_files(log)]
    assert all(size <= 2_000 for size in sizes)
    assert len(sizes) < 10
    assert len(offsets(log)) == 41


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([10], [(0, 1)]),
        ([10, 20, 70], [(0, 3)]),
        ([10, 20, 71], [(0, 2), (2, 3)]),
        ([200, 10, 10, 200], [(0, 1), (1, 3), (3, 4)]),
        ([100, 100], [(0, 1), (1, 2)]),
    ],
)
def test_groups_are_neighbours_that_fit_one_segment(sizes: list[int], groups: list[tuple[int, int]]) -> None:
    facts = [SegmentFacts(number, size, 1, 0) for number, size in enumerate(sizes)]
    assert group_segments(facts, 100) == groups


def test_a_run_is_due_for_dirty_segments_and_for_tombstones_that_served_their_time() -> None:
    facts = [SegmentFacts(0, 1, 1, 0), SegmentFacts(10, 1, 1, 0)]
    assert not is_due(facts[:1], 0, 0, 0)
    assert is_due(facts, 9, None, 0)
    assert not is_due(facts, 10, None, 0)
    assert is_due(facts, 10, 5, 5)
    assert not is_due(facts, 10, 6, 5)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def random_pairs(count: int, keys: int) -> list[Pair]:
    return [(b"key-%d" % (number * 7919 % keys), b"%d" % number) for number in range(count)]


@pytest.mark.parametrize("segment_bytes_max", [2_000, 1_000_000], ids=["many segments", "one large segment"])
@pytest.mark.parametrize("batch", [1, 50, 1_500], ids=["single records", "batches", "one huge batch"])
def test_more_keys_than_fit_the_memory_take_several_runs_with_the_same_result(
    logs: Logs, segment_bytes_max: int, batch: int
) -> None:
    given = random_pairs(1_500, 600)
    results = []
    for name, memory in (("small", 4_096), ("large", 1 << 20)):
        log = logs.open(name, compact=True, compact_memory_bytes=memory, segment_bytes_max=segment_bytes_max)
        for start in range(0, len(given), batch):
            put_batch(log, *given[start : start + batch])
        log.roll()
        commit_all(log)
        report = compacted(log)
        assert (report.runs > 1) == (name == "small")
        results.append(everything(log))
        assert log.cleaned_to == log.log_end_offset
    assert results[0] == results[1]
    assert len(results[0]) == 600


# ── nothing for nothing ──────────────────────────────────────────────────────────────────────────


def stamps(log: PartitionLog) -> dict[str, tuple[int, int]]:
    """Which file it is and when it was written, of every segment."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in log_files(log)}


def backdate(log: PartitionLog) -> None:
    """So that a rewrite shows in the time whatever the clock's resolution."""
    for path in log_files(log):
        os.utime(path, ns=(1_000_000_000, 1_000_000_000))


def test_nothing_is_rewritten_when_nothing_changed(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=300, compact=True)
    put(log, *((b"k%d" % number, b"v") for number in range(20)))
    commit_all(log)
    compact(log)
    backdate(log)
    before = stamps(log)
    assert compact(log) is None
    compact(log, force=True)
    assert stamps(log) == before


def test_only_segments_that_lose_something_are_rewritten(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, compact=True)
    put_batch(log, (b"a", b"1"), (b"b", b"1"))
    put_batch(log, (b"c", b"1"), (b"d", b"1"))
    put_batch(log, (b"a", b"2"), (b"e", b"1"))
    put(log, (b"z", b"1"))
    commit_all(log)
    backdate(log)
    before = stamps(log)
    compacted(log)
    after = stamps(log)
    changed = [name for name in before if before[name] != after[name]]
    assert [int(Path(name).stem) for name in changed] == [0]


def test_a_second_run_after_a_reopen_rewrites_nothing(logs: Logs) -> None:
    log = example(logs, segment_bytes_max=250)
    commit_all(log)
    compacted(log)
    compact(log, force=True)  # segments that became small enough are merged now
    log = logs.reopen(log)
    backdate(log)
    before = stamps(log)
    compact(log)
    compact(log, force=True)
    assert stamps(log) == before


def test_a_committed_reader_sees_the_same_newest_values_as_before(logs: Logs) -> None:
    log = example(logs, segment_bytes_max=250)
    commit_all(log)
    newest = dict(pairs(log))
    compacted(log)
    reader, found = LogReader(log, 0), {}
    while (piece := reader.poll()) is not None:
        found.update({record.key: record.value for record in piece.records()})
    assert found == newest
