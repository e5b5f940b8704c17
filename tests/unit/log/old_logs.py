"""The logs in `old_logs/`: what they hold, and how they were written. `python -m tests.unit.log.old_logs DIRECTORY` writes them again.

A new format gets new directories beside these. Those that exist stay as they are: a later version has to open them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bascule.log import LogOptions, PartitionLog
from bascule.log.cleaning.compactor import compact
from bascule.log.disk.encryption import LogIdentity
from tests.support.logs import KEYS, SECOND, Draft, ManualSyncer, batch_of

WRITTEN: Final = Path(__file__).with_name("old_logs")
START: Final = 1_700_000_000 * SECOND
OPTIONS: Final = {
    "plain": LogOptions(segment_bytes_max=600),
    "compressed": LogOptions(segment_bytes_max=400, compression="zstd"),
    "encrypted": LogOptions(segment_bytes_max=600, compression="zstd", encryption=True),
    "compacted": LogOptions(segment_bytes_max=600, compact=True),
    "killed": LogOptions(segment_bytes_max=600),
}
BATCHES: Final = 8
RECORDS: Final = 3 * BATCHES


def old_log(directory: Path, name: str) -> PartitionLog:
    ticks = iter(range(START, START + (1 << 40), SECOND))
    return PartitionLog(
        str(directory / name),
        OPTIONS[name],
        syncer=ManualSyncer(),
        keys=KEYS,
        identity=LogIdentity(7, 1),
        clock=lambda: next(ticks),
    )


def drafts() -> Iterator[Draft]:
    for number in range(RECORDS):
        headers = ((b"n", b"%d" % number),) if number % 2 else ()
        yield Draft(b"key-%d" % (number % 5), b"value %d, " % number * 6, headers, b"orders.eu", b"_INBOX.1")


def epoch_at(offset: int) -> int:
    return 1 if offset < 9 else 4


def write(directory: Path, name: str) -> None:
    log = old_log(directory, name)
    content = list(drafts())
    for first in range(0, RECORDS, 3):
        log.append(batch_of(content[first : first + 3]), leader_epoch=epoch_at(first))
        if first == RECORDS // 2:
            log.sync()
            log.write_checkpoint()
    log.advance_high_watermark(RECORDS - 1)
    if name == "compacted":
        log.roll()
        compact(log, START + 1000 * SECOND, force=True)
    if name == "killed":
        shutil.copytree(log.directory, directory / "copy")
    log.close()
    if name == "killed":
        shutil.rmtree(log.directory)
        (directory / "copy").rename(directory / name)


if __name__ == "__main__":
    for each in OPTIONS:
        write(Path(sys.argv[1]), each)
