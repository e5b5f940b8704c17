"""Finds the files and positions of a range of offsets, for a reader that reads the files itself through read-only handles.

Bytes below the high watermark are never changed in place, and a removed or replaced file stays readable while it is open, so a reader
may be slow. If the log is truncated nevertheless, the reader finds bytes that fail their checksum, or none.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from bascule.log.disk.files import FileGone, PooledFile
from bascule.log.disk.operations import raise_storage_error
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.segments.search import start_position
from bascule.log.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class FileRange:
    """Whole batches from `start` to `stop`, exclusive. They may hold records before and after the requested range."""

    handle: int
    """A read-only file descriptor; the receiver closes it."""
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FileRanges:
    files: tuple[FileRange, ...]
    next_offset: int
    """The files hold all records of the range below this offset."""

    @property
    def nbytes(self) -> int:
        return sum(each.stop - each.start for each in self.files)

    def close(self) -> None:
        for each in self.files:
            os.close(each.handle)


def open_ranges(log: PartitionLog, offset: int, end_offset: int, files_max: int) -> FileRanges:
    """Open the first files of `offset <= … < end_offset`, which must be committed. Raises LogClosed and LogDeleted."""
    while True:
        try:
            return _open_ranges(log, offset, end_offset, files_max)
        except FileGone:
            log.readable_end_offset(committed=True)  # raises if the log is closed


def _open_ranges(log: PartitionLog, offset: int, end_offset: int, files_max: int) -> FileRanges:
    segments = [one for one in log.segments if one.size and one.next_offset > offset and one.base_offset < end_offset]
    chosen, left = segments[:files_max], segments[files_max:]
    files: list[FileRange] = []
    with contextlib.ExitStack() as opened:
        for segment in chosen:
            each = _open(segment, offset)
            opened.callback(os.close, each.handle)
            files.append(each)
        opened.pop_all()
    return FileRanges(tuple(files), left[0].base_offset if left else end_offset)


def _open(segment: Segment, offset: int) -> FileRange:
    stop = segment.size
    start = start_position(segment, offset) if offset > segment.base_offset else 0
    return FileRange(_reopened(segment.file), start, stop)


def _reopened(file: PooledFile) -> int:
    """Open the file that the pool has open, even if its path was reused."""
    handle = file.pool.acquire(file)
    try:
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise_storage_error(error, f"cannot open {file.path} for a reader")
    finally:
        file.pool.release(file)
