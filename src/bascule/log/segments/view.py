"""Reads across the segments of a log. If the cleaner replaces a segment meanwhile, the read is repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bascule.errors import CorruptBatch
from bascule.kernels.records import records
from bascule.kernels.records.records import Record
from bascule.log.disk.files import FileGone
from bascule.log.disk.sealing import Sealer
from bascule.log.segments.search import batch_reaching, read_backward, read_forward
from bascule.log.segments.segment_list import SegmentList
from bascule.log.segments.slices import BatchSlice

T = TypeVar("T")


class LogView:
    """`must_exist` raises if the log is closed or deleted, which ends the repeated reads."""

    def __init__(self, segments: SegmentList, sealer: Sealer, must_exist: Callable[[], None]) -> None:
        self._segments = segments
        self._sealer = sealer
        self._must_exist = must_exist

    def read(self, offset: int, end_offset: int, bytes_max: int) -> BatchSlice | None:
        """Return batches from `offset`, or from the first stored offset after it, below `end_offset`."""
        return self._retry(lambda: self._read(offset, end_offset, bytes_max))

    def _read(self, offset: int, end_offset: int, bytes_max: int) -> BatchSlice | None:
        while offset < end_offset:
            segment = self._segments.holding(offset)
            offset = max(offset, segment.base_offset)
            if offset >= end_offset:
                break
            data, next_offset = read_forward(segment, offset, end_offset, bytes_max)
            if len(data):
                next_offset = min(next_offset, end_offset)
                return BatchSlice(data, offset, end_offset, next_offset, self._sealer, segment.file.path)
            following = self._segments.after(segment)
            if following is None:
                break
            offset = max(offset, following.base_offset)
        return None

    def read_back(self, end_offset: int, bytes_max: int) -> BatchSlice | None:
        """Return batches up to the last one that begins below `end_offset`."""
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
        """Return the first readable record at or after `offset`. Skips damage."""
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

    def last_record(self, end_offset: int) -> Record | None:
        """Return the last readable record below `end_offset`. Skips damage."""
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
        """Return the offset of the first record at or after `timestamp`, or None."""
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
