"""Messages for the benchmarks, made before the clock starts."""

from __future__ import annotations

from array import array
from pathlib import Path

from bascule.log import LogOptions, PartitionLog, SyncPolicy, new_batch

SUBJECT = b"bench.subject"


class Columns:
    """`count` messages of `size` bytes as one buffer and the positions where they end; optionally with keys of 16 bytes."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.values = bytes(range(256)) * (count * size // 256) + bytes(count * size % 256)
        self.ends = array("q", range(size, (count + 1) * size, size))

    def keys(self, first: int, different: int) -> tuple[bytes, array[int]]:
        # a stride with no common factor: every key comes up once before any comes again, in no order
        numbers = (((first + index) * 7_368_787) % different for index in range(self.count))
        keys = b"".join(b"key-%012d" % number for number in numbers)
        return keys, array("q", range(16, 16 * (self.count + 1), 16))


def fill(log: PartitionLog, columns: Columns, batches: int) -> None:
    """Append `batches` batches of the columns, as fast as it goes."""
    log.begin_epoch(max(1, log.latest_epoch))
    batch = new_batch()
    for _ in range(batches):
        batch.clear()
        batch.add_columns(columns.values, columns.ends, subject=SUBJECT)
        log.append(batch)


def fill_keyed(log: PartitionLog, columns: Columns, batches: int, different: int) -> None:
    batch = new_batch()
    for number in range(batches):
        keys, ends = columns.keys(number * columns.count, different)
        batch.clear()
        batch.add_columns(columns.values, columns.ends, keys, ends, subject=SUBJECT)
        log.append(batch)


def open_log(directory: Path, options: LogOptions | None = None) -> PartitionLog:
    return PartitionLog(str(directory), options or LogOptions(sync=SyncPolicy.INTERVAL))
