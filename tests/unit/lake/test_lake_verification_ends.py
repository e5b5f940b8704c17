"""What an archive says to have, and has not, is noticed behind its last file too, and in a partition without any."""

from __future__ import annotations

import time
from pathlib import Path

from bascule.lake.archive import Archive
from bascule.lake.facts import Commit
from tests.support.archives import archive_rows
from tests.support.compacting import messages
from tests.unit.lake.test_lake_verification import Log, prove


def lose(path: Path, *names: str) -> None:
    """A compaction that puts nothing in the place of what it takes."""
    archive = Archive(path)
    archive.commit(Commit(archive.state().number + 1, "compact", time.time_ns(), removed=names))


def test_a_last_file_that_no_commit_names_any_more_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    archive_rows(path, 7, [messages(0, 30)])
    (last,) = archive_rows(path, 7, [messages(30, 10)])
    assert prove(path, Log(messages(0, 60))).faults == [], "it is behind the log, which is no fault"
    lose(path, last.path)
    (fault,) = prove(path, Log(messages(0, 60))).faults
    assert (fault.kind, fault.text) == (
        "gap",
        "orders/0: the log has offsets 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, no file of the archive does",
    )
    report = prove(path, Log(messages(0, 60), start=45))
    assert (report.faults, report.unchecked[-1]) == (
        [],
        "orders/0: the log no longer shows why offsets 30 to 39 are missing",
    )


def test_a_partition_that_has_lost_all_its_files_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (only,) = archive_rows(path, 7, [messages(0, 5)])
    lose(path, only.path)
    (fault,) = prove(path, Log(messages(0, 60))).faults
    assert (fault.kind, fault.text) == (
        "gap",
        "orders/0: the log has offsets 0, 1, 2, 3, 4, no file of the archive does",
    )


def test_a_hole_that_the_log_has_too_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "a"
    archive_rows(path, 7, [messages(0, 30)], covered_end=45)
    report = prove(path, Log(messages(0, 30)))
    assert (report.faults, report.unchecked) == ([], [])
