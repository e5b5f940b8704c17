"""Many files, few handles: a file is opened when it is used and the least recently used one is closed when there are too many."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict

from bascule.errors import StorageError
from bascule.log.disk.histogram import Histogram
from bascule.log.disk.operations import Disk


class FileGone(Exception):
    """The file was deleted or replaced while somebody still knew it: look the segment up again."""


class FilePool:
    """Keeps at most `capacity` handles open; files in use are never closed, so it may be exceeded by the number of threads."""

    def __init__(self, disk: Disk, capacity: int) -> None:
        assert capacity > 0
        self.disk = disk
        self.capacity = capacity
        self._lock = threading.Lock()
        self._open: OrderedDict[PooledFile, None] = OrderedDict()
        self._sync_lock = threading.Lock()
        self.sync_seconds = Histogram()
        """Of files that were forced to the disk, and that went well."""

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
        """The path is about to mean something else: who reads goes on, nobody opens it again."""
        with self._lock:
            file.retired = True
            if file.users == 0:
                self._close(file)

    def close(self, file: PooledFile) -> None:
        """Give the handle back now; the next use opens it again."""
        with self._lock:
            if file.users == 0:
                self._close(file)

    def note_sync(self, seconds: float) -> None:
        """From any thread."""
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
    """One file of the pool. Every operation is safe from any thread."""

    __slots__ = ("handle", "has_leftover", "path", "pool", "retired", "users")

    def __init__(self, pool: FilePool, path: str) -> None:
        self.pool = pool
        self.path = path
        self.handle: int | None = None
        self.users = 0
        self.retired = False
        self.has_leftover = False

    def read(self, size: int, position: int) -> bytes:
        """Exactly `size` bytes. What a file has lost at its end reads as zeros, which no batch begins with: damage like any other."""
        handle = self.pool.acquire(self)
        try:
            data = self.pool.disk.read(handle, size, position)
        finally:
            self.pool.release(self)
        return data if len(data) == size else data.ljust(size, b"\0")

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Write all of it, or cut the file back to where the write began.

        Should the cut fail as well, the leftover lies behind what anybody reads. It has to go before anything else is written: a
        shorter batch would not cover it, and recovery would take what lies behind it for lost.
        """
        self.cut_leftover(position)
        handle = self.pool.acquire(self)
        try:
            self.pool.disk.write(handle, data, position)
        except StorageError:
            self.has_leftover = True
            with contextlib.suppress(StorageError):
                self.cut_leftover(position)
            raise
        finally:
            self.pool.release(self)

    def cut_leftover(self, size: int) -> None:
        """Whatever a failed write left behind `size`."""
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
