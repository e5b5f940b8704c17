"""One DoGet over a real log, while things happen to the log: nothing is left out silently."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule import errors
from bascule.broker.flight.reads import Read
from bascule.broker.flight.service import FlightGate
from bascule.flight.tickets import ReadTicket
from bascule.log import PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from bascule.security.identities import Identities
from tests.unit.log.log_helpers import ONE_RECORD_PER_SEGMENT, Logs, commit_all, put


@pytest.fixture
def gate() -> Iterator[FlightGate]:
    loop = asyncio.new_event_loop()
    yield FlightGate(loop, Identities(None))
    loop.close()


def filled(logs: Logs, records: int = 10, **options: Any) -> PartitionLog:
    log = logs.open(segment_bytes_max=ONE_RECORD_PER_SEGMENT, **options)
    put(log, *((b"%d" % (number % 3), b"%d" % number) for number in range(records)))
    commit_all(log)
    return log


def begin(log: PartitionLog, gate: FlightGate, **fields: Any) -> Iterator[tuple[list[int], int]]:
    """Offsets, and up to where the range is covered, batch by batch."""
    ticket = ReadTicket(stream="s", partition=0, columns=("offset",), **{"batch_rows": 2, **fields})
    local = cast(Any, SimpleNamespace(log=log))
    read = Read(cast(Any, None), gate, ticket, local, lambda: False)
    for batch, covered in read.batches():
        yield batch.column("offset").to_pylist(), int(covered)


def test_each_batch_says_up_to_where_the_range_is_covered(logs: Logs, gate: FlightGate) -> None:
    log = filled(logs)
    found = list(begin(log, gate, start=1, end=8))
    assert found == [([1, 2], 3), ([3, 4], 5), ([5, 6], 7), ([7], 8)]
    assert list(begin(log, gate, start=4, end=4)) == [([], 4)]


def test_records_that_come_later_are_not_in_the_range(logs: Logs, gate: FlightGate) -> None:
    log = filled(logs)
    reading = begin(log, gate)
    next(reading)
    put(log, (b"k", b"late"))
    commit_all(log)
    assert [offset for offsets, _ in reading for offset in offsets] == list(range(2, 10))


def test_what_is_not_committed_is_not_read(logs: Logs, gate: FlightGate) -> None:
    log = filled(logs)
    put(log, (b"k", b"uncommitted"))
    assert list(begin(log, gate))[-1][1] == 10
    with pytest.raises(errors.OffsetOutOfRange):
        list(begin(log, gate, end=11))


def test_retention_that_overtakes_a_reader_is_told(logs: Logs, gate: FlightGate) -> None:
    log = filled(logs, retention_records_max=3)
    reading = begin(log, gate)
    assert next(reading) == ([0, 1], 2)
    apply_retention(log)
    assert log.log_start_offset > 4
    with pytest.raises(errors.OffsetBelowStart) as refused:
        list(reading)
    assert refused.value.log_start_offset == log.log_start_offset
    with pytest.raises(errors.OffsetBelowStart):
        list(begin(log, gate, start=0))
    assert next(begin(log, gate))[0][0] == log.log_start_offset


def test_compaction_that_overtakes_a_reader_is_no_loss(logs: Logs, gate: FlightGate) -> None:
    log = filled(logs, compact=True)
    reading = begin(log, gate)
    assert next(reading) == ([0, 1], 2)
    compact(log)
    assert log.log_start_offset == 7
    rest = list(reading)
    assert [offset for offsets, _ in rest for offset in offsets] == [2, 7, 8, 9]  # 2 had been read already
    assert rest[-1][1] == 10
    assert [offset for offsets, _ in begin(log, gate, start=0) for offset in offsets] == [7, 8, 9]


def test_a_range_of_which_compaction_left_nothing_is_covered_all_the_same(logs: Logs, gate: FlightGate) -> None:
    log = filled(logs, compact=True)
    compact(log)
    assert list(begin(log, gate, start=2, end=5)) == [([], 5)]


def test_a_log_that_was_cut_back_ends_the_read_with_an_error(logs: Logs, gate: FlightGate) -> None:
    log = filled(logs)
    reading = begin(log, gate)
    next(reading)
    log.truncate(5, allow_committed=True)
    with pytest.raises(errors.Unavailable, match="cut back"):
        list(reading)


def test_a_log_that_is_closed_or_deleted_ends_the_read(logs: Logs, gate: FlightGate) -> None:
    log = filled(logs)
    first, second = begin(log, gate), begin(log, gate)
    next(first), next(second)
    log.close()
    with pytest.raises(errors.Unavailable, match="closed"):
        list(first)
    log.delete()
    with pytest.raises(errors.StreamDeleted):
        list(second)


def test_a_server_that_stops_ends_the_read(logs: Logs, gate: FlightGate) -> None:
    reading = begin(filled(logs), gate)
    next(reading)
    gate.close()
    with pytest.raises(errors.Unavailable, match="stopping"):
        list(reading)


def test_calls_are_bounded_and_counted_down_again(
    logs: Logs, gate: FlightGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bascule.limits.FLIGHT_CALLS_MAX", 1)
    log = filled(logs)
    reading = begin(log, gate)
    next(reading)
    with pytest.raises(errors.Unavailable, match="Flight calls are in progress"):
        next(begin(log, gate))
    reading.close()  # type: ignore[attr-defined]
    assert next(begin(log, gate)) == ([0, 1], 2)
