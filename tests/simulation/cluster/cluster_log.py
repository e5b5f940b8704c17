"""The logs of simulated replicas: a small model for the many fast runs, the production log on a simulated disk for the others.

Both say the same of offsets, epochs, what is synced and what a killed process or a power failure leaves. A record is an epoch and
a number that no other record has; its key, where the log is compacted, follows from the number. Both use production's own plan of
retention. The model has no batches, compaction, producers or recovery; the runs with the production log have them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bascule.errors import BasculeError, CallerError, CorruptBatch, DiskFull, EpochFenced, RejectedBatch, StorageError
from bascule.kernels.records import records
from bascule.kernels.records.producers import ProducerTable
from bascule.log import LogOptions, PartitionLog, new_batch
from bascule.log.cleaning.cleaner import clean
from bascule.log.core.epochs import EpochCache, EpochEntry
from bascule.log.core.retention import SegmentFacts, plan_retention
from bascule.producers import producer_headers
from tests.simulation.log.simulated_disk import Operation, SimulatedDisk
from tests.support.logs import ManualSyncer

Content = tuple[int, int]
"""Epoch and number of a record."""

Batches = Any
"""What a log of one kind gives to another of its kind: bytes, or, for the model, offsets with their records."""

READ_RECORDS_MAX: Final = 8
RECORD_BYTES: Final = 60
"""In the model."""
KEYS: Final = 7


def key_of(number: int) -> bytes:
    return b"%d" % (number % KEYS)


@dataclass(frozen=True, slots=True)
class Sequenced:
    """What an idempotent producer says of its message."""

    producer: bytes
    epoch: int
    sequence: int


@dataclass(slots=True)
class DiskState:
    """What is wrong with a server's disk just now."""

    is_full: bool = False
    syncs_fail: bool = False


class SimulatedLog(Protocol):
    """What a server does with a log. Errors are those of the production log."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def synced_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def latest_epoch(self) -> int: ...

    def end_offset_of_epoch(self, epoch: int) -> int: ...

    def epoch_at_most(self, epoch: int) -> int: ...

    def epoch_of(self, offset: int) -> int: ...

    def begin_epoch(self, epoch: int) -> None: ...

    @property
    def has_holes(self) -> bool:
        """Whether it was found with offsets that no segment holds: a power loss took them, and no checkpoint could tell that they were
        never synced."""

    def append(self, numbers: Sequence[int], epoch: int, sequenced: Sequenced | None = None) -> int:
        """Returns the first offset."""

    def producers(self) -> ProducerTable:
        """The idempotent producers that the log knows."""

    def read(self, offset: int, below: int) -> Batches:
        """Batches from `offset` on, none at or above `below`."""

    def append_replicated(self, data: Batches) -> None: ...

    def truncate(self, offset: int, *, allow_committed: bool) -> None: ...

    def reset_to(self, offset: int) -> None: ...

    def clean(self) -> None:
        """One tick of the cleaner."""

    def is_unreadable(self, offset: int) -> bool:
        """Whether the disk has lost what stood there."""

    def advance_high_watermark(self, high_watermark: int) -> None: ...

    def sync(self) -> None: ...

    def write_checkpoint(self) -> None: ...

    def close(self) -> None: ...

    def damage(self, offset: int) -> None:
        """The batch that holds the offset cannot be read any more."""

    def content(self, offset: int) -> Content | None:
        """What is stored there; None where nothing can be read."""


class ModelLog:
    """The model. It lives on across restarts: `kill` and `lose_power` leave what the next process finds."""

    has_holes = False

    __slots__ = (
        "_checkpoints",
        "_clock",
        "_damaged",
        "_disk_state",
        "_epochs",
        "_failure",
        "_options",
        "_records",
        "_saved_epochs",
        "_segments",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "synced_end_offset",
    )

    def __init__(self, disk_state: DiskState, options: LogOptions, clock: Callable[[], int]) -> None:
        self._disk_state = disk_state
        self._options = options
        self._clock = clock
        self._records: list[Content] = []
        self._segments: list[tuple[int, int]] = [(0, -1)]
        """Base offset and last timestamp of each, the active one last."""
        self._epochs = EpochCache()
        self._saved_epochs: tuple[EpochEntry, ...] = ()
        self._checkpoints = [-1]
        """High watermarks: of the durable checkpoint, and of those written since."""
        self._damaged: set[int] = set()
        self._failure = False
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.synced_end_offset = 0
        self.high_watermark = -1

    # ── what it holds ────────────────────────────────────────────────────────────────────────────

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest_epoch

    def end_offset_of_epoch(self, epoch: int) -> int:
        return self._epochs.end_offset(epoch, self.log_end_offset)

    def epoch_at_most(self, epoch: int) -> int:
        return self._epochs.at_most(epoch)

    def epoch_of(self, offset: int) -> int:
        return self._epochs.epoch_of(offset)

    def content(self, offset: int) -> Content | None:
        if not self.log_start_offset <= offset < self.log_end_offset or offset in self._damaged:
            return None
        return self._records[offset - self.log_start_offset]

    def read(self, offset: int, below: int) -> Batches:
        first = max(offset, self.log_start_offset)  # retention may just have been here
        start = self.log_start_offset
        found = self._records[first - start : max(first, below) - start][:READ_RECORDS_MAX]
        if self._damaged and any(at in self._damaged for at in range(first, first + len(found))):
            raise _corrupt(first)
        return [(at, record) for at, record in enumerate(found, first)]

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def begin_epoch(self, epoch: int) -> None:
        self._must_take_appends()
        if epoch < self._epochs.latest_epoch:
            raise EpochFenced(f"epoch {epoch} is older than {self._epochs.latest_epoch}")
        self._epochs.assign(epoch, self.log_end_offset)

    def append(self, numbers: Sequence[int], epoch: int, sequenced: Sequenced | None = None) -> int:
        assert sequenced is None, "only production's log knows producers"
        self._must_take_appends()
        self._must_have_room()
        base_offset = self.log_end_offset
        if epoch < self._epochs.latest_epoch:
            raise EpochFenced(f"epoch {epoch} is older than {self._epochs.latest_epoch}")
        self._epochs.assign(epoch, base_offset)
        self._saved_epochs = self._epochs.entries
        self._records += [(epoch, number) for number in numbers]
        self.log_end_offset += len(numbers)
        self._fill_segment(base_offset)
        return base_offset

    def producers(self) -> ProducerTable:
        raise AssertionError("only production's log knows producers")

    def _fill_segment(self, base_offset: int) -> None:
        """Records from `base_offset` on were appended."""
        first, _ = self._segments[-1]
        if first < base_offset and (self.log_end_offset - first) * RECORD_BYTES > self._options.segment_bytes_max:
            self._segments.append((base_offset, self._clock()))
        else:
            self._segments[-1] = (first, self._clock())

    def append_replicated(self, data: Batches) -> None:
        self._must_take_appends()
        self._must_have_room()
        for offset, record in data:
            if offset != self.log_end_offset:
                self._begin_at(offset)
            before = self.log_end_offset
            if record[0] < self._epochs.latest_epoch:
                raise RejectedBatch(f"a record of epoch {record[0]} behind epoch {self._epochs.latest_epoch}")
            self._epochs.assign(record[0], before)
            self._records.append(record)
            self.log_end_offset += 1
            self._fill_segment(before)
        self._saved_epochs = self._epochs.entries

    def _begin_at(self, offset: int) -> None:
        """An empty log may begin in the middle."""
        if self._records or offset < self.log_end_offset:
            raise RejectedBatch(f"a record at {offset}, the log goes on at {self.log_end_offset}")
        self.log_start_offset = self.log_end_offset = offset
        self._segments = [(offset, -1)]
        self._epochs.clear_earliest(offset)

    def _must_take_appends(self) -> None:
        if self._failure:
            raise StorageError("a sync has failed")

    def _must_have_room(self) -> None:
        if self._disk_state.is_full:
            raise DiskFull("the disk is full")

    def truncate(self, offset: int, *, allow_committed: bool) -> None:
        self._must_take_appends()
        if offset >= self.log_end_offset:
            self._epochs.clear_latest(offset)
            self._saved_epochs = self._epochs.entries
            return
        if offset <= self.high_watermark and not allow_committed:
            raise CallerError(f"truncating at {offset} would delete committed records up to {self.high_watermark}")
        offset = max(offset, self.log_start_offset)
        del self._records[offset - self.log_start_offset :]
        self.log_end_offset = offset
        self._cut(offset)
        self._epochs.clear_latest(offset)
        self._saved_epochs = self._epochs.entries

    def reset_to(self, offset: int) -> None:
        self._must_take_appends()
        self._records = []
        self.log_start_offset = self.log_end_offset = offset
        self.high_watermark = offset - 1
        self._cut(offset)
        self._epochs.clear_latest(offset)
        self._epochs.clear_earliest(offset)
        self._saved_epochs = self._epochs.entries

    def _cut(self, offset: int) -> None:
        self._damaged = {at for at in self._damaged if self.log_start_offset <= at < offset}
        self._cut_segments(offset)
        self.high_watermark = min(self.high_watermark, offset - 1)
        self.synced_end_offset = offset
        self._checkpoints = [self.high_watermark]

    def _cut_segments(self, offset: int) -> None:
        kept = [segment for segment in self._segments if self.log_start_offset <= segment[0] < offset]
        self._segments = kept or [(self.log_start_offset, -1)]

    def clean(self) -> None:
        """By production's plan, with what is durable before it, as production does: the records, and a checkpoint."""
        if self._failure or self._disk_state.is_full or self._disk_state.syncs_fail:
            return
        ends = [*(base for base, _ in self._segments[1:]), self.log_end_offset]
        facts = [
            SegmentFacts(base, (end - base) * RECORD_BYTES, end - base, time)
            for (base, time), end in zip(self._segments, ends, strict=True)
        ]
        count = plan_retention(facts, self._options.retention, self._clock(), self.high_watermark + 1)
        if count:
            self.sync()
            self._checkpoints = [self.high_watermark]
            self._delete_before(facts[count].base_offset)

    def _delete_before(self, offset: int) -> None:
        del self._records[: offset - self.log_start_offset]
        self.log_start_offset = offset
        self._segments = [segment for segment in self._segments if segment[0] >= offset]
        self._damaged = {at for at in self._damaged if at >= offset}
        self._epochs.clear_earliest(offset)
        self._saved_epochs = self._epochs.entries

    def is_unreadable(self, offset: int) -> bool:
        return offset in self._damaged

    def advance_high_watermark(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log_end_offset - 1))

    def sync(self) -> None:
        self._must_take_appends()
        if self._disk_state.syncs_fail:
            self._failure = True
            raise StorageError("the disk does not sync")
        self.synced_end_offset = self.log_end_offset

    def write_checkpoint(self) -> None:
        self._checkpoints.append(self.high_watermark)

    def close(self) -> None:
        if not self._failure:
            self.sync()
            self._checkpoints = [self.high_watermark]
            self._saved_epochs = self._epochs.entries

    def damage(self, offset: int) -> None:
        self._damaged.add(offset)

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """The process ends: everything that was written is there, and is verified and synced by the next one."""
        self._reopen(self._checkpoints[-1])

    def lose_power(self, rng: random.Random) -> None:
        end = rng.choice(
            (self.synced_end_offset, self.log_end_offset, rng.randint(self._least_end, self.log_end_offset))
        )
        self.log_end_offset = max(end, self.log_start_offset)
        del self._records[self.log_end_offset - self.log_start_offset :]
        self._reopen(rng.choice(self._checkpoints))

    @property
    def _least_end(self) -> int:
        return min(self.synced_end_offset, self.log_end_offset)

    def _reopen(self, high_watermark: int) -> None:
        self._failure = False
        end = self.log_end_offset
        self._cut_segments(end)
        self._epochs = EpochCache(self._saved_epochs)
        self._epochs.clear_latest(end + 1)
        self.high_watermark = min(max(high_watermark, self.log_start_offset - 1), end - 1)
        self._checkpoints = [self.high_watermark]
        self.synced_end_offset = end


class DiskLog:
    """The production log."""

    def __init__(self, disk: SimulatedDisk, directory: str, options: LogOptions, clock: Callable[[], int]) -> None:
        self._disk = disk
        self._log = PartitionLog(directory, options, disk=disk, syncer=ManualSyncer(), clock=clock)
        self.has_holes = bool(self._log.open().missing)

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def synced_end_offset(self) -> int:
        return self._log.synced_end_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def latest_epoch(self) -> int:
        return self._log.latest_epoch

    def end_offset_of_epoch(self, epoch: int) -> int:
        return self._log.end_offset_of_epoch(epoch)

    def epoch_at_most(self, epoch: int) -> int:
        return EpochCache(self._log.epoch_entries).at_most(epoch)

    def epoch_of(self, offset: int) -> int:
        return EpochCache(self._log.epoch_entries).epoch_of(offset)

    def begin_epoch(self, epoch: int) -> None:
        self._log.begin_epoch(epoch)

    def append(self, numbers: Sequence[int], epoch: int, sequenced: Sequenced | None = None) -> int:
        batch = new_batch()
        headers: list[tuple[bytes, bytes]] = []
        if sequenced is not None:
            found = producer_headers(sequenced.producer, sequenced.epoch, sequenced.sequence)
            headers = [(name.encode(), value) for name, value in found.items()]
        for number in numbers:
            batch.add(key_of(number), b"%d" % number, headers, b"", b"", 0)
        return self._log.append(batch, leader_epoch=epoch).base_offset

    def producers(self) -> ProducerTable:
        return self._log.producers.at_end()

    def read(self, offset: int, below: int) -> Batches:
        found = self._log.read(offset, bytes_max=400, committed=False, end=below)
        return b"" if found is None else found.data

    def append_replicated(self, data: Batches) -> None:
        self._log.append_replicated(data)

    def truncate(self, offset: int, *, allow_committed: bool) -> None:
        self._log.truncate(offset, allow_committed=allow_committed)

    def reset_to(self, offset: int) -> None:
        self._log.reset_to(offset)

    def clean(self) -> None:
        with contextlib.suppress(StorageError):  # the next tick tries again
            clean(self._log)

    def is_unreadable(self, offset: int) -> bool:
        try:
            self._log.read(offset, bytes_max=1, committed=False)
        except BasculeError:
            return True
        return False

    def advance_high_watermark(self, high_watermark: int) -> None:
        self._log.advance_high_watermark(high_watermark)

    def sync(self) -> None:
        self._log.sync()

    def write_checkpoint(self) -> None:
        with contextlib.suppress(StorageError):  # a full disk: the one from before is as good
            self._log.write_checkpoint()

    def close(self) -> None:
        self._log.close()

    def damage(self, offset: int) -> None:
        """Flip a bit of the batch, on the platter and in memory. Only of old data: what a checkpoint does not cover yet would pass for
        a torn tail after a crash."""
        try:
            self._log.settle()
        except StorageError:
            return  # there is no room for a checkpoint
        if offset >= self._log.synced_end_offset:
            return
        segment = self._log.segments.holding(offset)
        data = bytearray(self._disk.content(segment.path))
        position = 0
        while position < len(data):
            header = records.read_header(data, position)
            if header.last_offset >= offset:
                handle = self._disk.open(segment.path)
                flipped = bytes([data[position + header.length - 1] ^ 1])
                file = self._disk._handles[handle][0]
                file.content[position + header.length - 1 : position + header.length] = flipped
                file.platter = bytes(file.content)
                self._disk.close(handle)
                return
            position += header.length

    def content(self, offset: int) -> Content | None:
        if not self.log_start_offset <= offset < self.log_end_offset:
            return None
        try:
            found = self._log.read(offset, bytes_max=1, committed=False)
            for record in found.records() if found is not None else ():
                if record.offset == offset:
                    return record.leader_epoch, int(record.value or b"")
        except BasculeError:
            return None
        return None


def refusal(state: DiskState, operation: Operation) -> StorageError | None:
    """For the production log's disk: why it does not do this."""
    if state.is_full and operation.kind in ("write", "open"):
        return DiskFull("the disk is full")
    if state.syncs_fail and operation.kind == "sync":
        return StorageError("the disk does not sync")
    return None


def _corrupt(offset: int) -> CorruptBatch:
    return CorruptBatch(
        f"the batch at {offset} is damaged",
        file="",
        position=0,
        bytes_damaged=1,
        first_offset=offset,
        next_offset=offset + 1,
    )
