"""The logs of simulated replicas: a small model for the many fast runs, the production log on a simulated disk for the others.

Both say the same of offsets, epochs, what is synced and what a killed process or a power failure leaves. A record is an epoch and
a number that no other record has. What the model leaves out (segments, batches, recovery) is what the tests of the log itself are
about.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bascule.errors import BasculeError, CallerError, CorruptBatch, DiskFull, EpochFenced, RejectedBatch, StorageError
from bascule.kernels.records import records
from bascule.log import LogOptions, PartitionLog, new_batch
from bascule.log.core.epochs import EpochCache, EpochEntry
from tests.simulation.log.simulated_disk import Operation, SimulatedDisk
from tests.support.logs import ManualSyncer

Content = tuple[int, int]
"""Epoch and number of a record."""

Batches = Any
"""What a log of one kind gives to another of its kind: bytes, or, for the model, offsets with their records."""

READ_RECORDS_MAX: Final = 8


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

    def append(self, numbers: Sequence[int], epoch: int) -> int:
        """Returns the first offset."""

    def read(self, offset: int, below: int) -> Batches:
        """Batches from `offset` on, none at or above `below`."""

    def append_replicated(self, data: Batches) -> None: ...

    def truncate(self, offset: int, *, allow_committed: bool) -> None: ...

    def reset_to(self, offset: int) -> None: ...

    def delete_before(self, offset: int) -> None:
        """Retention: offsets below, or some of them, are deleted."""

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
        "_damaged",
        "_disk_state",
        "_epochs",
        "_failure",
        "_records",
        "_saved_epochs",
        "high_watermark",
        "log_start_offset",
        "synced_end_offset",
    )

    def __init__(self, disk_state: DiskState) -> None:
        self._disk_state = disk_state
        self._records: list[Content] = []
        self._epochs = EpochCache()
        self._saved_epochs: tuple[EpochEntry, ...] = ()
        self._checkpoints = [-1]
        """High watermarks: of the durable checkpoint, and of those written since."""
        self._damaged: set[int] = set()
        self._failure = False
        self.log_start_offset = 0
        self.synced_end_offset = 0
        self.high_watermark = -1

    # ── what it holds ────────────────────────────────────────────────────────────────────────────

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self._records)

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

    def append(self, numbers: Sequence[int], epoch: int) -> int:
        self._must_take_appends()
        self._must_have_room()
        base_offset = self.log_end_offset
        if epoch < self._epochs.latest_epoch:
            raise EpochFenced(f"epoch {epoch} is older than {self._epochs.latest_epoch}")
        self._epochs.assign(epoch, base_offset)
        self._saved_epochs = self._epochs.entries
        self._records += [(epoch, number) for number in numbers]
        return base_offset

    def append_replicated(self, data: Batches) -> None:
        self._must_take_appends()
        self._must_have_room()
        for offset, record in data:
            if offset != self.log_end_offset:
                self._begin_at(offset)
            if record[0] < self._epochs.latest_epoch:
                raise RejectedBatch(f"a record of epoch {record[0]} behind epoch {self._epochs.latest_epoch}")
            self._epochs.assign(record[0], self.log_end_offset)
            self._records.append(record)
        self._saved_epochs = self._epochs.entries

    def _begin_at(self, offset: int) -> None:
        """An empty log may begin in the middle."""
        if self._records or offset < self.log_end_offset:
            raise RejectedBatch(f"a record at {offset}, the log goes on at {self.log_end_offset}")
        self.log_start_offset = offset
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
        self._cut(offset)
        self._epochs.clear_latest(offset)
        self._saved_epochs = self._epochs.entries

    def reset_to(self, offset: int) -> None:
        self._must_take_appends()
        self._records = []
        self.log_start_offset = offset
        self.high_watermark = offset - 1
        self._cut(offset)
        self._epochs.clear_latest(offset)
        self._epochs.clear_earliest(offset)
        self._saved_epochs = self._epochs.entries

    def _cut(self, offset: int) -> None:
        self._damaged = {at for at in self._damaged if self.log_start_offset <= at < offset}
        self.high_watermark = min(self.high_watermark, offset - 1)
        self.synced_end_offset = offset
        self._checkpoints = [self.high_watermark]

    def delete_before(self, offset: int) -> None:
        assert offset <= self.high_watermark + 1
        if offset > self.log_start_offset:
            del self._records[: offset - self.log_start_offset]
            self.log_start_offset = offset
            self._damaged = {at for at in self._damaged if at >= offset}
            self._epochs.clear_earliest(offset)
            self._saved_epochs = self._epochs.entries
            self.synced_end_offset = max(self.synced_end_offset, offset)

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
        del self._records[max(end, self.log_start_offset) - self.log_start_offset :]
        self._reopen(rng.choice(self._checkpoints))

    @property
    def _least_end(self) -> int:
        return min(self.synced_end_offset, self.log_end_offset)

    def _reopen(self, high_watermark: int) -> None:
        self._failure = False
        end = self.log_end_offset
        self._epochs = EpochCache(self._saved_epochs)
        self._epochs.clear_latest(end + 1)
        self.high_watermark = min(max(high_watermark, self.log_start_offset - 1), end - 1)
        self._checkpoints = [self.high_watermark]
        self.synced_end_offset = end


class DiskLog:
    """The production log."""

    def __init__(self, disk: SimulatedDisk, directory: str, options: LogOptions) -> None:
        self._disk = disk
        self._log = PartitionLog(directory, options, disk=disk, syncer=ManualSyncer(), clock=lambda: 1_000_000)
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

    def append(self, numbers: Sequence[int], epoch: int) -> int:
        batch = new_batch()
        for number in numbers:
            batch.add(None, b"%d" % number, (), b"", b"", 0)
        return self._log.append(batch, leader_epoch=epoch).base_offset

    def read(self, offset: int, below: int) -> Batches:
        found = self._log.read(offset, bytes_max=400, committed=False, end=below)
        return b"" if found is None else found.data

    def append_replicated(self, data: Batches) -> None:
        self._log.append_replicated(data)

    def truncate(self, offset: int, *, allow_committed: bool) -> None:
        self._log.truncate(offset, allow_committed=allow_committed)

    def reset_to(self, offset: int) -> None:
        self._log.reset_to(offset)

    def delete_before(self, offset: int) -> None:
        """Not here: deleting by count is a matter of whole segments, and of the cleaner's own tests."""

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
