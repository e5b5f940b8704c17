"""A full disk that Spark came upon first: its notes on a query may lie on the same disk as what the query writes.

Spark hands on what Java says, `java.io.IOException: No space left on device`, and no folder. Ours says which one it is, if it can.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from bascule.errors import BasculeError, DiskFull, PipelineFailed

_NO_ROOM: Final = re.compile(r"No space left on device|Disk quota exceeded|File too large")
FREE_BYTES_MIN: Final = 1 << 20
"""A disk with less is the full one. Spark has removed what it began to write by the time we look."""


def with_folder(error: BasculeError, checkpoint: str | Path) -> BasculeError:
    """The same error, or DiskFull if that is what Spark means. `checkpoint` holds Spark's notes on the query."""
    found = _NO_ROOM.search(error.message) if isinstance(error, PipelineFailed) else None
    if found is None:
        return error
    if _is_full(Path(checkpoint)):
        return DiskFull(
            f"no room in {checkpoint} for Spark's notes on the query: {found[0]}",
            hint="make room there, then start it again: it goes on where it was",
        )
    return DiskFull(
        f"no room on a disk that the query writes to: {found[0]}",
        hint="make room where it writes, or in Spark's `spark.local.dir`, then start it again: it goes on where it was",
    )


def _is_full(folder: Path) -> bool:
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    free = os.statvfs(there)
    return free.f_bavail * free.f_frsize < FREE_BYTES_MIN or free.f_favail == 0 < free.f_files
