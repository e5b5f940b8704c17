"""What a scan costs: reading slices of 1 MiB, checking every checksum, walking over every record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bascule.kernels.records import records
from bascule.log import PartitionLog
from bench.report import Row, at_most, measured
from bench.stopwatch import best_of
from bench.workload import Columns, fill, open_log

TARGET_CPU_SECONDS = 0.1
CASES = ((128, 1), (128, 100), (128, 1_000), (1024, 1), (1024, 100), (1024, 1_000))


def rows(directory: Path) -> Iterator[Row]:
    for size, batch_size in CASES:
        messages = 1_000_000 if batch_size > 1 else 100_000
        log = open_log(directory / f"read-{size}-{batch_size}")
        fill(log, Columns(batch_size, size), messages // batch_size)
        log.advance_high_watermark(log.newest_offset)
        yield from _case(log, messages, size, batch_size)
        log.delete()


def _case(log: PartitionLog, messages: int, size: int, batch_size: int) -> Iterator[Row]:
    conditions = f"{size} B, batches of {batch_size:,}"
    cost = best_of(3, lambda: _expect(scan(log), messages))
    cpu = cost.cpu_seconds / messages * 1e6
    if size == 128 and batch_size == 1_000:
        yield at_most("log scan, CPU", cpu, "CPU-s/M", conditions, TARGET_CPU_SECONDS)
    else:
        yield measured("log scan, CPU", cpu, "CPU-s/M", conditions)
    yield measured("log scan, rate", messages / cost.seconds, "msg/s", conditions)
    yield measured("log scan, volume", messages * size / cost.seconds / 1e6, "MB/s", conditions)
    if size == 128 and batch_size == 1_000:
        cost = best_of(1, lambda: _expect(decode(log), messages))
        yield measured("log scan as Python objects, CPU", cost.cpu_seconds / messages * 1e6, "CPU-s/M", conditions)


def scan(log: PartitionLog) -> int:
    """Every record is reached and every length in it checked; none becomes an object."""
    offset, seen = 0, 0
    while (found := log.read(offset)) is not None:
        seen += records.scan(found.data, offset, gap=True, checksums=False, structure=True).records
        offset = found.next_offset
    return seen


def decode(log: PartitionLog) -> int:
    offset, seen = 0, 0
    while (found := log.read(offset)) is not None:
        seen += len(found.records())
        offset = found.next_offset
    return seen


def _expect(seen: int, messages: int) -> None:
    assert seen == messages, f"read {seen} of {messages} messages"
