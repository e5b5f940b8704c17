"""Small files become large ones, and whoever dies at whatever step leaves an archive that is whole."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bascule.errors import ArchiveDamaged
from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction, plan_merges
from bascule.lake.files import read_file
from bascule.lake.housekeeping import Housekeeping
from bascule.lake.verification import Verification
from tests.support.archives import archive_rows
from tests.support.compacting import STEPS, compact_all, messages, small_files


def offsets(archive: Archive) -> list[int]:
    return [
        offset
        for one in archive.state().in_order()
        for batch in read_file(archive.place, one)
        for offset in batch["offset"].to_pylist()
    ]


def on_disk(archive: Archive) -> set[str]:
    return {str(path.relative_to(archive.path)) for path in archive.path.rglob("date=*/*.parquet")}


def must_be_whole(archive: Archive, count: int) -> None:
    assert offsets(archive) == list(range(count))
    assert Verification(archive, None, lambda _: None).run().faults == []


def test_small_files_become_one_with_the_same_rows(tmp_path: Path) -> None:
    archive = small_files(tmp_path / "a", files=7, rows=30)
    before = archive.state()
    after = compact_all(archive.path).state()
    (one,) = after.files.values()
    assert (one.first_offset, one.last_offset, one.rows, one.stream_id) == (0, 209, 210, 7)
    assert one.bytes < before.bytes
    assert after.next_offsets == before.next_offsets
    assert on_disk(archive) == {one.path}
    must_be_whole(archive, 210)


def test_days_and_partitions_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for first, day, partition in ((0, 0, 0), (10, 0, 0), (20, 1, 0), (30, 1, 0), (0, 1, 1), (10, 1, 1)):
        archive_rows(path, 7, [messages(first, 10, day=day, partition=partition)])
    found = compact_all(path).state().in_order()
    assert [(one.partition, one.date, one.first_offset, one.last_offset) for one in found] == [
        (0, "1970-01-01", 0, 19),
        (0, "1970-01-02", 20, 39),
        (1, "1970-01-02", 0, 19),
    ]


def test_rows_are_gathered_into_row_groups(tmp_path: Path) -> None:
    archive = compact_all(small_files(tmp_path / "a", files=40).path)
    (one,) = archive.state().files.values()
    assert pq.ParquetFile(archive.path / one.path).num_row_groups == 1


def test_a_round_merges_so_much_and_the_next_one_the_rest(tmp_path: Path) -> None:
    archive = small_files(tmp_path / "a", files=3)
    archive_rows(archive.path, 7, [messages(30, 10, day=1)])
    archive_rows(archive.path, 7, [messages(40, 10, day=1)])
    state, work = archive.state(), Compaction(archive)
    assert len(plan_merges(state.files.values())) == 2
    rounds = [len(commit.added) for commit in iter(lambda: work.round(state, 1), None)]
    assert (set(rounds), len(rounds) >= 2, len(state.files)) == ({1}, True, 2)
    must_be_whole(archive, 50)


# ── readers ──────────────────────────────────────────────────────────────────────────────────────


def test_files_that_were_replaced_stay_for_readers_and_then_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = small_files(tmp_path / "a", files=4)
    old = set(archive.state().files)
    compact_all(archive.path, keep_seconds=3600)
    compact_all(archive.path, keep_seconds=3600)  # nor does the next start remove them
    assert old < on_disk(archive)
    later = time.time_ns() + int(3601e9)
    monkeypatch.setattr(time, "time_ns", lambda: later)
    with archive.writing():
        assert Housekeeping(archive, 3600).begin() == archive.state()
    assert on_disk(archive) == set(archive.state().files)


def test_a_reader_that_looked_before_reads_all_of_it(tmp_path: Path) -> None:
    archive = small_files(tmp_path / "a", files=4)
    seen = archive.state()
    compact_all(archive.path, keep_seconds=3600)
    rows = sum(batch.num_rows for one in seen.in_order() for batch in read_file(archive.place, one))
    assert rows == 40


def test_a_proof_says_equal_while_files_are_merged_under_it(tmp_path: Path) -> None:
    """Even when nothing is kept for readers."""
    path = tmp_path / "a"
    archive = small_files(path, files=12)
    started, going = threading.Event(), threading.Event()

    def on_file(_: Any) -> None:
        started.set()
        going.wait(60)

    reports: list[Any] = []
    prover = threading.Thread(target=lambda: reports.append(Verification(Archive(path), None, on_file).run()))
    prover.start()
    assert started.wait(60)
    compact_all(path, keep_seconds=0)
    going.set()
    prover.join(60)
    (report,) = reports
    assert (report.faults, report.rows) == ([], 120)
    assert archive.state().in_order()[0].rows == 120


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


def test_damage_is_not_copied_in_silence(tmp_path: Path) -> None:
    archive = small_files(tmp_path / "a", files=3)
    one = archive.state().in_order()[1]
    table = pq.read_table(archive.path / one.path, partitioning=None)
    pq.write_table(table.slice(1), archive.path / one.path)
    files = set(archive.state().files)
    with pytest.raises(ArchiveDamaged, match="is not what was written") as caught:
        compact_all(archive.path)
    assert one.path in caught.value.message
    assert set(archive.state().files) == files == on_disk(archive)
    (archive.path / one.path).write_bytes(b"PAR1 no")
    with pytest.raises(ArchiveDamaged, match="cannot be read"):
        compact_all(archive.path)
    (archive.path / one.path).unlink()
    with pytest.raises(ArchiveDamaged, match="cannot be read"):
        compact_all(archive.path)


def test_a_disk_that_writes_something_else_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = small_files(tmp_path / "a", files=3)
    finish = Compaction.merge.__globals__["FileWriter"].finish

    def finish_badly(self: Any) -> Any:
        found = finish(self)
        table = pq.read_table(archive.path / found.path, partitioning=None)
        pq.write_table(table.slice(1), archive.path / found.path)
        return found

    monkeypatch.setattr("bascule.lake.files.FileWriter.finish", finish_badly)
    with pytest.raises(ArchiveDamaged, match="is not what was written"):
        compact_all(archive.path)
    monkeypatch.undo()
    assert on_disk(archive) == set(archive.state().files)
    must_be_whole(archive, 30)


# ── death ────────────────────────────────────────────────────────────────────────────────────────


class Died(Exception):
    """In the middle of it."""


@pytest.mark.parametrize("step", STEPS)
def test_an_error_at_any_step_leaves_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    archive = small_files(tmp_path / "a")

    def die(*_: Any, **__: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(*STEPS[step], die)
        with pytest.raises(Died):
            compact_all(archive.path)
    must_be_whole(archive, 60)
    must_be_whole(compact_all(archive.path), 60)
    assert len(archive.state().files) == 1
    assert on_disk(archive) == set(archive.state().files)


@pytest.mark.parametrize("step", STEPS)
def test_kill_9_at_any_step_leaves_it_whole(tmp_path: Path, step: str) -> None:
    archive = small_files(tmp_path / "a")
    command = [sys.executable, "-m", "tests.support.compacting", str(archive.path), step]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    must_be_whole(archive, 60)
    must_be_whole(compact_all(archive.path), 60)
    assert on_disk(archive) == set(archive.state().files)
    assert not [path for path in (archive.path / "_delta_log").iterdir() if path.suffix not in (".json", ".crc")]
