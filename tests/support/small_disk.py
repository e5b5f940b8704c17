"""File systems of a few megabytes that can be made full, for data directories of real brokers.

They live in a mount namespace of their own, which needs no root where user namespaces are allowed: a process that does nothing
keeps the namespace, and everybody reaches the files through /proc/<its pid>/root. They outlive the brokers that use them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from pathlib import Path
from typing import Final

_KEEPER: Final = 'mount -t tmpfs -o "size=$1" bascule-test "$2" && echo ready && exec sleep infinity'
CHUNK: Final = bytes(64 << 10)


class NotPermitted(Exception):
    """This machine does not let us mount a file system."""


class SmallDisk:
    def __init__(self, directory: Path, size_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _KEEPER, "keeper"]
        self._keeper = subprocess.Popen(
            [*command, str(size_bytes), str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._keeper.stdout is not None and self._keeper.stderr is not None
        if self._keeper.stdout.readline() != b"ready\n":
            reason = self._keeper.stderr.read().decode().strip()
            self.close()
            raise NotPermitted(reason)
        self.path = Path(f"/proc/{self._keeper.pid}/root{directory.resolve()}")
        """Where its files are, for every process of this user."""

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self) -> None:
        """Not one more byte fits."""
        with self._ballast.open("ab", buffering=0) as file:
            for chunk in (CHUNK, CHUNK[:512], CHUNK[:1]):
                with contextlib.suppress(_Full):
                    while True:
                        _write(file.fileno(), chunk)

    def relieve(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        self._keeper.kill()
        self._keeper.communicate()


class MountedDisk(SmallDisk):
    """The same under its own path, for who does not find the way through /proc, as Java does not. Needs root."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "bascule-test", str(directory)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:
            raise NotPermitted(done.stderr.decode().strip())
        self.path = directory

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)  # lazy: a test that failed left files open


class _Full(Exception):
    pass


def _write(handle: int, data: bytes) -> None:
    try:
        os.write(handle, data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _Full from None


def is_permitted(directory: Path) -> bool:
    try:
        SmallDisk(directory, 1 << 20).close()
    except (NotPermitted, OSError):
        return False
    return True
