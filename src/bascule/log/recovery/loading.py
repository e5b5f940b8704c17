"""Turns the files of segments into verified segments.

A refused append may leave bytes after the end of its segment, even a whole batch, if the disk also refuses to truncate the file. They
are not part of the log. Recovery finds them by the first offset of the next segment, or by an epoch that had ended before them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bascule import limits
from bascule.kernels.records import records
from bascule.log.core.epochs import EpochCache
from bascule.log.core.sparse_index import SparseIndex
from bascule.log.disk.checkpoint import LogCheckpoint
from bascule.log.disk.files import FilePool
from bascule.log.recovery.report import RecoveryReport
from bascule.log.segments import index_file
from bascule.log.segments.damage import Damage, find_damage
from bascule.log.segments.index_file import SegmentTotals
from bascule.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, segment_path

_NOT_OF_THE_SEGMENT: Final = "the next segment holds these offsets"
_EPOCH_ENDED: Final = "the leader epoch had ended"


class _Trust(Enum):
    """How bytes that fail verification are treated."""

    SYNCED = "never truncated: bad bytes are damage"
    UNSYNCED = "truncated at the first bad byte"
    UNKNOWN = "truncated only where no good batch follows"


@dataclass(frozen=True, slots=True)
class _KnownEnd:
    """The end of a segment according to other files: the next segment, or the checkpoint."""

    offset: int | None = None
    """None for the last segment, unless the checkpoint has it."""
    is_sealed: bool = False
    is_followed: bool = False
    """The next segment has records. An empty one may be left from a failed roll, after which appends continued in this segment."""
    bytes: int | None = None
    """The size in the totals of the index, if they end at `offset`."""


class SegmentLoader:
    """Loads segments, oldest first, and verifies those that may not be synced."""

    def __init__(
        self,
        pool: FilePool,
        directory: str,
        checkpoint: LogCheckpoint | None,
        epochs_on_disk: EpochCache | None,
        report: RecoveryReport,
    ) -> None:
        self.pool = pool
        self.directory = directory
        self.checkpoint = checkpoint
        self.report = report
        self.epochs: list[tuple[int, int]] = []
        """(epoch, first offset) in the batches that were verified. An epoch after a gap begins where the gap begins."""
        self.end_offset = None if checkpoint is None else checkpoint.recovery_point
        """The end of the last batch that is synced or was verified, before the gap that may follow it."""
        self.epoch_entries = () if epochs_on_disk is None else epochs_on_disk.entries

    def load(self, bases: list[int]) -> list[Segment]:
        segments: list[Segment] = []
        behind = list(bases)
        while behind and self.report.cut_reason is None:
            base_offset = behind.pop(0)
            self._drop_before_gap_end(base_offset, behind)
            if self._is_last(base_offset, behind):
                segments.append(self._load_last(base_offset, behind))
                continue
            segment = self._load_one(base_offset, behind[0] if behind else None)
            while behind and segment.next_offset > behind[0] and self._is_empty(behind[0]):
                # A failed roll left an empty file, and appends continued in the old segment.
                self._drop([behind.pop(0)])
                segment = self._load_one(base_offset, behind[0] if behind else None)
            segments.append(segment)
            self._check_continuity(segment, behind[0] if behind else None)
        self._drop(behind)
        return segments

    def _drop_before_gap_end(self, base_offset: int, behind: list[int]) -> None:
        """Drop empty files that a failed roll left, if the log went on after a gap: this segment reaches a later one."""
        if not behind or not self._is_empty(behind[0]):
            return
        totals = index_file.read_totals(self.pool.disk, self._index_path(base_offset), base_offset)
        if totals is not None and totals.end_offset in behind[1:]:
            while behind[0] != totals.end_offset and self._is_empty(behind[0]):
                self._drop([behind.pop(0)])

    def _is_last(self, base_offset: int, behind: list[int]) -> bool:
        """Return whether this segment is not sealed and only empty files follow, which may be left from failed rolls. With a checkpoint
        `_check_continuity` decides."""
        if self.checkpoint is not None or not behind or not all(map(self._is_empty, behind)):
            return False
        return self._sealed_totals(base_offset, behind[0]) is None

    def _load_last(self, base_offset: int, behind: list[int]) -> Segment:
        """Load the last segment with records, and drop the empty ones that do not continue it."""
        segment = self._load_one(base_offset, None)
        if segment.next_offset == behind[0]:
            segment.seal()
        else:
            self._drop(behind)
            behind.clear()
        return segment

    def _is_empty(self, base_offset: int) -> bool:
        return self.pool.disk.file_size(segment_path(self.directory, base_offset)) == 0

    def _check_continuity(self, segment: Segment, next_base: int | None) -> None:
        """Truncate after `segment` if the next unsynced segment does not continue it: power loss has removed its end."""
        known = self.checkpoint
        if known is None or next_base is None or next_base <= known.active_base or self.report.cut_reason is not None:
            return
        if next_base != segment.next_offset:
            self.report.cut_from_offset = segment.next_offset
            self.report.cut_reason = "bad offsets"

    def _load_one(self, base_offset: int, next_base: int | None) -> Segment:
        size = self.pool.disk.file_size(segment_path(self.directory, base_offset))
        known = self.checkpoint
        totals = None if next_base is None else self._sealed_totals(base_offset, next_base)
        end = self._known_end(next_base, totals)
        if known is not None and base_offset == known.active_base and size >= known.active_position:
            segment = self._load_behind_checkpoint(known, size, end)
        elif known is not None and base_offset <= known.active_base:
            if totals is not None and self._are_current(totals, size, next_base):
                segment = Segment(self.pool, self.directory, totals)
                # The active segment of the checkpoint was empty and is gone: the index here has the end of a gap, maybe not synced.
                segment.has_gap = next_base is not None and next_base > known.active_base
                return segment
            if next_base is None:
                end = _KnownEnd(known.recovery_point)
            segment = self._verify_all(base_offset, size, _Trust.SYNCED, end)
        else:
            trust = _Trust.UNSYNCED if known is not None else _Trust.UNKNOWN
            segment = self._verify_all(base_offset, size, trust, end)
        if totals is not None:
            self._compare(segment, totals)
        if next_base is not None:
            segment.seal()
        return segment

    def _sealed_totals(self, base_offset: int, next_base: int) -> SegmentTotals | None:
        totals = index_file.read_totals(self.pool.disk, self._index_path(base_offset), base_offset)
        return totals if totals is not None and 0 < totals.end_offset <= next_base else None

    def _are_current(self, totals: SegmentTotals, size: int, next_base: int | None) -> bool:
        """Return whether the totals are those of the last seal. A roll that failed after it had sealed the segment leaves earlier ones;
        appends went on, and power loss may bring that index back. A gap or bytes after the end may follow, but not both unnoticed."""
        return 0 < totals.bytes <= size and (totals.bytes == size or totals.end_offset == next_base)

    def _known_end(self, next_base: int | None, totals: SegmentTotals | None) -> _KnownEnd:
        if next_base is None:
            return _KnownEnd()
        is_whole = totals is not None and totals.end_offset == next_base
        is_followed = not self._is_empty(next_base)
        return _KnownEnd(next_base, True, is_followed, totals.bytes if totals is not None and is_whole else None)

    def _compare(self, segment: Segment, totals: SegmentTotals) -> None:
        """Compare a sealed segment with the totals in its index, which include the gap after it."""
        if segment.next_offset >= totals.end_offset or self.report.cut_reason is not None:
            return
        if segment.size < totals.bytes:
            if self.checkpoint is None or segment.next_offset >= self.checkpoint.recovery_point:
                return  # not synced: power loss may have removed its end
            missing = totals.bytes - segment.size
            self.report.damage.append(
                Damage(segment.path, segment.size, missing, segment.next_offset, totals.end_offset, "cut short")
            )
        segment.next_offset = totals.end_offset
        segment.has_gap = True

    def _index_path(self, base_offset: int) -> str:
        return segment_path(self.directory, base_offset, INDEX_SUFFIX)

    def _load_behind_checkpoint(self, known: LogCheckpoint, size: int, end: _KnownEnd) -> Segment:
        base_offset = known.active_base
        last_timestamp = known.last_timestamp if known.active_records else -1
        totals = SegmentTotals(
            base_offset,
            known.recovery_point,
            known.active_position,
            known.active_records,
            known.active_first_timestamp,
            last_timestamp,
        )
        segment = Segment(self.pool, self.directory, totals)
        index = index_file.read_index(self.pool.disk, self._index_path(base_offset), base_offset)
        if index is None or (known.active_position and not len(index)):
            self.report.rebuilt.append(f"{base_offset:020d}{INDEX_SUFFIX}")
            index = segment.rebuild_index()
            self.start_index(segment, end)
        segment.adopt_index(index)
        if size > known.active_position:
            index.truncate(known.active_position)
            verification = _SegmentVerification(self, segment, size, end, _Trust.UNSYNCED)
            verification.timestamp, verification.epoch = known.last_timestamp, known.last_epoch
            verification.run()
        return segment

    def _verify_all(self, base_offset: int, size: int, trust: _Trust, end: _KnownEnd) -> Segment:
        """Verify the whole segment, because its index or the checkpoint is unusable, or it is not synced."""
        if size and trust is not _Trust.UNSYNCED:
            self.report.rebuilt.append(f"{base_offset:020d}{INDEX_SUFFIX}")
        segment = Segment(self.pool, self.directory, SegmentTotals(base_offset, base_offset))
        segment.adopt_index(SparseIndex())
        _SegmentVerification(self, segment, size, end, trust).run()
        return segment

    def note_epochs(self, epochs: list[tuple[int, int]], base_offset: int, end_offset: int) -> None:
        """Note the epochs of batches up to `end_offset` in the segment that begins at `base_offset`."""
        for epoch, start_offset in epochs:
            if start_offset == base_offset and self.end_offset is not None:
                start_offset = min(start_offset, self.end_offset)
            self.epochs.append((epoch, start_offset))
        self.end_offset = max(end_offset, self.end_offset or 0)

    def start_index(self, segment: Segment, end: _KnownEnd) -> None:
        """Write the index of the active segment. That of a sealed one is replaced once, at the end: in between it would lack the end of
        the gap after the segment."""
        if not end.is_sealed:
            segment.start_index(segment.index())

    def cut(self, segment: Segment, size: int, reason: str) -> None:
        """Truncate the log: `segment` is its last one, and ends before the bad bytes."""
        segment.file.truncate(segment.size)
        self.report.cut_bytes += size - segment.size
        self.report.cut_from_offset = segment.next_offset
        self.report.cut_reason = reason

    def cut_leftover(self, segment: Segment, size: int) -> None:
        """Truncate a file after the last record of its segment. The next segment continues the log."""
        segment.file.truncate(segment.size)
        self.report.leftover_bytes += size - segment.size

    def _drop(self, bases: list[int]) -> None:
        """Remove the segments after a truncation, newest first, so that a crash leaves no gap."""
        for base_offset in reversed(bases):
            path = segment_path(self.directory, base_offset)
            self.report.cut_bytes += self.pool.disk.file_size(path)
            self.report.removed_files.append(f"{base_offset:020d}{LOG_SUFFIX}")
            self.pool.disk.remove(path)
            self.pool.disk.remove(self._index_path(base_offset))


class _SegmentVerification:
    """Verifies the batches of a segment after its known size, and adds the good ones to it."""

    def __init__(self, loader: SegmentLoader, segment: Segment, size: int, end: _KnownEnd, trust: _Trust) -> None:
        self.loader = loader
        self.segment = segment
        self.size = size
        self.end = end
        self.trust = trust
        self.position = segment.size
        self.next_offset = segment.next_offset
        self.timestamp = 0
        self.epoch = 0
        self.gap = segment.size == 0  # the first batch of a segment may follow a gap

    def run(self) -> None:
        segment = self.segment
        segment.size = self.size  # so that all of it can be read
        reason = self._walk()
        while reason is not None and not self._ends_before(reason):
            reason = self._walk()
        segment.size = self.position
        segment.next_offset = self.next_offset
        segment.last_timestamp = self.timestamp if segment.records else -1
        if reason is not None:
            self._cut(reason)
        self.loader.start_index(segment, self.end)

    def _ends_before(self, reason: str) -> bool:
        """Return whether the segment ends before the bad batch. Otherwise its damage is noted and skipped."""
        if reason in (_NOT_OF_THE_SEGMENT, _EPOCH_ENDED):
            return True
        segment, end_offset = self.segment, self.end.offset
        segment.next_offset = self.next_offset if end_offset is None else end_offset
        damage = find_damage(segment, self.position, reason)
        is_complete = end_offset is None or self._reaches_end()
        if self.trust is _Trust.UNSYNCED or (is_complete and damage.end_position >= self.size):
            return True
        self.loader.report.damage.append(damage)
        self.position, self.next_offset, self.gap = damage.end_position, damage.next_offset, True
        return False

    def _reaches_end(self) -> bool:
        """Return whether the verified batches are all batches of the segment. A gap may follow them."""
        return self.next_offset == self.end.offset or self.position == self.end.bytes

    def _cut(self, reason: str) -> None:
        if not self._reaches_end():
            self.loader.cut(self.segment, self.size, reason)
        elif self.trust is not _Trust.SYNCED or not self.end.is_followed:
            self.loader.cut_leftover(self.segment, self.size)

    def _walk(self) -> str | None:
        """Verify up to the end of the file or the first bad batch; return the fault of that batch."""
        for start, data in self.segment.chunks(self.position, self.size):
            reason = self._scan(start, data)
            if reason is not None:
                return reason
        return None

    def _scan(self, start: int, data: bytes) -> str | None:
        """Add the good batches of `data` to the segment; return the fault of the first bad one."""
        marks: list[tuple[int, int, int]] = []
        epochs: list[tuple[int, int]] = []
        found = records.scan(
            data,
            self.next_offset,
            self.timestamp,
            self.epoch,
            gap=self.gap,
            position=start,
            interval=limits.INDEX_INTERVAL_BYTES,
            marks=marks,
            epochs=epochs,
        )
        foreign = self._find_foreign(memoryview(data)[: found.end], found.next_offset)
        if foreign is not None:
            position, reason = foreign
            self._scan(start, data[:position])
            return reason
        segment = self.segment
        segment.index().add_spaced(marks)
        self.loader.note_epochs(epochs, segment.base_offset, found.next_offset)
        self.loader.report.verified_bytes += found.end
        self.position, self.next_offset = start + found.end, found.next_offset
        self.timestamp, self.epoch = found.last_timestamp, found.last_epoch
        self.gap = self.gap and not found.batches
        segment.records += found.records
        if segment.first_timestamp < 0:
            segment.first_timestamp = found.first_timestamp
        return found.reason

    def _find_foreign(self, good: memoryview, next_offset: int) -> tuple[int, str] | None:
        """Return position and fault of the first of these good batches that is not part of the log: a refused append left it."""
        end_offset = self.end.offset
        if self.end.is_followed and end_offset is not None and next_offset > end_offset:
            return records.find_offset(good, end_offset), _NOT_OF_THE_SEGMENT
        if self.trust is _Trust.UNSYNCED or (self.trust is _Trust.UNKNOWN and end_offset is None):
            return self._find_ended_epoch(good, next_offset)
        return None

    def _find_ended_epoch(self, good: memoryview, next_offset: int) -> tuple[int, str] | None:
        """Find a batch at or after the start of a later epoch. The log accepts none of those, so a refused append left it."""
        entries = self.loader.epoch_entries
        first = bisect_right(entries, self.next_offset, key=lambda entry: entry.start_offset) - 1
        for entry in entries[max(0, first) :]:
            if entry.start_offset >= next_offset:
                break
            position = records.find_offset(good, entry.start_offset)
            if position >= 0 and records.read_header(good, position).leader_epoch < entry.epoch:
                return position, _EPOCH_ENDED
        return None
