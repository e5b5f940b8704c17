"""The result of a read: whole stored batches, and the range of the requested offsets."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.errors import CorruptBatch
from bascule.kernels.records import records
from bascule.kernels.records.records import Record
from bascule.log.disk.sealing import Sealer


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Checked whole batches. The first may begin before `first_offset`, and the last may end after `end_offset`."""

    data: bytes | memoryview
    first_offset: int
    end_offset: int
    next_offset: int
    """The offset of the next read, at most `end_offset`."""

    sealer: Sealer
    file: str

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def clear(self) -> bytes | memoryview:
        """Return the batches decompressed and decrypted."""
        try:
            return self.sealer.open_all(self.data)
        except ValueError as error:
            raise self._unreadable(str(error)) from None

    def records(self) -> list[Record]:
        """Return the requested records as objects."""
        try:
            return records.decode(self.clear(), self.first_offset, self.end_offset)
        except records.BatchError as error:
            raise self._unreadable(error.reason) from None

    def _unreadable(self, why: str) -> CorruptBatch:
        return CorruptBatch(
            f"{self.file}: a batch of offsets {self.first_offset} to {self.next_offset - 1} passes its checksum "
            f"but cannot be opened: {why}",
            file=self.file,
            position=0,
            bytes_damaged=len(self.data),
            first_offset=self.first_offset,
            next_offset=self.next_offset,
        )
