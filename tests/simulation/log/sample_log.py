"""A small log with everything in it, to be damaged: several segments, epochs, compacted, plain, compressed and encrypted batches."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Final

from bascule.kernels.records import records
from bascule.log import LogOptions, PartitionLog
from bascule.log.cleaning.compactor import compact
from tests.simulation.log.simulated_disk import SimulatedDisk
from tests.support.logs import KEYS, SECOND, ManualSyncer, Stored, batch_of, random_draft, read_all

DIRECTORY: Final = "/data/streams/sample/0"
START: Final = 1_700_000_000 * SECOND

PLAIN: Final = LogOptions(segment_bytes_max=1100, compact=True)
PACKED: Final = LogOptions(segment_bytes_max=1100, compact=True, compression="zstd")
SECRET: Final = LogOptions(segment_bytes_max=1100, compact=True, compression="zstd", encryption=True)


@dataclass(frozen=True)
class Place:
    """A batch of the sample, and where it lies."""

    path: str
    position: int
    length: int
    base_offset: int
    stored: tuple[Stored, ...]

    def holds(self, path: str, at: int) -> bool:
        return self.path == path and self.position <= at < self.position + self.length


@dataclass(frozen=True)
class Sample:
    disk: SimulatedDisk
    stored: list[Stored]
    places: list[Place]
    synced_end_offset: int
    """Recovery may cut the records after it."""

    @property
    def paths(self) -> list[str]:
        return sorted(f"{DIRECTORY}/{name}" for name in self.disk.list_directory(DIRECTORY))

    def place(self, path: str, at: int) -> Place:
        return next(place for place in self.places if place.holds(path, at))


def open_sample(disk: SimulatedDisk, options: LogOptions = PLAIN) -> PartitionLog:
    return PartitionLog(
        DIRECTORY, options, disk=disk, syncer=ManualSyncer(), keys=KEYS, clock=lambda: START + 3600 * SECOND
    )


def _fill(log: PartitionLog, rng: random.Random, batches: int, epoch: int) -> None:
    for _ in range(batches):
        drafts = [random_draft(rng, value_bytes_max=40) for _ in range(rng.randint(1, 5))]
        time = START + log.log_end_offset * SECOND
        log.append(batch_of(drafts), leader_epoch=epoch, timestamp=time)


@cache
def closed_cleanly() -> Sample:
    """As `close` leaves it: everything is synced, and the checkpoint says so."""
    rng = random.Random(7)
    disk = SimulatedDisk()
    log = open_sample(disk)
    _fill(log, rng, 14, epoch=1)
    log.advance_high_watermark(log.newest_offset)
    assert compact(log, START + 3600 * SECOND) is not None
    _fill(log, rng, 4, epoch=2)
    log.close()
    for options, epoch in ((PACKED, 4), (SECRET, 5)):
        log = open_sample(disk, options)
        _fill(log, rng, 6, epoch)
        log.close()
    return _sampled(disk, None)


@cache
def stopped_midway() -> Sample:
    """A process that was killed: a checkpoint in the middle, then more records, over several segments, never synced."""
    rng = random.Random(8)
    disk = SimulatedDisk()
    log = open_sample(disk)
    _fill(log, rng, 8, epoch=1)
    log.advance_high_watermark(log.newest_offset)
    log.close()
    log = open_sample(disk, PACKED)
    _fill(log, rng, 2, epoch=2)
    log.settle()
    synced_end_offset = log.synced_end_offset
    _fill(log, rng, 6, epoch=3)
    assert log.segments.active.base_offset > synced_end_offset, "a whole segment is unsynced"
    return _sampled(disk.kill(), synced_end_offset)


def _sampled(disk: SimulatedDisk, synced_end_offset: int | None) -> Sample:
    disk = disk.copy()
    log = open_sample(disk.copy())
    stored = read_all(log)
    places = _places(disk, log, stored)
    end_offset = log.log_end_offset if synced_end_offset is None else synced_end_offset
    assert len({place.path for place in places}) >= 4
    return Sample(disk, stored, places, end_offset)


def _places(disk: SimulatedDisk, log: PartitionLog, stored: list[Stored]) -> list[Place]:
    places: list[Place] = []
    for segment in log.segments:
        data, at = disk.content(segment.path), 0
        while at < len(data):
            header = records.read_header(data, at)
            inside = tuple(one for one in stored if header.base_offset <= one.offset <= header.last_offset)
            places.append(Place(segment.path, at, header.length, header.base_offset, inside))
            at += header.length
    return places
