"""Thousands of partitions in one process, nearly all of them idle: few handles, little memory, a store that opens at once."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from pathlib import Path
from typing import Final

import pytest

from bascule.log import LogOptions, LogStore
from tests.support.logs import Draft, batch_of, read_all

OPEN_FILES_MAX: Final = 64
SPARE_HANDLES: Final = 32
IDLE_BYTES_MAX: Final = 20 * 1024
UNREAD_BYTES_MAX: Final = 8 * 1024
STREAMS: Final = 20
HOUR_MS: Final = 3_600_000


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def place(number: int) -> tuple[str, int]:
    return f"stream-{number % STREAMS}", number // STREAMS


def new_store(directory: Path) -> LogStore:
    # Nothing is synced in the background: the time of a sync is the disk's, and not what is looked at here.
    return LogStore(directory, open_files_max=OPEN_FILES_MAX, sync_interval_ms=HOUR_MS)


def write_everywhere(store: LogStore, count: int) -> None:
    batch = batch_of([Draft(b"key", b"value")])
    for number in range(count):
        log = store.log(*place(number), LogOptions(segment_bytes_max=1 << 20))
        assert log.append(batch).base_offset == 0
        assert store.pool.open_count <= OPEN_FILES_MAX


def check_partitions(directory: Path, count: int) -> None:
    handles = open_handles()
    with new_store(directory) as store:
        before = resident_bytes()
        started = time.monotonic()
        write_everywhere(store, count)
        each = (resident_bytes() - before) / count
        print(f"{count} logs: {time.monotonic() - started:.1f} s to create, {each:.0f} bytes each")
        assert each < IDLE_BYTES_MAX
        assert open_handles() <= handles + OPEN_FILES_MAX + SPARE_HANDLES
        check_some(store, count, records=1)
    assert open_handles() <= handles


def check_some(store: LogStore, count: int, records: int) -> None:
    """Read and write a few of them, in an order that no cache likes."""
    for number in range(0, count, count // 50):
        log = store.log(*place(number))
        assert [(stored.offset, stored.value) for stored in read_all(log)] == [(at, b"value") for at in range(records)]
        assert log.append(batch_of([Draft(b"key", b"value")])).base_offset == records
        assert store.pool.open_count <= OPEN_FILES_MAX


def check_reopened(directory: Path, count: int) -> None:
    """A store that knows all of them has read none of them; touching a few reads those."""
    with new_store(directory) as store:
        found = store.on_disk()
        assert len(found) == count
        tracemalloc.start()  # the pages of the first store are still there, and would be used again
        logs = [store.log(*where) for where in found]
        each = tracemalloc.get_traced_memory()[0] / count
        tracemalloc.stop()
        print(f"{count} logs known but unread: {each:.0f} bytes each")
        assert each < UNREAD_BYTES_MAX
        assert not any(log.is_loaded for log in logs)
        check_some(store, count, records=2)
        assert sum(log.is_loaded for log in logs) == len(range(0, count, count // 50))


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_thousands_of_partitions_fit_one_process(tmp_path: Path, count: int) -> None:
    check_partitions(tmp_path, count)
    check_reopened(tmp_path, count)
