"""An archive of many small files, compacted by a process that can be killed at any step.

python -m tests.support.compacting <archive> [<step>]        dies by its own SIGKILL when it comes to that step
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bascule.flight.schema import table_schema
from bascule.lake import compaction
from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction
from bascule.lake.delta.place import LakePlace
from bascule.lake.delta.writer import DeltaWriter
from bascule.lake.files import FileWriter
from bascule.lake.housekeeping import Housekeeping
from tests.support.archives import archive_rows

DAY_US = 86_400_000_000

STEPS: dict[str, tuple[Any, str]] = {
    "before a row is written": (FileWriter, "add"),
    "before a file is finished": (FileWriter, "finish"),
    "before it is read back": (compaction, "replace"),
    "before the commit": (Archive, "commit"),
    "after the commit is made": (DeltaWriter, "_sync"),
    "before the head is noted": (Archive, "_note_head"),
    "before the old files go": (Housekeeping, "_remove_replaced"),
    "while the old files go": (LakePlace, "remove"),
}
"""What is called at each step."""


def messages(first: int, count: int, *, partition: int = 0, day: int = 0, size: int = 20) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns: dict[str, list[Any]] = {
        "key": [f"k{number % 5}".encode() for number in numbers],
        "value": [f"{number}".encode().ljust(size, b".") for number in numbers],
        "stream": ["orders"] * count,
        "partition": [partition] * count,
        "offset": list(numbers),
        "timestamp": [day * DAY_US + number for number in numbers],
        "subject": ["orders"] * count,
        "replySubject": [None] * count,
        "headers": [[("h", b"v")]] * count,
        "leaderEpoch": [1] * count,
    }
    schema = table_schema()
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def small_files(path: Path, files: int = 6, rows: int = 10, **options: Any) -> Archive:
    """An archive with so many commits of one file each."""
    for number in range(files):
        archive_rows(path, 7, [messages(number * rows, rows, **options)])
    return Archive(path)


def compact_all(path: Path, keep_seconds: float = 0.0) -> Archive:
    """As `bascule pipeline compact` does."""
    archive = Archive(path)
    with archive.writing():
        keeper = Housekeeping(archive, keep_seconds)
        state = keeper.begin()
        work = Compaction(archive)
        while (commit := work.round(state)) is not None:
            keeper.after(commit, state)
    return archive


def main(path: str, step: str = "") -> None:
    if step:
        owner, name = STEPS[step]
        setattr(owner, name, _die(getattr(owner, name)))
    compact_all(Path(path))


def _die(_: Callable[..., Any]) -> Callable[..., None]:
    def die(*_arguments: Any, **_options: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return die


if __name__ == "__main__":
    main(*sys.argv[1:])
