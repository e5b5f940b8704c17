"""A disk that is really full: a limit on the size of files, and a small file system of its own where that is permitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bascule.errors import DiskFull
from bascule.log import LogOptions, PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from tests.support.logs import Draft, ManualSyncer, batch_of, read_all

ROOT: Final = Path(__file__).parents[3]
FILE_BYTES_MAX: Final = 20_000

WRITER: Final = """
import json, os, resource, sys
from bascule.errors import DiskFull
from bascule.log import LogOptions, PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from tests.support.logs import Draft, ManualSyncer, batch_of

directory, limit = sys.argv[1], int(sys.argv[2])
log = PartitionLog(directory, LogOptions(segment_bytes_max=10**6), syncer=ManualSyncer())
batch = batch_of([Draft(b"key", b"x" * 300)] * 3)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
refused = None
while refused is None:
    try:
        log.append(batch)
    except DiskFull as error:
        refused = str(error)
end = log.log_end_offset
size = os.stat(log.segments.active.path).st_size
again = 0
for _ in range(20):
    try:
        log.append(batch)
    except DiskFull:
        again += 1
log.sync()
synced = log.synced_end_offset
unchanged = os.stat(log.segments.active.path).st_size == size == log.size_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
appended = log.append(batch)
if sys.argv[3] == "close":
    log.close()
print(json.dumps(dict(refused=refused, end=end, again=again, unchanged=unchanged, synced=synced,
                      base_offset=appended.base_offset)), flush=True)
os._exit(0)
"""


def run_writer(directory: Path, ending: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(directory), str(FILE_BYTES_MAX), ending],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("ending", ["close", "vanish"])
def test_appends_beyond_a_limit_fail_whole_and_go_on_when_it_is_lifted(tmp_path: Path, ending: str) -> None:
    told = run_writer(tmp_path / "log", ending)
    assert "free disk space" in told["refused"]
    assert told["unchanged"] and told["again"] == 20
    assert told["synced"] == told["end"] == told["base_offset"]
    log = PartitionLog(str(tmp_path / "log"), syncer=ManualSyncer())
    assert [stored.offset for stored in read_all(log)] == list(range(told["end"] + 3))
    log.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "bascule-test", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a file system is not permitted here")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)  # lazy: a test that failed left files open


@pytest.mark.parametrize("segment_bytes_max", [20_000, 10_000_000])
def test_a_full_file_system_costs_nothing_that_was_acknowledged(small_disk: Path, segment_bytes_max: int) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    options = LogOptions(segment_bytes_max=segment_bytes_max)
    log = PartitionLog(str(small_disk / "log"), options, syncer=ManualSyncer())
    end = fill_up(log)
    assert end > 50
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.append(batch_of([Draft(None, bytes(8000))] * 8))
        log.sync()  # what was taken can be made to last although nothing more fits
    assert log.synced_end_offset == end
    assert [stored.offset for stored in read_all(log)] == list(range(end))
    ballast.unlink()
    assert log.append(batch_of([Draft(None, b"room again")])).base_offset == end
    log.close()
    again = PartitionLog(str(small_disk / "log"), options, syncer=ManualSyncer())
    report = again.open()
    assert not report.damage and not report.missing and report.cut_reason is None  # an index may have had no room
    assert [stored.offset for stored in read_all(again)] == list(range(end + 1))
    again.close()


def fill_up(log: PartitionLog) -> int:
    """Until nothing fits any more, not even a small record. Returns the end of the log."""
    size = 4000
    while size > 1:
        try:
            log.append(batch_of([Draft(None, bytes(size))]))
        except DiskFull:
            size //= 2
    return log.log_end_offset


def test_a_log_on_a_full_file_system_opens_and_can_be_read(small_disk: Path) -> None:
    log = PartitionLog(str(small_disk / "log"), syncer=ManualSyncer())
    end = fill_up(log)
    log.sync()
    crowd_out(small_disk / "ballast")
    again = PartitionLog(str(small_disk / "log"), syncer=ManualSyncer())
    assert [stored.offset for stored in read_all(again)] == list(range(end))
    with pytest.raises(DiskFull):
        again.append(batch_of([Draft(None, bytes(8000))]))


def test_retention_makes_room_on_a_full_file_system(small_disk: Path) -> None:
    options = LogOptions(segment_bytes_max=20_000, retention_records_max=20)
    log = PartitionLog(str(small_disk / "log"), options, syncer=ManualSyncer())
    end = fill_up(log)
    log.advance_high_watermark(end - 1)
    crowd_out(small_disk / "ballast")
    assert apply_retention(log).deleted
    kept = [stored.offset for stored in read_all(log)]
    assert kept == list(range(log.log_start_offset, end))
    assert log.append(batch_of([Draft(None, bytes(8000))])).base_offset == end
    log.close()
    again = PartitionLog(str(small_disk / "log"), options, syncer=ManualSyncer())
    assert [stored.offset for stored in read_all(again)] == [*kept, end]
    again.close()


def crowd_out(ballast: Path) -> None:
    """Take the last bytes of the file system."""
    with ballast.open("ab", buffering=0) as file:
        while True:
            try:
                file.write(bytes(100))
            except OSError:
                return
