"""Looking up offsets by time: the table of the specification, however the records lie in batches, segments and holes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bascule.errors import TimestampOutOfRange
from bascule.log import PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from bascule.log.disk.master_keys import MasterKeys
from tests.unit.log.log_helpers import (
    NOW,
    Logs,
    Pair,
    batch_of,
    batch_positions,
    commit_all,
    everything,
    flip,
    log_files,
    offsets,
    put,
    put_batch,
)

EARLIEST = [(-1, 0), (0, 0), (20, 2), (25, 3), (90, 9), (91, 10), (500, 10)]
LATEST = [(0, 0), (5, 0), (20, 2), (25, 2), (90, 9), (500, 9)]

Writer = Callable[[Logs], PartitionLog]


def one_batch_each(logs: Logs, segment_bytes_max: int = 1_000_000, value: bytes = b"x") -> PartitionLog:
    """Records at 0, 10, …, 90."""
    log = logs.open(segment_bytes_max=segment_bytes_max)
    for number in range(10):
        put(log, (None, value), timestamp=number * 10)
    return log


def in_one_segment(logs: Logs) -> PartitionLog:
    return one_batch_each(logs)


def in_ten_segments(logs: Logs) -> PartitionLog:
    return one_batch_each(logs, 1)


def in_several_segments(logs: Logs) -> PartitionLog:
    return one_batch_each(logs, 250)


def with_an_empty_active_segment(logs: Logs) -> PartitionLog:
    log = one_batch_each(logs, 250)
    log.roll()
    assert log.segments.active.is_empty
    return log


def in_one_batch(logs: Logs) -> PartitionLog:
    log = logs.open()
    log.append(batch_of([(None, b"x")] * 10, range(0, 100, 10)), timestamp=0)
    return log


def in_batches_of_several(logs: Logs) -> PartitionLog:
    log = logs.open(segment_bytes_max=150)
    for first, count in ((0, 3), (3, 1), (4, 4), (8, 2)):
        log.append(batch_of([(None, b"x")] * count, range(0, count * 10, 10)), timestamp=first * 10)
    return log


def reopened(logs: Logs) -> PartitionLog:
    return logs.reopen(one_batch_each(logs, 250))


def with_far_apart_index_entries(logs: Logs) -> PartitionLog:
    """Each batch gets an index entry of its own."""
    return one_batch_each(logs, value=b"v" * 20_000)


def compressed(logs: Logs) -> PartitionLog:
    log = logs.open(compression="zstd", segment_bytes_max=300)
    for first in range(0, 10, 5):
        log.append(batch_of([(None, b"x" * 200)] * 5, range(0, 50, 10)), timestamp=first * 10)
    return log


def encrypted(logs: Logs) -> PartitionLog:
    log = logs.open(encryption=True, keys=MasterKeys(b"k" * 32))
    log.append(batch_of([(None, b"x")] * 10, range(0, 100, 10)), timestamp=0)
    return log


LAYOUTS: list[Writer] = [
    in_one_segment,
    in_ten_segments,
    in_several_segments,
    with_an_empty_active_segment,
    in_one_batch,
    in_batches_of_several,
    reopened,
    with_far_apart_index_entries,
    compressed,
    encrypted,
]

layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.__name__ for layout in LAYOUTS])


@layouts
def test_earliest_offset_at_or_after(logs: Logs, layout: Writer) -> None:
    log = layout(logs)
    assert [(timestamp, log.earliest_offset_at(timestamp)) for timestamp, _ in EARLIEST] == EARLIEST


@layouts
def test_latest_offset_at_or_before(logs: Logs, layout: Writer) -> None:
    log = layout(logs)
    assert [(timestamp, log.latest_offset_at(timestamp)) for timestamp, _ in LATEST] == LATEST


@layouts
def test_latest_before_the_first_record_is_an_error(logs: Logs, layout: Writer) -> None:
    with pytest.raises(TimestampOutOfRange):
        layout(logs).latest_offset_at(-1)


def test_an_empty_log_answers_with_its_end_or_an_error(logs: Logs) -> None:
    log = logs.open()
    assert log.earliest_offset_at(0) == 0
    with pytest.raises(TimestampOutOfRange):
        log.latest_offset_at(500)


def test_a_match_in_the_first_entry_of_the_last_segment_is_found(logs: Logs) -> None:
    log = logs.open()
    put(log, *[(None, b"x")] * 3, timestamp=10)
    log.roll()
    put(log, (None, b"x"), timestamp=20)
    assert log.earliest_offset_at(20) == 3
    assert log.earliest_offset_at(11) == 3
    assert log.latest_offset_at(20) == 3


def test_equal_times_across_segments_give_the_first_and_the_last_of_them(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1)
    put(log, (None, b"x"), timestamp=10)
    put(log, *[(None, b"x")] * 4, timestamp=20)
    put(log, (None, b"x"), timestamp=30)
    assert log.earliest_offset_at(20) == 1
    assert log.latest_offset_at(20) == 4


def test_every_answer_is_that_of_a_search_through_all_records(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=700)
    for number in range(30):
        deltas = [0, number % 4, number % 4 + 3, 20]
        log.append(batch_of([(b"k%d" % (number % 7), b"x" * (number % 50))] * 4, deltas), timestamp=number * 35)
    for timestamp in range(-5, 1100, 7):
        assert_answers_match(log, timestamp)


def assert_answers_match(log: PartitionLog, timestamp: int) -> None:
    stored = everything(log)
    behind = [record.offset for record in stored if record.timestamp >= timestamp]
    before = [record.offset for record in stored if record.timestamp <= timestamp]
    assert log.earliest_offset_at(timestamp) == (behind[0] if behind else log.log_end_offset)
    if before:
        assert log.latest_offset_at(timestamp) == before[-1]
    else:
        with pytest.raises(TimestampOutOfRange):
            log.latest_offset_at(timestamp)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_compacted_log_answers_with_records_that_are_still_there(logs: Logs, codec: str) -> None:
    log = logs.open(segment_bytes_max=900, compact=True, compression=codec)
    keys: list[Pair] = [(b"a", b"x" * 150), (b"b", b"x" * 150), (b"c", b"x" * 150)]
    for number in range(12):
        log.append(batch_of([keys[0], keys[number % 3], keys[2]], [0, 3, 6]), timestamp=number * 10)
    commit_all(log)
    assert compact(log) is not None
    assert 0 < len(offsets(log)) < 36
    for timestamp in range(-1, 130):
        assert_answers_match(log, timestamp)


def test_a_log_whose_old_segments_expired_begins_at_its_oldest_record(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1, retention_records_max=4)
    for number in range(10):
        put(log, (None, b"x"), timestamp=number * 10)
    commit_all(log)
    apply_retention(log)
    assert log.earliest_offset_at(-1) == 6
    assert log.earliest_offset_at(65) == 7
    assert log.latest_offset_at(60) == 6
    with pytest.raises(TimestampOutOfRange):
        log.latest_offset_at(59)


# ── timestamps never go backwards ────────────────────────────────────────────────────────────────


def test_a_clock_that_goes_backwards_does_not_take_the_log_with_it(logs: Logs) -> None:
    log = logs.open()
    times = []
    for step in (0, 100, -500, 300):
        logs.clock.now_ns = NOW + step
        times.append(log.append(batch_of([(None, b"x")])).timestamp)
    assert times == [NOW, NOW + 100, NOW + 100, NOW + 300]
    assert [record.timestamp for record in everything(log)] == times


def test_a_batch_begins_no_earlier_than_the_last_record_of_the_one_before(logs: Logs) -> None:
    log = logs.open()
    log.append(batch_of([(None, b"x")] * 2, [0, 50]), timestamp=100)
    assert log.append(batch_of([(None, b"x")]), timestamp=120).timestamp == 150
    assert log.last_timestamp == 150


def test_the_last_timestamp_survives_a_reopen_and_an_empty_active_segment(logs: Logs) -> None:
    log = logs.open()
    put(log, (None, b"x"), timestamp=NOW + 1_000)
    log.roll()
    log = logs.reopen(log)
    assert log.append(batch_of([(None, b"x")])).timestamp == NOW + 1_000


def test_truncation_lets_timestamps_begin_again_where_the_log_ends(logs: Logs) -> None:
    log = logs.open()
    for timestamp in (10, 20, 30):
        put(log, (None, b"x"), timestamp=timestamp)
    log.truncate(1)
    assert log.append(batch_of([(None, b"x")]), timestamp=15).timestamp == 15
    assert log.earliest_offset_at(11) == 1


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("byte", [8, 58])
def test_a_lookup_that_lands_on_damage_gives_the_next_record_that_can_be_read(logs: Logs, byte: int) -> None:
    log = one_batch_each(logs)
    path = log_files(log)[0]
    flip(path, batch_positions(path)[4] + byte)
    assert log.earliest_offset_at(40) == 5
    assert log.latest_offset_at(35) == 3


def test_a_lookup_finds_what_lies_behind_a_damaged_header(logs: Logs) -> None:
    log = one_batch_each(logs)
    path = log_files(log)[0]
    flip(path, batch_positions(path)[4] + 8)
    assert log.earliest_offset_at(70) == 7
    assert log.latest_offset_at(75) == 7


def test_a_batch_reaching_into_the_next_one_is_preferred(logs: Logs) -> None:
    log = logs.open()
    put_batch(log, (None, b"a"), timestamp=0)
    log.append(batch_of([(None, b"b")] * 3, [0, 40, 80]), timestamp=10)
    put(log, (None, b"c"), timestamp=90)
    assert log.earliest_offset_at(11) == 2
    assert log.earliest_offset_at(51) == 3
    assert log.latest_offset_at(89) == 2
