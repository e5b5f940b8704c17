"""An archive that is written, merged and cleaned up by a process of its own, as the archive job does it.

python -m tests.support.archive_writer <archive> <commits>
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction
from bascule.lake.housekeeping import Housekeeping
from tests.support.archives import archive_rows
from tests.support.compacting import messages

ROWS = 50
DAYS = 3


def write(path: Path, commits: int, pause: float = 0.02, days: int = DAYS) -> None:
    """Each commit appends to one of two partitions; every few commits small files are merged and old ones would go."""
    archive = Archive(path)
    ends = [0, 0]
    for number in range(commits):
        partition = number % 2
        day = number * days // commits
        archive_rows(path, 1, [messages(ends[partition], ROWS, partition=partition, day=day)])
        ends[partition] += ROWS
        if number % 5 == 4:
            state = archive.state()
            commit = Compaction(archive).round(state)
            if commit is not None:
                Housekeeping(archive).after(commit, state)
        time.sleep(pause)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
