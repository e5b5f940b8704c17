"""What an append costs: records into a batch, checksum, the write to the file, the background sync."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.report import Row, at_most, measured
from bench.stopwatch import Cost, best_of
from bench.workload import Columns, fill, open_log

MESSAGE_SIZES = (128, 1024)
BATCH_SIZES = (1, 10, 100, 1_000)
TARGET_CPU_SECONDS = 0.25


def rows(directory: Path) -> Iterator[Row]:
    for size in MESSAGE_SIZES:
        for batch_size in BATCH_SIZES:
            yield from _case(directory / f"append-{size}-{batch_size}", size, batch_size)


def _case(directory: Path, size: int, batch_size: int) -> Iterator[Row]:
    columns = Columns(batch_size, size)
    batches = max(1, min(20_000, 1_000_000 // batch_size))
    log = open_log(directory)
    log.open()
    cost = best_of(3, lambda: fill(log, columns, batches))
    log.delete()
    yield from _rows(cost, batches * batch_size, size, batch_size)


def _rows(cost: Cost, messages: int, size: int, batch_size: int) -> Iterator[Row]:
    conditions = f"{size} B, batches of {batch_size:,}"
    cpu = cost.cpu_seconds / messages * 1e6
    if size == 128 and batch_size == 1_000:
        yield at_most("log append, CPU", cpu, "CPU-s/M", conditions, TARGET_CPU_SECONDS)
    else:
        yield measured("log append, CPU", cpu, "CPU-s/M", conditions)
    yield measured("log append, rate", messages / cost.seconds, "msg/s", conditions)
    yield measured("log append, volume", messages * size / cost.seconds / 1e6, "MB/s", conditions)
