"""A full disk that Spark came upon first: its notes on a query may lie on the same disk as what the query writes.

Spark hands on what Java says, `java.io.IOException: No space left on device`, and no folder. Ours says which one it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bascule.errors import BasculeError, DiskFull, PipelineFailed

_NO_ROOM: Final = re.compile(r"No space left on device|Disk quota exceeded|File too large")


def with_folder(error: BasculeError, checkpoint: str | Path) -> BasculeError:
    """The same error, or DiskFull if that is what Spark means."""
    found = _NO_ROOM.search(error.message) if isinstance(error, PipelineFailed) else None
    if found is None:
        return error
    return DiskFull(
        f"no room in {checkpoint} for Spark's notes on the query: {found[0]}",
        hint="make room there, or in the folder of `spark.local.dir`, then start it again: it goes on where it was",
    )
