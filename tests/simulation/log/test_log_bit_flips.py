"""Every byte of every file of a log, damaged in turn: its batch is reported, everything else is delivered, nothing is invented."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from bascule.errors import CorruptBatch, TimestampOutOfRange
from bascule.log import PartitionLog
from bascule.log.cleaning.compactor import compact
from bascule.log.recovery.report import RecoveryReport
from tests.simulation.log.sample_log import DIRECTORY, START, Place, Sample, closed_cleanly, open_sample, stopped_midway
from tests.simulation.log.simulated_disk import SimulatedDisk
from tests.support.logs import (
    SECOND,
    Draft,
    Stored,
    as_stored,
    batch_of,
    epoch_of,
    read_around_damage,
    read_back_around_damage,
    small_limits,
)

LATER: Final = START + 30 * 24 * 3600 * SECOND
"""When every tombstone has served its time."""

HANG_SECONDS: Final = 30.0
PARTS: Final = 4

SAMPLES: Final[dict[str, Callable[[], Sample]]] = {"clean": closed_cleanly, "killed": stopped_midway}
samples = pytest.mark.parametrize("sample_name", SAMPLES)


@pytest.fixture(autouse=True)
def _small_limits() -> Iterator[None]:
    with small_limits():
        yield


@contextmanager
def no_hang(what: str) -> Iterator[None]:
    """One case takes a millisecond; one that takes half a minute goes round in circles."""

    def stuck(*_: object) -> None:
        raise AssertionError(f"hangs: {what}")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    except BaseException:
        print(what)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def damaged(sample: Sample, path: str, data: bytes) -> SimulatedDisk:
    disk = sample.disk.copy()
    disk.put(path, data)
    return disk


# ── single bytes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sample_name", "part"),
    [
        pytest.param(name, part, marks=() if part % 2 == number else pytest.mark.soak)  # each half of one sample
        for number, name in enumerate(SAMPLES)
        for part in range(PARTS)
    ],
)
def test_one_bad_byte_costs_its_batch_and_nothing_else(sample_name: str, part: int) -> None:
    sample = SAMPLES[sample_name]()
    cases = 0
    for path in sample.paths:
        data = sample.disk.content(path)
        for at in range(part, len(data), PARTS):
            # One of three kinds of damage for each byte, in turn: neighbours have the others.
            for byte in {(data[at] ^ 1 << at % 8, 0x00, 0xFF)[at // PARTS % 3]} - {data[at]}:
                with no_hang(f"{path} byte {at} = {byte:#x}, was {data[at]:#x}"):
                    check_bad_byte(sample, path, at, data[:at] + bytes((byte,)) + data[at + 1 :])
                    cases += 1
    assert cases > 1000


def check_bad_byte(sample: Sample, path: str, at: int, data: bytes) -> None:
    disk = damaged(sample, path, data)
    log = open_sample(disk)
    report = log.open()
    found, damage = read_around_damage(log)
    if not path.endswith(".log"):
        assert found == sample.stored
        assert not damage and not report.damage and not report.missing and report.cut_reason is None
    else:
        place = sample.place(path, at)
        if place.base_offset >= sample.synced_end_offset:
            check_cut(sample, place, report, found, damage)
        else:
            check_reported(sample, place, report, found, damage)
    check_epochs(log, found)
    if at % 3 == 0:
        check_other_ways_to_read(log, found)
        check_life_goes_on(disk, log, found)


def check_cut(
    sample: Sample, place: Place, report: RecoveryReport, found: list[Stored], damage: list[CorruptBatch]
) -> None:
    """Never synced: everything from the damage on goes, and the report says so."""
    assert found == [stored for stored in sample.stored if stored.offset < place.base_offset]
    assert report.cut_from_offset == place.base_offset
    assert report.cut_reason is not None and report.cut_bytes >= place.length
    assert not damage and not report.damage


def check_reported(
    sample: Sample, place: Place, report: RecoveryReport, found: list[Stored], damage: list[CorruptBatch]
) -> None:
    """Synced: only the batch itself is lost, and a reader that passes it gets its offsets."""
    assert found == [stored for stored in sample.stored if stored not in place.stored]
    assert report.cut_reason is None and not report.missing
    [said] = damage
    assert (said.file, said.position, said.bytes_damaged) == (place.path, place.position, place.length)
    assert said.next_offset is not None
    named = range(said.first_offset, said.next_offset)
    assert [stored for stored in sample.stored if stored.offset in named] == list(place.stored)
    for one in report.damage:
        assert (one.file, one.position, one.bytes_damaged) == (place.path, place.position, place.length)


def check_epochs(log: PartitionLog, found: list[Stored]) -> None:
    entries = log.epoch_entries
    assert all(epoch_of(entries, stored.offset) == stored.leader_epoch for stored in found), entries


def check_other_ways_to_read(log: PartitionLog, found: list[Stored]) -> None:
    backwards, _ = read_back_around_damage(log, bytes_max=300)
    assert backwards == found[::-1]
    piecewise, _ = read_around_damage(log, bytes_max=100)
    assert piecewise == found
    for stored in found[::5]:
        check_lookups(log, found, stored.timestamp)
        piece = log.read(stored.offset, bytes_max=1, committed=False)
        assert piece is not None and as_stored(piece.records()[0]) == stored


def check_lookups(log: PartitionLog, found: list[Stored], timestamp: int) -> None:
    """A lookup may meet the damage and say so; an answer is never beyond a record that is there."""
    try:
        earliest = log.earliest_offset_at(timestamp)
    except CorruptBatch:
        pass
    else:
        assert earliest <= min(stored.offset for stored in found if stored.timestamp >= timestamp)
    try:
        latest = log.latest_offset_at(timestamp)
    except (CorruptBatch, TimestampOutOfRange):
        pass
    else:
        assert latest in [stored.offset for stored in found if stored.timestamp <= timestamp]


def check_life_goes_on(disk: SimulatedDisk, log: PartitionLog, found: list[Stored]) -> None:
    """Append behind the damage, clean, close, open: the same records and the new one; what was lost does not come back."""
    appended = log.append(batch_of([Draft(None, b"behind the damage")]))
    assert not found or appended.base_offset > found[-1].offset
    assert appended.timestamp >= max((stored.timestamp for stored in found), default=0)
    log.advance_high_watermark(log.newest_offset)
    log.roll()
    compact(log, LATER, force=True)
    log.close()
    again = open_sample(disk)
    after, _ = read_around_damage(again)
    assert after[-1].value == b"behind the damage"
    assert set(after[:-1]) <= set(found)
    assert newest_of_keys(after) == newest_of_keys([*found, after[-1]])


def newest_of_keys(found: list[Stored]) -> dict[bytes, Stored]:
    """What a consumer of a compacted log ends up with. A tombstone is as good as nothing."""
    newest = {stored.key: stored for stored in found if stored.key is not None}
    return {key: stored for key, stored in newest.items() if stored.value is not None}


# ── larger damage ────────────────────────────────────────────────────────────────────────────────


@samples
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_a_file_cut_at_any_length_keeps_what_is_whole(sample_name: str, step: int) -> None:
    sample = SAMPLES[sample_name]()
    borders = {place.position + place.length + near for place in sample.places for near in (-1, 0, 1)}
    for path in sample.paths:
        data = sample.disk.content(path)
        for length in sorted({*range(0, len(data), step), *(borders & {*range(len(data))})}):
            with no_hang(f"{path} cut to {length} of {len(data)} bytes"):
                check_cut_file(sample, path, data[:length])


def check_cut_file(sample: Sample, path: str, data: bytes) -> None:
    disk = damaged(sample, path, data)
    log = open_sample(disk)
    report = log.open()
    found, damage = read_around_damage(log)
    lost = [
        place
        for place in sample.places
        if path == place.path and len(data) < place.position + place.length and place.stored
    ]
    if not lost or lost[0].base_offset < sample.synced_end_offset:
        kept = [stored for stored in sample.stored if not any(stored in place.stored for place in lost)]
    else:
        kept = [stored for stored in sample.stored if stored.offset < lost[0].base_offset]
    assert found[: len(kept)] == kept
    assert found == kept
    if lost and lost[0].base_offset < sample.synced_end_offset:
        assert report.damage or report.missing or report.cut_from_offset is not None or damage
    check_epochs(log, found)
    if len(data) % 5 == 0 and found:
        check_other_ways_to_read(log, found)
        check_life_goes_on(disk, log, found)


@samples
def test_zeroed_blocks_cost_the_batches_they_touch(sample_name: str) -> None:
    sample = SAMPLES[sample_name]()
    for path in sample.paths:
        data = sample.disk.content(path)
        for size in (16, 64, 512):
            for at in range(0, len(data), size):
                with no_hang(f"{path} zero from {at}, {size} bytes"):
                    check_scribble(sample, path, (data[:at] + bytes(size) + data[at + size :])[: len(data)])


@samples
def test_random_garbage_costs_the_batches_it_touches(sample_name: str) -> None:
    sample = SAMPLES[sample_name]()
    for seed in range(500):
        rng = random.Random(seed)
        path = rng.choice(sample.paths)
        data = bytearray(sample.disk.content(path))
        at, size = rng.randrange(len(data)), rng.choice((2, 10, 100, 1000))
        data[at : at + size] = rng.randbytes(len(data[at : at + size]))
        with no_hang(f"seed {seed}: {path} garbage from {at}, {size} bytes"):
            check_scribble(sample, path, bytes(data))


def check_scribble(sample: Sample, path: str, data: bytes) -> None:
    """The size stays, some bytes differ."""
    before = sample.disk.content(path)
    disk = damaged(sample, path, data)
    log = open_sample(disk)
    log.open()
    found, damage = read_around_damage(log)
    hit = [
        place
        for place in sample.places
        if place.path == path
        and before[place.position : place.position + place.length]
        != data[place.position : place.position + place.length]
    ]
    lost = {stored for place in hit for stored in place.stored}
    unsynced = [place.base_offset for place in hit if place.base_offset >= sample.synced_end_offset]
    if unsynced:
        lost |= {stored for stored in sample.stored if stored.offset >= unsynced[0]}
    assert found == [stored for stored in sample.stored if stored not in lost]
    assert {one.file for one in damage} <= {path}
    for stored in lost:
        is_named = any(one.first_offset <= stored.offset < (one.next_offset or 0) for one in damage)
        assert is_named or (unsynced and stored.offset >= unsynced[0])
    check_epochs(log, found)


@samples
@pytest.mark.parametrize("size", [1, 7, 55, 56, 57, 400, 5000])
def test_garbage_behind_a_file_changes_nothing(sample_name: str, size: int) -> None:
    sample = SAMPLES[sample_name]()
    rng = random.Random(size)
    for path in sample.paths:
        data = sample.disk.content(path)
        for tail in (bytes(size), b"\xff" * size, rng.randbytes(size), (data * (size // len(data) + 1))[:size]):
            with no_hang(f"{path} with {size} more bytes, {tail[:20]!r}…"):
                disk = damaged(sample, path, data + tail)
                log = open_sample(disk)
                log.open()
                found, _ = read_around_damage(log)
                if sample_name == "killed" and path.endswith(".log") and is_followed(sample, path):
                    # Behind an unsynced segment with garbage at its end nothing is known to continue it.
                    assert found == sample.stored[: len(found)]
                    assert not found or found[-1].offset >= sample.synced_end_offset - 1
                else:
                    assert found == sample.stored
                check_epochs(log, found)
                check_life_goes_on(disk, log, found)


def is_followed(sample: Sample, path: str) -> bool:
    """Whether the segment is unsynced, at least in part, and not the last one."""
    bases = [place.base_offset for place in sample.places if place.path == path]
    return bases[-1] >= sample.synced_end_offset and path != sample.places[-1].path


# ── missing and misplaced files ──────────────────────────────────────────────────────────────────


@samples
def test_side_files_can_be_lost_in_any_combination(sample_name: str) -> None:
    sample = SAMPLES[sample_name]()
    side_files = [path for path in sample.paths if not path.endswith(".log")]
    for seed in range(300):
        rng = random.Random(seed)
        gone = side_files if seed == 0 else rng.sample(side_files, rng.randint(1, len(side_files)))
        with no_hang(f"without {gone}"):
            disk = sample.disk.copy()
            for path in gone:
                disk.take_away(path)
            log = open_sample(disk)
            log.open()
            found, damage = read_around_damage(log)
            assert (found, damage) == (sample.stored, [])
            check_epochs(log, found)
            check_other_ways_to_read(log, found)
            check_life_goes_on(disk, log, found)


@samples
def test_a_missing_segment_costs_its_records(sample_name: str) -> None:
    sample = SAMPLES[sample_name]()
    for path in sorted({place.path for place in sample.places}):
        with no_hang(f"without {path}"):
            disk = sample.disk.copy()
            disk.take_away(path)
            log = open_sample(disk)
            report = log.open()
            found, _ = read_around_damage(log)
            gone = {stored for place in sample.places if place.path == path for stored in place.stored}
            expected = [stored for stored in sample.stored if stored not in gone]
            if expected != found:
                assert report.cut_reason is not None or report.missing
                assert found == expected[: len(found)]
            check_epochs(log, found)
            check_life_goes_on(disk, log, found)


@samples
def test_two_files_that_changed_places_bring_no_wrong_record(sample_name: str) -> None:
    sample = SAMPLES[sample_name]()
    for one in sample.paths:
        for other in sample.paths:
            if one >= other:
                continue
            with no_hang(f"{one} and {other} changed places"):
                disk = sample.disk.copy()
                disk.put(one, sample.disk.content(other))
                disk.put(other, sample.disk.content(one))
                log = open_sample(disk)
                log.open()
                found, _ = read_around_damage(log)
                assert set(found) <= set(sample.stored)
                assert sorted(found, key=lambda stored: stored.offset) == found
                if not one.endswith(".log") and not other.endswith(".log"):
                    assert found == sample.stored
                appended = log.append(batch_of([Draft(None, b"behind the damage")]))
                if not other.endswith("/checkpoint"):
                    assert appended.base_offset >= sample.synced_end_offset


@samples
def test_a_directory_of_other_things_is_left_alone(sample_name: str) -> None:
    sample = SAMPLES[sample_name]()
    disk = sample.disk.copy()
    for name in ("README.txt", "00000000000000000000.log.bak", "000.log", "lost+found", "12345678901234567890.logs"):
        disk.put(f"{DIRECTORY}/{name}", b"something else")
    log = open_sample(disk)
    assert read_around_damage(log) == (sample.stored, [])
    log.close()
    assert "README.txt" in disk.list_directory(DIRECTORY)
