"""Counts the master keys that the batches of a log are encrypted under, and re-wraps data keys under the current one.

A batch contains its wrapped data key, so a segment is rewritten as by compaction, with readers reading: only the wrapped keys and
checksums differ, in batches of the same size. Bodies are not decrypted, except those of format version 1, which become version 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bascule.errors import EncryptionKeyError, StorageError
from bascule.kernels.records import records
from bascule.log.cleaning.rewriting import Rewrite
from bascule.log.disk.encryption import split_sealed
from bascule.log.disk.files import FileGone
from bascule.log.disk.master_keys import MasterKeys
from bascule.log.disk.operations import Disk
from bascule.log.partition.partition_log import PartitionLog
from bascule.log.segments.segment import Segment

UNKNOWN = "unknown"
"""Instead of the id of a key that this server does not have."""
COUNT_ATTEMPTS = 3
"""Attempts to count a log whose segments the cleaner replaces meanwhile."""


@dataclass(slots=True)
class KeyUse:
    batches: Counter[str] = field(default_factory=Counter)
    """Encrypted batches by the id of their master key."""
    former: int = 0
    """Batches of format version 1, which are not bound to their stream."""

    def add(self, other: KeyUse) -> None:
        self.batches.update(other.batches)
        self.former += other.former


@dataclass(slots=True)
class RewrapReport:
    rewrapped: int = 0
    interrupted: bool = False
    """The log was truncated or closed meanwhile: a part of it is left."""
    left_alone: list[str] = field(default_factory=list)
    """Segments that could not be rewritten, with the reason."""


def count_keys(log: PartitionLog, keys: MasterKeys, on_bytes: Callable[[int], None]) -> KeyUse:
    """Return the keys in use. `on_bytes` is called with the size of each piece that was read. Raises LogClosed, StorageError."""
    log.open()
    for attempt in range(COUNT_ATTEMPTS):
        use, ids = KeyUse(), dict[bytes, str]()
        try:
            for segment in list(log.segments):
                for _, data in segment.chunks():
                    _count(data, keys, ids, use)
                    on_bytes(len(data) if attempt == 0 else 0)
            return use
        except FileGone:
            continue
    raise StorageError(f"the segments of {log.directory} change too often to be counted", hint="try again in a moment")


def _count(data: bytes, keys: MasterKeys, ids: dict[bytes, str], use: KeyUse) -> None:
    for batch, header in _batches(data):
        if not header.attributes & records.ENCRYPTED:
            continue
        try:
            wrapped, _, _ = split_sealed(batch[records.HEADER_BYTES :])
        except ValueError:
            continue  # damage, which readers and `bascule log verify` report
        if wrapped not in ids:
            ids[wrapped] = keys.id_of(wrapped) or UNKNOWN
        use.batches[ids[wrapped]] += 1
        use.former += header.version < records.VERSION


def _batches(data: bytes) -> Iterator[tuple[memoryview, records.BatchHeader]]:
    """Yield the whole batches of a piece; ends at bytes that are not a batch."""
    position, view = 0, memoryview(data)
    while position < len(data):
        try:
            header = records.read_header(data, position)
        except records.BatchError:
            return
        if position + header.length > len(data):
            return
        yield view[position : position + header.length], header
        position += header.length


def is_encrypted(disk: Disk, paths: Iterable[str]) -> bool:
    """Return whether the first batch in these segments is encrypted, for a log that is not open."""
    for path in paths:
        try:
            handle = disk.open(path)
        except (FileNotFoundError, StorageError):
            continue
        try:
            return bool(records.read_header(disk.read(handle, records.HEADER_BYTES, 0)).attributes & records.ENCRYPTED)
        except records.BatchError:
            continue
        finally:
            disk.close(handle)
    return False


# ── re-wrapping ──────────────────────────────────────────────────────────────────────────────────


class _LeftAlone(Exception):
    pass


class _Interrupted(Exception):
    pass


def rewrap(log: PartitionLog, keys: MasterKeys, on_bytes: Callable[[int], None]) -> RewrapReport:
    """Rewrite the segments with batches under other keys than the current one. Appends and reads go on. Raises LogClosed."""
    log.open()
    report = RewrapReport()
    try:
        use = KeyUse()
        for _, data in log.segments.active.chunks():
            _count(data, keys, {}, use)
        if use.former or set(use.batches) - {keys.ids[0]}:
            log.roll()
    except FileGone:
        report.interrupted = True
        return report
    with log.maintenance:
        log.interrupt_cleaning.clear()
        log.settle()
        sealed = log.segments.sealed
    for segment in sealed:
        # Each segment by itself: a truncation waits no longer than for the rest of a piece.
        with log.maintenance:
            log.open()
            if segment not in log.segments.sealed:
                continue  # retention or compaction has removed it meanwhile
            try:
                report.rewrapped += _rewrap_segment(log, segment, on_bytes)
            except _LeftAlone as reason:
                report.left_alone.append(str(reason))
            except _Interrupted:
                report.interrupted = True
                return report
    return report


def _rewrap_segment(log: PartitionLog, segment: Segment, on_bytes: Callable[[int], None]) -> int:
    rewrite, changed = Rewrite(log, (segment,)), 0
    try:
        for position, data in segment.chunks():
            if log.interrupt_cleaning.is_set():
                raise _Interrupted
            found = records.scan(data, 0, gap=True, checksums=True)
            if found.reason is not None or found.end != len(data):
                raise _LeftAlone(f"{segment.path}: the batch at byte {position + found.end} is damaged: {found.reason}")
            pieces, count = _rewrapped(log, segment, data)
            if count:
                rewrite.change(b"".join(pieces))
            else:
                rewrite.keep(data)
            changed += count
            on_bytes(len(data))
        rewrite.commit()
    finally:
        rewrite.discard()
    return changed


def _rewrapped(log: PartitionLog, segment: Segment, data: bytes) -> tuple[list[bytes | memoryview], int]:
    pieces: list[bytes | memoryview] = []
    changed = 0
    for batch, header in _batches(data):
        try:
            made = log.sealer.rewrap(batch)
        except (ValueError, EncryptionKeyError) as error:
            raise _LeftAlone(f"{segment.path}: the batch of offset {header.base_offset}: {error}") from None
        pieces.append(batch if made is None else made)
        changed += made is not None
    return pieces, changed
