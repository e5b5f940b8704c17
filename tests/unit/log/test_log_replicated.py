"""Batches from a leader: stored byte by byte as they came, or refused with nothing changed."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from bascule import limits
from bascule.errors import BasculeError, EpochFenced, LogReadonly, RejectedBatch, StorageError
from bascule.kernels.records import records
from bascule.log import PartitionLog
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from bascule.log.core.epochs import EpochEntry
from bascule.log.disk.master_keys import MasterKeys
from tests.unit.log.log_helpers import (
    ONE_RECORD_PER_SEGMENT,
    Logs,
    WatchedDisk,
    bases,
    commit_all,
    everything,
    offsets,
    put,
    put_batch,
    put_values,
    refuse,
    resealed,
    snapshot,
    stored,
)


def leader_of(logs: Logs, count: int = 6) -> PartitionLog:
    log = logs.open("leader")
    for number in range(count):
        put_batch(log, (b"k%d" % number, b"v"), (None, b"w"), epoch=1 + number // 3, timestamp=1_000 * (number + 1))
    return log


def split(data: bytes) -> list[bytes]:
    """One by one."""
    found, position = [], 0
    while position < len(data):
        length = records.read_header(data, position).length
        found.append(data[position : position + length])
        position += length
    return found


# ── taken ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at_once", [1, 2, 6])
def test_the_bytes_are_those_of_the_leader(logs: Logs, at_once: int) -> None:
    leader = leader_of(logs)
    follower = logs.open("follower")
    batches = split(stored(leader))
    for start in range(0, 6, at_once):
        landed = follower.append_replicated(b"".join(batches[start : start + at_once]))
        assert landed is not None
        assert (landed.base_offset, landed.last_offset) == (2 * start, 2 * (start + at_once) - 1)
    assert stored(follower) == stored(leader)
    assert everything(follower) == everything(leader)
    assert follower.epoch_entries == leader.epoch_entries
    assert follower.last_timestamp == leader.last_timestamp


def test_a_slice_that_was_read_can_be_appended_as_it_is(logs: Logs) -> None:
    leader = leader_of(logs)
    follower = logs.open("follower", segment_bytes_max=200)
    while (found := leader.read(follower.log_end_offset, committed=False, bytes_max=150)) is not None:
        follower.append_replicated(found.data)
    assert stored(follower) == stored(leader)
    assert len(bases(follower)) > 1


def test_the_follower_rolls_by_its_own_limits(logs: Logs) -> None:
    leader = leader_of(logs)
    follower = logs.open("follower", segment_bytes_max=ONE_RECORD_PER_SEGMENT)
    follower.append_replicated(stored(leader))
    assert bases(follower) == [0, 2, 4, 6, 8, 10]
    assert everything(logs.reopen(follower)) == everything(leader)


def test_no_bytes_are_no_batch(logs: Logs) -> None:
    follower = logs.open("follower")
    assert follower.append_replicated(b"") is None
    assert follower.log_end_offset == 0


def test_sealed_batches_stay_sealed(logs: Logs) -> None:
    keys = MasterKeys(b"k" * 32)
    leader = logs.open("leader", encryption=True, compression="zstd", keys=keys)
    put_batch(leader, *[(b"k", b"v" * 100)] * 5)
    follower = logs.open("follower", keys=keys)
    follower.append_replicated(stored(leader))
    assert stored(follower) == stored(leader)
    assert everything(follower) == everything(leader)


def test_a_readonly_log_still_takes_them(logs: Logs) -> None:
    leader = leader_of(logs)
    follower = logs.open("follower")
    follower.set_readonly(True)
    follower.append_replicated(stored(leader))
    assert follower.log_end_offset == 12
    with pytest.raises(LogReadonly):
        put_values(follower, 1)


def test_waiting_readers_are_told(logs: Logs) -> None:
    leader = leader_of(logs)
    follower = logs.open("follower")
    called: list[int] = []
    assert follower.call_when_readable("me", 0, lambda: called.append(1), committed=False)
    follower.append_replicated(stored(leader))
    assert called == [1]


def test_a_follower_becomes_leader_and_goes_on_where_it_is(logs: Logs) -> None:
    leader = leader_of(logs)
    follower = logs.open("follower")
    follower.append_replicated(stored(leader))
    assert put(follower, (None, b"mine"), epoch=7, timestamp=1) == 12
    assert everything(follower)[-1].timestamp == 6_000, "never before what the old leader wrote"
    assert follower.end_offset_of_epoch(2) == 12


# ── holes ────────────────────────────────────────────────────────────────────────────────────────


def compacted_leader(logs: Logs, segment_bytes_max: int) -> PartitionLog:
    log = logs.open("leader", compact=True, segment_bytes_max=segment_bytes_max)
    put(log, *((b"k%d" % (number % 4), b"%d" % number) for number in range(20)), (b"keep", b"1"))
    put(log, *((b"k%d" % (number % 4), b"%d" % number) for number in range(8)))
    log.roll()
    put(log, (b"z", b"1"))
    commit_all(log)
    compact(log)
    assert offsets(log) == [20, 25, 26, 27, 28, 29][-len(offsets(log)) :]
    return log


@pytest.mark.parametrize("segment_bytes_max", [ONE_RECORD_PER_SEGMENT, 100_000], ids=["between", "inside"])
def test_holes_of_compaction_are_taken_where_the_leader_has_them(logs: Logs, segment_bytes_max: int) -> None:
    leader = compacted_leader(logs, segment_bytes_max)
    follower = logs.open("follower", compact=True)
    follower.append_replicated(stored(leader))
    assert everything(follower) == everything(leader)
    follower = logs.reopen(follower)
    report = follower.open()
    assert (report.damage, report.missing) == ([], [])
    assert everything(follower) == everything(leader)


@pytest.mark.parametrize("segment_bytes_max", [ONE_RECORD_PER_SEGMENT, 100_000], ids=["between", "inside"])
def test_must_hold_an_epoch_that_began_in_a_hole_begins_with_it_on_a_copy(logs: Logs, segment_bytes_max: int) -> None:
    """A deposed leader that asks for the end of epoch 1 must not keep its own record at 2, which epoch 2 has overwritten."""
    leader = logs.open("leader", compact=True, segment_bytes_max=segment_bytes_max)
    put(leader, (b"a", b"1"), (b"b", b"1"), epoch=1)
    put(leader, (b"c", b"1"), (b"d", b"1"), (b"c", b"2"), (b"d", b"2"), epoch=2)
    leader.roll()
    put(leader, (b"z", b"1"), epoch=2)
    commit_all(leader)
    compact(leader)
    assert offsets(leader) == [0, 1, 4, 5, 6]
    follower = logs.open("follower", compact=True)
    follower.append_replicated(stored(leader))
    assert follower.epoch_entries == leader.epoch_entries == (EpochEntry(1, 0), EpochEntry(2, 2))


def test_a_follower_with_nothing_begins_where_its_leader_begins(logs: Logs) -> None:
    leader = logs.open("leader", segment_bytes_max=ONE_RECORD_PER_SEGMENT, retention_records_max=3)
    put_values(leader, 10)
    commit_all(leader)
    apply_retention(leader)
    follower = logs.open("follower")
    follower.append_replicated(stored(leader))
    assert (follower.log_start_offset, follower.oldest_offset, follower.newest_offset) == (7, 7, 9)
    assert bases(follower) == [7]
    follower = logs.reopen(follower)
    assert follower.open().is_clean
    assert offsets(follower) == [7, 8, 9]


def test_a_log_that_is_not_compacted_takes_no_hole(logs: Logs) -> None:
    batches = split(stored(leader_of(logs)))
    follower = logs.open("follower")
    follower.append_replicated(batches[0])
    with pytest.raises(RejectedBatch, match="bad offsets"):
        follower.append_replicated(batches[2])
    assert follower.log_end_offset == 2


# ── refused ──────────────────────────────────────────────────────────────────────────────────────


def with_field(at: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """The batch with another header field and a checksum that fits."""

    def change(batch: bytes) -> bytes:
        data = bytearray(batch)
        struct.pack_into(form, data, at, value)
        return resealed(data)

    return change


def flipped(at: int) -> Callable[[bytes], bytes]:
    def change(batch: bytes) -> bytes:
        data = bytearray(batch)
        data[at] ^= 0x5A
        return bytes(data)

    return change


def shortened(batch: bytes) -> bytes:
    return batch[:-1]


def half_a_header(batch: bytes) -> bytes:
    return batch[:30]


def with_bytes_behind(batch: bytes) -> bytes:
    return batch + b"more"


def with_bad_records(batch: bytes) -> bytes:
    return resealed(batch[:57] + bytes(len(batch) - 57))


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit of the body": (flipped(60), "bad checksum"),
    "a bit of the checksum": (flipped(0), "bad checksum"),
    "a bit of the offset": (flipped(17), "bad checksum"),
    "the last byte missing": (shortened, "incomplete"),
    "half a header": (half_a_header, "incomplete"),
    "bytes behind it": (with_bytes_behind, "incomplete"),
    "a length below the header": (with_field(4, "<I", 10), "bad length"),
    "a length beyond the bytes": (with_field(4, "<I", 100_000), "incomplete"),
    "another magic": (with_field(8, "<H", 0x1234), "bad magic"),
    "a future version": (with_field(10, "<B", 3), "future version"),
    "unknown attributes": (with_field(11, "<B", 0x40), "bad attributes"),
    "an unknown codec": (with_field(11, "<B", 0x05), "bad attributes"),
    "an overlapping offset": (with_field(16, "<q", 3), "bad offsets"),
    "a negative offset": (with_field(16, "<q", -5), "bad offsets"),
    "a gap": (with_field(16, "<q", 50), "bad offsets"),
    "an offset beyond all": (with_field(16, "<q", (1 << 63) - 1), "bad offsets"),
    "a time before the last": (with_field(40, "<q", 10), "bad timestamps"),
    "a last time before the first": (with_field(48, "<q", 10), "bad timestamps"),
    "an older epoch": (with_field(32, "<Q", 0), "bad epoch"),
    "more records than offsets": (with_field(12, "<I", 9), "bad offsets"),
    "another count of records": (with_field(12, "<I", 1), "bad records"),
    "no records": (with_field(12, "<I", 0), "bad records"),
    "records that do not parse": (with_bad_records, "bad records"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("behind_a_good_one", [False, True])
def test_bad_bytes_are_refused_and_nothing_changes(logs: Logs, name: str, behind_a_good_one: bool) -> None:
    change, reason = BAD[name]
    batches = split(stored(leader_of(logs)))
    follower = logs.open("follower")
    follower.append_replicated(b"".join(batches[:2]))
    before, epochs = snapshot(follower.directory), follower.epoch_entries
    good = batches[2] if behind_a_good_one else b""
    bad = change(batches[3] if behind_a_good_one else batches[2])
    with pytest.raises(RejectedBatch, match=reason) as caught:
        follower.append_replicated(good + bad)
    assert f"at byte {len(good)} of" in str(caught.value) or "bytes behind it" in name
    assert snapshot(follower.directory) == before
    assert (follower.log_end_offset, follower.epoch_entries) == (4, epochs)
    follower.append_replicated(b"".join(batches[2:]))
    assert offsets(follower) == list(range(12))


def test_what_the_log_has_already_is_refused(logs: Logs) -> None:
    data = stored(leader_of(logs))
    follower = logs.open("follower", compact=True)
    follower.append_replicated(data)
    with pytest.raises(RejectedBatch, match="bad offsets"):
        follower.append_replicated(data)
    with pytest.raises(RejectedBatch, match="bad offsets"):
        follower.append_replicated(split(data)[-1])
    assert follower.log_end_offset == 12


def test_a_batch_above_the_limit_is_refused(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stored(leader_of(logs))
    follower = logs.open("follower")
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 60)
    with pytest.raises(RejectedBatch, match="above the limit of 60"):
        follower.append_replicated(data)
    assert follower.log_end_offset == 0


def test_a_deposed_leader_is_fenced(logs: Logs) -> None:
    batches = split(stored(leader_of(logs)))
    follower = logs.open("follower")
    follower.append_replicated(batches[0])
    follower.begin_epoch(9)
    with pytest.raises((RejectedBatch, EpochFenced)) as caught:
        follower.append_replicated(batches[1])
    assert isinstance(caught.value, BasculeError)
    assert follower.log_end_offset == 2
    assert follower.epoch_entries == (EpochEntry(1, 0), EpochEntry(9, 2))


def test_a_disk_that_fails_between_two_batches_keeps_the_first_whole(logs: Logs) -> None:
    batches = split(stored(leader_of(logs)))
    disk = WatchedDisk()
    follower = logs.open("follower", disk=disk)
    follower.append_replicated(batches[0])
    writes = [0]

    def fail_the_second(operation: str, path: str) -> None:
        if operation == "write" and path.endswith(".log"):
            writes[0] += 1
            if writes[0] == 2:
                raise StorageError("planted")

    disk.before = fail_the_second
    with pytest.raises(StorageError):
        follower.append_replicated(b"".join(batches[1:4]))
    disk.before = None
    assert follower.log_end_offset == 4
    assert offsets(follower) == [0, 1, 2, 3]
    follower.append_replicated(b"".join(batches[2:]))
    assert offsets(logs.reopen(follower)) == list(range(12))


def test_what_was_written_before_a_failure_wakes_those_who_wait(logs: Logs) -> None:
    batches = split(stored(leader_of(logs)))
    disk = WatchedDisk()
    follower = logs.open("follower", disk=disk, segment_bytes_max=ONE_RECORD_PER_SEGMENT)
    called: list[int] = []
    assert follower.call_when_readable("me", 0, lambda: called.append(1), committed=False)
    disk.before = refuse("create", f"{2:020d}.log")
    with pytest.raises(StorageError):
        follower.append_replicated(b"".join(batches))
    disk.before = None
    assert follower.log_end_offset == 2
    assert called == [1]
