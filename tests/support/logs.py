"""Records as plain tuples, and a few ways to write them to a log and to read them back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from bascule import limits
from bascule.errors import CorruptBatch
from bascule.kernels.records.builder import BatchBuilder
from bascule.kernels.records.records import Record
from bascule.log import PartitionLog, ReverseReader, new_batch
from bascule.log.disk.master_keys import MasterKeys
from bascule.log.sync.group_commit import Syncable, Syncer

KEYS: Final = MasterKeys(b"0123456789abcdef0123456789abcdef")
SECOND: Final = 1_000_000_000


class Draft(NamedTuple):
    """A record before it has a place."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    subject: bytes = b""
    reply: bytes = b""
    time_delta: int = 0


class Stored(NamedTuple):
    """A record as a log gives it back. `Record` does the same; this one is made by nobody but the test."""

    offset: int
    timestamp: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes], ...]
    subject: bytes
    reply: bytes


def as_stored(record: Record) -> Stored:
    return Stored(
        record.offset,
        record.timestamp,
        record.leader_epoch,
        record.key,
        record.value,
        record.headers,
        record.subject,
        record.reply,
    )


def batch_of(drafts: Iterable[Draft]) -> BatchBuilder:
    batch = new_batch()
    for draft in drafts:
        batch.add(*draft)
    return batch


def placed(drafts: Iterable[Draft], base_offset: int, epoch: int, timestamp: int) -> list[Stored]:
    """What a log must give back for a batch that it took at `base_offset` and `timestamp`."""
    found: list[Stored] = []
    latest = 0
    for offset, draft in enumerate(drafts, base_offset):
        latest = max(latest, draft.time_delta)
        found.append(
            Stored(offset, timestamp + latest, epoch, draft.key, draft.value, draft.headers, draft.subject, draft.reply)
        )
    return found


def random_draft(rng: random.Random, keys: int = 5, value_bytes_max: int = 60) -> Draft:
    """Few keys, so that compaction bites; now and then a tombstone, a key of no bytes, headers, another subject."""
    key = None if rng.random() < 0.2 else (b"key-%d" % rng.randrange(keys) if rng.random() < 0.95 else b"")
    value = None if rng.random() < 0.15 else rng.randbytes(rng.randrange(value_bytes_max)).hex().encode()
    headers = tuple((b"name-%d" % n, rng.randbytes(n)) for n in range(rng.choice((0, 0, 0, 1, 3))))
    subject = rng.choice((b"orders", b"orders", b"orders.eu", b""))
    return Draft(key, value, headers, subject, rng.choice((b"", b"", b"_INBOX.1")), rng.choice((0, 0, 1, 1000)))


class ManualSyncer(Syncer):
    """No thread, no clock: a log is synced when the test says so. What was asked for is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[Syncable] = set()

    def note_dirty(self, log: Syncable, interval_ns: int = 0) -> None:  # noqa: ARG002
        self.asked.add(log)

    def request(self, log: Syncable) -> None:
        self.asked.add(log)

    def forget(self, log: Syncable) -> None:
        self.asked.discard(log)


def read_all(log: PartitionLog, *, committed: bool = False, bytes_max: int = 1 << 20) -> list[Stored]:
    """Everything; damage raises."""
    return list(_forward(log, committed, bytes_max, None))


def read_around_damage(
    log: PartitionLog, *, committed: bool = False, bytes_max: int = 1 << 20
) -> tuple[list[Stored], list[CorruptBatch]]:
    """Everything that can be read, and what was said about the rest."""
    damage: list[CorruptBatch] = []
    return list(_forward(log, committed, bytes_max, damage)), damage


def _forward(log: PartitionLog, committed: bool, bytes_max: int, damage: list[CorruptBatch] | None) -> Iterator[Stored]:
    offset, end = 0, log.readable_end_offset(committed=committed)
    while offset < end:
        try:
            found = log.read(offset, bytes_max=bytes_max, committed=committed)
            if found is None:
                return
            behind, content = found.next_offset, found.records()
        except CorruptBatch as error:
            if damage is None:
                raise
            damage.append(error)
            assert error.next_offset is not None
            behind, content = error.next_offset, []
        assert behind > offset, f"reading at {offset} goes on at {behind}"
        offset = behind
        yield from map(as_stored, content)


def read_back_around_damage(log: PartitionLog, *, bytes_max: int = 1 << 20) -> tuple[list[Stored], list[CorruptBatch]]:
    """The same with a reverse reader, the newest first."""
    found: list[Stored] = []
    damage: list[CorruptBatch] = []
    reader = ReverseReader(log, committed=False, bytes_max=bytes_max)
    while True:
        try:
            piece = reader.read()
            if piece is None:
                return found, damage
            found += map(as_stored, piece)
        except CorruptBatch as error:
            damage.append(error)
            before = reader.next_offset
            reader.skip_to(error.first_offset - 1)
            assert reader.next_offset < before, f"reading back at {before} does not get below the damage"


@contextmanager
def small_limits(index_interval: int = 256, scan_chunk: int = 4096) -> Iterator[None]:
    """Index entries and chunk borders everywhere, also in a log of a few kilobytes."""
    patch = pytest.MonkeyPatch()
    patch.setattr(limits, "INDEX_INTERVAL_BYTES", index_interval)
    patch.setattr(limits, "SCAN_CHUNK_BYTES", scan_chunk)
    try:
        yield
    finally:
        patch.undo()


def epoch_of(entries: Iterable[Any], offset: int) -> int:
    """The epoch that wrote `offset`, as the log's epoch entries tell it."""
    found = 0
    for entry in entries:
        if entry.start_offset <= offset:
            found = entry.epoch
    return found


Check = Callable[[], None]
