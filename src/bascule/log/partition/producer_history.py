"""The idempotent producers of a log: a table made from its records, and saved in a file that survives retention.

The table covers *committed* records only, so that truncation does not change it. It follows the log with a lag of a few MiB while
batches with producers are written; these batches are marked, and unmarked ones are not read. The table is saved at intervals, and
before the cleaner removes records.

The file, `producers`:

    crc u32 · magic u16 · version u16 · end_offset i64 · leader_epoch u64 · entries, see kernels/records/producers.pyx

It holds the table of the log below `end_offset`. `leader_epoch` is the epoch of the offset before it: if the log was truncated and
written again since, the epoch differs and the file is ignored.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
from typing import TYPE_CHECKING, Final

from bascule import limits
from bascule.errors import BasculeError, CorruptBatch, DiskFull
from bascule.kernels.records.producers import ProducerTable, marks
from bascule.kernels.records.records import BatchHeader
from bascule.kernels.wire.checksum import crc32c
from bascule.log.disk.operations import read_file, replace_file

if TYPE_CHECKING:
    from bascule.log.partition.partition_log import PartitionLog

_logger = logging.getLogger(__name__)

FILE_NAME: Final = "producers"
MAGIC: Final = 0xBA5D
VERSION: Final = 1
_HEAD: Final = struct.Struct("<IHHqQ")
_CRC_BYTES: Final = 4


class ProducerHistory:
    """The producers of one log. While its lock is held, no other lock is acquired."""

    def __init__(self, log: PartitionLog, end_offset: int) -> None:
        """`end_offset` is the end of the log; none of its records has been read yet."""
        self._log = log
        self._path = f"{log.directory}/{FILE_NAME}"
        self._lock = threading.Lock()
        self._table: ProducerTable | None = None
        self._end_offset = 0
        """The table covers the offsets below it."""
        self._unmarked_from = end_offset
        """No batch at or after this offset is marked."""
        self.unread_bytes = 0
        """Bytes of marked batches that the table does not cover."""
        self._unsaved_bytes = 0
        self._saved_end_offset = -1

    # ── while the log is written ─────────────────────────────────────────────────────────────────

    def note(self, header: BatchHeader) -> None:
        """Count a marked batch that is being appended."""
        self._unmarked_from = header.last_offset + 1
        self.unread_bytes += header.length

    def read_new(self) -> None:
        """Read the marked batches that the table does not cover. The log calls this after `PRODUCERS_UNREAD_BYTES_MAX` of them."""
        try:
            with self._lock:
                table = self._committed()
                if self._unsaved_bytes >= limits.PRODUCERS_UNSAVED_BYTES_MAX:
                    self._write(table, durable=False)
        except BasculeError as error:
            _logger.warning(
                "%s: cannot read the idempotent producers, will retry: %s", self._log.directory, error.message
            )

    def cut(self, start_offset: int, end_offset: int) -> None:
        """Forget the producers of records that a truncation has removed."""
        with self._lock:
            self._unmarked_from = min(self._unmarked_from, end_offset)
            if not start_offset <= self._end_offset <= end_offset:
                self._table = None
            saved = self._read_file()
            if saved is not None and not start_offset <= saved[0] <= end_offset:
                self._saved_end_offset = -1
                self._log.pool.disk.remove(self._path)

    # ── the table ────────────────────────────────────────────────────────────────────────────────

    def at_end(self) -> ProducerTable:
        """Return a table of all records of the log, for a new leader. Raises the errors of `PartitionLog.read`."""
        with self._lock:
            table = self._committed().copy()
            self._read(table, self._end_offset, self._log.log_end_offset)
            return table

    def _committed(self) -> ProducerTable:
        if self._table is None:
            self._table, self._end_offset = self._load()
        end_offset = self._log.high_watermark + 1
        if end_offset > self._end_offset:
            table, self._table = self._table, None  # a read that fails must not leave half a table
            unread, self.unread_bytes = self.unread_bytes, 0
            self._read(table, self._end_offset, end_offset)
            self._table, self._end_offset = table, end_offset
            self._unsaved_bytes += unread
        return self._table

    def _read(self, table: ProducerTable, offset: int, end_offset: int) -> None:
        end_offset = min(end_offset, self._unmarked_from)
        while offset < end_offset:
            try:
                found = self._log.read(offset, bytes_max=limits.SCAN_CHUNK_BYTES, committed=False)
                if found is None:
                    return
                is_marked, is_sealed = marks(found.data)
                if is_marked:
                    table.note_batches(found.clear() if is_sealed else found.data, offset, end_offset)
                offset = found.next_offset
            except CorruptBatch as error:
                # No reader can get these records, so their producers do not matter.
                _logger.warning("the idempotent producers of damaged batches are unknown: %s", error.message)
                if error.next_offset is None:
                    return
                offset = error.next_offset

    def _load(self) -> tuple[ProducerTable, int]:
        saved = self._read_file()
        if saved is not None:
            end_offset, leader_epoch, table = saved
            begins_there = end_offset == self._log.log_start_offset
            if begins_there or (
                self._log.log_start_offset < end_offset <= self._log.log_end_offset
                and self._epoch_at(end_offset - 1) == leader_epoch
            ):
                self._saved_end_offset = end_offset
                return table, end_offset
        return ProducerTable(limits.PRODUCERS_PER_PARTITION_MAX), self._log.log_start_offset

    def _epoch_at(self, offset: int) -> int:
        return max((entry.epoch for entry in self._log.epoch_entries if entry.start_offset <= offset), default=0)

    # ── the file ─────────────────────────────────────────────────────────────────────────────────

    def save(self) -> None:
        """Save the table with the records that the cleaner is about to remove. If the disk is full, it stays in memory."""
        with self._lock:
            self._write(self._committed(), durable=True)

    def close(self) -> None:
        """Save the table, unless reading the missing batches would delay the close."""
        with self._lock:
            if self._table is not None and self.unread_bytes <= limits.PRODUCERS_UNREAD_BYTES_MAX:
                with contextlib.suppress(CorruptBatch):
                    self._write(self._committed(), durable=False)

    def _write(self, table: ProducerTable, *, durable: bool) -> None:
        is_worth_it = table.count > 0 or self._log.size_bytes >= limits.PRODUCERS_FILE_LOG_BYTES_MIN
        if self._end_offset == self._saved_end_offset or not is_worth_it:
            return
        body = _HEAD.pack(0, MAGIC, VERSION, self._end_offset, self._epoch_at(self._end_offset - 1))[_CRC_BYTES:]
        body += table.encode()
        with contextlib.suppress(DiskFull):
            data = struct.pack("<I", crc32c(body)) + body
            replace_file(self._log.pool.disk, self._path, data, sync=True, durable=durable)
            self._saved_end_offset = self._end_offset
            self._unsaved_bytes = 0

    def _read_file(self) -> tuple[int, int, ProducerTable] | None:
        """Return end offset, epoch and table; None if the file is damaged, since the table can be made again."""
        data = read_file(self._log.pool.disk, self._path)
        if data is None or len(data) < _HEAD.size:
            return None
        crc, magic, version, end_offset, leader_epoch = _HEAD.unpack_from(data)
        if (magic, version) != (MAGIC, VERSION) or crc != crc32c(data[_CRC_BYTES:]):
            return None
        with contextlib.suppress(ValueError):
            return (
                end_offset,
                leader_epoch,
                ProducerTable.decode(data[_HEAD.size :], limits.PRODUCERS_PER_PARTITION_MAX),
            )
        return None
