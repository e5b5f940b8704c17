"""The file operations a log needs, and nothing else, so that a simulated disk can stand in for the real one in tests.

Paths are strings and handles are small integers. Reads and writes name their position: no handle has a cursor, any thread may use it.
"""

from __future__ import annotations

import contextlib
import os
from typing import NoReturn, Protocol

from bascule.errors import NO_ROOM, DiskFull, StorageError


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> int:
        """Handle for reading and writing. FileNotFoundError when it is absent and not to be created."""

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def read(self, handle: int, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def write(self, handle: int, data: bytes | memoryview, position: int) -> None:
        """All of `data`. Raises DiskFull or StorageError; some of it may then have reached the file."""

    def truncate(self, handle: int, size: int) -> None: ...

    def sync(self, handle: int) -> None:
        """Everything written to the file survives power loss once this returns."""

    def sync_directory(self, path: str) -> None:
        """Files created, renamed and removed in the directory stay so after power loss."""

    def make_directory(self, path: str) -> None: ...

    def list_directory(self, path: str) -> list[str]:
        """Names in it; FileNotFoundError when there is no such directory."""

    def file_size(self, path: str) -> int: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove the file; a file that is gone already is fine."""

    def remove_directory(self, path: str) -> None: ...


class PosixDisk:
    """The real one. With `read_only`, files are opened so that nothing can be changed through them."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._mode = os.O_RDONLY if read_only else os.O_RDWR

    def open(self, path: str, *, create: bool = False) -> int:
        flags = self._mode | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise_storage_error(error, f"cannot open {path}")

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, size: int, position: int) -> bytes:
        try:
            data = os.pread(handle, size, position)
            if len(data) == size or not data:
                return data
            return self._read_on(handle, data, size, position)
        except OSError as error:
            raise_storage_error(error, f"cannot read {size} bytes at {position}")

    def _read_on(self, handle: int, data: bytes, size: int, position: int) -> bytes:
        pieces = [data]
        done = len(data)
        while done < size:
            piece = os.pread(handle, size - done, position + done)
            if not piece:
                break
            pieces.append(piece)
            done += len(piece)
        return b"".join(pieces)

    def write(self, handle: int, data: bytes | memoryview, position: int) -> None:
        try:
            written = os.pwrite(handle, data, position)
            while written < len(data):
                written += os.pwrite(handle, memoryview(data)[written:], position + written)
        except OSError as error:
            raise_storage_error(error, f"cannot write {len(data)} bytes at {position}")

    def truncate(self, handle: int, size: int) -> None:
        try:
            os.ftruncate(handle, size)
        except OSError as error:
            raise_storage_error(error, f"cannot truncate to {size} bytes")

    def sync(self, handle: int) -> None:
        try:
            os.fdatasync(handle)
        except OSError as error:
            raise_storage_error(error, "cannot sync")

    def sync_directory(self, path: str) -> None:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise_storage_error(error, f"cannot sync the directory {path}")

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise_storage_error(error, f"cannot create the directory {path}")

    def list_directory(self, path: str) -> list[str]:
        return os.listdir(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def rename(self, source: str, target: str) -> None:
        try:
            os.rename(source, target)
        except OSError as error:
            raise_storage_error(error, f"cannot rename {source}")

    def remove(self, path: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except OSError as error:
            raise_storage_error(error, f"cannot remove {path}")

    def remove_directory(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)


def raise_storage_error(error: OSError, doing: str) -> NoReturn:
    if error.errno in NO_ROOM:
        raise DiskFull(
            f"{doing}: {error.strerror}", hint="free some room; nothing was lost and appends go on by themselves"
        ) from error
    raise StorageError(f"{doing}: {error.strerror}") from error


def read_file(disk: Disk, path: str) -> bytes | None:
    """A whole small file, or None when there is none."""
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return disk.read(handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def replace_file(disk: Disk, path: str, data: bytes, *, durable: bool, sync: bool = False) -> None:
    """Put `data` in place of the file at once: a reader, or a crash of the process, sees the old content or the new.

    With `sync` that is so after power loss as well, with `durable` it is the new one. With neither the file may be cut short then:
    only for content that checks itself and can be made again.
    """
    temporary = f"{path}.tmp"
    handle = disk.open(temporary, create=True)
    try:
        disk.truncate(handle, 0)
        disk.write(handle, data, 0)
        if sync or durable:
            disk.sync(handle)
    finally:
        disk.close(handle)
    disk.rename(temporary, path)
    if durable:
        disk.sync_directory(os.path.dirname(path))
