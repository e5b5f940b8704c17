"""Which producers a log has seen: from its records, from the file beside it, and after everything that can happen to both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bascule import limits
from bascule.errors import DiskFull
from bascule.log import LogOptions, PartitionLog, new_batch
from bascule.log.cleaning.cleaner import clean
from bascule.log.disk.files import FilePool
from bascule.log.disk.operations import PosixDisk
from bascule.producers import producer_headers


def open_log(directory: Path, **options: Any) -> PartitionLog:
    log = PartitionLog(str(directory), LogOptions(**options))
    log.open()
    return log


def publish(log: PartitionLog, *numbers: tuple[bytes, int], epoch: int = 0, leader_epoch: int = 1) -> None:
    """One batch with a message of each producer and sequence, committed."""
    batch = new_batch()
    for who, sequence in numbers:
        headers = [(name.encode(), value) for name, value in producer_headers(who, epoch, sequence).items()]
        batch.add(who, b"value" * 20, headers)
    log.append(batch, leader_epoch=leader_epoch)
    log.advance_high_watermark(log.newest_offset)


def plain(log: PartitionLog, count: int = 1, *, leader_epoch: int = 1) -> None:
    batch = new_batch()
    for _ in range(count):
        batch.add(None, b"plain")
    log.append(batch, leader_epoch=leader_epoch)
    log.advance_high_watermark(log.newest_offset)


def known(log: PartitionLog) -> dict[bytes, tuple[int, int]]:
    """Epoch and last sequence of each producer."""
    return {who: (epoch, last) for who, epoch, last, _ in log.producers.at_end().entries()}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_log_that_is_opened_again_knows_its_producers(tmp_path: Path, compression: str) -> None:
    log = open_log(tmp_path, compression=compression)
    publish(log, (b"a", 0), (b"b", 0), (b"a", 1))
    plain(log)
    publish(log, (b"a", 2))
    assert known(log) == {b"a": (0, 2), b"b": (0, 0)}
    publish(log, (b"b", 1))
    log.close()
    log = open_log(tmp_path, compression=compression)
    assert known(log) == {b"a": (0, 2), b"b": (0, 1)}
    log.close()


def test_what_is_not_committed_is_known_to_its_leader_and_not_written_down(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    publish(log, (b"a", 0))
    batch = new_batch()
    batch.add(None, b"", [(name.encode(), value) for name, value in producer_headers(b"a", 0, 1).items()])
    log.append(batch, leader_epoch=1)
    assert known(log) == {b"a": (0, 1)}
    log.producers.save()
    log.truncate(1)
    assert known(log) == {b"a": (0, 0)}
    log.close()


def test_a_follower_knows_what_its_leader_does(tmp_path: Path) -> None:
    leader, follower = open_log(tmp_path / "leader"), open_log(tmp_path / "follower")
    publish(leader, (b"a", 0), (b"a", 1))
    plain(leader, 3)
    publish(leader, (b"b", 0))
    found = leader.read(0)
    assert found is not None
    follower.append_replicated(found.data)
    assert known(follower) == known(leader) == {b"a": (0, 1), b"b": (0, 0)}
    leader.close()
    follower.close()


def test_the_file_follows_the_log_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_UNREAD_BYTES_MAX", 1000)
    monkeypatch.setattr(limits, "PRODUCERS_UNSAVED_BYTES_MAX", 3000)
    log = open_log(tmp_path)
    for sequence in range(60):
        publish(log, (b"a", sequence))
    first = (tmp_path / "producers").read_bytes()
    for sequence in range(60, 120):
        publish(log, (b"a", sequence))
    assert (tmp_path / "producers").read_bytes() != first
    reads: list[int] = []
    killed = open_log(tmp_path)  # the first one is not closed: nothing more is written down
    original = killed.read

    def read(offset: int, **more: Any) -> Any:
        reads.append(offset)
        return original(offset, **more)

    monkeypatch.setattr(killed, "read", read)
    assert known(killed) == {b"a": (0, 119)}
    assert min(reads) > 60, "only what came after the file was read"
    log.close()


@pytest.mark.parametrize("compact", [False, True])
def test_what_the_cleaner_removes_is_known_afterwards(tmp_path: Path, compact: bool) -> None:
    options: dict[str, Any] = {"compact": True} if compact else {"retention_records_max": 1}
    log = open_log(tmp_path, segment_bytes_max=1000, **options)
    for sequence in range(30):
        publish(log, (b"a", sequence))
    publish(log, (b"b", 0))
    log.roll()
    plain(log)
    before = log.record_count
    clean(log)
    assert log.record_count < before
    for _ in range(2):
        assert known(log) == {b"a": (0, 29), b"b": (0, 0)}
        log.close()
        log = open_log(tmp_path, segment_bytes_max=1000, **options)
    log.close()


def test_what_retention_removes_is_known_afterwards(tmp_path: Path) -> None:
    log = open_log(tmp_path, retention_records_max=1)
    batch = new_batch()
    batch.add(None, b"", [(name.encode(), value) for name, value in producer_headers(b"a", 0, 0).items()])
    log.append(batch, leader_epoch=1)
    log.roll()
    plain_batch = new_batch()
    plain_batch.add(None, b"plain")
    log.append(plain_batch, leader_epoch=1)
    log.advance_high_watermark(0)
    clean(log)
    assert log.log_start_offset == 1
    assert known(log) == {b"a": (0, 0)}
    log.close()
    log = open_log(tmp_path, retention_records_max=1)
    assert known(log) == {b"a": (0, 0)}
    log.close()


@pytest.mark.parametrize("position", [0, 5, 8, 20, -1])
def test_a_damaged_file_is_made_again(tmp_path: Path, position: int) -> None:
    log = open_log(tmp_path)
    publish(log, (b"a", 0), (b"b", 0))
    log.producers.save()
    log.close()
    data = bytearray((tmp_path / "producers").read_bytes())
    data[position] ^= 0x10
    (tmp_path / "producers").write_bytes(data)
    log = open_log(tmp_path)
    assert known(log) == {b"a": (0, 0), b"b": (0, 0)}
    log.close()


def test_a_file_of_what_was_cut_and_written_anew_is_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    publish(log, (b"a", 0))
    publish(log, (b"a", 1), (b"a", 2))
    log.producers.save()
    saved = (tmp_path / "producers").read_bytes()
    log.truncate(1, allow_committed=True)
    assert known(log) == {b"a": (0, 0)}
    plain(log, 5, leader_epoch=2)
    log.close()
    (tmp_path / "producers").write_bytes(saved)  # as if its removal had been lost with the power
    log = open_log(tmp_path)
    assert known(log) == {b"a": (0, 0)}
    log.close()


def test_a_log_that_begins_elsewhere_knows_nobody(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    publish(log, (b"a", 0))
    log.producers.save()
    log.reset_to(100)
    assert known(log) == {}
    log.close()
    log = open_log(tmp_path)
    assert known(log) == {}
    log.close()


def test_damage_costs_the_producers_of_the_damaged_batch_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for who in (b"a", b"b", b"c"):
        publish(log, (who, 0))
    log.close()
    (tmp_path / "producers").unlink(missing_ok=True)
    segment = tmp_path / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    log = open_log(tmp_path)
    assert known(log) == {b"a": (0, 0), b"c": (0, 0)}
    log.close()


def test_a_full_disk_keeps_nobody_from_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = PosixDisk()
    log = PartitionLog(str(tmp_path), LogOptions(), pool=FilePool(disk, 16), disk=disk)
    publish(log, (b"a", 0))

    def full(*_: object) -> None:
        raise DiskFull("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write", full)
        log.producers.save()
    assert known(log) == {b"a": (0, 0)}
    assert not (tmp_path / "producers").exists()
    log.producers.save()
    assert (tmp_path / "producers").exists()
    log.close()


def test_without_producers_a_small_log_has_no_file_and_a_large_one_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    plain(log, 10)
    log.producers.save()
    assert not (tmp_path / "producers").exists()
    monkeypatch.setattr(limits, "PRODUCERS_FILE_LOG_BYTES_MIN", 1)
    plain(log)
    log.producers.save()
    assert (tmp_path / "producers").exists()
    monkeypatch.setattr(log, "read", lambda *_, **__: pytest.fail("there is nothing to read"))
    plain(log)
    assert known(log) == {}
    log.close()
