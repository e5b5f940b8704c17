"""A pool of open files: a file is opened on use, and the least recently used one is closed when there are too many."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict

from bascule.errors import DiskFull, StorageError
from bascule.log.disk.histogram import Histogram
from bascule.log.disk.operations import Disk
from bascule.log.disk.space import DiskSpace


class FileGone(Exception):
    """The file was deleted or replaced meanwhile; the caller has to look the segment up again."""


class FilePool:
    """Keeps at most `capacity` files open. Files in use are not closed, so threads may exceed it by one file each."""

    def __init__(self, disk: Disk, capacity: int, space: DiskSpace | None = None) -> None:
        assert capacity > 0
        self.space = space
        """None: writes are limited by the disk alone."""
        self.disk = disk
        self.capacity = capacity
        self._lock = threading.Lock()
        self._open: OrderedDict[PooledFile, None] = OrderedDict()
        self._sync_lock = threading.Lock()
        self.sync_seconds = Histogram()
        """Durations of successful syncs."""

    def take_space(self, size_bytes: int) -> None:
        """A log is about to append so many bytes. Raises DiskFull if only the reserve of the disk is left."""
        space = self.space
        if size_bytes and space is not None:
            space.allowance -= size_bytes
            if space.allowance < 0 or space.clock() > space.look_at:
                space.check()

    @property
    def open_count(self) -> int:
        return len(self._open)

    def acquire(self, file: PooledFile) -> int:
        with self._lock:
            if file.retired:
                raise FileGone(file.path)
            if file.handle is None:
                self._make_room()
                try:
                    file.handle = self.disk.open(file.path)
                except FileNotFoundError:
                    raise FileGone(file.path) from None
                self._open[file] = None
            else:
                self._open.move_to_end(file)
            file.users += 1
            return file.handle

    def release(self, file: PooledFile) -> None:
        with self._lock:
            file.users -= 1
            if file.retired and file.users == 0:
                self._close(file)

    def retire(self, file: PooledFile) -> None:
        """Mark a file whose path is about to be removed or reused. Reads in progress finish; new ones raise FileGone."""
        with self._lock:
            file.retired = True
            if file.users == 0:
                self._close(file)

    def close(self, file: PooledFile) -> None:
        """Close the handle if the file is not in use; the next use opens it again."""
        with self._lock:
            if file.users == 0:
                self._close(file)

    def note_sync(self, seconds: float) -> None:
        """Record the duration of a sync. Any thread may call it."""
        with self._sync_lock:
            self.sync_seconds.observe(seconds)

    def _make_room(self) -> None:
        if len(self._open) < self.capacity:
            return
        idle = next((file for file in self._open if file.users == 0), None)
        if idle is not None:
            self._close(idle)

    def _close(self, file: PooledFile) -> None:
        if file.handle is not None:
            self.disk.close(file.handle)
            file.handle = None
            self._open.pop(file, None)


class PooledFile:
    """One file of the pool. All operations are thread-safe."""

    __slots__ = ("handle", "has_leftover", "path", "pool", "retired", "users")

    def __init__(self, pool: FilePool, path: str) -> None:
        self.pool = pool
        self.path = path
        self.handle: int | None = None
        self.users = 0
        self.retired = False
        self.has_leftover = False

    def read(self, size: int, position: int) -> bytes:
        """Return exactly `size` bytes. Bytes beyond the end of the file read as zeros, which are not a valid batch."""
        handle = self.pool.acquire(self)
        try:
            data = self.pool.disk.read(handle, size, position)
        except StorageError as error:
            raise StorageError(
                f"{self.path}: {error.message}",
                hint="check the disk; other replicas of this partition may have these records",
            ) from error
        finally:
            self.pool.release(self)
        return data if len(data) == size else data.ljust(size, b"\0")

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Write all of `data`, or truncate the file to `position` and raise.

        If the truncation fails too, the next write repeats it first: otherwise a shorter batch would leave a part of the failed one
        after itself, which recovery would report as damage.
        """
        if self.has_leftover:
            self.cut_leftover(position)
        pool = self.pool
        handle = pool.acquire(self)
        try:
            pool.disk.write(handle, data, position)
        except StorageError as error:
            if pool.space is not None and isinstance(error, DiskFull):
                pool.space.note_refused()
            self.has_leftover = True
            with contextlib.suppress(StorageError):
                self.cut_leftover(position)
            raise
        finally:
            pool.release(self)

    def cut_leftover(self, size: int) -> None:
        """Remove the bytes that a failed write left after `size`."""
        if self.has_leftover:
            self.truncate(size)
            self.has_leftover = False

    def truncate(self, size: int) -> None:
        handle = self.pool.acquire(self)
        try:
            self.pool.disk.truncate(handle, size)
        finally:
            self.pool.release(self)

    def sync(self) -> None:
        handle = self.pool.acquire(self)
        try:
            began = time.monotonic()
            self.pool.disk.sync(handle)
            self.pool.note_sync(time.monotonic() - began)
        finally:
            self.pool.release(self)

    def retire(self) -> None:
        self.pool.retire(self)

    def close(self) -> None:
        self.pool.close(self)
