"""All logs of a data directory: few file handles, nothing for logs nobody uses, one process at a time, cleaned in the background."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bascule.errors import (
    BasculeError,
    CallerError,
    DirectoryInUse,
    EncryptionKeyError,
    LogClosed,
    LogDeleted,
    StorageError,
)
from bascule.log import LogOptions, LogReader, LogStore, PartitionLog
from bascule.log.cleaning.cleaner import CleaningReport
from tests.unit.log.log_helpers import (
    PATIENCE,
    WatchedDisk,
    commit_all,
    offsets,
    put,
    put_values,
    refuse,
    resealed,
)


def streams(store: LogStore) -> list[str]:
    return sorted(str(path.relative_to(store.directory)) for path in store.directory.rglob("*") if path.is_dir())


def test_a_log_is_the_same_object_each_time(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        log = store.log("orders", 0)
        assert store.log("orders", 0) is log
        assert store.log("orders", 1) is not log
        assert len(store) == 2
        assert list(store) == [log, store.log("orders", 1)]


def test_records_survive_the_store(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        put_values(store.log("orders", 0), 3)
        put_values(store.log("orders", 7), 5)
    with LogStore(tmp_path) as store:
        assert store.on_disk() == [("orders", 0), ("orders", 7)]
        assert offsets(store.log("orders", 7)) == [0, 1, 2, 3, 4]


# ── few handles, lazy logs ───────────────────────────────────────────────────────────────────────


def test_many_logs_share_few_file_handles(tmp_path: Path) -> None:
    with LogStore(tmp_path, open_files_max=8) as store:
        logs = [store.log(f"stream-{number}", 0, LogOptions(segment_bytes_max=100)) for number in range(50)]
        for _ in range(3):
            for log in logs:
                put_values(log, 2)
                assert store.pool.open_count <= 8
        for log in logs:
            assert offsets(log) == list(range(6))
            assert store.pool.open_count <= 8


def test_a_handle_that_was_taken_away_is_opened_again(tmp_path: Path) -> None:
    with LogStore(tmp_path, open_files_max=1) as store:
        first, second = store.log("a", 0), store.log("b", 0)
        for _ in range(5):
            put_values(first, 1)
            put_values(second, 1)
        assert offsets(first) == offsets(second) == [0, 1, 2, 3, 4]
        assert store.pool.open_count == 1


def test_threads_share_few_handles_safely(tmp_path: Path) -> None:
    with LogStore(tmp_path, open_files_max=2) as store:
        logs = [store.log(f"s{number}", 0, LogOptions(segment_bytes_max=500)) for number in range(6)]
        threads = [threading.Thread(target=put_values, args=(log, 100)) for log in logs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for log in logs:
            assert offsets(log) == list(range(100))
        assert store.pool.open_count <= 6


def test_logs_that_are_not_used_create_no_files(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        for number in range(100):
            store.log("orders", number)
        assert streams(store) == []
        assert not any(log.is_loaded for log in store)
        assert store.pool.open_count == 0
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_an_existing_log_is_not_read_before_it_is_used(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        put_values(store.log("orders", 0), 3)
    disk = WatchedDisk()
    with LogStore(tmp_path, disk=disk) as store:
        log = store.log("orders", 0)
        assert disk.seen == []
        assert log.log_end_offset == 3
        assert disk.seen != []


# ── one process at a time ────────────────────────────────────────────────────────────────────────

OPEN_A_STORE = """
import sys
from bascule.errors import DirectoryInUse
from bascule.log import LogStore
try:
    LogStore(sys.argv[1]).close()
except DirectoryInUse as error:
    print(error)
    sys.exit(3)
"""


def open_in_another_process(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OPEN_A_STORE, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_second_process_is_refused_and_told_which_directory(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        put_values(store.log("orders", 0), 1)
        refused = open_in_another_process(tmp_path)
        assert refused.returncode == 3, refused.stderr
        assert str(tmp_path) in refused.stdout
        assert "in use" in refused.stdout
    assert open_in_another_process(tmp_path).returncode == 0


def test_a_second_store_of_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with LogStore(tmp_path), pytest.raises(DirectoryInUse):
        LogStore(tmp_path)
    LogStore(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    with pytest.raises(StorageError, match="data directory"):
        LogStore(tmp_path / "file" / "data")


# ── names ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../a", "a\\b", "a b", "a\tb", "a\nb", "a*", "a>", "a\0b", "x" * 201, "ü" * 101, "/"],
)
def test_names_that_lead_out_of_the_directory_or_break_a_subject_are_refused(tmp_path: Path, name: str) -> None:
    with LogStore(tmp_path) as store:
        with pytest.raises(CallerError, match="stream name"):
            store.log(name, 0)
        with pytest.raises(CallerError, match="stream name"):
            store.delete_log(name, 0)
        assert len(store) == 0


@pytest.mark.parametrize("name", ["orders", "a.b.c", "-x", "größe", "x" * 200, "a:b", "a%2Fb", "__cursors"])
def test_other_names_are_folders(tmp_path: Path, name: str) -> None:
    with LogStore(tmp_path) as store:
        put_values(store.log(name, 0), 1)
        assert store.on_disk() == [(name, 0)]


def test_a_negative_partition_is_refused(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store, pytest.raises(CallerError, match="-1"):
        store.log("orders", -1)


# ── closing and deleting ─────────────────────────────────────────────────────────────────────────


def test_deleting_a_log_removes_its_folder_and_the_streams_with_the_last_one(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        for partition in (0, 1):
            put_values(store.log("orders", partition), 1)
        put_values(store.log("other", 0), 1)
        log = store.log("orders", 0)
        store.delete_log("orders", 0)
        assert store.on_disk() == [("orders", 1), ("other", 0)]
        store.delete_log("orders", 1)
        assert store.on_disk() == [("other", 0)]
        assert not (tmp_path / "streams" / "orders").exists()
        with pytest.raises(LogDeleted):
            put_values(log, 1)


def test_a_deleted_log_can_be_made_anew(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        put_values(store.log("orders", 0), 3)
        store.delete_log("orders", 0)
        assert put_values(store.log("orders", 0), 1) == 0


def test_a_log_that_was_never_opened_can_be_deleted(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        put_values(store.log("orders", 0), 3)
    with LogStore(tmp_path) as store:
        store.delete_log("orders", 0)
        assert store.on_disk() == []
        store.delete_log("never", 5)


def test_a_closed_log_can_be_opened_with_other_options(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        log = store.log("orders", 0)
        put_values(log, 1)
        store.close_log("orders", 0)
        store.close_log("orders", 0)
        again = store.log("orders", 0, LogOptions(compact=True))
        assert again.options.compact
        assert offsets(again) == [0]
        with pytest.raises(LogClosed):
            log.read(0)


def test_closing_the_store_ends_the_readers(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    log = store.log("orders", 0)
    put_values(log, 1)
    reader = LogReader(log, 1)
    store.close()
    with pytest.raises(LogClosed):
        reader.poll()


def test_closing_the_store_closes_every_log_although_one_fails(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = LogStore(tmp_path, disk=disk)
    for name in ("a", "b", "c"):
        put_values(store.log(name, 0), 2)
    known = list(store)
    disk.before = refuse("sync", f"b/0/{0:020d}.log")
    with pytest.raises(StorageError, match="planted"):
        store.close()
    for log in known:
        with pytest.raises(LogClosed):
            log.read(0)
    with LogStore(tmp_path) as store:
        assert [offsets(store.log(name, 0)) for name in ("a", "b", "c")] == [[0, 1]] * 3


# ── the cleaner ──────────────────────────────────────────────────────────────────────────────────


class Heard:
    """Collects what the cleaner says, and lets a test wait for it."""

    def __init__(self) -> None:
        self.reports: list[CleaningReport | BasculeError] = []
        self.news = threading.Event()

    def __call__(self, _log: PartitionLog, report: CleaningReport | BasculeError) -> None:
        self.reports.append(report)
        self.news.set()

    def wait(self) -> CleaningReport | BasculeError:
        assert self.news.wait(PATIENCE)
        return self.reports[0]


def test_the_cleaner_applies_retention_in_the_background(tmp_path: Path) -> None:
    heard = Heard()
    with LogStore(tmp_path, on_cleaned=heard) as store:
        log = store.log(
            "orders", 0, LogOptions(segment_bytes_max=130, retention_records_max=4), cleaner_interval_ms=3_600_000
        )
        put_values(log, 9)
        commit_all(log)
        store.close_log("orders", 0)
        log = store.log("orders", 0, LogOptions(segment_bytes_max=130, retention_records_max=4), cleaner_interval_ms=1)
        log.open()
        report = heard.wait()
        assert isinstance(report, CleaningReport)
        assert report.deleted == [0, 2, 4]
        assert offsets(log) == [6, 7, 8]


def test_the_cleaner_compacts_in_the_background(tmp_path: Path) -> None:
    heard = Heard()
    with LogStore(tmp_path, on_cleaned=heard) as store:
        log = store.log("orders", 0, LogOptions(segment_bytes_max=1 << 20, compact=True), cleaner_interval_ms=1)
        with log.maintenance:  # the cleaner waits until all is there
            put(log, *((b"k%d" % (number % 2), b"%d" % number) for number in range(10)))
            log.roll()
            commit_all(log)
        report = heard.wait()
        assert isinstance(report, CleaningReport)
        assert report.compaction is not None
        assert offsets(log) == [8, 9]


def test_the_cleaner_leaves_logs_alone_that_nobody_uses(tmp_path: Path) -> None:
    heard = Heard()
    with LogStore(tmp_path, on_cleaned=heard) as store:
        idle = store.log("idle", 0, cleaner_interval_ms=1)
        busy = store.log("busy", 0, LogOptions(segment_bytes_max=1), cleaner_interval_ms=1)
        put_values(busy, 1)
        heard.wait()
        assert not idle.is_loaded
        assert not (tmp_path / "streams" / "idle").exists()


def test_the_cleaner_goes_on_after_an_error_and_reports_it(tmp_path: Path) -> None:
    heard = Heard()
    disk = WatchedDisk()
    with LogStore(tmp_path, on_cleaned=heard, disk=disk) as store:
        bad = store.log("bad", 0, LogOptions(retention_records_max=1), cleaner_interval_ms=1)
        with bad.maintenance:
            put_values(bad, 2)
            bad.roll()
            disk.before = refuse("sync")
        error = heard.wait()
        assert isinstance(error, StorageError)
        disk.before = None
        heard.news.clear()
        heard.reports.clear()
        good = store.log("good", 0, LogOptions(segment_bytes_max=1), cleaner_interval_ms=1)
        put_values(good, 1)
        while not any(isinstance(report, CleaningReport) for report in heard.reports):
            heard.wait()
            heard.news.clear()
        assert good.segments.active.is_empty


def test_the_cleaner_survives_a_batch_that_cannot_be_opened(tmp_path: Path) -> None:
    heard = Heard()
    options = LogOptions(compact=True, compression="zstd")
    with LogStore(tmp_path, on_cleaned=heard) as store:
        log = store.log("orders", 0, options, cleaner_interval_ms=1)
        with log.maintenance:
            put(log, (b"k", b"x" * 500), (b"k", b"y" * 500))
            log.roll()
            commit_all(log)
            path = sorted(Path(log.directory).glob("*.log"))[0]
            data = bytearray(path.read_bytes())
            length = int.from_bytes(data[4:8], "little")
            data[length - 3] ^= 0xFF
            path.write_bytes(resealed(data[:length]) + bytes(data[length:]))
        report = heard.wait()
        assert isinstance(report, CleaningReport)
        assert report.compaction is not None
        assert len(report.compaction.left_alone) == 1


def test_closing_does_not_wait_for_the_next_tick(tmp_path: Path) -> None:
    with LogStore(tmp_path) as store:
        put_values(store.log("orders", 0, cleaner_interval_ms=3_600_000), 1)
    assert open_in_another_process(tmp_path).returncode == 0


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_bad_key_in_the_environment_is_harmless_while_encryption_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASCULE_ENCRYPTION_KEY", "short")
    with LogStore(tmp_path) as store:
        put_values(store.log("clear", 0), 1)
        assert offsets(store.log("clear", 0)) == [0]
        with pytest.raises(EncryptionKeyError, match="invalid AES key size"):
            store.log("secret", 0, LogOptions(encryption=True))
        assert store.on_disk() == [("clear", 0)]


def test_the_key_of_the_environment_encrypts_the_logs_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASCULE_ENCRYPTION_KEY", "k" * 32)
    with LogStore(tmp_path) as store:
        log = store.log("secret", 0, LogOptions(encryption=True))
        put(log, (b"k", b"a secret value"))
        assert not any(b"a secret value" in path.read_bytes() for path in Path(log.directory).glob("*.log"))
    with LogStore(tmp_path) as store:
        assert offsets(store.log("secret", 0)) == [0]
