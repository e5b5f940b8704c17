"""One partition's log: append, read, look up, truncate. The face of this package.

Words, as everywhere in Bascule: `log_end_offset` is the offset the next record gets, `newest_offset` the last one given; the high
watermark is the last *committed* offset, −1 for none; `synced_end_offset` is what would survive a power failure, exclusive.

Threads: appends, truncation and changes of segments hold one lock; reads hold none. A read sees the end of the log as it was
when it began, and finds its segment again when the cleaner replaced it meanwhile.
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
from bascule.log.disk.encryption import MasterKeys
from bascule.log.disk.files import FilePool
from bascule.log.disk.operations import Disk, PosixDisk
from bascule.log.disk.sealing import sealer_for
from bascule.log.partition.batches import Appended
from bascule.log.partition.producer_history import ProducerHistory
from bascule.log.recovery import truncation
from bascule.log.recovery.leader_epochs import LeaderEpochs
from bascule.log.recovery.opening import RecoveryReport, recover
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
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Nothing is read until the log is used. A pool and a syncer are shared by the logs of a store, or made for this one."""
        if not directory:
            raise CallerError("the path of the log is empty", hint="give the directory of a partition")
        self.directory = str(directory).rstrip("/")
        self.options = options or LogOptions()
        self.pool = pool or FilePool(disk or PosixDisk(), limits.OPEN_FILES_MAX)
        self.clock = clock
        self._syncer = syncer or Syncer()
        self._owns_syncer = syncer is None
        self.sealer = sealer_for(self.options, keys)
        self.lock = threading.RLock()
        self.maintenance = threading.RLock()
        """Held by whoever rearranges segments: cleaning, truncation, deletion. Locks are taken in this order: maintenance,
        durability, lock."""
        self.interrupt_cleaning = threading.Event()
        self._opening = threading.Lock()
        self._loaded = False
        self._gone: type[LogClosed] | None = None
        self._readonly = False
        self._waiters = LogWaiters()

    # ── opening and closing ──────────────────────────────────────────────────────────────────────

    def open(self) -> RecoveryReport:
        """Read the directory now instead of on first use. Returns what recovery found, each time the same report."""
        with self._opening:
            self._must_exist()
            if not self._loaded:
                self._load()
            return self._report

    def _load(self) -> None:
        found = recover(self.pool, self.directory)
        known = found.checkpoint
        self._report = found.report
        self.segments = SegmentList(found.segments)
        self._view = LogView(self.segments, self.sealer, self._must_exist)
        self.epochs = LeaderEpochs(self.pool.disk, self.directory, found.epochs)
        self._end_offset = self.segments.active.next_offset
        self.producers = ProducerHistory(self, self._end_offset)
        self._last_timestamp = found.last_timestamp
        self._high_watermark = min(known.high_watermark, self._end_offset - 1)
        self.cleaned_to = min(known.cleaned_to, self.segments.active.base_offset)
        self.compacted = known.compacted
        self.tombstones_due_ns: int | None = 0
        """When the oldest tombstone has served its time; None when there is none, 0 when nobody knows yet."""
        self.doomed: list[Segment] = []
        """Segments that retention took out of the log and whose files still have to go."""
        self._dirty = False
        self.durability = Durability.opened(self.pool.disk, self.directory, found, self._mark())
        self._loaded = True
        if not found.is_synced or not found.report.is_clean:
            self._sync_recovered()

    def _sync_recovered(self) -> None:
        """After a crash: what was verified becomes synced, so that nothing has to be verified twice."""
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
        """Before anything else: the log must exist and be loaded."""
        if self._gone is not None or not self._loaded:
            self.open()

    def _must_exist(self) -> None:
        if self._gone is not None:
            what = "deleted" if issubclass(self._gone, LogDeleted) else "closed"
            raise self._gone(f"the log {self.directory} was {what}")

    def close(self) -> None:
        """Sync, write the checkpoint and let go of all files. Readers end with LogClosed. Closing twice is fine."""
        self._leave(LogClosed, self._close_files)

    def delete(self) -> None:
        """Close and remove everything. Readers end with LogDeleted."""
        self._leave(LogDeleted, self._delete_files)

    def _leave(self, gone: type[LogClosed], finish: Callable[[], None]) -> None:
        self.interrupt_cleaning.set()
        try:
            with self.maintenance, self._opening:
                if self._gone is None or (gone is LogDeleted and self._gone is LogClosed):
                    self._finish(gone, finish)
        finally:
            # Outside of the locks: the sync thread may just now be waiting for one of them. Also when the last sync failed.
            self._syncer.forget(self)
            if self._owns_syncer:
                self._syncer.close()
            self._waiters.wake_all()

    def _finish(self, gone: type[LogClosed], finish: Callable[[], None]) -> None:
        try:
            # What is not loaded syncs nothing: there the lock that is held anyway stands in.
            with self.durability.lock if self._loaded else self.maintenance, self.lock:
                finish()
        finally:
            self._gone = gone

    def _close_files(self) -> None:
        if not self._loaded:
            return
        try:
            if self.durability.failure is None:
                self.epochs.save()
                self.sync()
                self.segments.active.flush_index()
                self.write_checkpoint()
                self.producers.close()
        finally:
            for segment in self.segments:
                segment.close()

    def _delete_files(self) -> None:
        if self._loaded:
            for segment in self.segments:
                segment.retire()
        disk = self.pool.disk
        try:
            names = disk.list_directory(self.directory)
        except FileNotFoundError:
            return
        for name in sorted(names):
            disk.remove(f"{self.directory}/{name}")
        disk.remove_directory(self.directory)

    @property
    def is_loaded(self) -> bool:
        """Whether anybody has used it yet."""
        return self._loaded

    # ── what it holds ────────────────────────────────────────────────────────────────────────────

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        self._use()
        return self._end_offset

    @property
    def newest_offset(self) -> int:
        """The last offset given out, −1 when none ever was."""
        return self.log_end_offset - 1

    @property
    def synced_end_offset(self) -> int:
        """Everything below it survives a power failure."""
        self._use()
        return self.durability.synced.end_offset

    @property
    def log_start_offset(self) -> int:
        """Where the log begins: offsets below it were deleted."""
        self._use()
        return self.segments.oldest.base_offset

    @property
    def oldest_offset(self) -> int:
        """Offset of the first record that is stored, −1 when there is none."""
        self._use()
        first = self._view.first_record(0, self._end_offset)
        return -1 if first is None else first.offset

    @property
    def high_watermark(self) -> int:
        """The last committed offset, −1 for none."""
        self._use()
        return self._high_watermark

    @property
    def last_timestamp(self) -> int:
        """Of the newest record; timestamps never go below it again."""
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

    @property
    def readonly(self) -> bool:
        return self._readonly

    # ── appending ────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: BatchBuilder, *, leader_epoch: int | None = None, timestamp: int | None = None) -> Appended:
        """Write the records of `batch` behind the last one, as leader of `leader_epoch` (the latest known one by default).

        The batch gets the present time, or `timestamp`, but never less than the record before it.
        """
        self._use()
        with self.lock:
            self._must_take_appends()
            if self._readonly:
                raise LogReadonly(f"the log {self.directory} is readonly")
            if batch.count == 0:
                raise InvalidRecord("the batch has no records", hint="add at least one")
            epoch = self.epochs.enter(leader_epoch, self._end_offset)
            stamped = max(self.clock() if timestamp is None else timestamp, self._last_timestamp)
            self._roll_if_due(batch.nbytes)
            base_offset = self._end_offset
            with batch.stamp(base_offset, epoch, stamped) as view:
                data = self.sealer.seal(view)
                header = records.read_header(data)
                self.segments.active.append(data, header)
                del data
            self._accept(header)
        self._announce()
        return Appended(base_offset, header.last_offset, header.first_timestamp)

    def append_replicated(self, data: bytes | memoryview) -> Appended | None:
        """Write the leader's batches as they are. All are checked before the first byte is written; None for no bytes.

        The first must begin at the end of this log. Behind it, holes are taken where compaction left them on the leader.
        """
        self._use()
        before = self._end_offset
        try:
            headers = self._write_replicated(data)
        finally:
            if self._end_offset != before:
                self._announce()  # also what was written before the disk failed
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
                if header.base_offset > self._end_offset and not header.attributes & records.FOLLOWS_GAP:
                    self._roll(header.base_offset)  # a hole between segments needs no mark
                self._roll_if_due(header.length)
                self.epochs.enter(header.leader_epoch, header.base_offset)
                self.segments.active.append(memoryview(data)[position : position + header.length], header)
                self._accept(header)
                position += header.length
            return headers

    def _must_take_appends(self) -> None:
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
        if self.options.sync is SyncPolicy.ALWAYS:
            self._syncer.request(self)
        self._waiters.end.wake(self._end_offset)
        self.producers.keep_up()

    # ── rolling ──────────────────────────────────────────────────────────────────────────────────

    def roll_if_due(self) -> bool:
        """Begin a new segment if the active one is too old. The cleaner asks for logs that nobody appends to."""
        self._use()
        with self.lock:
            self._must_take_appends()
            rolled = self._roll_if_due(0)
        if rolled:
            self._waiters.end.wake_all()
        return rolled

    def _roll_if_due(self, more_bytes: int) -> bool:
        active = self.segments.active
        if active.is_empty:
            return False
        full = active.size + more_bytes > self.options.segment_bytes_max
        age_max_ns = self.options.segment_age_max_ns
        old = age_max_ns > 0 and self.clock() - active.first_timestamp >= age_max_ns
        if full or old:
            self._roll(self._end_offset)
        return full or old

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
        """A follower that begins in the middle: an empty segment holds nothing anybody could miss."""
        old = self.segments.replace_active(segment)
        self._end_offset = segment.base_offset
        for sealed in self.segments.sealed[-1:]:
            sealed.reach(segment.base_offset)
        self.epochs.clear_earliest(self.segments.oldest.base_offset)
        old.remove()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def read(
        self,
        offset: int,
        *,
        bytes_max: int = limits.READ_BYTES_DEFAULT,
        committed: bool = True,
        below: int | None = None,
    ) -> BatchSlice | None:
        """Whole batches from the one that holds `offset` on: at least one, then up to `bytes_max`. None when there is nothing (yet).

        Below the start of the log reading begins at its start. `committed` stops at the high watermark, `below` at this offset.
        """
        self._use()
        self._check_range(offset, bytes_max)
        end_offset = self.readable_end_offset(committed=committed)
        if not committed and offset > end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} lies beyond the end of the log {self.directory}, {end_offset}",
                hint=f"read from {end_offset} or below",
            )
        return self._view.read(offset, end_offset if below is None else min(below, end_offset), bytes_max)

    def _check_range(self, offset: int, bytes_max: int = 1) -> None:
        if offset < 0:
            raise OffsetOutOfRange(f"offset {offset} is negative", hint="offsets begin at 0")
        if bytes_max < 1:
            raise CallerError(f"bytes_max is {bytes_max}", hint="ask for at least one byte")

    def read_reverse(
        self, offset: int, *, bytes_max: int = limits.READ_BYTES_DEFAULT, committed: bool = True
    ) -> BatchSlice | None:
        """Whole batches that end with the one holding `offset`, or the last one before it. None when there is nothing at or before it.

        Read on at `data`'s first base offset − 1, which is `first_offset − 1` of what this returns.
        """
        self._use()
        self._check_range(offset, bytes_max)
        end_offset = min(offset + 1, self.readable_end_offset(committed=committed))
        return self._view.read_back(end_offset, bytes_max)

    def readable_end_offset(self, *, committed: bool) -> int:
        """Where reading stops for now, exclusive."""
        self._use()
        if not committed:
            return self._end_offset
        visible = self._high_watermark + 1
        if self.options.sync is SyncPolicy.ALWAYS:
            visible = min(visible, self.durability.synced.end_offset)
        return visible

    # ── looking up times ─────────────────────────────────────────────────────────────────────────

    def earliest_offset_at(self, timestamp: int) -> int:
        """Offset of the first record at or behind `timestamp`; the end of the log when all are older."""
        self._use()
        end_offset = self._end_offset
        found = self._view.offset_reaching(timestamp)
        return end_offset if found is None else found

    def latest_offset_at(self, timestamp: int) -> int:
        """Offset of the last record at or before `timestamp`. Raises TimestampOutOfRange when all are younger, or there are none."""
        end_offset = self.earliest_offset_at(timestamp + 1)
        found = self._view.last_record(end_offset)
        if found is None:
            raise TimestampOutOfRange(
                f"the log {self.directory} has no record at or before {timestamp}",
                hint="ask for a later time, or for the earliest offset",
            )
        return found.offset

    # ── the high watermark and waiting ───────────────────────────────────────────────────────────

    def advance_high_watermark(self, offset: int) -> int:
        """Move the high watermark up to `offset`, at most to the newest one; never down. Returns where it is."""
        self._use()
        with self.lock:
            self._must_exist()
            self._high_watermark = max(self._high_watermark, min(offset, self._end_offset - 1))
        self._wake_committed()
        return self._high_watermark

    def call_when_readable(
        self, owner: Hashable, offset: int, callback: Callable[[], None], *, committed: bool = True
    ) -> bool:
        """Call back once, when a record at or behind `offset` can be read or the log changes its state. False when one can be read now.

        An owner is registered at most once; the callback runs on the thread that brings the news and must not block.
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
        """Call back an owner that waits, whatever it waits for."""
        self._waiters.wake_owner(owner)

    def set_readonly(self, readonly: bool) -> None:
        """Refuse or take appends of publishers again. Waiting readers have a look: at the end of a readonly log they are done."""
        with self.lock:
            self._must_exist()
            self._readonly = readonly
        self._waiters.wake_all()

    def _wake_committed(self) -> None:
        if self._readonly:
            self._waiters.commit.wake_all()  # who waits behind the end of a readonly log may be done now
        else:
            self._waiters.commit.wake(self.readable_end_offset(committed=True))

    # ── syncing ──────────────────────────────────────────────────────────────────────────────────

    def request_sync(self) -> None:
        """Somebody waits for what is written now: have the sync thread force it out in its next round."""
        self._use()
        if self.durability.synced.end_offset < self._end_offset:
            self._syncer.request(self)

    def call_when_synced(self, owner: Hashable, offset: int, callback: Callable[[], None]) -> bool:
        """Call back once, when the record at `offset` is safe on disk or never will be: then asking raises. False when it is."""
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
        """Force everything written so far to the platter. After a failed sync the log takes no more appends."""
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
        """Remember what is synced, so that the next open need not verify it."""
        self._use()
        self.durability.write_checkpoint(
            high_watermark=self._high_watermark,
            log_start_offset=self.segments.oldest.base_offset,
            cleaned_to=self.cleaned_to,
            compacted=self.compacted,
            cutting=cutting,
            durable=durable,
        )

    def settle(self) -> None:
        """Sync and write a checkpoint that names the active segment, durably: from here on sealed segments may be changed."""
        self.sync()
        self.write_checkpoint(durable=True)

    # ── leader epochs ────────────────────────────────────────────────────────────────────────────

    def begin_epoch(self, epoch: int) -> None:
        """This broker becomes leader in `epoch`: its first record will have the offset the log ends at now."""
        self._use()
        with self.lock:
            self._must_take_appends()
            self.epochs.begin(epoch, self._end_offset)

    @property
    def latest_epoch(self) -> int:
        self._use()
        return self.epochs.latest

    def end_offset_of_epoch(self, epoch: int) -> int:
        """Exclusive end of an epoch: what a follower whose last epoch this is may keep."""
        self._use()
        return self.epochs.end_offset(epoch, self._end_offset)

    def epoch_starts(self) -> dict[int, int]:
        """For every epoch that still has records, the offset of the first one stored: compaction and retention move these."""
        self._use()
        return self._view.epoch_starts(self.epochs.entries, self._end_offset)

    @property
    def epoch_entries(self) -> tuple[EpochEntry, ...]:
        self._use()
        return self.epochs.entries

    # ── truncation ───────────────────────────────────────────────────────────────────────────────

    def truncate(self, offset: int, *, allow_committed: bool = False) -> None:
        """Delete all records at or behind `offset`, and the epochs that begin there. Committed records only when asked to."""
        self._use()
        self._check_range(offset)
        self.interrupt_cleaning.set()
        with self.maintenance, self.durability.lock, self.lock:
            self._must_take_appends()
            if offset >= self._end_offset and not self.epochs.begins_at(self._end_offset):
                return
            offset = min(offset, self._end_offset)  # nothing to cut but an epoch that has no records
            if not allow_committed:
                truncation.check_uncommitted(self.directory, offset, self._high_watermark)
            offset = max(offset, self.log_start_offset)
            with self.durability.whole_or_failed():
                self._announce_cut(offset)
                truncation.truncate_segments(self.segments, offset, self.sealer)
                if self.segments.active.next_offset < offset:
                    # Compaction had removed what came before; those offsets were given out all the same.
                    self._roll(offset)
                self._rewind()
            self.settle()

    def _announce_cut(self, offset: int) -> None:
        """From now on the records behind the cut are no loss to whoever opens the log after a crash."""
        segment = truncation.last_kept(self.segments, offset)
        self._high_watermark = min(self._high_watermark, offset - 1)
        if segment.base_offset < self.durability.synced.end_offset:
            self.durability.rewind(SyncedMark(segment.base_offset, segment, 0, 0, -1, 0, 0))
        self.write_checkpoint(durable=True, cutting=True)

    def reset_to(self, offset: int) -> None:
        """Delete everything and go on at `offset`: for a follower whose leader no longer has what comes next."""
        self._use()
        self._check_range(offset)
        self.interrupt_cleaning.set()
        with self.maintenance, self.durability.lock, self.lock:
            self._must_take_appends()
            with self.durability.whole_or_failed():
                self._announce_cut(self.log_start_offset)
                for segment in reversed(tuple(self.segments)):
                    segment.remove()
                self.segments.replace_all(Segment.create(self.pool, self.directory, offset))
                self._high_watermark = offset - 1
                self._rewind()
                self.epochs.clear_earliest(offset)
            self.settle()

    def _rewind(self) -> None:
        """The segments were cut back: everything that is known of the end follows them."""
        offset = self._end_offset = self.segments.active.next_offset
        self._last_timestamp = max(0, *(segment.last_timestamp for segment in self.segments))
        self._high_watermark = min(self._high_watermark, offset - 1)
        self.producers.cut(self.segments.oldest.base_offset, offset)
        self.cleaned_to = min(self.cleaned_to, self.segments.active.base_offset)
        self._dirty = True
        active = self.segments.active
        self.durability.rewind(SyncedMark(active.base_offset, active, 0, 0, -1, 0, 0))
        self.epochs.clear_latest(offset)
