"""The free space of the disk with the logs. Logs leave a reserve of it to the metadata.

Without the reserve, a full disk would also stop the Raft log, and with it every call that could make room: to delete a stream, or to
lower its retention. Before a log writes a batch, its pool of files takes the bytes from `allowance`; it calls `check` every second, and
after half of the remaining space.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from bascule import limits
from bascule.errors import DiskFull

DISK_RESERVE_BYTES_MAX: Final = 16 * limits.MIB
"""Free space that logs leave to the metadata: below it, they refuse batches, and calls that make room still work."""
DISK_RESERVE_SHARE: Final = 20
"""The reserve is at most one part in this many of the disk."""
LOOK_SECONDS: Final = 1.0
"""Maximum age of the last look at the disk when bytes are written."""
FAILURE_SECONDS: Final = 10.0
"""After a write that the disk refused, it counts as full for this time: a quota does not show in the free space."""


class FreeSpace(NamedTuple):
    free_bytes: int
    size_bytes: int


def free_space(directory: str) -> FreeSpace | None:
    """Free and total bytes of the file system; None if it does not tell."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return FreeSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


class DiskSpace:
    def __init__(
        self,
        directory: str,
        *,
        look: Callable[[str], FreeSpace | None] = free_space,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._look = look
        self.clock = clock
        self._is_short = False
        self.look_at = float("-inf")
        """Time of the next look."""
        self._refused_at = float("-inf")
        self.allowance = 0
        """Bytes that may be written before the next look."""
        self.known: FreeSpace | None = None

    @property
    def reserve_bytes(self) -> int:
        size = 0 if self.known is None else self.known.size_bytes
        return min(DISK_RESERVE_BYTES_MAX, size // DISK_RESERVE_SHARE)

    def is_full(self) -> bool:
        """Whether logs refuse batches. Looks at the disk if the last look is too old."""
        now = self.clock()
        if now > self.look_at:
            self._refresh()
        return self._is_short or now - self._refused_at < FAILURE_SECONDS

    def check(self) -> None:
        """Look at the disk. Raises DiskFull if only the reserve is left. Any thread may call it."""
        self._refresh()
        if self._is_short:
            free = 0 if self.known is None else self.known.free_bytes
            raise DiskFull(
                f"the disk has {free:,} bytes free, and {self.reserve_bytes:,} of them are kept for metadata",
                hint="free disk space, or lower the retention of streams; appends succeed again once there is space",
            )

    def note_refused(self) -> None:
        """The disk has refused a write for lack of space."""
        self._refused_at = self.clock()

    def _refresh(self) -> None:
        self.look_at = self.clock() + LOOK_SECONDS
        self.known = self._look(self._directory)
        room = DISK_RESERVE_BYTES_MAX if self.known is None else self.known.free_bytes - self.reserve_bytes
        self._is_short = room <= 0
        self.allowance = room // 2 if room > 0 else -1
