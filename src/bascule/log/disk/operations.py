"""The file operations of logs, so that tests can use a simulated disk.

Paths are strings and handles are file descriptors. Reads and writes give their position, so any thread may use a handle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, NoReturn, Protocol

from bascule.errors import NO_ROOM, DiskFull, StorageError

FILE_MODE: Final = 0o600
"""Mode of every file of a data directory: messages, metadata and secrets are for the broker's user alone."""
DIRECTORY_MODE: Final = 0o700


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> int:
        """Return a handle for reading and writing. Raises FileNotFoundError unless `create`."""

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def read(self, handle: int, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""

    def write(self, handle: int, data: bytes | memoryview, position: int) -> None:
        """Write all of `data`. Raises DiskFull or StorageError; the file may then contain a part of it."""

    def truncate(self, handle: int, size: int) -> None: ...

    def sync(self, handle: int) -> None:
        """Sync the file: all data written before survives power loss."""

    def sync_directory(self, path: str) -> None:
        """Sync the directory: files created, renamed and removed in it stay so after power loss."""

    def make_directory(self, path: str) -> None: ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names in the directory. Raises FileNotFoundError if it does not exist."""

    def file_size(self, path: str) -> int: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove the file, if it exists."""

    def remove_directory(self, path: str) -> None: ...


class PosixDisk:
    """The disk of the operating system. `read_only` opens files for reading only."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._mode = os.O_RDONLY if read_only else os.O_RDWR

    def open(self, path: str, *, create: bool = False) -> int:
        flags = self._mode | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return os.open(path, flags, FILE_MODE)
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
            make_private_directory(path)
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


def make_private_directory(path: str) -> None:
    """Create the directory and the missing ones above it with mode 0700, whatever the umask allows. Raises OSError."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path.rstrip("/"))
    if above:
        make_private_directory(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, DIRECTORY_MODE)


def close_to_others(path: str) -> None:
    """Take the rights of group and others from a directory that was created with them. Raises OSError."""
    mode = os.stat(path).st_mode & 0o777
    if mode & ~DIRECTORY_MODE:
        os.chmod(path, mode & DIRECTORY_MODE)


def raise_storage_error(error: OSError, doing: str) -> NoReturn:
    if error.errno in NO_ROOM:
        raise DiskFull(
            f"{doing}: {error.strerror}",
            hint="free disk space; no data was lost, and appends succeed again once there is space",
        ) from error
    raise StorageError(f"{doing}: {error.strerror}") from error


def delete_directory(disk: Disk, path: str) -> None:
    """Remove the directory and its files, if it exists."""
    try:
        names = disk.list_directory(path)
    except FileNotFoundError:
        return
    for name in sorted(names):
        disk.remove(f"{path}/{name}")
    disk.remove_directory(path)


def read_file(disk: Disk, path: str) -> bytes | None:
    """Return the content of a small file, or None if it does not exist."""
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return disk.read(handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def replace_file(disk: Disk, path: str, data: bytes, *, durable: bool, sync: bool = False) -> None:
    """Replace the content of the file atomically: readers, and a crash of the process, see the old content or the new.

    With `sync` power loss leaves the old content or the new, with `durable` the new one. With neither it may leave a part of the file:
    only for content with a checksum that can be made again.
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
