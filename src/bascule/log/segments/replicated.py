"""Checks batches that come from another broker."""

from __future__ import annotations

from bascule import limits
from bascule.errors import RejectedBatch
from bascule.kernels.records import records
from bascule.kernels.records.records import BatchHeader


def check_replicated(
    data: bytes | memoryview, next_offset: int, timestamp: int, epoch: int, *, takes_holes: bool
) -> list[BatchHeader]:
    """Return the headers of the batches in `data`. Raises RejectedBatch unless all are valid and continue the log."""
    headers: list[BatchHeader] = []
    position = 0
    while position < len(data):
        # A gap without a mark is allowed at the start of a run: the follower begins a segment there.
        found = records.scan(data, next_offset, timestamp, epoch, position, gap=takes_holes, structure=True)
        if found.batches == 0:
            raise RejectedBatch(
                f"the batch at byte {position} of {len(data)} is refused: {found.reason} "
                f"(the log continues at offset {next_offset}, epoch {epoch})",
                hint="fetch again from the leader",
            )
        while position < found.end:
            headers.append(records.read_header(data, position))
            position += headers[-1].length
        next_offset, timestamp, epoch = found.next_offset, found.last_timestamp, found.last_epoch
    largest = max((header.length for header in headers), default=0)
    if largest > limits.BATCH_BYTES_MAX:
        raise RejectedBatch(f"a batch of {largest} bytes is above the limit of {limits.BATCH_BYTES_MAX}")
    return headers
