"""How fast compaction goes and how much memory it takes, against the number of keys."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

from bascule.log import LogOptions, PartitionLog, SyncPolicy
from bascule.log.cleaning.compactor import CompactionReport, compact
from bench.report import Row, at_least, measured
from bench.stopwatch import cost_of
from bench.workload import Columns, fill_keyed

TARGET_RATE = 1_000_000
MESSAGES = 2_000_000
KEY_COUNTS = (1_000, 100_000, 1_000_000)
SMALL_MEMORY = 8 * 1024 * 1024
OPTIONS = LogOptions(compact=True, segment_bytes_max=32 * 1024 * 1024, sync=SyncPolicy.INTERVAL)


def rows(directory: Path) -> Iterator[Row]:
    for keys in KEY_COUNTS:
        yield from _case(directory / f"compact-{keys}", keys, OPTIONS, at_least_rate=True)
    bounded = LogOptions(
        compact=True,
        segment_bytes_max=OPTIONS.segment_bytes_max,
        sync=SyncPolicy.INTERVAL,
        compact_memory_bytes=SMALL_MEMORY,
    )
    yield from _case(directory / "compact-bounded", KEY_COUNTS[-1], bounded, at_least_rate=False)


def _case(directory: Path, keys: int, options: LogOptions, *, at_least_rate: bool) -> Iterator[Row]:
    log = PartitionLog(str(directory), options)
    fill_keyed(log, Columns(1_000, 128), MESSAGES // 1_000, keys)
    log.advance_high_watermark(log.newest_offset)
    log.roll()
    log.close()
    seconds, runs, memory = _compact_in_child(directory, options)
    log = PartitionLog(str(directory), options)
    assert log.record_count == keys, f"{log.record_count} records are left of {keys} keys"
    log.delete()
    plural = "run" if runs == 1 else "runs"
    conditions = (
        f"{MESSAGES:,} × 128 B, {keys:,} keys, {options.compact_memory_bytes >> 20} MiB key map, {runs} {plural}"
    )
    rate = MESSAGES / seconds
    if at_least_rate:
        yield at_least("log compaction, rate", rate, "msg/s", conditions, TARGET_RATE)
    else:
        yield measured("log compaction, rate", rate, "msg/s", conditions)
    yield measured("log compaction, memory", memory / 1e6, "MB", conditions)


def _compact_in_child(directory: Path, options: LogOptions) -> tuple[float, int, int]:
    """Seconds, runs, and bytes by which the peak of resident memory grew; in a new process, so that the peak is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_compact, (directory, options))


def _compact(directory: Path, options: LogOptions) -> tuple[float, int, int]:
    log = PartitionLog(str(directory), options)
    log.open()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory begins anew
    before = _status("VmRSS")
    reports: list[CompactionReport | None] = []
    cost = cost_of(lambda: reports.append(compact(log)))
    grown = _status("VmHWM") - before
    log.close()
    report = reports[0]
    assert report is not None
    return cost.seconds, report.runs, grown


def _status(field: str) -> int:
    """A memory figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
