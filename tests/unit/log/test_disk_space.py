"""The reserve of a disk: logs leave it to the metadata, and limits that an operator lowers make room."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule import limits
from bascule.errors import DiskFull
from bascule.log import LogOptions, LogStore
from bascule.log.disk.files import FilePool
from bascule.log.disk.operations import PosixDisk
from bascule.log.disk.space import DISK_RESERVE_SHARE, FAILURE_SECONDS, LOOK_SECONDS, DiskSpace, FreeSpace
from tests.support.waiting import eventually
from tests.unit.log.log_helpers import put_values

MIB = limits.MIB


class FakeDisk:
    def __init__(self, free_bytes: int, size_bytes: int = 1000 * MIB) -> None:
        self.found: FreeSpace | None = FreeSpace(free_bytes, size_bytes)
        self.looks = 0
        self.now = 0.0
        self.space = DiskSpace("/data", look=self.look, clock=lambda: self.now)
        self.take = FilePool(PosixDisk(), 1, self.space).take_space

    def look(self, _directory: str) -> FreeSpace | None:
        self.looks += 1
        return self.found


def test_logs_leave_the_reserve_and_continue_once_there_is_room() -> None:
    disk = FakeDisk(17 * MIB)
    disk.take(100)
    assert not disk.space.is_full()
    disk.found = FreeSpace(16 * MIB, 1000 * MIB)
    disk.now += 2 * LOOK_SECONDS
    with pytest.raises(DiskFull, match="16,777,216 bytes free"):
        disk.take(100)
    assert disk.space.is_full()
    disk.found = FreeSpace(18 * MIB, 1000 * MIB)
    disk.take(100)  # looks at once
    assert not disk.space.is_full()


def test_the_disk_is_looked_at_again_before_the_room_can_be_used_up() -> None:
    disk = FakeDisk(20 * MIB)
    for _ in range(100):
        disk.take(10_000)
    assert disk.looks == 1, "a look for each batch would cost too much"
    disk.take(2 * MIB)
    assert disk.looks == 2


def test_a_small_disk_has_a_small_reserve() -> None:
    disk = FakeDisk(1 * MIB, 8 * MIB)
    disk.take(100)
    assert disk.space.reserve_bytes == 8 * MIB // DISK_RESERVE_SHARE


def test_a_refused_write_counts_for_a_while_whatever_the_free_space() -> None:
    """A quota does not show in the free space."""
    disk = FakeDisk(900 * MIB)
    disk.space.note_refused()
    assert disk.space.is_full()
    disk.now += FAILURE_SECONDS
    assert not disk.space.is_full()


def test_a_disk_that_does_not_tell_is_not_full() -> None:
    disk = FakeDisk(0)
    disk.found = None
    disk.take(100)
    assert not disk.space.is_full()


def test_lower_limits_are_applied_at_once_to_the_active_segment_too(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        log = store.log("orders", 0, LogOptions(compact=False), cleaner_interval_ms=3_600_000)
        put_values(log, 100)
        log.advance_high_watermark(99)
        store.set_options(
            "orders", 0, LogOptions(retention_records_max=10, compact=True), cleaner_interval_ms=3_600_000
        )
        eventually(lambda: log.log_start_offset == 100, "the segment was rolled and removed")
        assert log.options.retention_records_max == 10
        assert not log.options.compact, "a log keeps whether it is compacted"
        put_values(log, 5)
        assert (log.log_start_offset, log.newest_offset, len(log.segments)) == (100, 104, 1)
