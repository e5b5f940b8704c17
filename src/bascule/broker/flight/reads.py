"""One DoGet: a range of a partition as record batches. Each batch carries the offset up to which the range is covered.

A batch is made after the transport has taken the one before it, so a reader that does not read costs what the connection buffers.
The end of the range is fixed when the read begins: later records are not in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bascule import limits
from bascule.broker.flight.directory import Directory, TableSources, retained_from
from bascule.broker.flight.service import FlightGate
from bascule.errors import (
    BasculeError,
    CorruptBatch,
    LogClosed,
    LogDeleted,
    OffsetOutOfRange,
    StorageError,
    StreamDeleted,
    Unavailable,
)
from bascule.flight.failures import below_start
from bascule.flight.schema import take_batch, wanted_bits
from bascule.flight.tickets import ReadTicket
from bascule.kernels.arrow import columns as kernel
from bascule.kernels.arrow.columns import Columns
from bascule.log.partition.file_ranges import FileRanges, open_ranges
from bascule.log.segments.slices import BatchSlice
from bascule.partition.replica import LedPartition

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger(__name__)


class Read:
    def __init__(
        self,
        sources: TableSources,
        gate: FlightGate,
        ticket: ReadTicket,
        local: LedPartition,
        is_cancelled: Callable[[], bool],
    ) -> None:
        """Fix the start and the end of the read. Raises OffsetOutOfRange for a range that cannot be read."""
        self._sources = sources
        self._gate = gate
        self._ticket = ticket
        self._local = local
        self._is_cancelled = is_cancelled
        log = local.log
        readable = log.readable_end_offset(committed=True)
        self._end = readable if ticket.end is None else ticket.end
        self._next_offset = log.log_start_offset if ticket.start is None else ticket.start
        if self._end > readable or (ticket.end is None and self._next_offset > readable):
            raise OffsetOutOfRange(
                f"{self._name} can be read up to offset {readable} now, exclusive; asked for was "
                f"{self._next_offset} to {self._end}",
                hint="records are shown once they are committed; ask for the high watermark first",
            )
        if self._next_offset < retained_from(log) and self._next_offset < self._end:
            raise below_start(ticket.stream, ticket.partition, self._next_offset, retained_from(log))

    @property
    def _name(self) -> str:
        return f"{self._ticket.stream}/{self._ticket.partition}"

    def files(self) -> FileRanges:
        """Return the start of the range as ranges of files, for a local reader. Raises Unavailable if it must read batches."""
        log = self._local.log
        if log.sealer.seals:
            raise Unavailable(f"{self._name} is compressed or encrypted, which is opened here")
        try:
            found = open_ranges(log, self._next_offset, self._end, limits.FLIGHT_LOCAL_FILES)
        except LogClosed:
            raise Unavailable(f"{self._name} was closed") from None
        # Checked afterwards: the files lack what retention removed meanwhile.
        if (start := retained_from(log)) > self._next_offset and self._next_offset < self._end:
            found.close()
            raise below_start(self._ticket.stream, self._ticket.partition, self._next_offset, start)
        self._gate.note_read(found.next_offset - self._next_offset, found.nbytes)
        return found

    def batches(self) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        with self._gate.call():
            try:
                yield from self._batches()
            except LogDeleted:
                raise StreamDeleted(f"the stream {self._ticket.stream!r} was deleted while it was read") from None
            except LogClosed:
                # paused, moved, or about to be deleted: the reader's next call gets the reason
                raise Unavailable(f"{self._name} was closed while it was read") from None
            except CorruptBatch as error:
                raise self._damaged(error) from None

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        ticket = self._ticket
        made = Columns(ticket.stream.encode(), ticket.partition, wanted_bits(ticket.columns))
        covered = -1
        while self._next_offset < self._end:
            found = self._read_on()
            if found is None:
                self._next_offset = self._end  # compaction has left nothing up to here
                break
            made.load(found.clear(), self._next_offset, self._end)
            while (outcome := made.fill(ticket.batch_rows, ticket.batch_bytes)) == kernel.FULL:
                covered = made.next_offset
                yield self._taken(made, covered)
                self._must_go_on()
            if outcome == kernel.DAMAGED:
                raise self._unreadable(found, made)
            self._next_offset = self._end if outcome == kernel.END else max(made.next_offset, found.next_offset)
        if made.rows or covered < self._end:
            yield self._taken(made, self._end)

    def _taken(self, made: Columns, covered: int) -> tuple[pa.RecordBatch, bytes]:
        batch = take_batch(made, self._ticket.columns)
        self._gate.note_read(batch.num_rows, batch.nbytes)
        return batch, str(min(covered, self._end)).encode()

    def _read_on(self) -> BatchSlice | None:
        self._must_go_on()
        log = self._local.log
        found = log.read(self._next_offset, bytes_max=limits.FLIGHT_READ_BYTES)
        first = log.readable_end_offset(committed=True) if found is None else found.first_offset
        # Checked after the read: it skips what retention removed meanwhile.
        if first > self._next_offset and (start := retained_from(log)) > self._next_offset:
            raise below_start(self._ticket.stream, self._ticket.partition, self._next_offset, start)
        if found is None and first < self._end:
            raise Unavailable(f"{self._name} ends at {first} now: it was cut back while it was read")
        return found

    def _must_go_on(self) -> None:
        if self._gate.is_stopping:
            raise Unavailable("the server is stopping", hint="go on at the partition's next leader")
        if self._is_cancelled():
            raise Unavailable("the reader has gone")

    # ── damage ───────────────────────────────────────────────────────────────────────────────────

    def _unreadable(self, found: BatchSlice, made: Columns) -> CorruptBatch:
        return CorruptBatch(
            f"{found.file}: a batch behind offset {made.next_offset - 1} passes its checksum but cannot be read",
            file=found.file,
            position=made.batch_position,
            bytes_damaged=found.nbytes - made.batch_position,
            first_offset=made.next_offset,
            next_offset=found.next_offset,
        )

    def _damaged(self, error: CorruptBatch) -> BasculeError:
        """Return Unavailable if another replica has the damaged range, so that the reader retries there; else StorageError."""
        _logger.error("%s: %s", self._name, error.message)
        if Directory(self._sources, self._gate).in_loop(self._has_other_replica(error.message)):
            return Unavailable(f"this replica is damaged: {error.message}")
        return StorageError(error.message, hint="`bascule log verify` says what can still be read")

    async def _has_other_replica(self, reason: str) -> bool:
        await asyncio.sleep(0)
        return self._local.found_damage(reason)
