"""The log of one partition: append, read, look up, truncate. The public class of this package.

`log_end_offset` is the offset of the next record, `newest_offset` that of the last record; the high watermark is the last
*committed* offset, −1 if there is none; records below `synced_end_offset` survive a power failure.
Threads: appends, truncation and changes of segments hold one lock; reads hold none. A read sees the end of the log as it was when the
read began. If the cleaner replaces its segment meanwhile, the read looks the segment up again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable

from bascule import limits
from bascule.errors import (
    CallerError,
    DiskFull,
    InvalidRecord,
    LogClosed,
    LogDeleted,
    LogReadonly,
    OffsetOutOfRange,
    StorageError,
    TimestampOutOfRange,
)
from bascule.kernels.records import records
from bascule.kernels.records.builder import BatchBuilder
from bascule.log.core.epochs import EpochEntry
from bascule.log.core.options import LogOptions, SyncPolicy
from bascule.log.disk.encryption import LogIdentity
from bascule.log.disk.files import FilePool
from bascule.log.disk.master_keys import MasterKeys
from bascule.log.disk.operations import Disk, PosixDisk, delete_directory
from bascule.log.disk.sealing import sealer_for
from bascule.log.partition.batches import Appended
from bascule.log.partition.producer_history import ProducerHistory
from bascule.log.recovery import truncation
from bascule.log.recovery.opening import recover, remove_segments
from bascule.log.recovery.report import RecoveryReport
from bascule.log.segments.replicated import check_replicated
from bascule.log.segments.segment import Segment
from bascule.log.segments.segment_list import SegmentList
from bascule.log.segments.slices import BatchSlice
from bascule.log.segments.view import LogView
from bascule.log.sync.durability import Durability, SyncedMark
from bascule.log.sync.group_commit import Syncer
from bascule.log.sync.waiters import LogWaiters


class PartitionLog:
    def __init__(
        self,
        directory: str,
        options: LogOptions | None = None,
        *,
        pool: FilePool | None = None,
        syncer: Syncer | None = None,
        disk: Disk | None = None,
        keys: MasterKeys | None = None,
        identity: LogIdentity | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """The directory is read on first use. The logs of a store share a pool and a syncer; without them this log makes its own."""
        if not directory:
            raise CallerError("the path of the log is empty", hint="give the directory of a partition")
        self.directory = str(directory).rstrip("/")
        self.options = options or LogOptions()
        self.pool = pool or FilePool(disk or PosixDisk(), limits.OPEN_FILES_MAX)
        self.clock = clock
        self._syncer = syncer or Syncer()
        self._owns_syncer = syncer is None
        self.sealer = sealer_for(self.options, keys, identity)
        self._syncs_always = self.options.sync is SyncPolicy.ALWAYS
        self.lock = threading.RLock()
        self.maintenance = threading.RLock()
        """Held by cleaning, truncation and deletion, which replace segments. The order of locks is: maintenance, durability, lock."""
        self.interrupt_cleaning = threading.Event()
        self._opening = threading.Lock()
        self.is_loaded = False
        self._gone: type[LogClosed] | None = None
        self.readonly = False
        self._waiters = LogWaiters()

    # ── opening and closing ──────────────────────────────────────────────────────────────────────

    def open(self) -> RecoveryReport:
        """Read the directory now instead of on first use. Returns the report of recovery, the same one on each call."""
        with self._opening:
            self._must_exist()
            if not self.is_loaded:
                self._load()
            return self._report

    def _load(self) -> None:
        found = recover(self.pool, self.directory)
        known, self._report = found.checkpoint, found.report
        self.segments = SegmentList(found.segments)
        self._view = LogView(self.segments, self.sealer, self._must_exist)
        self.epochs = found.epochs
        self._end_offset = self.segments.active.next_offset
        self.producers = ProducerHistory(self, self._end_offset)
        self._last_timestamp = found.last_timestamp
        self._high_watermark = min(known.high_watermark, self._end_offset - 1)
        self.cleaned_to = min(known.cleaned_to, self.segments.active.base_offset)
        self.compacted = known.compacted or any(segment.has_gap for segment in found.segments)
        self.tombstones_due_ns: int | None = 0
        """Time at which the oldest tombstone can be removed; None if there is no tombstone, 0 before the first compaction."""
        self.doomed: list[Segment] = []
        """Segments that retention has removed from the log and whose files are not deleted yet."""
        self._dirty = False
        self.durability = Durability.opened(self.pool.disk, self.directory, found, self._mark())
        self.is_loaded = True
        if not found.is_synced or not found.report.is_clean:
            self._sync_recovered()

    def _sync_recovered(self) -> None:
        """Sync the records that recovery verified after a crash, so that the next start does not verify them again."""
        for segment in self.segments.sealed:
            self.durability.note_sealed(segment)
        self.durability.note_directory()
        self.sync()
        with contextlib.suppress(DiskFull):  # a full disk can still be read, and cleaned
            self.write_checkpoint()

    def _mark(self) -> SyncedMark:
        active, epoch = self.segments.active, self.epochs.of_last_record(self._end_offset)
        return SyncedMark(
            self._end_offset, active, active.size, active.records, active.first_timestamp, self._last_timestamp, epoch
        )

    def _use(self) -> None:
        """Load the log on first use. Raises LogClosed or LogDeleted."""
        if self._gone is not None or not self.is_loaded:
            self.open()

    def _must_exist(self) -> None:
        if self._gone is not None:
            what = "deleted" if issubclass(self._gone, LogDeleted) else "closed"
            raise self._gone(f"the log {self.directory} was {what}")

    def close(self) -> None:
        """Sync, write the checkpoint and close all files. Readers end with LogClosed. A second call does nothing."""
        self._leave(LogClosed, self._close_files)

    def delete(self) -> None:
        """Close the log and delete its files. Readers end with LogDeleted."""
        self._leave(LogDeleted, self._delete_files)

    def _leave(self, gone: type[LogClosed], finish: Callable[[], None]) -> None:
        self.interrupt_cleaning.set()
        try:
            with self.maintenance, self._opening:
                if self._gone is None or (gone is LogDeleted and self._gone is LogClosed):
                    self._finish(gone, finish)
        finally:
            # Outside of the locks, because the sync thread may be waiting for one of them; also after a failed sync.
            self._syncer.forget(self)
            if self._owns_syncer:
                self._syncer.close()
            self._waiters.wake_all()

    def _finish(self, gone: type[LogClosed], finish: Callable[[], None]) -> None:
        try:
            # A log that is not loaded has no durability; the maintenance lock is held anyway.
            with self.durability.lock if self.is_loaded else self.maintenance, self.lock:
                finish()
        finally:
            self._gone = gone

    def _close_files(self) -> None:
        if not self.is_loaded:
            return
        try:
            if self.durability.failure is None:
                self.epochs.save(begun=True)
                self.segments.active.cut_leftover()
                self.sync()
                self.segments.active.flush_index()
                self.write_checkpoint()
                self.producers.close()
        finally:
            for segment in self.segments:
                segment.close()

    def _delete_files(self) -> None:
        if self.is_loaded:
            for segment in self.segments:
                segment.retire()
        delete_directory(self.pool.disk, self.directory)

    # ── what it holds ────────────────────────────────────────────────────────────────────────────

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        self._use()
        return self._end_offset

    @property
    def newest_offset(self) -> int:
        """The offset of the last record appended, −1 if there was none."""
        return self.log_end_offset - 1

    @property
    def synced_end_offset(self) -> int:
        """Records below this offset survive a power failure."""
        self._use()
        return self.durability.synced.end_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log; retention has deleted those below it."""
        self._use()
        return self.segments.oldest.base_offset

    @property
    def oldest_offset(self) -> int:
        """The offset of the first stored record, −1 if there is none."""
        self._use()
        first = self._view.first_record(0, self._end_offset)
        return -1 if first is None else first.offset

    @property
    def high_watermark(self) -> int:
        """The last committed offset, −1 if there is none."""
        self._use()
        return self._high_watermark

    @property
    def last_timestamp(self) -> int:
        """The timestamp of the newest record; later records have the same or a later one."""
        self._use()
        return self._last_timestamp

    @property
    def size_bytes(self) -> int:
        self._use()
        return sum(segment.size for segment in self.segments)

    @property
    def record_count(self) -> int:
        self._use()
        return sum(segment.records for segment in self.segments)

    # ── appending ────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: BatchBuilder, *, leader_epoch: int | None = None, timestamp: int | None = None) -> Appended:
        """Append the records of `batch` as leader of `leader_epoch`, by default the latest one.

        The records get the present time or `timestamp`, but at least the time of the record before them.
        """
        # A batch of one message pays for all of this function: checks that rarely fail are made without calls.
        if self._gone is not None or not self.is_loaded:
            self.open()
        with self.lock:
            self._must_take_appends()
            if self.readonly:
                raise LogReadonly(f"the log {self.directory} is readonly")
            if batch.count == 0:
                raise InvalidRecord("the batch has no records", hint="add at least one")
            epoch, base_offset = leader_epoch, self._end_offset
            if epoch is None or epoch != self.epochs.entered:
                epoch = self.epochs.enter(leader_epoch, base_offset)
            stamped = max(self.clock() if timestamp is None else timestamp, self._last_timestamp)
            self._roll_if_due(batch.nbytes)
            with batch.stamp(base_offset, epoch, stamped) as view:
                data = self.sealer.seal(view) if self.sealer.seals else view
                header = records.read_header(data)
                self.segments.active.append(data, header)
                del data
            self._accept(header)
        self._announce()
        return Appended(base_offset, header.last_offset, header.first_timestamp)

    def append_replicated(self, data: bytes | memoryview) -> Appended | None:
        """Append batches of the leader unchanged. All are checked before the first byte is written. Returns None for no bytes.

        The first batch must begin at the end of this log. The others may follow gaps that compaction left on the leader.
        """
        self._use()
        before = self._end_offset
        try:
            headers = self._write_replicated(data)
        finally:
            if self._end_offset != before:
                self._announce()  # also for batches written before the disk failed
        return Appended(headers[0].base_offset, headers[-1].last_offset, headers[-1].max_timestamp) if headers else None

    def _write_replicated(self, data: bytes | memoryview) -> list[records.BatchHeader]:
        with self.lock:
            self._must_take_appends()
            takes_holes = self.options.compact or self.segments.oldest.is_empty
            headers = check_replicated(
                data, self._end_offset, self._last_timestamp, self.epochs.latest, takes_holes=takes_holes
            )
            position = 0
            for header in headers:
                # An epoch may have begun anywhere in a gap that compaction left. The start of the gap is safe: a follower that asks
                # truncates too much, and never keeps a record of a deposed leader that was overwritten there.
                epoch_start_offset = self._end_offset
                if header.base_offset > self._end_offset and not header.attributes & records.FOLLOWS_GAP:
                    self._roll(header.base_offset)  # a gap between segments needs no mark
                    self.compacted = True
                self._roll_if_due(header.length)
                self.epochs.enter(header.leader_epoch, max(epoch_start_offset, self.segments.oldest.base_offset))
                self.segments.active.append(memoryview(data)[position : position + header.length], header)
                self._accept(header)
                position += header.length
            return headers

    def _must_take_appends(self) -> None:
        if self._gone is not None or self.durability.failure is not None:
            self._must_exist()
            self.durability.must_not_have_failed()

    def _accept(self, header: records.BatchHeader) -> None:
        if header.attributes & records.PRODUCERS:
            self.producers.note(header)
        self._last_timestamp = header.max_timestamp
        self._end_offset = header.last_offset + 1

    def _announce(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._syncer.note_dirty(self, self.options.sync_interval_ns)
        if self._syncs_always:
            self._syncer.request(self)
        if self._waiters.end.waiting:
            self._waiters.end.wake(self._end_offset)
        if self.producers.unread_bytes >= limits.PRODUCERS_UNREAD_BYTES_MAX:
            self.producers.read_new()

    # ── rolling ──────────────────────────────────────────────────────────────────────────────────

    def roll_if_due(self) -> bool:
        """Begin a new segment if the active one is too old. The cleaner calls this, since an idle log has no appends that would."""
        self._use()
        with self.lock:
            self._must_take_appends()
            if not self._roll_if_due(0):
                return False
        self._waiters.end.wake_all()
        return True

    def _roll_if_due(self, more_bytes: int) -> bool:
        self.pool.take_space(more_bytes)
        active = self.segments.active
        if not active.size:
            return False
        full, age_max_ns = active.size + more_bytes > self.options.segment_bytes_max, self.options.segment_age_max_ns
        due = full or (age_max_ns > 0 and self.clock() - active.first_timestamp >= age_max_ns)
        if due:
            self._roll(self._end_offset)
        return due

    def roll(self) -> None:
        """Begin a new segment now, unless the active one is empty."""
        self._use()
        with self.lock:
            self._must_take_appends()
            if not self.segments.active.is_empty:
                self._roll(self._end_offset)
        self._waiters.end.wake_all()

    def _roll(self, base_offset: int) -> None:
        old = self.segments.active
        segment = Segment.create(self.pool, self.directory, base_offset)
        self.durability.note_directory()
        if old.is_empty:
            self._replace_empty(segment)
            return
        old.reach(base_offset)
        self.durability.note_sealed(old)
        self.segments.roll(segment)
        self._end_offset = base_offset

    def _replace_empty(self, segment: Segment) -> None:
        """Replace the empty active segment, for a follower whose first offset is not 0."""
        with self.durability.whole_or_failed():
            old = self.segments.replace_active(segment)
            self._end_offset = segment.base_offset
            for sealed in self.segments.sealed[-1:]:
                sealed.reach(segment.base_offset)
                self.durability.note_sealed(sealed)
            self.epochs.clear_earliest(self.segments.oldest.base_offset)
            old.remove()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def read(
        self, offset: int, *, bytes_max: int = limits.READ_BYTES_DEFAULT, committed: bool = True, end: int | None = None
    ) -> BatchSlice | None:
        """Return whole batches from the one that holds `offset`: at least one, then up to `bytes_max`. None if there is no record yet.

        Below the start of the log reading begins at its start. `committed` stops at the high watermark, `end` at this offset.
        """
        self._check_range(offset, bytes_max)
        end_offset = self.readable_end_offset(committed=committed)
        if not committed and offset > end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is beyond the end of the log {self.directory}, {end_offset}",
                hint=f"read from {end_offset} or below",
            )
        if end is not None:
            end_offset = min(end, end_offset)
        return self._view.read(offset, end_offset, bytes_max) if offset < end_offset else None

    def _check_range(self, offset: int, bytes_max: int = 1) -> None:
        if offset < 0:
            raise OffsetOutOfRange(f"offset {offset} is negative", hint="offsets begin at 0")
        if bytes_max < 1:
            raise CallerError(f"bytes_max is {bytes_max}", hint="ask for at least one byte")

    def read_reverse(
        self, offset: int, *, bytes_max: int = limits.READ_BYTES_DEFAULT, committed: bool = True
    ) -> BatchSlice | None:
        """Return whole batches up to the one that holds `offset`, or the last one before it. None if there is none at or before it.

        The next call continues at `first_offset − 1` of the result.
        """
        self._use()
        self._check_range(offset, bytes_max)
        end_offset = min(offset + 1, self.readable_end_offset(committed=committed))
        return self._view.read_back(end_offset, bytes_max)

    def readable_end_offset(self, *, committed: bool) -> int:
        """Return the present end of reading, exclusive."""
        if self._gone is not None or not self.is_loaded:
            self.open()
        if not committed:
            return self._end_offset
        visible = self._high_watermark + 1
        if self._syncs_always:
            visible = min(visible, self.durability.synced.end_offset)
        return visible

    # ── looking up times ─────────────────────────────────────────────────────────────────────────

    def earliest_offset_at(self, timestamp: int) -> int:
        """Return the offset of the first record at or after `timestamp`; the end of the log if all are older."""
        self._use()
        end_offset = self._end_offset
        found = self._view.offset_reaching(timestamp)
        return end_offset if found is None else found

    def latest_offset_at(self, timestamp: int) -> int:
        """Return the offset of the last record at or before `timestamp`. Raises TimestampOutOfRange if there is none."""
        end_offset = self.earliest_offset_at(timestamp + 1)
        found = self._view.last_record(end_offset)
        if found is None:
            raise TimestampOutOfRange(
                f"the log {self.directory} has no record at or before {timestamp}",
                hint="give a later time, or read from the earliest offset",
            )
        return found.offset

    # ── the high watermark and waiting ───────────────────────────────────────────────────────────

    def advance_high_watermark(self, offset: int) -> int:
        """Raise the high watermark to `offset`, but not beyond the newest one, and return it. It never falls."""
        if self._gone is not None or not self.is_loaded:
            self.open()
        with self.lock:
            if self._gone is not None:
                self._must_exist()
            high_watermark = self._high_watermark = max(self._high_watermark, min(offset, self._end_offset - 1))
        if self._waiters.commit.waiting:
            self._wake_committed()
        return high_watermark

    def call_when_readable(
        self, owner: Hashable, offset: int, callback: Callable[[], None], *, committed: bool = True
    ) -> bool:
        """Call back once, when a record at or after `offset` can be read or the log changes its state. False if one can be read now.

        Each owner has at most one callback. It runs on the thread that makes the record readable and must not block.
        """
        self._use()
        waiters = self._waiters.commit if committed else self._waiters.end
        waiters.add(owner, offset, callback)
        if self.readable_end_offset(committed=committed) > offset or self._gone is not None:
            waiters.remove(owner)
            return False
        return True

    def stop_waiting(self, owner: Hashable) -> None:
        self._waiters.remove(owner)

    def wake_reader(self, owner: Hashable) -> None:
        """Run the callback of an owner now, whichever event it waits for."""
        self._waiters.wake_owner(owner)

    def set_readonly(self, readonly: bool) -> None:
        """Set whether `append` is refused. Wakes all waiting readers, because a readonly log has an end."""
        with self.lock:
            self._must_exist()
            self.readonly = readonly
        self._waiters.wake_all()

    def _wake_committed(self) -> None:
        if self.readonly:
            self._waiters.commit.wake_all()  # readers may have reached the end of a readonly log
        else:
            self._waiters.commit.wake(self.readable_end_offset(committed=True))

    # ── syncing ──────────────────────────────────────────────────────────────────────────────────

    def request_sync(self) -> None:
        """Have the sync thread sync the records written so far in its next round."""
        self._use()
        if self.durability.synced.end_offset < self._end_offset:
            self._syncer.request(self)

    def call_when_synced(self, owner: Hashable, offset: int, callback: Callable[[], None]) -> bool:
        """Call back once, when the record at `offset` is synced or the log has failed. False if it is synced; raises if it failed."""
        self._use()
        self._waiters.sync.add(owner, offset, callback)
        is_synced = self.durability.synced.end_offset > offset
        if is_synced or self._gone is not None or self.durability.failure is not None:
            self._waiters.sync.remove(owner)
            if not is_synced:
                self._must_take_appends()
            return False
        self.request_sync()
        return True

    def sync(self) -> None:
        """Sync all records written so far to disk. After a failed sync the log refuses appends."""
        self._use()
        try:
            mark = self.durability.sync(self.lock, self._begin_sync)
        except StorageError:
            self._waiters.wake_all()
            raise
        self._waiters.sync.wake(mark.end_offset)
        self._wake_committed()

    def _begin_sync(self) -> SyncedMark:
        self._must_take_appends()
        self._dirty = False
        return self._mark()

    def write_checkpoint(self, *, durable: bool = False, cutting: bool = False) -> None:
        """Save the synced position and the epochs, so that the next open does not read the records before it."""
        self._use()
        self.durability.write_checkpoint(
            lambda: self.epochs.save(self.lock),
            high_watermark=self._high_watermark,
            log_start_offset=self.segments.oldest.base_offset,
            cleaned_to=self.cleaned_to,
            compacted=self.compacted,
            cutting=cutting,
            durable=durable,
        )

    def settle(self) -> None:
        """Sync, and write a durable checkpoint with the active segment. Afterwards sealed segments may be changed."""
        self.sync()
        self.write_checkpoint(durable=True)

    # ── leader epochs ────────────────────────────────────────────────────────────────────────────

    def begin_epoch(self, epoch: int) -> None:
        """Begin the epoch of a new leader at the end of the log."""
        self._use()
        with self.lock:
            self._must_take_appends()
            self.epochs.begin(epoch, self._end_offset)

    @property
    def latest_epoch(self) -> int:
        self._use()
        return self.epochs.latest

    def end_offset_of_epoch(self, epoch: int) -> int:
        """Return the exclusive end of an epoch: a follower whose last epoch this is truncates its log to it."""
        self._use()
        return self.epochs.end_offset(epoch, self._end_offset)

    @property
    def epoch_entries(self) -> tuple[EpochEntry, ...]:
        self._use()
        return self.epochs.entries

    # ── truncation ───────────────────────────────────────────────────────────────────────────────

    def truncate(self, offset: int, *, allow_committed: bool = False) -> None:
        """Delete all records at or after `offset`, and the epochs that begin there. Refuses committed ones unless `allow_committed`."""
        self._use()
        self._check_range(offset)
        self.interrupt_cleaning.set()
        with self.maintenance, self.durability.lock, self.lock:
            self._must_take_appends()
            if offset >= self._end_offset:
                with self.durability.whole_or_failed():
                    if self.epochs.clear_latest(self._end_offset):
                        self.settle()  # opening must not find it: it would remove records of earlier epochs that follow
                return
            if not allow_committed:
                truncation.check_uncommitted(self.directory, offset, self._high_watermark)
            offset = max(offset, self.log_start_offset)
            with self.durability.whole_or_failed():
                self._announce_cut(offset)
                lost_some = truncation.truncate_segments(self.segments, offset, self.sealer)
                if self.segments.active.next_offset < offset and not lost_some:
                    # Compaction has removed the records before `offset`; their offsets must not be reused.
                    self._roll(offset)
                self._rewind()
                self.settle()

    def _announce_cut(self, offset: int) -> None:
        """Save the truncation before it begins: after a crash, recovery does not report the missing records as lost."""
        segment = truncation.last_kept(self.segments, offset)
        self._high_watermark = min(self._high_watermark, offset - 1)
        if segment.base_offset < self.durability.synced.end_offset:
            self.durability.rewind(SyncedMark(segment.base_offset, segment, 0, 0, -1, 0, 0))
        self.write_checkpoint(durable=True, cutting=True)

    def reset_to(self, offset: int) -> None:
        """Delete all records and continue at `offset`, for a follower whose leader no longer has its next offset."""
        self._use()
        self._check_range(offset)
        self.interrupt_cleaning.set()
        with self.maintenance, self.durability.lock, self.lock:
            self._must_take_appends()
            with self.durability.whole_or_failed():
                self._announce_cut(self.log_start_offset)
                for segment in self.segments:
                    segment.retire()
                remove_segments(self.pool.disk, self.directory)
                self.doomed.clear()
                self.segments.replace_all(Segment.create(self.pool, self.directory, offset))
                self._high_watermark = offset - 1
                self._rewind()
                self.epochs.clear_earliest(offset)
                self.settle()

    def _rewind(self) -> None:
        """Take over the end of the truncated segments."""
        active = self.segments.active
        offset = self._end_offset = active.next_offset
        self._last_timestamp = max(0, *(segment.last_timestamp for segment in self.segments))
        self._high_watermark = min(self._high_watermark, offset - 1)
        self.producers.cut(self.segments.oldest.base_offset, offset)
        self.cleaned_to = min(self.cleaned_to, active.base_offset)
        self._dirty = True
        self.durability.rewind(SyncedMark(active.base_offset, active, 0, 0, -1, 0, 0))
        self.epochs.clear_latest(offset)
