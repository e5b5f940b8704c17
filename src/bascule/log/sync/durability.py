"""Tracks the synced end of a log, and writes it to the checkpoint for the next start.

A sync notes the end of the log, syncs the files, and only then moves `synced` to that end. After a failed sync the kernel may have
dropped the data, so no record counts as synced until the log is opened again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath

from bascule.errors import StorageError
from bascule.log.disk.checkpoint import LogCheckpoint, write_checkpoint
from bascule.log.disk.files import FileGone
from bascule.log.disk.operations import Disk
from bascule.log.recovery.opening import RecoveredLog
from bascule.log.segments.segment import Segment
from bascule.log.segments.segment_list import SegmentList


@dataclass(frozen=True, slots=True)
class SyncedMark:
    """An end of the log, with its segment and position."""

    end_offset: int
    segment: Segment
    position: int
    records: int
    first_timestamp: int
    last_timestamp: int
    epoch: int

    @classmethod
    def from_checkpoint(cls, checkpoint: LogCheckpoint, segment: Segment) -> SyncedMark:
        return cls(
            checkpoint.recovery_point,
            segment,
            checkpoint.active_position,
            checkpoint.active_records,
            checkpoint.active_first_timestamp,
            checkpoint.last_timestamp,
            checkpoint.last_epoch,
        )


class Durability:
    def __init__(
        self, disk: Disk, directory: str, synced: SyncedMark, *, is_new: bool, written: LogCheckpoint | None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._sealed: list[Segment] = []
        self._directory_changed = is_new
        self._directory_unsure = True
        """Whether an earlier process may have left changes of the directory that are not synced."""
        self._is_new = is_new
        self._written = written
        self._front_gap = (-1, -1) if written is None else (written.front_gap_start, written.front_gap_end)
        self.synced = synced
        self.failure: StorageError | None = None
        self.lock = threading.RLock()
        """Held during a sync and while a checkpoint is written."""

    @classmethod
    def opened(cls, disk: Disk, directory: str, found: RecoveredLog, end: SyncedMark) -> Durability:
        """Return the state of a recovered log that ends at `end`."""
        known = found.checkpoint
        if not found.is_synced:
            end = SyncedMark.from_checkpoint(known, SegmentList(found.segments).holding(known.active_base))
        # No record was ever synced, so the directory itself may not be synced either.
        is_new = found.is_new or known.recovery_point == 0
        return cls(disk, directory, end, is_new=is_new, written=known if found.has_checkpoint else None)

    def must_not_have_failed(self) -> None:
        if self.failure is not None:
            raise StorageError(
                f"the log {self._directory} refuses appends after a failure: {self.failure.message}",
                hint="check the disk, then restart the server",
            ) from self.failure

    def note_sealed(self, segment: Segment) -> None:
        """Note a segment that is no longer active and may not be synced yet."""
        self._sealed.append(segment)

    def note_directory(self) -> None:
        """Note that files were created, removed or renamed."""
        self._directory_changed = True

    def rewind(self, mark: SyncedMark) -> None:
        """Take back the synced end after a truncation; the last segment is synced again by the next sync."""
        self.synced = mark
        self._directory_changed = True

    @contextlib.contextmanager
    def whole_or_failed(self) -> Iterator[None]:
        """Wraps a change of several files: if it fails halfway, the log refuses appends until it is opened again."""
        try:
            yield
        except StorageError as error:
            self.failure = error
            raise

    def sync(self, log_lock: AbstractContextManager[object], take_mark: Callable[[], SyncedMark]) -> SyncedMark:
        """Sync all records up to the present end of the log, which may grow meanwhile."""
        with self.lock:
            with log_lock:
                mark = take_mark()
                sealed, self._sealed = self._sealed, []
                directory_changed, self._directory_changed = self._directory_changed, False
            if mark.end_offset != self.synced.end_offset or sealed or directory_changed:
                try:
                    self._sync_files([*sealed, mark.segment], directory_changed or self._directory_unsure)
                except StorageError as error:
                    self.failure = error
                    raise
            self.synced = mark
            return mark

    def _sync_files(self, segments: list[Segment], directory_changed: bool) -> None:
        for segment in segments:
            try:
                segment.sync()
            except FileGone:
                continue  # deleted meanwhile
        if directory_changed:
            self._sync_directories()
        with contextlib.suppress(StorageError):  # missing index entries are found by scanning
            segments[-1].flush_index()

    def _sync_directories(self) -> None:
        """Sync the directory; for a new log also the folders above it, which may be new: stream, streams and data."""
        self._disk.sync_directory(self._directory)
        self._directory_unsure = False
        if self._is_new:
            for ancestor in list(PurePosixPath(self._directory).parents)[:3]:
                self._disk.sync_directory(str(ancestor))
            self._is_new = False

    def note_front_compacted(self, before: int, after: int) -> None:
        """Note that compaction removed all records from `before` to `after`, the new start of the log."""
        start, end = self._front_gap
        self._front_gap = (start if end == before else before, after)

    def retention_start_offset(self, log_start_offset: int) -> int:
        """Return the offset below which retention may have deleted records. Between it and the start of the log only compaction removed
        records, so a reader that continues there misses none."""
        start, end = self._front_gap
        return start if end == log_start_offset else log_start_offset

    def write_checkpoint(
        self,
        save_epochs: Callable[[], None],
        *,
        high_watermark: int,
        log_start_offset: int,
        cleaned_to: int,
        compacted: bool,
        cutting: bool,
        durable: bool,
    ) -> None:
        with self.lock:
            mark = self.synced
            save_epochs()
            checkpoint = LogCheckpoint(
                recovery_point=mark.end_offset,
                active_base=mark.segment.base_offset,
                active_position=mark.position,
                active_records=mark.records,
                active_first_timestamp=mark.first_timestamp,
                last_timestamp=mark.last_timestamp,
                last_epoch=mark.epoch,
                high_watermark=high_watermark,
                log_start_offset=log_start_offset,
                cleaned_to=cleaned_to,
                compacted=compacted,
                front_gap_start=self._front_gap[0],
                front_gap_end=self._front_gap[1],
                cutting=cutting,
            )
            if checkpoint != self._written or durable:
                write_checkpoint(self._disk, self._directory, checkpoint, durable=durable)
                self._written = checkpoint
