"""Builders of logs for the tests of the partition log: real files, a clock that moves when told, a disk that fails when told."""

from __future__ import annotations

import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from bascule.errors import StorageError
from bascule.kernels.records import records
from bascule.kernels.records.builder import BatchBuilder
from bascule.kernels.records.records import Record
from bascule.kernels.wire.checksum import crc32c
from bascule.log import LogOptions, PartitionLog
from bascule.log.disk.encryption import LogIdentity
from bascule.log.disk.files import FilePool
from bascule.log.disk.master_keys import MasterKeys
from bascule.log.disk.operations import Disk, PosixDisk
from bascule.log.partition.batches import new_batch
from bascule.log.sync.group_commit import Syncer

NOW: Final = 1_700_000_000_000_000_000
"""Where a test's clock stands when it begins, in ns."""

SECOND: Final = 1_000_000_000

PATIENCE: Final = 60.0
"""Seconds after which something that must happen is taken for hanging. Never waited for in a test that passes."""

ONE_RECORD_PER_SEGMENT: Final = 1
"""As `segment_bytes_max`: a batch goes into a segment of its own, since none fits behind another."""

Pair = tuple[bytes | None, bytes | None]


class Clock:
    """Nanoseconds since 1970, as far as the log can tell."""

    def __init__(self, now_ns: int = NOW) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int) -> None:
        self.now_ns += ns


class WatchedDisk(PosixDisk):
    """The real disk; `before` sees every operation with its path and may raise, `seen` remembers them."""

    def __init__(self, before: Callable[[str, str], None] | None = None) -> None:
        super().__init__()
        self.before = before
        self.seen: list[tuple[str, str]] = []
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()

    def _note(self, operation: str, path: str) -> None:
        with self._lock:
            self.seen.append((operation, Path(path).name))
        if self.before is not None:
            self.before(operation, path)

    def count(self, operation: str) -> int:
        with self._lock:
            return sum(1 for name, _ in self.seen if name == operation)

    def names(self, operation: str) -> list[str]:
        with self._lock:
            return [path for name, path in self.seen if name == operation]

    def open(self, path: str, *, create: bool = False) -> int:
        self._note("create" if create else "open", path)
        handle = super().open(path, create=create)
        self._paths[handle] = path
        return handle

    def read(self, handle: int, size: int, position: int) -> bytes:
        self._note("read", self._paths[handle])
        return super().read(handle, size, position)

    def write(self, handle: int, data: bytes | memoryview, position: int) -> None:
        self._note("write", self._paths[handle])
        super().write(handle, data, position)

    def truncate(self, handle: int, size: int) -> None:
        self._note("truncate", self._paths[handle])
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._note("sync", self._paths[handle])
        super().sync(handle)

    def sync_directory(self, path: str) -> None:
        self._note("sync_directory", path)
        super().sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._note("rename", source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._note("remove", path)
        super().remove(path)


def refuse(operation: str, suffix: str = "", error: Exception | None = None) -> Callable[[str, str], None]:
    """A `before` for WatchedDisk: this operation fails on files whose path ends so."""

    def before(doing: str, path: str) -> None:
        if doing == operation and path.endswith(suffix):
            raise error or StorageError(f"cannot {operation} {path}: planted")

    return before


class Logs:
    """Opens logs below a directory and closes all of them at the end of the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        # An hour: nothing is synced behind a test's back, only when somebody asks.
        self.syncer = Syncer(3_600_000)
        self._opened: list[PartitionLog] = []

    def open(
        self,
        name: str = "log",
        options: LogOptions | None = None,
        *,
        disk: Disk | None = None,
        keys: MasterKeys | None = None,
        identity: LogIdentity | None = None,
        **choices: Any,
    ) -> PartitionLog:
        """A log in the directory `name`; `choices` are fields of LogOptions."""
        log = PartitionLog(
            str(self.root / name),
            options or LogOptions(**choices),
            pool=FilePool(disk or PosixDisk(), 64),
            syncer=self.syncer,
            keys=keys,
            identity=identity,
            clock=self.clock,
        )
        self._opened.append(log)
        return log

    def reopen(self, log: PartitionLog, *, disk: Disk | None = None, keys: MasterKeys | None = None) -> PartitionLog:
        log.close()
        return self.open(Path(log.directory).name, log.options, disk=disk, keys=keys)

    def after_crash(
        self, log: PartitionLog, name: str = "crashed", *, disk: Disk | None = None, keys: MasterKeys | None = None
    ) -> PartitionLog:
        """What another process finds when this one stops right now: a copy of the files as they are."""
        shutil.copytree(log.directory, self.root / name)
        return self.open(name, log.options, disk=disk, keys=keys)

    def close(self) -> None:
        for log in self._opened:
            try:
                log.close()
            except StorageError:
                assert isinstance(log.pool.disk, WatchedDisk), "only a planted failure may fail a close"
        self.syncer.close()


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def batch_of(pairs: Iterable[Pair], time_deltas: Sequence[int] = ()) -> BatchBuilder:
    batch = new_batch()
    for number, (key, value) in enumerate(pairs):
        batch.add(key, value, time_delta=time_deltas[number] if time_deltas else 0)
    return batch


def put(log: PartitionLog, *pairs: Pair, epoch: int | None = None, timestamp: int | None = None) -> int:
    """Append each pair as a batch of its own; returns the last offset."""
    last = -1
    for pair in pairs:
        last = log.append(batch_of([pair]), leader_epoch=epoch, timestamp=timestamp).last_offset
    return last


def put_batch(log: PartitionLog, *pairs: Pair, epoch: int | None = None, timestamp: int | None = None) -> int:
    """Append all pairs as one batch; returns the last offset."""
    return log.append(batch_of(pairs), leader_epoch=epoch, timestamp=timestamp).last_offset


def put_values(log: PartitionLog, count: int, *, size: int = 1) -> int:
    """Append `count` batches of one record without a key."""
    return put(log, *((None, b"%0*d" % (size, number)) for number in range(count)))


def commit_all(log: PartitionLog) -> None:
    log.advance_high_watermark(log.newest_offset)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def everything(log: PartitionLog, *, committed: bool = False) -> list[Record]:
    """Every record that can be read, oldest first."""
    found: list[Record] = []
    offset = log.log_start_offset
    while (piece := log.read(offset, committed=committed)) is not None:
        found += piece.records()
        offset = piece.next_offset
    return found


def offsets(log: PartitionLog, *, committed: bool = False) -> list[int]:
    return [record.offset for record in everything(log, committed=committed)]


def pairs(log: PartitionLog) -> list[Pair]:
    return [(record.key, record.value) for record in everything(log)]


def stored(log: PartitionLog) -> bytes:
    """The batches of the log as they lie on disk, one behind the other."""
    return b"".join(path.read_bytes() for path in log_files(log))


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def log_files(log: PartitionLog) -> list[Path]:
    return sorted(Path(log.directory).glob("*.log"))


def index_files(log: PartitionLog) -> list[Path]:
    return sorted(Path(log.directory).glob("*.index"))


def bases(log: PartitionLog) -> list[int]:
    """Base offsets of the segments, from the names of their files."""
    return [int(path.stem) for path in log_files(log)]


def snapshot(directory: str | Path) -> dict[str, bytes]:
    """Every file below the directory and what it holds."""
    root = Path(directory)
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def batch_positions(path: Path) -> list[int]:
    """Where the batches of a segment file begin."""
    data = path.read_bytes()
    found, position = [], 0
    while position < len(data):
        found.append(position)
        position += records.read_header(data, position).length
    return found


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    """Damage one byte, as a bad disk would."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def resealed(batch: bytes | bytearray) -> bytes:
    """The batch with a checksum that fits its bytes: for content that is wrong but not damaged."""
    return struct.pack("<I", crc32c(memoryview(batch)[4:])) + bytes(batch[4:])


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run it in a thread; the list receives what it returns or raises."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(action())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def outcome_of(thread: threading.Thread, outcome: list[object]) -> object:
    """Wait for the thread and hand over what it came to."""
    thread.join(PATIENCE)
    assert not thread.is_alive(), "still waiting"
    return outcome[0]


def waiting_event(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as a reader of the log has gone to wait."""
    event = threading.Event()
    register = log.call_when_readable

    def call_when_readable(*given: Any, **named: Any) -> bool:
        waits = register(*given, **named)
        if waits:
            event.set()
        return waits

    monkeypatch.setattr(log, "call_when_readable", call_when_readable)
    return event


def epoch_starts(log: PartitionLog) -> dict[int, int]:
    """Return the offset of the first stored record of every epoch that has records."""
    starts: dict[int, int] = {}
    for record in everything(log):
        starts.setdefault(record.leader_epoch, record.offset)
    return starts
