"""Readers that go forward: where they start, where they stop, what wakes them and how they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from bascule.errors import (
    CorruptBatch,
    EndOfReadonlyLog,
    LogClosed,
    LogDeleted,
    OffsetOutOfRange,
    ReaderCancelled,
    StorageError,
)
from bascule.log import BatchSlice, LogReader, PartitionLog, SyncPolicy
from bascule.log.cleaning.cleaner import apply_retention
from bascule.log.cleaning.compactor import compact
from tests.unit.log.log_helpers import (
    PATIENCE,
    Logs,
    WatchedDisk,
    batch_positions,
    commit_all,
    flip,
    in_thread,
    log_files,
    outcome_of,
    put,
    put_batch,
    put_values,
    refuse,
    waiting_event,
)


def read_available(reader: LogReader) -> list[int]:
    """Offsets that can be read without waiting."""
    found: list[int] = []
    while (piece := reader.poll()) is not None:
        found += [record.offset for record in piece.records()]
    return found


def offsets_in(piece: object) -> list[int]:
    assert isinstance(piece, BatchSlice), piece
    return [record.offset for record in piece.records()]


def filled(logs: Logs, count: int = 6, committed: int = 3, segment_bytes_max: int = 130) -> PartitionLog:
    """`count` records in segments of two, the high watermark at `committed`."""
    log = logs.open(segment_bytes_max=segment_bytes_max)
    put_values(log, count)
    log.advance_high_watermark(committed)
    return log


# ── where it starts and stops ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("start", range(7))
def test_an_uncommitted_reader_goes_from_its_start_to_the_end(logs: Logs, start: int) -> None:
    assert read_available(LogReader(filled(logs), start, committed=False)) == list(range(start, 6))


@pytest.mark.parametrize("start", range(7))
def test_a_committed_reader_stops_at_the_high_watermark(logs: Logs, start: int) -> None:
    assert read_available(LogReader(filled(logs), start)) == list(range(start, 4))


def test_a_committed_reader_stops_at_the_high_watermark_and_then_goes_on(logs: Logs) -> None:
    log = filled(logs)
    reader = LogReader(log, 0)
    assert read_available(reader) == [0, 1, 2, 3]
    log.advance_high_watermark(4)
    assert read_available(reader) == [4]
    log.advance_high_watermark(5)
    assert read_available(reader) == [5]


def test_a_high_watermark_in_the_middle_of_a_batch_shows_its_first_records(logs: Logs) -> None:
    log = logs.open()
    put_batch(log, *[(None, b"x")] * 5)
    log.advance_high_watermark(2)
    reader = LogReader(log, 0)
    assert read_available(reader) == [0, 1, 2]
    commit_all(log)
    assert read_available(reader) == [3, 4]


def test_a_start_in_the_middle_of_a_batch_leaves_out_what_lies_before(logs: Logs) -> None:
    log = logs.open()
    put_batch(log, *[(None, b"x")] * 5)
    assert read_available(LogReader(log, 3, committed=False)) == [3, 4]


@pytest.mark.parametrize("committed", [True, False])
def test_below_the_oldest_offset_a_reader_starts_at_the_first_one_there(logs: Logs, committed: bool) -> None:
    log = logs.open(segment_bytes_max=1, retention_records_max=4)
    put_values(log, 10)
    commit_all(log)
    apply_retention(log)
    assert read_available(LogReader(log, 0, committed=committed)) == [6, 7, 8, 9]


def test_a_start_beyond_the_end_means_the_next_record(logs: Logs) -> None:
    log = filled(logs)
    reader = LogReader(log, 1_000, committed=False)
    assert read_available(reader) == []
    put_values(log, 1)
    assert read_available(reader) == [6]


def test_a_start_above_the_high_watermark_waits_until_it_is_committed(logs: Logs) -> None:
    log = filled(logs, committed=1)
    reader = LogReader(log, 4)
    assert read_available(reader) == []
    log.advance_high_watermark(3)
    assert read_available(reader) == []
    commit_all(log)
    assert read_available(reader) == [4, 5]


def test_an_uncommitted_read_beyond_the_end_is_an_error(logs: Logs) -> None:
    log = filled(logs)
    assert log.read(6, committed=False) is None
    with pytest.raises(OffsetOutOfRange, match="offset 7"):
        log.read(7, committed=False)


def test_bytes_max_limits_a_slice_but_never_below_one_batch(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 6, size=100)
    size = log.size_bytes // 6
    reader = LogReader(log, 0, committed=False, bytes_max=2 * size)
    assert offsets_in(reader.poll()) == [0, 1]
    assert offsets_in(reader.poll()) == [2, 3]
    assert offsets_in(log.read(4, committed=False, bytes_max=1)) == [4]


def test_a_batch_larger_than_everything_read_at_once_comes_whole(logs: Logs) -> None:
    log = logs.open()
    put(log, (b"k", b"a"), (b"k", b"v" * 5_000_000), (b"k", b"b"))
    reader = LogReader(log, 0, committed=False, bytes_max=10)
    assert read_available(reader) == [0, 1, 2]


def test_a_reader_steps_over_what_compaction_removed(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1, compact=True)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", b"2"), (b"c", b"1"), (b"d", b"1"))
    commit_all(log)
    reader = LogReader(log, 1)
    assert compact(log) is not None
    assert read_available(reader) == [2, 3, 4, 5]


def test_a_reader_goes_on_when_its_segment_was_rewritten_under_it(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=400, compact=True)
    for number in range(20):
        put(log, (b"k%d" % (number % 2), b"%d" % number))
    commit_all(log)
    reader = LogReader(log, 0, bytes_max=1)
    assert offsets_in(reader.poll()) == [0]
    compact(log)
    rest = read_available(reader)
    assert rest == sorted(rest)
    assert rest[-2:] == [18, 19]


def test_a_reader_whose_segment_expired_goes_on_with_the_oldest_one(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1, retention_records_max=3)
    put_values(log, 10)
    commit_all(log)
    reader = LogReader(log, 0, bytes_max=1)
    assert offsets_in(reader.poll()) == [0]
    apply_retention(log)
    assert read_available(reader) == [7, 8, 9]


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_waits_on_an_empty_log_for_the_first_record(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logs.open()
    waits = waiting_event(log, monkeypatch)
    waiter = in_thread(LogReader(log, 0, committed=False).read)
    assert waits.wait(PATIENCE)
    put_values(log, 1)
    assert offsets_in(outcome_of(*waiter)) == [0]


def test_a_committed_reader_waits_on_an_empty_log_for_the_high_watermark(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logs.open()
    waits = waiting_event(log, monkeypatch)
    thread, outcome = in_thread(LogReader(log, 0).read)
    assert waits.wait(PATIENCE)
    put_values(log, 2)
    assert outcome == []
    log.advance_high_watermark(0)
    assert offsets_in(outcome_of(thread, outcome)) == [0]


@pytest.mark.parametrize("committed", [True, False])
def test_a_reader_waits_across_a_segment_roll(logs: Logs, monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
    log = filled(logs, committed=5)
    reader = LogReader(log, 0, committed=committed)
    assert read_available(reader) == [0, 1, 2, 3, 4, 5]
    waits = waiting_event(log, monkeypatch)
    waiter = in_thread(reader.read)
    assert waits.wait(PATIENCE)
    log.roll()
    put_values(log, 1)
    commit_all(log)
    assert offsets_in(outcome_of(*waiter)) == [6]
    assert log.segments.active.base_offset == 6


def test_a_blocking_read_gives_up_after_its_timeout(logs: Logs) -> None:
    reader = LogReader(filled(logs), 6, committed=False)
    assert reader.read(timeout=0.001) is None
    assert reader.next_offset == 6


def test_a_reader_can_be_asked_again_after_a_timeout(logs: Logs) -> None:
    log = filled(logs)
    reader = LogReader(log, 6, committed=False)
    assert reader.read(timeout=0.001) is None
    put_values(log, 1)
    assert offsets_in(reader.read(timeout=PATIENCE)) == [6]


def test_a_blocked_reader_can_be_cancelled(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(logs)
    waits = waiting_event(log, monkeypatch)
    reader = LogReader(log, 4)
    waiter = in_thread(reader.read)
    assert waits.wait(PATIENCE)
    reader.cancel()
    assert isinstance(outcome_of(*waiter), ReaderCancelled)


def test_a_reader_cancelled_beforehand_does_not_begin_to_wait(logs: Logs) -> None:
    reader = LogReader(filled(logs), 0)
    reader.cancel()
    with pytest.raises(ReaderCancelled):
        reader.read()


@pytest.mark.parametrize(("leave", "error"), [(PartitionLog.close, LogClosed), (PartitionLog.delete, LogDeleted)])
@pytest.mark.parametrize("committed", [True, False])
def test_a_waiting_reader_hears_that_the_log_is_gone(
    logs: Logs,
    monkeypatch: pytest.MonkeyPatch,
    leave: Callable[[PartitionLog], None],
    error: type[Exception],
    committed: bool,
) -> None:
    log = filled(logs, committed=5)
    waits = waiting_event(log, monkeypatch)
    waiter = in_thread(LogReader(log, 6, committed=committed).read)
    assert waits.wait(PATIENCE)
    leave(log)
    assert type(outcome_of(*waiter)) is error


@pytest.mark.parametrize(("leave", "error"), [(PartitionLog.close, LogClosed), (PartitionLog.delete, LogDeleted)])
def test_the_next_read_of_a_log_that_is_gone_says_so(
    logs: Logs, leave: Callable[[PartitionLog], None], error: type[Exception]
) -> None:
    log = filled(logs)
    reader = LogReader(log, 0)
    leave(log)
    with pytest.raises(error) as caught:
        reader.poll()
    assert type(caught.value) is error


def test_a_waiting_reader_hears_of_the_close_although_the_last_sync_failed(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 1)
    waits = waiting_event(log, monkeypatch)
    waiter = in_thread(LogReader(log, 1, committed=False).read)
    assert waits.wait(PATIENCE)
    disk.before = refuse("sync")
    with pytest.raises(StorageError):
        log.close()
    assert isinstance(outcome_of(*waiter), LogClosed)


def test_many_waiting_readers_all_get_the_record(logs: Logs) -> None:
    log = logs.open()
    waiters = [in_thread(LogReader(log, 0, committed=False).read) for _ in range(20)]
    put_values(log, 1)
    assert [offsets_in(outcome_of(*waiter)) for waiter in waiters] == [[0]] * 20


def test_readers_follow_a_writer_without_missing_anything(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=500)

    def follow(committed: bool) -> list[int]:
        reader = LogReader(log, 0, committed=committed, bytes_max=200)
        found: list[int] = []
        while not found or found[-1] < 499:
            found += offsets_in(reader.read())
        return found

    followers = [in_thread(partial(follow, committed)) for committed in (True, False, True, False)]
    for _ in range(500):
        put_values(log, 1)
        commit_all(log)
    for follower in followers:
        assert outcome_of(*follower) == list(range(500))


# ── waiting in an event loop ─────────────────────────────────────────────────────────────────────


def test_an_asyncio_reader_waits_for_a_record_from_another_thread(logs: Logs) -> None:
    log = logs.open()

    async def scenario() -> list[int]:
        task = asyncio.create_task(LogReader(log, 0, committed=False).next())
        await asyncio.sleep(0)
        thread = threading.Thread(target=put_values, args=(log, 1))
        thread.start()
        found = await asyncio.wait_for(task, PATIENCE)
        thread.join()
        return offsets_in(found)

    assert asyncio.run(scenario()) == [0]


def test_an_asyncio_reader_waits_for_the_high_watermark(logs: Logs) -> None:
    log = filled(logs, committed=-1)

    async def scenario() -> list[int]:
        task = asyncio.create_task(LogReader(log, 0).next())
        await asyncio.sleep(0)
        assert not task.done()
        log.advance_high_watermark(1)
        return offsets_in(await asyncio.wait_for(task, PATIENCE))

    assert asyncio.run(scenario()) == [0, 1]


def test_an_asyncio_reader_can_be_cancelled_by_its_owner(logs: Logs) -> None:
    log = filled(logs)

    async def scenario() -> None:
        reader = LogReader(log, 4)
        task = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(ReaderCancelled):
            await asyncio.wait_for(task, PATIENCE)

    asyncio.run(scenario())


def test_a_cancelled_task_leaves_its_reader_usable(logs: Logs) -> None:
    log = filled(logs)

    async def scenario() -> list[int]:
        reader = LogReader(log, 4)
        task = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        commit_all(log)
        return offsets_in(await asyncio.wait_for(reader.next(), PATIENCE))

    assert asyncio.run(scenario()) == [4, 5]


def test_a_wake_up_for_a_loop_that_was_closed_is_harmless(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(logs)
    callbacks: list[Callable[[], None]] = []
    register = log.call_when_readable

    def remember(owner: object, offset: int, callback: Callable[[], None], *, committed: bool) -> bool:
        callbacks.append(callback)
        return register(owner, offset, callback, committed=committed)

    monkeypatch.setattr(log, "call_when_readable", remember)
    reader = LogReader(log, 4)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(reader.next(), 0.001))
    assert len(callbacks) == 1
    callbacks[0]()  # the loop it was made for is gone
    commit_all(log)
    assert offsets_in(reader.poll()) == [4, 5]


def test_an_asyncio_reader_hears_that_the_log_was_deleted(logs: Logs) -> None:
    log = filled(logs)

    async def scenario() -> None:
        task = asyncio.create_task(LogReader(log, 4).next())
        await asyncio.sleep(0)
        await asyncio.to_thread(log.delete)
        with pytest.raises(LogDeleted):
            await asyncio.wait_for(task, PATIENCE)

    asyncio.run(scenario())


# ── the end of a readonly log ────────────────────────────────────────────────────────────────────


def test_a_committed_reader_at_the_end_of_a_readonly_log_is_done(logs: Logs) -> None:
    log = filled(logs, committed=5)
    log.set_readonly(True)
    reader = LogReader(log, 0)
    found: list[int] = []
    with pytest.raises(EndOfReadonlyLog):
        while (piece := reader.poll()) is not None:
            found += offsets_in(piece)
    assert found == [0, 1, 2, 3, 4, 5]


def test_an_empty_readonly_log_is_at_its_end(logs: Logs) -> None:
    log = logs.open()
    log.set_readonly(True)
    with pytest.raises(EndOfReadonlyLog):
        LogReader(log, 0).read()


def test_the_end_of_a_readonly_log_is_not_reached_below_uncommitted_records(logs: Logs) -> None:
    log = filled(logs, committed=3)
    log.set_readonly(True)
    reader = LogReader(log, 0)
    assert read_available(reader) == [0, 1, 2, 3]
    assert reader.poll() is None


def test_an_uncommitted_reader_goes_on_waiting_on_a_readonly_log(logs: Logs) -> None:
    log = filled(logs, committed=5)
    log.set_readonly(True)
    assert LogReader(log, 6, committed=False).poll() is None


def test_a_waiting_reader_is_woken_when_the_log_becomes_readonly(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(logs, committed=5)
    waits = waiting_event(log, monkeypatch)
    waiter = in_thread(LogReader(log, 6).read)
    assert waits.wait(PATIENCE)
    log.set_readonly(True)
    assert isinstance(outcome_of(*waiter), EndOfReadonlyLog)


@pytest.mark.parametrize("start", [4, 6])
def test_waiting_readers_are_woken_when_the_last_record_of_a_readonly_log_is_committed(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    log = filled(logs, committed=3)
    log.set_readonly(True)
    waits = waiting_event(log, monkeypatch)

    def read_to_the_end() -> None:
        reader = LogReader(log, start)
        while True:
            reader.read()

    waiter = in_thread(read_to_the_end)
    assert waits.wait(PATIENCE)
    commit_all(log)
    assert isinstance(outcome_of(*waiter), EndOfReadonlyLog)


def test_records_committed_between_reading_and_looking_for_the_end_are_not_skipped(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(logs, committed=3)
    log.set_readonly(True)
    reader = LogReader(log, 4)
    read = log.read

    def read_then_commit(*given: int, **named: bool) -> BatchSlice | None:
        found = read(*given, **named)
        commit_all(log)
        return found

    monkeypatch.setattr(log, "read", read_then_commit)
    found = reader.poll() or reader.poll()
    assert offsets_in(found) == [4, 5]


def test_a_readonly_log_does_not_end_before_records_that_are_committed_but_not_synced(logs: Logs) -> None:
    log = logs.open(sync=SyncPolicy.ALWAYS, disk=WatchedDisk(refuse("sync", ".log")))
    put_batch(log, *[(None, b"x")] * 3)
    commit_all(log)
    log.set_readonly(True)
    assert log.readable_end_offset(committed=True) == 0
    assert LogReader(log, 0).poll() is None


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def test_a_read_error_of_the_disk_surfaces(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 3)
    reader = LogReader(log, 0, committed=False)
    disk.before = refuse("read", ".log")
    with pytest.raises(StorageError, match="planted"):
        reader.poll()
    disk.before = None
    assert read_available(reader) == [0, 1, 2]


@pytest.mark.parametrize("byte", [0, 5, 8, 10, 12, 16, 24, 40, 60])
def test_damage_is_named_and_the_rest_can_be_read(logs: Logs, byte: int) -> None:
    log = logs.open()
    put_values(log, 6, size=50)
    path = log_files(log)[0]
    position = batch_positions(path)[2]
    flip(path, position + byte)
    reader = LogReader(log, 0, committed=False, bytes_max=1)
    found: list[int] = []
    with pytest.raises(CorruptBatch) as caught:
        while (piece := reader.poll()) is not None:
            found += offsets_in(piece)
    assert found == [0, 1]
    damage = caught.value
    assert (damage.file, damage.position, damage.first_offset, damage.next_offset) == (str(path), position, 2, 3)
    reader.skip_to(3)
    assert read_available(reader) == [3, 4, 5]


def test_damage_in_one_segment_leaves_the_others_readable(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=1)
    put_values(log, 4)
    flip(log_files(log)[1], 57)
    reader = LogReader(log, 0, committed=False)
    assert offsets_in(reader.poll()) == [0]
    with pytest.raises(CorruptBatch) as caught:
        reader.poll()
    assert caught.value.next_offset == 2
    reader.skip_to(2)
    assert read_available(reader) == [2, 3]


def test_a_segment_that_lost_its_end_under_a_running_log_is_reported_as_damage(logs: Logs) -> None:
    log = logs.open(segment_bytes_max=300)
    put_values(log, 10)
    path = log_files(log)[0]
    with path.open("r+b") as file:
        file.truncate(batch_positions(path)[2] + 10)
    reader = LogReader(log, 0, committed=False, bytes_max=1)
    assert offsets_in(reader.poll()) == [0]
    assert offsets_in(reader.poll()) == [1]
    _, outcome = waiter = in_thread(reader.poll)
    assert isinstance(outcome_of(*waiter), CorruptBatch), outcome


# ── being told ───────────────────────────────────────────────────────────────────────────────────


def test_who_is_behind_is_told_at_once(logs: Logs) -> None:
    log = filled(logs)
    called: list[int] = []
    assert not log.call_when_readable("me", 5, lambda: called.append(1), committed=False)
    put_values(log, 1)
    assert called == []


def test_who_is_up_to_date_is_called_by_the_next_append_and_only_once(logs: Logs) -> None:
    log = filled(logs)
    called: list[int] = []
    assert log.call_when_readable("me", 6, lambda: called.append(1), committed=False)
    put_values(log, 2)
    assert called == [1]


def test_the_same_waiter_registers_once(logs: Logs) -> None:
    log = filled(logs)
    called: list[str] = []
    assert log.call_when_readable("me", 6, lambda: called.append("first"), committed=False)
    assert log.call_when_readable("me", 6, lambda: called.append("second"), committed=False)
    assert log.call_when_readable("you", 6, lambda: called.append("other"), committed=False)
    put_values(log, 1)
    assert sorted(called) == ["first", "other"]


def test_a_waiter_that_stopped_waiting_is_not_called(logs: Logs) -> None:
    log = filled(logs)
    called: list[int] = []
    log.call_when_readable("me", 6, lambda: called.append(1), committed=False)
    log.stop_waiting("me")
    put_values(log, 1)
    assert called == []


def test_a_waiter_for_the_high_watermark_is_not_called_by_an_append(logs: Logs) -> None:
    log = filled(logs)
    called: list[int] = []
    assert log.call_when_readable("me", 4, lambda: called.append(1))
    put_values(log, 1)
    assert called == []
    log.advance_high_watermark(4)
    assert called == [1]


def test_sealing_a_segment_wakes_those_who_wait_for_its_end(logs: Logs) -> None:
    log = filled(logs)
    called: list[int] = []
    assert log.call_when_readable("me", 6, lambda: called.append(1), committed=False)
    log.roll()
    assert called == [1]


@pytest.mark.parametrize("reads_back", [False, True])
def test_a_read_that_the_disk_refuses_names_the_file_and_the_next_one_succeeds(logs: Logs, reads_back: bool) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 3)
    read = log.read_reverse if reads_back else log.read
    disk.before = refuse("read", ".log")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"0{20}\.log: .*planted") as failed:
            read(1, committed=False)
        assert not isinstance(failed.value, CorruptBatch)
    put_values(log, 1)
    disk.before = None
    assert read(1, committed=False) is not None
    assert log.log_end_offset == 4
