"""What is on the platter, who waits for it, and what happens when the disk says no."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bascule import limits
from bascule.errors import LogClosed, StorageError
from bascule.log import BatchSlice, LogOptions, LogReader, PartitionLog, SyncPolicy
from bascule.log.disk.files import FilePool
from bascule.log.sync.group_commit import Syncer
from tests.unit.log.log_helpers import (
    PATIENCE,
    Logs,
    WatchedDisk,
    commit_all,
    everything,
    in_thread,
    log_files,
    offsets,
    outcome_of,
    put_values,
    refuse,
    waiting_event,
)


class GatedDisk(WatchedDisk):
    """Syncs of segments wait until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()

    def sync(self, handle: int) -> None:
        self.waits.set()
        assert self.gate.wait(PATIENCE)
        super().sync(handle)


# ── written and synced ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", list(SyncPolicy))
def test_everything_is_synced_after_a_sync(logs: Logs, policy: SyncPolicy) -> None:
    log = logs.open(sync=policy)
    put_values(log, 3)
    log.sync()
    assert log.synced_end_offset == log.log_end_offset == 3


@pytest.mark.parametrize("policy", [SyncPolicy.ACK, SyncPolicy.INTERVAL])
def test_an_append_returns_before_it_is_synced(logs: Logs, policy: SyncPolicy) -> None:
    disk = WatchedDisk()
    log = logs.open(sync=policy, disk=disk)
    put_values(log, 3)
    assert (log.log_end_offset, log.synced_end_offset) == (3, 0)
    assert not [name for name in disk.names("sync") if name.endswith(".log")]


@pytest.mark.parametrize("policy", [SyncPolicy.ACK, SyncPolicy.INTERVAL])
def test_committed_records_are_visible_before_they_are_synced(logs: Logs, policy: SyncPolicy) -> None:
    log = logs.open(sync=policy)
    put_values(log, 3)
    commit_all(log)
    assert log.synced_end_offset == 0
    assert offsets(log, committed=True) == [0, 1, 2]


def test_under_always_nothing_is_visible_before_it_is_synced(logs: Logs) -> None:
    disk = GatedDisk()
    disk.gate.clear()
    log = logs.open(sync=SyncPolicy.ALWAYS, disk=disk)
    put_values(log, 3)
    commit_all(log)
    assert log.readable_end_offset(committed=True) == 0
    assert offsets(log, committed=True) == []
    assert offsets(log, committed=False) == [0, 1, 2]
    waiter = in_thread(LogReader(log, 0).read)
    synced = threading.Event()
    assert log.call_when_synced("me", 2, synced.set)
    disk.gate.set()
    assert isinstance(outcome_of(*waiter), BatchSlice)
    assert synced.wait(PATIENCE)
    assert offsets(log, committed=True) == [0, 1, 2]


def test_under_always_an_append_asks_for_its_sync_itself(logs: Logs) -> None:
    log = logs.open(sync=SyncPolicy.ALWAYS)
    done = threading.Event()
    put_values(log, 1)
    assert not log.call_when_synced("me", 0, done.set) or done.wait(PATIENCE)
    assert log.synced_end_offset == 1


def test_the_name_of_a_policy_does_as_well(logs: Logs) -> None:
    options = LogOptions(sync="always")  # type: ignore[arg-type]
    assert options.sync is SyncPolicy.ALWAYS
    log = logs.open(options=options, disk=WatchedDisk(refuse("sync", ".log")))
    put_values(log, 1)
    commit_all(log)
    assert log.readable_end_offset(committed=True) == 0


def test_every_interval_what_was_written_is_synced(tmp_path: Path) -> None:
    synced = threading.Event()

    def note(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log"):
            synced.set()

    syncer = Syncer(interval_ms=1)
    disk = WatchedDisk(note)
    log = PartitionLog(
        str(tmp_path / "log"), LogOptions(sync=SyncPolicy.INTERVAL), pool=FilePool(disk, 8), syncer=syncer
    )
    for _ in range(3):
        synced.clear()
        put_values(log, 1)
        assert synced.wait(PATIENCE)
    log.close()
    syncer.close()


def test_the_checkpoint_is_written_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_MS", 1)
    written = threading.Event()

    def note(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith("/checkpoint.tmp"):
            written.set()

    syncer = Syncer(interval_ms=1)
    log = PartitionLog(str(tmp_path / "log"), pool=FilePool(WatchedDisk(note), 8), syncer=syncer)
    log.open()
    written.clear()
    put_values(log, 1)
    assert written.wait(PATIENCE)
    log.close()
    syncer.close()


def test_a_sync_covers_the_segments_that_were_sealed_since_the_last_one(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk, segment_bytes_max=1)
    put_values(log, 4)
    disk.seen.clear()
    log.sync()
    synced = [name for name in disk.names("sync") if name.endswith(".log")]
    assert sorted(synced) == [f"{base:020d}.log" for base in range(4)]
    assert disk.count("sync_directory") > 0


def test_a_second_sync_with_nothing_new_does_not_touch_the_disk(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 1)
    log.sync()
    disk.seen.clear()
    log.sync()
    assert disk.count("sync") == 0


def test_closing_syncs_what_was_written(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 3)
    log.close()
    log = logs.reopen(log)
    assert log.open().verified_bytes == 0
    assert log.synced_end_offset == 3


def test_appends_go_on_while_a_sync_is_under_way(logs: Logs) -> None:
    disk = GatedDisk()
    log = logs.open(disk=disk)
    put_values(log, 1)
    disk.waits.clear()
    disk.gate.clear()
    sync = in_thread(log.sync)
    assert disk.waits.wait(PATIENCE)
    put_values(log, 2)
    assert log.log_end_offset == 3
    disk.gate.set()
    assert outcome_of(*sync) is None
    assert log.synced_end_offset == 1, "only what was written when the sync began"


# ── being told ───────────────────────────────────────────────────────────────────────────────────


def test_whoever_waits_is_called_once_when_the_record_is_synced(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 2)
    called: list[int] = []
    done = threading.Event()

    def note() -> None:
        called.append(log.synced_end_offset)
        done.set()

    assert log.call_when_synced("me", 1, note)
    assert done.wait(PATIENCE)
    assert called == [2]
    assert not log.call_when_synced("me", 1, note)
    log.sync()
    assert called == [2]


def test_who_asks_for_a_synced_record_is_told_at_once(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 2)
    log.sync()
    called: list[int] = []
    assert not log.call_when_synced("me", 1, lambda: called.append(1))
    assert called == []


def test_a_waiter_for_a_later_record_is_not_called_by_an_earlier_sync(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 2)
    called: list[int] = []
    assert log.call_when_synced("me", 5, lambda: called.append(1))
    log.sync()
    assert called == []
    put_values(log, 4)
    log.sync()
    assert called == [1]


def test_many_requests_at_once_take_fewer_rounds(tmp_path: Path) -> None:
    """Group commit: while the first round is held up all other requests gather for the second."""
    disk = GatedDisk()
    syncer = Syncer(interval_ms=3_600_000)
    log = PartitionLog(str(tmp_path / "log"), pool=FilePool(disk, 8), syncer=syncer)
    put_values(log, 1)
    disk.waits.clear()
    disk.gate.clear()
    events = [threading.Event() for _ in range(50)]
    assert log.call_when_synced(0, 0, events[0].set)
    assert disk.waits.wait(PATIENCE)
    for number in range(1, 50):
        put_values(log, 1)
        assert log.call_when_synced(number, number, events[number].set)
    disk.gate.set()
    assert all(event.wait(PATIENCE) for event in events)
    assert syncer.rounds == 2
    assert log.synced_end_offset == 50
    log.close()
    syncer.close()


def test_one_round_serves_many_logs(tmp_path: Path) -> None:
    disk = GatedDisk()
    syncer = Syncer(interval_ms=3_600_000)
    pool = FilePool(disk, 64)
    opened = [PartitionLog(str(tmp_path / f"{number}"), pool=pool, syncer=syncer) for number in range(10)]
    for log in opened:
        put_values(log, 1)
    disk.waits.clear()
    disk.gate.clear()
    events = [threading.Event() for _ in opened]
    assert opened[0].call_when_synced("me", 0, events[0].set)
    assert disk.waits.wait(PATIENCE)
    for log, event in zip(opened[1:], events[1:], strict=True):
        assert log.call_when_synced("me", 0, event.set)
    disk.gate.set()
    assert all(event.wait(PATIENCE) for event in events)
    assert syncer.rounds == 2
    for log in opened:
        log.close()
    syncer.close()


# ── a sync that fails ────────────────────────────────────────────────────────────────────────────


def failed(logs: Logs) -> tuple[PartitionLog, WatchedDisk]:
    """Two synced records, one that could not be synced."""
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 2)
    log.settle()
    put_values(log, 1)
    disk.before = refuse("sync", ".log")
    with pytest.raises(StorageError, match="planted"):
        log.sync()
    disk.before = None
    return log, disk


def test_after_a_failed_sync_the_log_refuses_appends_and_says_why(logs: Logs) -> None:
    log, _ = failed(logs)
    with pytest.raises(StorageError, match=r"refuses appends after a failure: .*planted") as caught:
        put_values(log, 1)
    assert "restart the server" in str(caught.value.hint)
    assert log.log_end_offset == 3


def test_after_a_failed_sync_a_second_one_does_not_pretend_to_succeed(logs: Logs) -> None:
    log, _ = failed(logs)
    with pytest.raises(StorageError):
        log.sync()
    assert log.synced_end_offset == 2


def test_after_a_failed_sync_the_log_can_still_be_read(logs: Logs) -> None:
    log, _ = failed(logs)
    assert offsets(log) == [0, 1, 2]


def test_after_a_failed_sync_nobody_is_told_that_the_record_is_synced(logs: Logs) -> None:
    log, _ = failed(logs)
    called: list[int] = []
    assert not log.call_when_synced("me", 1, lambda: called.append(1)), "this one was synced before"
    with pytest.raises(StorageError, match="refuses appends"):
        log.call_when_synced("me", 2, lambda: called.append(2))
    assert called == []


def test_a_failed_sync_wakes_those_who_wait_for_it(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = WatchedDisk()
    log = logs.open(disk=disk)
    put_values(log, 1)
    waits = waiting_event(log, monkeypatch)
    reader = LogReader(log, 0)
    waiter = in_thread(reader.read)
    assert waits.wait(PATIENCE)
    woken = threading.Event()
    disk.before = refuse("sync", ".log")
    assert log.call_when_synced("me", 0, woken.set)
    assert woken.wait(PATIENCE)
    with pytest.raises(StorageError, match="refuses appends"):
        log.call_when_synced("me", 0, woken.set)
    disk.before = None
    reader.cancel()
    outcome_of(*waiter)


def test_a_failed_log_closes_and_opens_again_with_what_is_on_the_disk(logs: Logs) -> None:
    log, _ = failed(logs)
    before = everything(log)
    log = logs.reopen(log)
    assert everything(log) == before
    assert log.open().verified_bytes > 0, "what was not synced is verified"
    assert put_values(log, 1) == 3
    log.sync()
    assert log.synced_end_offset == 4


def test_a_failed_log_writes_no_checkpoint_that_promises_too_much(logs: Logs) -> None:
    log, _ = failed(logs)
    log.close()
    path = log_files(log)[0]
    size = path.stat().st_size
    with path.open("r+b") as file:  # the kernel threw the unsynced page away
        file.truncate(size - 10)
    log = logs.reopen(log)
    assert offsets(log) == [0, 1]


def test_a_failing_log_does_not_stop_the_sync_thread_for_others(tmp_path: Path) -> None:
    syncer = Syncer(interval_ms=3_600_000)
    bad = PartitionLog(str(tmp_path / "bad"), pool=FilePool(WatchedDisk(refuse("sync", ".log")), 8), syncer=syncer)
    good = PartitionLog(str(tmp_path / "good"), syncer=syncer)
    put_values(bad, 1)
    put_values(good, 1)
    bad_called, good_called = threading.Event(), threading.Event()
    assert bad.call_when_synced("me", 0, bad_called.set)
    assert bad_called.wait(PATIENCE)
    assert good.call_when_synced("me", 0, good_called.set)
    assert good_called.wait(PATIENCE)
    assert (bad.synced_end_offset, good.synced_end_offset) == (0, 1)
    bad.close()
    good.close()
    syncer.close()


def test_asking_a_closed_log_raises(logs: Logs) -> None:
    log = logs.open()
    put_values(log, 1)
    log.close()
    with pytest.raises(LogClosed):
        log.call_when_synced("me", 0, lambda: None)


def test_the_folders_of_a_new_log_are_synced_too(logs: Logs) -> None:
    disk = WatchedDisk()
    log = logs.open("stream/0", disk=disk)
    put_values(log, 1)
    log.sync()
    assert disk.names("sync_directory")[:3] == ["0", "stream", logs.root.name]
