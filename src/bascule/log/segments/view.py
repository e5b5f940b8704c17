"""Reading across the segments of a log. Finds its segment again when the cleaner replaced it in the meantime."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from bascule.errors import CorruptBatch
from bascule.kernels.records import records
from bascule.kernels.records.records import Record
from bascule.log.core.epochs import EpochEntry
from bascule.log.disk.files import FileGone
from bascule.log.disk.sealing import Sealer
from bascule.log.segments.search import batch_reaching, read_backward, read_forward
from bascule.log.segments.segment_list import SegmentList
from bascule.log.segments.slices import BatchSlice

T = TypeVar("T")


class LogView:
    """`must_exist` raises when the log is gone: a segment whose file has vanished is then nothing to look for again."""

    def __init__(self, segments: SegmentList, sealer: Sealer, must_exist: Callable[[], None]) -> None:
        self._segments = segments
        self._sealer = sealer
        self._must_exist = must_exist

    def read(self, offset: int, end_offset: int, bytes_max: int) -> BatchSlice | None:
        """Batches from `offset` on, or from the first stored offset behind it, below `end_offset`."""
        return self._retry(lambda: self._read(offset, end_offset, bytes_max))

    def _read(self, offset: int, end_offset: int, bytes_max: int) -> BatchSlice | None:
        offset = max(offset, self._segments.oldest.base_offset)
        while offset < end_offset:
            segment = self._segments.holding(offset)
            data, next_offset = read_forward(segment, offset, end_offset, bytes_max)
            if len(data):
                return BatchSlice(data, offset, end_offset, min(next_offset, end_offset), self._sealer, segment.path)
            behind = self._segments.behind(segment)
            if behind is None:
                break
            offset = max(offset, behind.base_offset)
        return None

    def read_back(self, end_offset: int, bytes_max: int) -> BatchSlice | None:
        """Batches that end with the last one beginning below `end_offset`."""
        return self._retry(lambda: self._read_back(end_offset, bytes_max))

    def _read_back(self, end_offset: int, bytes_max: int) -> BatchSlice | None:
        while end_offset > self._segments.oldest.base_offset:
            segment = self._segments.holding(end_offset - 1)
            data, base_offset = read_backward(segment, end_offset - 1, bytes_max)
            if len(data):
                return BatchSlice(data, base_offset, end_offset, end_offset, self._sealer, segment.path)
            end_offset = segment.base_offset
        return None

    def first_record(self, offset: int, end_offset: int) -> Record | None:
        """The first record at or behind `offset` that can be read: damage is stepped over."""
        while True:
            try:
                found = self.read(offset, end_offset, 1)
                if found is None:
                    return None
                stored, offset = found.records(), found.next_offset
            except CorruptBatch as error:
                if error.next_offset is None:
                    return None
                stored, offset = [], error.next_offset
            if stored:
                return stored[0]

    def epoch_starts(self, entries: Iterable[EpochEntry], end_offset: int) -> dict[int, int]:
        """The first record that can be read of each epoch, for those that have one."""
        starts: dict[int, int] = {}
        for entry in entries:
            first = self.first_record(entry.start_offset, end_offset)
            if first is not None and first.leader_epoch == entry.epoch:
                starts[entry.epoch] = first.offset
        return starts

    def last_record(self, end_offset: int) -> Record | None:
        """The last record below `end_offset` that can be read: damage is stepped over."""
        while True:
            try:
                found = self.read_back(end_offset, 1)
                if found is None:
                    return None
                stored, end_offset = found.records(), found.first_offset
            except CorruptBatch as error:
                stored, end_offset = [], min(error.first_offset, end_offset - 1)
            if stored:
                return stored[-1]

    def offset_reaching(self, timestamp: int) -> int | None:
        """Offset of the first record at or behind `timestamp`."""
        return self._retry(lambda: self._offset_reaching(timestamp))

    def _offset_reaching(self, timestamp: int) -> int | None:
        for segment in self._segments:
            if segment.is_empty or segment.last_timestamp < timestamp:
                continue
            batch = batch_reaching(segment, timestamp)
            if batch is not None:
                header = records.read_header(batch)
                end_offset = header.last_offset + 1
                found = BatchSlice(batch, header.base_offset, end_offset, end_offset, self._sealer, segment.path)
                return records.offset_at(found.clear(), timestamp)
        return None

    def _retry(self, action: Callable[[], T]) -> T:
        while True:
            try:
                return action()
            except FileGone:
                self._must_exist()
