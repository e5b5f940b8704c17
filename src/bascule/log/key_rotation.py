"""The rotation of the master key of a data directory, in a thread, while logs are read and written.

    load      read the source again: its keys open batches from now on
    switch    wrap new data keys with the source's current key, then re-wrap all others
    count     count the keys in use

All servers load before the first one switches: a replica must be able to open what its leader writes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bascule import limits
from bascule.errors import BasculeError, EncryptionKeyError, LogClosed
from bascule.log.cleaning.rewrapping import KeyUse, count_keys, is_encrypted, rewrap
from bascule.log.disk.master_keys import KEY_VARIABLES, KeySource, MasterKeys
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.store import LogStore

_logger = logging.getLogger(__name__)

IDLE, COUNTING, REWRAPPING = "idle", "counting", "rewrapping"
FAILURES_MAX = 20
REWRAP_ATTEMPTS = 5
"""Attempts on a log that is truncated or closed while it is re-wrapped."""


class _RotationStopped(Exception):
    pass


@dataclass(frozen=True, slots=True)
class KeyStatus:
    source: str
    current: str | None
    """The id of the key that wraps new data keys; None without keys."""
    known: tuple[str, ...]
    """Ids of all keys that open batches."""
    offered: tuple[str, ...] = ()
    """Ids of the keys in the source when it was read last, its current key first."""
    phase: str = IDLE
    bytes_done: int = 0
    bytes_total: int = 0
    use: KeyUse | None = None
    """The keys in use at the end of the last count; None before one."""
    rewrapped: int = 0
    closed: int = 0
    """Encrypted partitions that were closed, because they are paused: their batches are not counted and not re-wrapped."""
    failures: tuple[str, ...] = ()


@dataclass(slots=True)
class _RotationProgress:
    phase: str = IDLE
    bytes_done: int = 0
    bytes_total: int = 0
    use: KeyUse | None = None
    rewrapped: int = 0
    closed: int = 0
    failures: list[str] = field(default_factory=list)


class KeyRotation:
    def __init__(self, store: LogStore, keys: MasterKeys | None, source: KeySource) -> None:
        """`keys` are those that the store's logs use; None if the source had none that can be used."""
        self._store = store
        self._keys = keys
        self._source = source
        self._offered = () if keys is None else keys.ids
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._progress = _RotationProgress()
        self._thread: threading.Thread | None = None

    def must_have_keys(self) -> MasterKeys:
        """Return the keys. Raises EncryptionKeyError, with the reason, if there are none."""
        if self._keys is not None:
            return self._keys
        try:
            found = self._source.load()
        except EncryptionKeyError as error:
            raise EncryptionKeyError(f"invalid AES key size: {error.message}", hint=error.hint) from None
        if found is None:
            raise EncryptionKeyError(
                "invalid AES key size: there is no master key",
                hint=f"set `encryption.key.file`, or {KEY_VARIABLES[0]} to exactly 16 or 32 bytes",
            )
        raise EncryptionKeyError(
            "invalid AES key size: there was no master key when the server started", hint="restart the server"
        )

    @property
    def status(self) -> KeyStatus:
        keys, progress = self._keys, self._progress
        return KeyStatus(
            source=str(self._source),
            current=None if keys is None else keys.ids[0],
            known=() if keys is None else keys.ids,
            offered=self._offered,
            phase=progress.phase,
            bytes_done=min(progress.bytes_done, progress.bytes_total),
            bytes_total=progress.bytes_total,
            use=progress.use,
            rewrapped=progress.rewrapped,
            closed=progress.closed,
            failures=tuple(progress.failures),
        )

    # ── changing ─────────────────────────────────────────────────────────────────────────────────

    def load(self) -> KeyStatus:
        """Read the source again. Its keys open batches from now on; the current key stays. Raises EncryptionKeyError."""
        self._load()
        return self.status

    def _load(self) -> MasterKeys:
        keys = self.must_have_keys()
        found = self._source.load()
        if found is None:
            raise EncryptionKeyError(f"{self._source} has no master key any more", hint="put it back")
        if keys.ids[0] not in found.ids:
            raise EncryptionKeyError(
                f"{self._source} does not have the key {keys.ids[0]}, under which messages are encrypted now",
                hint="put the new key first and keep the old one after it until `bascule keys status` shows no use of it",
            )
        keys.learn(found)
        self._offered = found.ids
        return found

    def switch(self) -> KeyStatus:
        """Use the source's current key for new batches, and begin to re-wrap the others. Raises EncryptionKeyError."""
        found = self._load()
        keys = self.must_have_keys()
        if keys.ids[0] != found.ids[0]:
            _logger.info("the master key changes from %s to %s", keys.ids[0], found.ids[0])
        keys.switch(found)
        self._begin(REWRAPPING)
        return self.status

    def count(self) -> KeyStatus:
        """Begin to count the keys in use, unless the thread is at work."""
        self.must_have_keys()
        self._begin(COUNTING)
        return self.status

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    # ── in the thread ────────────────────────────────────────────────────────────────────────────

    def _begin(self, phase: str) -> None:
        with self._lock:
            if self._progress.phase != IDLE or self._stopping.is_set():
                return
            self._progress = _RotationProgress(phase)
            self._thread = threading.Thread(target=self._run, args=(self._progress,), name="key rotation", daemon=True)
            self._thread.start()

    def _run(self, progress: _RotationProgress) -> None:
        try:
            self._work(progress)
        except _RotationStopped:
            pass
        except Exception:
            _logger.exception("the rotation of the master key failed")
            progress.failures.append("the rotation failed; the server's log has the reason")
        finally:
            progress.phase = IDLE

    def _work(self, progress: _RotationProgress) -> None:
        keys = self.must_have_keys()
        logs = [log for log in self._store if log.options.encryption]
        passes = 2 if progress.phase == REWRAPPING else 1
        progress.bytes_total = passes * sum(self._size(log) for log in logs)
        pace = _RotationPace(self._stopping, lambda done: self._note(progress, done))
        if progress.phase == REWRAPPING:
            for log in logs:
                self._rewrap(log, keys, progress, pace)
            _logger.info("%d batches were re-wrapped under the key %s", progress.rewrapped, keys.ids[0])
        use = KeyUse()
        for log in logs:
            try:
                use.add(count_keys(log, keys, pace))
            except LogClosed:
                progress.closed += 1
            except BasculeError as error:
                self._fail(progress, error.message)
        progress.closed += self._count_closed({log.directory for log in logs})
        progress.use = use

    def _note(self, progress: _RotationProgress, done: int) -> None:
        progress.bytes_done += done

    def _size(self, log: PartitionLog) -> int:
        try:
            return log.size_bytes
        except BasculeError:
            return 0

    def _rewrap(
        self, log: PartitionLog, keys: MasterKeys, progress: _RotationProgress, pace: Callable[[int], None]
    ) -> None:
        for _ in range(REWRAP_ATTEMPTS):
            try:
                report = rewrap(log, keys, pace)
            except LogClosed:
                return  # counted as closed, if it stays so
            except BasculeError as error:
                self._fail(progress, error.message)
                return
            progress.rewrapped += report.rewrapped
            for reason in report.left_alone:
                self._fail(progress, reason)
            if not report.interrupted:
                return
            if self._stopping.wait(0.1):
                raise _RotationStopped
        self._fail(progress, f"{log.directory} was truncated again and again")

    def _fail(self, progress: _RotationProgress, reason: str) -> None:
        _logger.error("rotation of the master key: %s", reason)
        if len(progress.failures) < FAILURES_MAX:
            progress.failures.append(reason)

    def _count_closed(self, examined: set[str]) -> int:
        """Return the number of logs on disk that are encrypted and were not examined, by the first batch of each."""
        found, disk = 0, self._store.pool.disk
        for stream, partition in self._store.on_disk():
            directory = self._store.directory / "streams" / stream / str(partition)
            if str(directory) not in examined and is_encrypted(disk, sorted(map(str, directory.glob("*.log")))):
                found += 1
        return found


class _RotationPace:
    """Sleeps after each piece, so that other work of the disk and the processor goes first. Raises _RotationStopped."""

    def __init__(self, stopping: threading.Event, note: Callable[[int], None]) -> None:
        self._stopping = stopping
        self._note = note
        self._due = time.monotonic()

    def __call__(self, done: int) -> None:
        self._note(done)
        self._due = max(self._due, time.monotonic()) + done / limits.REWRAP_BYTES_PER_SECOND
        if self._stopping.wait(max(0.0, self._due - time.monotonic())):
            raise _RotationStopped
