"""How long opening takes, against the size of the log: after a clean stop, after a kill, and with every side file lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.report import Row, at_most, measured
from bench.stopwatch import cost_of
from bench.workload import Columns, fill, open_log

TARGET_SECONDS = 0.5
MIB = 1024 * 1024
SIZES_MIB = (64, 1024, 10 * 1024)


def rows(directory: Path) -> Iterator[Row]:
    for size_mib in SIZES_MIB:
        if shutil.disk_usage(directory).free < 2 * size_mib * MIB:
            continue  # the row is left out rather than measured on a smaller log
        yield from _case(directory / f"open-{size_mib}", size_mib)


def _case(directory: Path, size_mib: int) -> Iterator[Row]:
    columns = Columns(1_000, 1024)
    batches = size_mib * MIB // 1_033_000 + 1
    _write(directory, columns, batches, clean=True)
    label = f"{size_mib / 1024:g} GiB, 256 MiB segments"
    clean = _open_seconds(directory)
    if size_mib == SIZES_MIB[-1]:
        yield at_most("log open after a clean stop", clean, "s", label, TARGET_SECONDS)
    else:
        yield measured("log open after a clean stop", clean, "s", label)
    _write(directory, columns, 100, clean=False)
    yield measured(
        "log open after a kill", _open_seconds(directory), "s", f"{label}, 100 MB written since the checkpoint"
    )
    if size_mib <= 1024:
        _lose_side_files(directory)
        yield measured("log open without side files", _open_seconds(directory), "s", f"{label}, all of it verified")
    shutil.rmtree(directory)


def _write(directory: Path, columns: Columns, batches: int, *, clean: bool) -> None:
    """In a process of its own, which ends with or without closing the log."""
    child = os.fork()
    if child == 0:
        log = open_log(directory)
        fill(log, columns, batches)
        if clean:
            log.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0


def _open_seconds(directory: Path) -> float:
    log = open_log(directory)
    seconds = cost_of(log.open).seconds
    assert log.newest_offset > 0
    log.close()
    return seconds


def _lose_side_files(directory: Path) -> None:
    for path in directory.iterdir():
        if path.suffix != ".log":
            path.unlink()
