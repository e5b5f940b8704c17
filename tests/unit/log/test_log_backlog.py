"""What lies behind an offset: as many bytes as the batches on disk say, whatever the segments, and the time of the first of them."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from bascule.errors import LogClosed
from bascule.kernels.records import records
from bascule.log import PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from bascule.log.partition.backlog import Backlog, backlog
from tests.unit.log.log_helpers import SECOND, Logs, commit_all, index_files, log_files, put, put_batch, put_values


def headers_of(log: PartitionLog) -> list[records.BatchHeader]:
    found = []
    for path in log_files(log):
        data, position = path.read_bytes(), 0
        while position < len(data):
            found.append(records.read_header(data, position))
            position += found[-1].length
    return found


def expected(headers: list[records.BatchHeader], offset: int, end_offset: int) -> Backlog | None:
    waiting = [header for header in headers if header.last_offset >= offset and header.base_offset < end_offset]
    if not waiting:
        return None
    return Backlog(waiting[0].base_offset, sum(header.length for header in waiting), waiting[0].first_timestamp)


def agrees(log: PartitionLog, step: int = 1) -> None:
    headers, end = headers_of(log), log.log_end_offset
    for offset in range(0, end + 2, step):
        for end_offset in {end, max(0, end - 1), end // 2, offset + 1}:
            assert backlog(log, offset, end_offset) == expected(headers, offset, end_offset), (offset, end_offset)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def filled(logs: Logs, seed: int, *, segment_bytes_max: int, compact: bool = False) -> PartitionLog:
    chance = random.Random(seed)
    log = logs.open(segment_bytes_max=segment_bytes_max, compact=compact)
    for _ in range(60):
        logs.clock.advance(chance.randrange(3 * SECOND))
        put_batch(
            log, *((b"%d" % chance.randrange(8), b"v" * chance.randrange(400)) for _ in range(chance.randint(1, 6)))
        )
    return log


@pytest.mark.parametrize("segment_bytes_max", [1, 3_000, 1 << 20])
def test_it_is_what_the_headers_say(logs: Logs, segment_bytes_max: int) -> None:
    log = filled(logs, segment_bytes_max, segment_bytes_max=segment_bytes_max)
    agrees(log)
    agrees(logs.reopen(log))
    logs.close()


def test_the_index_is_used_and_made_again_when_it_lies(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 300, size=1_000)
    agrees(log, step=37)
    log.roll()
    put_values(log, 3)
    log = logs.reopen(log)
    for path in index_files(log):
        path.unlink()
    agrees(log, step=37)
    logs.close()


def test_holes_of_compaction_hold_nothing(logs: Logs) -> None:
    log = filled(logs, 3, segment_bytes_max=1_500, compact=True)
    commit_all(log)
    assert compact(log, logs.clock()) is not None
    agrees(log)
    logs.close()


def test_what_retention_took_is_not_waited_for(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1, retention_records_max=4)
    put_values(log, 10)
    commit_all(log)
    apply_retention(log, logs.clock())
    assert log.log_start_offset > 0
    agrees(log)
    logs.close()


def test_sealed_batches_say_as_much(logs: Logs) -> None:
    log = logs.open(compression="zstd")
    put_values(log, 20, size=500)
    agrees(log)
    logs.close()


def test_the_time_is_that_of_the_first_batch_that_waits(logs: Logs) -> None:
    log = logs.open()
    times = []
    for number in range(5):
        logs.clock.advance(7 * SECOND)
        times.append(logs.clock())
        put(log, (None, b"%d" % number))
    for offset in range(5):
        found = backlog(log, offset, 5)
        assert found is not None and found.timestamp == times[offset]
    assert backlog(log, 5, 5) is None
    logs.close()


def test_damage_ends_the_count_and_nothing_else(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 10, size=100)
    path = log_files(log)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = b"\xff" * 200
    path.write_bytes(data)
    for offset in range(10):
        found = backlog(log, offset, 10)
        assert found is None or 0 < found.bytes <= len(data)
    logs.close()


def test_a_closed_log_says_so(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 3)
    log.close()
    with pytest.raises(LogClosed):
        backlog(log, 0, 3)
    logs.close()


def test_while_segments_come_and_go(logs: Logs) -> None:
    """The cleaner takes the file from under the one who looks: it looks again."""
    log = logs.open(segment_bytes_max=300, retention_records_max=20)
    put_values(log, 30, size=50)
    over = threading.Event()

    def write() -> None:
        for _ in range(30):
            put_values(log, 3, size=50)
            commit_all(log)
            apply_retention(log, logs.clock())
        over.set()

    writing = threading.Thread(target=write)
    writing.start()
    while not over.is_set():
        start, end = log.log_start_offset, log.log_end_offset
        found = backlog(log, start, end)
        assert found is None or (found.bytes > 0 and found.offset >= start)
    writing.join()
    agrees(log, step=100)
    logs.close()
