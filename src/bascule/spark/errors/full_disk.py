"""A full disk that Spark reports: its checkpoint may be on the same disk as the data that the query writes.

Spark passes on the message of Java, `java.io.IOException: No space left on device`, without a folder. Our error names the folder if
it can be found.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from bascule.errors import BasculeError, DiskFull, PipelineFailed

_NO_ROOM: Final = re.compile(r"No space left on device|Disk quota exceeded|File too large")
FREE_BYTES_MIN: Final = 1 << 20
"""A disk with fewer free bytes counts as full: Spark has already removed the file that it could not finish."""


def with_folder(error: BasculeError, checkpoint: str | Path) -> BasculeError:
    """The same error, or DiskFull if Spark reports a full disk. `checkpoint` is the folder of the query's checkpoint."""
    found = _NO_ROOM.search(error.message) if isinstance(error, PipelineFailed) else None
    if found is None:
        return error
    if _is_full(Path(checkpoint)):
        return DiskFull(
            f"no room in {checkpoint} for the checkpoint of the query: {found[0]}",
            hint="make room there, then start the query again: it continues where it stopped",
        )
    return DiskFull(
        f"no room on a disk that the query writes to: {found[0]}",
        hint="make room where it writes, or in Spark's `spark.local.dir`, then start the query again: it continues where it stopped",
    )


def _is_full(folder: Path) -> bool:
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    free = os.statvfs(there)
    return free.f_bavail * free.f_frsize < FREE_BYTES_MIN or free.f_favail == 0 < free.f_files
