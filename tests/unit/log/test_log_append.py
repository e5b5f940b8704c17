"""Appending, and what a log remembers across a stop, a crash and a full disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bascule.errors import DiskFull, InvalidRecord, LogClosed, LogDeleted, LogReadonly, StorageError
from bascule.log import PartitionLog
from bascule.log.partition.batches import new_batch
from tests.unit.log.log_helpers import (
    NOW,
    Logs,
    WatchedDisk,
    bases,
    batch_of,
    batch_positions,
    commit_all,
    everything,
    flip,
    log_files,
    offsets,
    pairs,
    put,
    put_batch,
    put_values,
    refuse,
)


def test_a_new_log_is_empty(logs: Logs) -> None:
    log = logs.open()
    assert log.log_end_offset == 0
    assert log.newest_offset == -1
    assert log.oldest_offset == -1
    assert log.high_watermark == -1
    assert log.record_count == 0
    assert log.size_bytes == 0
    assert everything(log) == []


def test_append_returns_consecutive_offsets(logs: Logs) -> None:
    log = logs.open()
    landed = [log.append(batch_of([(None, b"x")] * count)) for count in (1, 3, 1, 2)]
    assert [(one.base_offset, one.last_offset) for one in landed] == [(0, 0), (1, 3), (4, 4), (5, 6)]
    assert offsets(log) == [0, 1, 2, 3, 4, 5, 6]


def test_offsets_go_on_across_segments_and_a_reopen(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1)
    assert put_values(log, 3) == 2
    log = logs.reopen(log)
    assert put_values(log, 1) == 3
    assert bases(log) == [0, 1, 2, 3]


def test_oldest_and_newest_are_the_first_and_last_record(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 5)
    assert (log.oldest_offset, log.newest_offset, log.log_end_offset) == (0, 4, 5)


def test_a_record_comes_back_as_it_was_written(logs: Logs) -> None:
    log = logs.open()
    batch = new_batch()
    batch.add(b"k", b"v", [(b"a", b"1"), (b"b", b"")], b"orders.eu", b"_INBOX.1", 7)
    batch.add(None, None)
    batch.add(b"", b"")
    log.append(batch, leader_epoch=3, timestamp=NOW)
    first, second, third = everything(log)
    assert (first.key, first.value, first.subject, first.reply) == (b"k", b"v", b"orders.eu", b"_INBOX.1")
    assert first.headers == ((b"a", b"1"), (b"b", b""))
    assert (first.offset, first.timestamp, first.leader_epoch) == (0, NOW + 7, 3)
    assert (second.key, second.value) == (None, None)
    assert (third.key, third.value) == (b"", b"")


def test_a_builder_can_be_used_again_after_an_append(logs: Logs) -> None:
    log = logs.open()
    batch = batch_of([(b"a", b"1")])
    log.append(batch)
    batch.clear()
    batch.add(b"b", b"2")
    log.append(batch)
    assert pairs(log) == [(b"a", b"1"), (b"b", b"2")]


def test_counts_and_sizes_are_those_of_the_files(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=200)
    put_values(log, 7)
    assert log.record_count == 7
    assert log.size_bytes == sum(path.stat().st_size for path in log_files(log))


def test_an_empty_batch_is_refused(logs: Logs) -> None:
    log = logs.open()
    with pytest.raises(InvalidRecord):
        log.append(new_batch())
    assert log.log_end_offset == 0


def test_a_closed_log_keeps_all_messages_and_the_high_watermark(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=300)
    put_values(log, 10)
    log.advance_high_watermark(6)
    before = everything(log)
    log = logs.reopen(log)
    assert everything(log) == before
    assert log.high_watermark == 6
    assert (log.oldest_offset, log.newest_offset) == (0, 9)
    assert log.open().is_clean


def test_opening_after_a_clean_stop_reads_no_segment(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=200)
    put_values(log, 10)
    disk = WatchedDisk()
    log = logs.reopen(log, disk=disk)
    assert log.open().verified_bytes == 0
    assert not [name for name in disk.names("read") if name.endswith(".log")]


def test_a_crash_keeps_what_reached_the_files(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=300)
    put_values(log, 10)
    before = everything(log)
    assert everything(logs.after_crash(log)) == before


def test_the_high_watermark_only_moves_up_and_never_beyond_the_end(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 5)
    assert log.advance_high_watermark(3) == 3
    assert log.advance_high_watermark(1) == 3
    assert log.advance_high_watermark(99) == 4


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", b"5", b"\x00" * 200])
def test_a_checkpoint_that_is_lost_or_garbage_costs_the_high_watermark_but_no_record(
    logs: Logs, content: bytes | None
) -> None:
    log = logs.open(segment_bytes_max=300)
    put_values(log, 10)
    commit_all(log)
    before = everything(log)
    log.close()
    checkpoint = Path(log.directory, "checkpoint")
    if content is None:
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(content)
    log = logs.reopen(log)
    assert everything(log) == before
    assert log.high_watermark == -1
    assert log.open().rebuilt


def test_a_torn_tail_is_cut_and_reported(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 5)
    log.settle()
    put_values(log, 3)
    crashed = logs.after_crash(log)
    path = log_files(crashed)[0]
    torn = batch_positions(path)[7] + 20
    with path.open("r+b") as file:
        file.truncate(torn)
    report = crashed.open()
    assert offsets(crashed) == [0, 1, 2, 3, 4, 5, 6]
    assert (report.cut_bytes, report.cut_from_offset) == (20, 7)
    assert path.stat().st_size == torn - 20
    assert "not synced" in report.lines()[0]


def test_appends_go_on_behind_a_cut_tail(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 5)
    crashed = logs.after_crash(log)
    path = log_files(crashed)[0]
    with path.open("ab") as file:
        file.write(b"\x00" * 100)
    assert put(crashed, (None, b"new")) == 5
    assert everything(logs.reopen(crashed))[-1].value == b"new"


def test_damage_below_the_recovery_point_is_reported_and_not_cut(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 5)
    log.close()
    path = log_files(log)[0]
    size = path.stat().st_size
    flip(path, batch_positions(path)[2] + 60)
    Path(log.directory, "checkpoint").unlink()
    log = logs.reopen(log)
    report = log.open()
    assert [(damage.first_offset, damage.next_offset) for damage in report.damage] == [(2, 3)]
    assert path.stat().st_size == size
    assert log.log_end_offset == 5


def test_synced_segments_that_vanished_leave_their_offsets_unused(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1)
    put_values(log, 4)
    log.close()
    for path in log_files(log):
        path.unlink()
    log = logs.reopen(log)
    assert log.open().missing == [(0, 4)]
    assert put(log, (None, b"next")) == 4


def test_a_full_disk_refuses_the_append_and_keeps_nothing_of_it(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 3)
    disk.before = refuse("write", ".log", DiskFull("no room: planted"))
    size = log_files(log)[0].stat().st_size
    with pytest.raises(DiskFull):
        put(log, (None, b"too much"))
    assert log.log_end_offset == 3
    assert log_files(log)[0].stat().st_size == size
    disk.before = None
    assert put(log, (None, b"fits again")) == 3
    assert [value for _, value in pairs(log)] == [b"0", b"1", b"2", b"fits again"]


def test_a_half_written_batch_is_taken_back(logs: Logs) -> None:
    class HalfWriter(WatchedDisk):
        broken = False

        def write(self, handle: int, data: bytes | memoryview, position: int) -> None:
            if self.broken:
                super().write(handle, memoryview(data)[: len(data) // 2], position)
                raise StorageError("half of it: planted")
            super().write(handle, data, position)

    disk = HalfWriter()
    log = logs.open(disk=disk)
    put_values(log, 3)
    size = log_files(log)[0].stat().st_size
    disk.broken = True
    with pytest.raises(StorageError):
        put(log, (None, b"torn"))
    disk.broken = False
    assert log_files(log)[0].stat().st_size == size
    put(log, (None, b"whole"))
    assert offsets(logs.reopen(log)) == [0, 1, 2, 3]


def test_threads_append_without_losing_or_sharing_an_offset(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=2_000)
    taken: list[int] = []

    def append(name: bytes) -> None:
        taken.extend(put_batch(log, (name, b"%d" % number)) for number in range(200))

    threads = [threading.Thread(target=append, args=(b"%d" % number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(800))
    assert offsets(log) == list(range(800))
    for name in (b"0", b"3"):
        assert [value for key, value in pairs(log) if key == name] == [b"%d" % number for number in range(200)]


def test_a_readonly_log_refuses_appends_until_it_is_cleared(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 1)
    log.set_readonly(True)
    assert log.readonly
    with pytest.raises(LogReadonly):
        put_values(log, 1)
    assert log.log_end_offset == 1
    log.set_readonly(False)
    assert put_values(log, 1) == 1


def test_a_closed_log_refuses_everything_and_closing_twice_is_fine(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 1)
    log.close()
    log.close()
    for use in (log.open, log.sync, log.roll, lambda: put_values(log, 1), lambda: log.read(0), lambda: log.truncate(0)):
        with pytest.raises(LogClosed):
            use()


def test_delete_removes_the_files_and_the_folder(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1)
    put_values(log, 5)
    log.close()
    log = logs.reopen(log)
    log.open()
    log.delete()
    assert not Path(log.directory).exists()
    with pytest.raises(LogDeleted):
        put_values(log, 1)


def test_a_log_that_was_never_used_can_be_deleted(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 1)
    log.close()
    again = logs.open()
    again.delete()
    assert not Path(log.directory).exists()


def test_a_closed_log_can_still_be_deleted_and_a_deleted_one_stays_so(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 1)
    log.close()
    log.delete()
    assert not Path(log.directory).exists()
    log.close()
    with pytest.raises(LogDeleted):
        log.read(0)


def test_nothing_is_read_or_written_before_the_first_use(tmp_path: Path) -> None:
    log = PartitionLog(str(tmp_path / "log"))
    assert not log.is_loaded
    log.close()
    assert list(tmp_path.iterdir()) == []
