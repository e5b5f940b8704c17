"""All partition logs of a data directory. They share file handles, a sync thread and a cleaner thread.

<directory>/streams/<stream>/<partition>/
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bascule import limits
from bascule.errors import BasculeError, CallerError, DirectoryInUse, LogClosed, StorageError
from bascule.log.cleaning.cleaner import CleaningReport, clean
from bascule.log.core.options import LogOptions
from bascule.log.disk.encryption import LogIdentity
from bascule.log.disk.files import FilePool
from bascule.log.disk.master_keys import MasterKeys
from bascule.log.disk.operations import FILE_MODE, Disk, PosixDisk, close_to_others, make_private_directory
from bascule.log.disk.space import DiskSpace
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.sync.group_commit import Syncer
from bascule.names import stream_name_fault

LOCK_FILE = ".lock"


class LogStore:
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        open_files_max: int = limits.OPEN_FILES_MAX,
        sync_interval_ms: int = limits.SYNC_INTERVAL_MS_DEFAULT,
        disk: Disk | None = None,
        keys: MasterKeys | None = None,
        on_cleaned: Callable[[PartitionLog, CleaningReport | BasculeError], None] | None = None,
    ) -> None:
        """Locks the directory for this process. `on_cleaned` is called after every cleaner tick that changed a log or failed."""
        self.directory = Path(directory)
        self._lock_handle = _lock_directory(self.directory)
        self.space = DiskSpace(str(self.directory))
        self.pool = FilePool(disk or PosixDisk(), open_files_max, self.space)
        self._syncer = Syncer(sync_interval_ms)
        self._keys = keys
        self._lock = threading.Lock()
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._cleaner = _CleanerThread(on_cleaned or (lambda _log, _report: None))

    def log(
        self,
        stream: str,
        partition: int,
        options: LogOptions | None = None,
        *,
        stream_id: int = 0,
        cleaner_interval_ms: int = 300_000,
    ) -> PartitionLog:
        """Return the log of a partition without reading it. The options of the first call hold until it is closed or deleted.

        Encrypted batches are bound to `stream_id` and the partition, and open under no other.
        """
        _check_name(stream, partition)
        with self._lock:
            found = self._logs.get((stream, partition))
            if found is None:
                found = PartitionLog(
                    str(self.directory / "streams" / stream / str(partition)),
                    options,
                    pool=self.pool,
                    syncer=self._syncer,
                    keys=self._keys,
                    identity=LogIdentity(stream_id, partition),
                )
                self._logs[stream, partition] = found
                self._cleaner.watch(found, cleaner_interval_ms)
            return found

    def set_options(self, stream: str, partition: int, options: LogOptions, *, cleaner_interval_ms: int) -> None:
        """Use other limits from now on, and apply them at once. Compression, encryption, compaction and sync policy of a log stay."""
        with self._lock:
            found = self._logs.get((stream, partition))
        if found is not None:
            with found.lock:
                found.options = found.options.with_limits_of(options)
            self._cleaner.watch(found, cleaner_interval_ms)
            self._cleaner.apply_limits(found)

    def __iter__(self) -> Iterator[PartitionLog]:
        with self._lock:
            return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def sync_rounds(self) -> int:
        """Number of sync rounds so far."""
        return self._syncer.rounds

    def on_disk(self) -> list[tuple[str, int]]:
        """Return stream and partition of every log in the directory, including those not used yet."""
        root = self.directory / "streams"
        found = [
            (path.parent.name, int(path.name)) for path in root.glob("*/*") if path.name.isdigit() and path.is_dir()
        ]
        return sorted(found)

    def close_log(self, stream: str, partition: int) -> None:
        self._forget(stream, partition, PartitionLog.close)

    def delete_log(self, stream: str, partition: int) -> None:
        """Delete the partition's data, and the stream's folder with its last partition."""
        self.log(stream, partition)
        self._forget(stream, partition, PartitionLog.delete)
        self.pool.disk.remove_directory(str(self.directory / "streams" / stream))

    def _forget(self, stream: str, partition: int, leave: Callable[[PartitionLog], None]) -> None:
        with self._lock:
            found = self._logs.pop((stream, partition), None)
        if found is not None:
            self._cleaner.forget(found)
            leave(found)

    def close(self) -> None:
        """Sync and close all logs, and unlock the directory."""
        self._cleaner.close()
        with self._lock:
            logs, self._logs = list(self._logs.values()), {}
        failures = [failure for log in logs if (failure := _close(log)) is not None]
        self._syncer.close()
        os.close(self._lock_handle)
        if failures:
            raise failures[0]

    def __enter__(self) -> LogStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(log: PartitionLog) -> StorageError | None:
    try:
        log.close()
    except StorageError as error:
        return error
    return None


def _lock_directory(directory: Path) -> int:
    try:
        _make_directory(directory)
        handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise StorageError(f"cannot use the data directory {directory}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise DirectoryInUse(
            f"the data directory {directory} is in use by another process",
            hint="stop that process, or give this one another data directory",
        ) from None
    return handle


def _make_directory(directory: Path) -> None:
    """Create the directory and the folders above it, and sync them. One that exists is closed to other users."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    make_private_directory(str(directory))
    close_to_others(str(directory))
    for path in missing:
        PosixDisk().sync_directory(str(path.parent))


def _check_name(stream: str, partition: int) -> None:
    fault = stream_name_fault(stream) if stream else "it is empty"
    if fault is not None:
        raise CallerError(f"stream name {stream!r} cannot be used: {fault}", hint="choose a name such as `events.eu`")
    if partition < 0:
        raise CallerError(f"partition {partition} is negative", hint="partitions begin at 0")


class _CleanerThread:
    """Cleans each log at its own interval, one log at a time. Skips logs that have not been used."""

    def __init__(self, on_cleaned: Callable[[PartitionLog, CleaningReport | BasculeError], None]) -> None:
        self._on_cleaned = on_cleaned
        self._condition = threading.Condition()
        self._due: dict[PartitionLog, tuple[float, float]] = {}
        self._changed: set[PartitionLog] = set()
        """Logs with limits that have changed since their last tick."""
        self._stopping = False
        self._thread: threading.Thread | None = None

    def apply_limits(self, log: PartitionLog) -> None:
        """The limits of the log have changed: clean it now."""
        self._changed.add(log)
        self.watch_now(log)

    def watch(self, log: PartitionLog, interval_ms: int) -> None:
        interval = interval_ms / 1000
        if interval <= 0:
            return
        with self._condition:
            self._due[log] = (time.monotonic() + interval, interval)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bascule-cleaner", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def forget(self, log: PartitionLog) -> None:
        with self._condition:
            self._due.pop(log, None)
            self._changed.discard(log)

    def close(self) -> None:
        with self._condition:
            self._stopping = True
            logs = list(self._due)
            self._condition.notify_all()
        for log in logs:
            log.interrupt_cleaning.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (log := self._next()) is not None:
            if not log.is_loaded:
                continue
            has_new_limits = log in self._changed
            self._changed.discard(log)
            try:
                report = clean(log, has_new_limits=has_new_limits)
            except LogClosed:
                continue
            except BasculeError as error:
                self._on_cleaned(log, error)
                continue
            if has_new_limits and report.rolled:
                self.watch_now(log)  # the sealed segment exceeds them
            if report.rolled or report.deleted or report.failures or report.compaction is not None:
                self._on_cleaned(log, report)

    def watch_now(self, log: PartitionLog) -> None:
        """Its next tick is due at once."""
        with self._condition:
            if log in self._due:
                self._due[log] = (time.monotonic(), self._due[log][1])
                self._condition.notify_all()

    def _next(self) -> PartitionLog | None:
        """Wait for the next log that is due and return it; None when the store closes."""
        with self._condition:
            while not self._stopping:
                soonest = min(self._due.items(), key=lambda item: item[1][0], default=None)
                now = time.monotonic()
                if soonest is None:
                    self._condition.wait()
                elif soonest[1][0] > now:
                    self._condition.wait(soonest[1][0] - now)
                else:
                    log, (_, interval) = soonest
                    self._due[log] = (now + interval, interval)
                    return log
        return None
