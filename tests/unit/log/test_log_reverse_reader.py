"""The reader that goes from an offset down to the oldest record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bascule.errors import CallerError, CorruptBatch, LogClosed, LogDeleted, LogEmpty, ReaderCancelled
from bascule.log import PartitionLog, ReverseReader
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from bascule.log.disk.master_keys import MasterKeys
from tests.unit.log.log_helpers import (
    Logs,
    batch_positions,
    commit_all,
    flip,
    log_files,
    offsets,
    put,
    put_batch,
    put_values,
)


def down(reader: ReverseReader) -> list[int]:
    return [record.offset for record in reader]


def filled(logs: Logs, count: int = 10, committed: int = 6) -> PartitionLog:
    log = logs.open(segment_bytes_max=200)
    put_values(log, count)
    log.advance_high_watermark(committed)
    return log


def test_records_come_highest_offset_first(logs: Logs) -> None:
    assert down(ReverseReader(filled(logs), 4)) == [4, 3, 2, 1, 0]


def test_without_a_start_it_begins_at_the_end(logs: Logs) -> None:
    log = filled(logs)
    assert down(ReverseReader(log, committed=False)) == list(range(9, -1, -1))
    assert down(ReverseReader(log)) == list(range(6, -1, -1))


def test_only_committed_records_are_read_unless_all_are_wanted(logs: Logs) -> None:
    log = filled(logs)
    assert down(ReverseReader(log, 9)) == [6, 5, 4, 3, 2, 1, 0]
    assert down(ReverseReader(log, 8, committed=False)) == [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_a_start_beyond_the_end_is_the_end(logs: Logs) -> None:
    assert down(ReverseReader(filled(logs), 1_000, committed=False))[0] == 9


@pytest.mark.parametrize("stop", [0, 3, 5])
def test_the_stop_offset_is_the_last_one_read(logs: Logs, stop: int) -> None:
    assert down(ReverseReader(filled(logs), 5, stop_offset=stop)) == list(range(5, stop - 1, -1))


def test_a_stop_offset_above_the_start_gives_nothing(logs: Logs) -> None:
    assert down(ReverseReader(filled(logs), 2, stop_offset=3)) == []


def test_the_end_is_reached_for_good(logs: Logs) -> None:
    reader = ReverseReader(filled(logs), 1)
    assert down(reader) == [1, 0]
    assert reader.read() is None


@pytest.mark.parametrize("bytes_max", [1, 130, 1_000_000])
def test_batches_of_several_records_are_turned_around_whole(logs: Logs, bytes_max: int) -> None:
    log = logs.open(segment_bytes_max=400)
    for _ in range(8):
        put_batch(log, *[(b"k", b"v")] * 5)
    for start in (39, 38, 35, 34, 2, 0):
        assert down(ReverseReader(log, start, committed=False, bytes_max=bytes_max)) == list(range(start, -1, -1))


def test_it_reads_piece_by_piece_through_a_segment_with_an_index(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 60, size=4_000)
    reader = ReverseReader(log, committed=False, bytes_max=20_000)
    pieces = []
    while (piece := reader.read()) is not None:
        pieces.append([record.offset for record in piece])
    assert [offset for piece in pieces for offset in piece] == list(range(59, -1, -1))
    assert len(pieces) > 5


def test_sealed_batches_are_opened(logs: Logs) -> None:
    log = logs.open(compression="zstd", encryption=True, keys=MasterKeys(b"k" * 16))
    for _ in range(3):
        put_batch(log, *[(b"k", b"v" * 100)] * 3)
    assert down(ReverseReader(log, 7, committed=False)) == list(range(7, -1, -1))


def test_an_empty_active_segment_is_stepped_over(logs: Logs) -> None:
    log = filled(logs)
    log.roll()
    assert down(ReverseReader(log, committed=False)) == list(range(9, -1, -1))


def test_it_stops_at_the_oldest_record_that_retention_left(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1, retention_records_max=4)
    put_values(log, 10)
    commit_all(log)
    apply_retention(log)
    assert down(ReverseReader(log)) == [9, 8, 7, 6]


def test_holes_of_compaction_are_stepped_over(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=300, compact=True)
    for number in range(30):
        put(log, (b"k%d" % (number % 4), b"%d" % number))
    commit_all(log)
    compact(log)
    left = offsets(log)
    assert len(left) < 30
    assert down(ReverseReader(log)) == left[::-1]
    assert down(ReverseReader(log, left[-3] - 1)) == left[:-3][::-1]


# ── how it ends ──────────────────────────────────────────────────────────────────────────────────


def test_an_empty_log_is_an_error(logs: Logs) -> None:
    with pytest.raises(LogEmpty):
        ReverseReader(logs.open())


def test_a_log_without_committed_records_is_an_error(logs: Logs) -> None:
    log = filled(logs, committed=-1)
    with pytest.raises(LogEmpty):
        ReverseReader(log)
    assert down(ReverseReader(log, committed=False))[0] == 9


def test_a_negative_start_is_refused(logs: Logs) -> None:
    with pytest.raises(CallerError, match="-3"):
        ReverseReader(filled(logs), -3)


def test_a_cancelled_reader_reads_no_more(logs: Logs) -> None:
    reader = ReverseReader(filled(logs), 6, bytes_max=1)
    assert reader.read() is not None
    reader.cancel()
    with pytest.raises(ReaderCancelled):
        reader.read()


@pytest.mark.parametrize(("leave", "error"), [(PartitionLog.close, LogClosed), (PartitionLog.delete, LogDeleted)])
def test_a_log_that_is_gone_is_an_error(
    logs: Logs, leave: Callable[[PartitionLog], None], error: type[Exception]
) -> None:
    log = filled(logs)
    reader = ReverseReader(log, 6, bytes_max=1)
    leave(log)
    with pytest.raises(error) as caught:
        reader.read()
    assert type(caught.value) is error
    with pytest.raises(error):
        ReverseReader(log)


@pytest.mark.parametrize("byte", [0, 5, 8, 16, 24, 57])
def test_damage_is_named_and_what_lies_before_it_can_be_read(logs: Logs, byte: int) -> None:
    log = logs.open()
    put_values(log, 8)
    path = log_files(log)[0]
    flip(path, batch_positions(path)[4] + byte)
    reader = ReverseReader(log, committed=False, bytes_max=1)
    found: list[int] = []
    with pytest.raises(CorruptBatch) as caught:
        while (piece := reader.read()) is not None:
            found += [record.offset for record in piece]
    assert found == [7, 6, 5]
    assert caught.value.first_offset == 4
    reader.skip_to(caught.value.first_offset - 1)
    assert down(reader) == [3, 2, 1, 0]


def test_a_damaged_oldest_batch_does_not_keep_it_from_the_others(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 4)
    flip(log_files(log)[0], 57)
    reader = ReverseReader(log, committed=False)
    found: list[int] = []
    with pytest.raises(CorruptBatch):
        while (piece := reader.read()) is not None:
            found += [record.offset for record in piece]
    assert found == [3, 2, 1]
