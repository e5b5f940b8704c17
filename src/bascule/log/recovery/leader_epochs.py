"""The file of a log's leader epochs. If it is lost or damaged, it is rebuilt from the batch headers."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from bascule.errors import DiskFull, EpochFenced
from bascule.kernels.records import records
from bascule.kernels.wire.checksum import crc32c
from bascule.log.core.epochs import EpochCache, EpochEntry, format_epochs, parse_epochs
from bascule.log.disk.operations import Disk, read_file, replace_file
from bascule.log.segments.damage import Run, walk
from bascule.log.segments.segment import Segment

EPOCHS_FILE = "leader-epoch-checkpoint"
_CHECKSUM_BYTES = 9


class LeaderEpochs:
    """The epochs of one log. Changes need the log's lock. The file is saved before a checkpoint covers the first record of an epoch:
    until then, opening the log finds the epoch in the header of that record."""

    def __init__(self, disk: Disk, directory: str, cache: EpochCache, *, is_saved: bool = True) -> None:
        self._disk = disk
        self._path = f"{directory}/{EPOCHS_FILE}"
        self._cache = cache
        self._unsaved = not is_saved
        self._begun = False
        """The latest epoch has no record yet. It is unknown after a crash, and records of an earlier epoch may follow."""
        self.entered = -1
        """The latest epoch if records have been appended in it, else −1: appends in it need not `enter`."""

    @classmethod
    def recovered(cls, disk: Disk, directory: str, cache: EpochCache, on_disk: EpochCache | None) -> LeaderEpochs:
        """Return the epochs of an opened log, and save them if the file differs. A log must open on a full disk: there the file stays,
        or is removed if it has an epoch that the log has not, because records of an earlier epoch may now follow."""
        epochs = cls(disk, directory, cache, is_saved=cache == (on_disk or EpochCache()))
        try:
            epochs.save()
        except DiskFull:
            if on_disk is not None and on_disk.latest_epoch > cache.latest_epoch:
                disk.remove(epochs._path)
        return epochs

    @property
    def latest(self) -> int:
        return self._cache.latest_epoch

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return self._cache.entries

    def end_offset(self, epoch: int, log_end_offset: int) -> int:
        return self._cache.end_offset(epoch, log_end_offset)

    def of_last_record(self, log_end_offset: int) -> int:
        """Return the epoch of the last record, 0 if there is none. An epoch without records is not on disk yet: after a crash it is
        unknown, and records of an earlier epoch may follow."""
        return next((entry.epoch for entry in reversed(self.entries) if entry.start_offset < log_end_offset), 0)

    def at_most(self, epoch: int) -> int:
        return self._cache.at_most(epoch)

    def begin(self, epoch: int, start_offset: int) -> None:
        """Begin the epoch of a new leader, which followers may ask for."""
        if self._must_not_be_older(epoch) < epoch:
            self._cache.assign(epoch, start_offset)
            self._begun = True
            self.entered = -1

    def _must_not_be_older(self, epoch: int) -> int:
        latest = self._cache.latest_epoch
        if epoch < latest:
            raise EpochFenced(
                f"leader epoch {epoch} is older than {latest}, the latest one in {self._path}",
                hint="another leader has been elected; follow it",
            )
        return latest

    def enter(self, epoch: int | None, start_offset: int) -> int:
        """Return the epoch of records to be written at `start_offset`; None means the latest. Raises EpochFenced for an older one."""
        latest = self._cache.latest_epoch if epoch is None else self._must_not_be_older(epoch)
        if epoch is not None and epoch > latest:
            self._cache.assign(epoch, start_offset)
            self._begun = True
            latest = epoch
        self._unsaved, self._begun = self._unsaved or self._begun, False
        self.entered = latest
        return latest

    def clear_latest(self, offset: int) -> bool:
        """Remove the epochs that begin at or after `offset`. Return whether there were any."""
        self.entered = -1
        has_changed = self._cache.clear_latest(offset)
        if has_changed:
            self._unsaved, self._begun = True, False
        return has_changed

    def clear_earliest(self, offset: int) -> None:
        """Remove the epochs that end at or before `offset`."""
        self.entered = -1
        if self._cache.clear_earliest(offset):
            self._unsaved = True

    def save(self, log_lock: AbstractContextManager[object] | None = None, *, begun: bool = False) -> None:
        """Save the epochs durably if records have another one than the file; with `begun` also one without records.

        Only one thread at a time may call this. Appends continue meanwhile.
        """
        if not self._unsaved and not (begun and self._begun):
            return
        with log_lock or contextlib.nullcontext():
            entries = self.entries[:-1] if self._begun and not begun else self.entries
            self._unsaved = False
        try:
            replace_file(self._disk, self._path, _encode(EpochCache(entries)), durable=True)
        except BaseException:
            self._unsaved = True
            raise


def load_epochs(
    on_disk: EpochCache | None, segments: list[Segment], seen: list[tuple[int, int]], *, is_lost: bool
) -> EpochCache:
    """Return the epochs of the file and those that recovery has `seen` in batches. If the file is lost, the whole log is read."""
    if is_lost:
        on_disk = _epochs_of(segments)
    cache = EpochCache(() if on_disk is None else on_disk.entries)
    for epoch, start_offset in seen:
        cache.assign(epoch, start_offset)
    # An epoch may begin exactly at the end of the log, if its leader has not written yet.
    cache.clear_latest(segments[-1].next_offset + 1)
    cache.clear_earliest(segments[0].base_offset)
    return cache


def read_epochs(disk: Disk, directory: str) -> EpochCache | None:
    data = read_file(disk, f"{directory}/{EPOCHS_FILE}")
    return None if data is None else _decode(data)


def begin_epochs_at(on_disk: EpochCache | None, offset: int) -> EpochCache:
    """Return the epochs of a log without records: the latest epoch still fences, and begins at `offset`."""
    latest = 0 if on_disk is None else on_disk.latest_epoch
    return EpochCache([EpochEntry(latest, offset)] if latest else [])


def _encode(cache: EpochCache) -> bytes:
    """Return the text of the entries, with a checksum as the last line."""
    text = format_epochs(cache).encode()
    return b"%s%08x\n" % (text, crc32c(text))


def _decode(data: bytes) -> EpochCache | None:
    text, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if checksum != b"%08x\n" % crc32c(text):
        return None
    try:
        return parse_epochs(text.decode("ascii"))
    except ValueError:
        return None


def _epochs_of(segments: list[Segment]) -> EpochCache:
    """Return the epochs in the batch headers. Skips damage. An epoch after a gap begins where the gap begins."""
    cache = EpochCache()
    end_offset = segments[0].base_offset
    for segment in segments:
        for found in walk(segment):
            if isinstance(found, Run):
                seen: list[tuple[int, int]] = []
                end_offset = records.scan(found.data, end_offset, gap=True, checksums=False, epochs=seen).next_offset
                for epoch, start_offset in seen:
                    cache.assign(epoch, start_offset)
    return cache
