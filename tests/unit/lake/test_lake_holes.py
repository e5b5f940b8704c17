"""An archive knows where it began and what was lost before it could be archived, and nobody takes that for compaction."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from bascule.lake import holes
from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction
from bascule.lake.coverage import coverage_of
from bascule.lake.delta.log import commit_name
from bascule.lake.facts import DELETED, REMOVED, ArchiveState, Began, Commit, Covered, Lost
from bascule.lake.status import archive_status
from tests.support.archives import archive_rows
from tests.support.compacting import messages
from tests.unit.lake.test_lake_status import Brokers
from tests.unit.lake.test_lake_verification import Log, prove
from tests.unit.lake.test_lake_verification_ends import lose

KEY = ("orders", 7, 0)
AT_NS = 1_800_000_000_000_000_000


def note(path: Path, *ranges: tuple[int, int], began: int | None = None, reason: str = REMOVED) -> None:
    """A commit without files that says what is lost."""
    archive = Archive(path)
    archive.create(["orders"])
    lost = tuple(Lost(*KEY, start, end, reason, AT_NS) for start, end in ranges)
    covered = tuple(Covered(*KEY, one.start, one.end) for one in lost)
    start = () if began is None else (Began(*KEY, began),)
    number = archive.state().number + 1
    archive.commit(Commit(number, "append", time.time_ns(), covered=covered, lost=lost, began=start))


@pytest.fixture
def holed(tmp_path: Path) -> Path:
    """Offsets 0 to 9 and 25 to 34; those between them were removed before they were archived."""
    path = tmp_path / "a"
    note(path, began=0)
    archive_rows(path, 7, [messages(0, 10)])
    note(path, (10, 25))
    archive_rows(path, 7, [messages(25, 10)])
    return path


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("start", "end", "taken", "left"),
    [
        (0, 10, [], [(0, 10)]),
        (0, 10, [(3, 5)], [(0, 3), (5, 10)]),
        (0, 10, [(7, 20), (0, 2), (6, 8)], [(2, 6)]),
        (0, 10, [(0, 10)], []),
        (5, 5, [(1, 9)], []),
        (5, 10, [(0, 3), (12, 14), (4, 4)], [(5, 10)]),
    ],
)
def test_ranges_are_taken_out_of_a_range(start: int, end: int, taken: list[holes.Span], left: list[holes.Span]) -> None:
    assert holes.without(start, end, taken) == left
    assert holes.count(left) + holes.count(holes.within(start, end, taken)) == end - start


def test_ranges_are_joined() -> None:
    assert holes.joined([(5, 9), (0, 3), (3, 4), (9, 9), (6, 7)]) == [(0, 4), (5, 9)]
    assert holes.joined([(4, 2), (3, 3)]) == []


# ── commits and their sum ────────────────────────────────────────────────────────────────────────


def test_commits_and_a_checkpoint_say_it_alike(holed: Path) -> None:
    before = Archive(holed).state()
    assert before.lost == {KEY: [Lost(*KEY, 10, 25, REMOVED, AT_NS)]}
    assert (before.began, before.next_offsets) == ({KEY: 0}, {KEY: 35})
    DeltaTable(holed).create_checkpoint()
    for number in range(before.number):
        (holed / commit_name(number)).unlink()
    note(holed)
    after = Archive(holed).state()
    assert (after.lost, after.began, after.next_offsets) == (before.lost, before.began, before.next_offsets)
    assert after.whole() == after.claimed


def test_a_merge_of_files_around_it_keeps_it(holed: Path) -> None:
    archive = Archive(holed)
    with archive.writing():
        state = archive.state()
        assert Compaction(archive).round(state) is not None
    assert len(archive.state().files) == 1
    (found,) = coverage_of(archive.state())["orders"][7].values()
    assert (found.start, found.end, found.lost) == (0, 35, ((10, 25),))
    assert [offset in found for offset in (0, 9, 10, 24, 25, 34, 35)] == [True, True, False, False, True, True, False]
    assert prove(holed, Log(messages(0, 35), start=25)).lost_offsets == 15


# ── the proof ────────────────────────────────────────────────────────────────────────────────────


def test_the_proof_names_what_is_lost_and_takes_it_for_no_fault(holed: Path) -> None:
    report = prove(holed, Log(messages(0, 60), start=25))
    assert (report.faults, report.unchecked) == ([], ["orders/0: the log no longer has offsets 0 to 9"])
    assert [(one.start, one.end, one.reason, one.at_ns) for one in report.lost] == [(10, 25, REMOVED, AT_NS)]
    assert [one.start for one in prove(holed, None).lost] == [10], "it needs no log for that"


def test_what_the_log_has_is_not_lost_whatever_a_commit_says(holed: Path) -> None:
    (fault,) = prove(holed, Log(messages(0, 60), start=23)).faults
    assert (fault.kind, fault.text) == (
        "gap",
        "orders/0: the log has offsets 23, 24, and a commit says that they are lost",
    )


def test_a_gap_that_is_lost_in_part_is_asked_for_in_the_other_part(tmp_path: Path) -> None:
    path = tmp_path / "a"
    archive_rows(path, 7, [messages(0, 10)])
    note(path, (10, 15), reason=DELETED)
    archive_rows(path, 7, [messages(20, 10)])
    report = prove(path, Log(messages(0, 60), start=25))
    assert "orders/0: the log no longer shows why offsets 15 to 19 are missing" in report.unchecked
    (fault,) = prove(path, Log(messages(0, 60), start=15)).faults
    assert fault.text == "orders/0: the log has offsets 15, 16, 17, 18, 19, no file of the archive does"


def test_a_first_file_that_is_removed_is_told_from_an_archive_that_began_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    note(path, began=20)
    (first,) = archive_rows(path, 7, [messages(20, 10)])
    archive_rows(path, 7, [messages(30, 10)])
    assert prove(path, Log(messages(0, 40))).faults == [], "what came before it began is none of it"
    lose(path, first.path)
    (fault,) = prove(path, Log(messages(0, 40))).faults
    assert fault.text == (
        "orders/0: the log has offsets 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, no file of the archive does"
    )
    report = prove(path, Log(messages(0, 40), start=30))
    assert report.unchecked == ["orders/0: the log no longer shows why offsets 20 to 29 are missing"]
    assert prove(path, Log(messages(0, 40)), since="2026-11-15").faults == [], "a part of it begins anywhere"


def test_an_archive_that_did_not_note_where_it_began_begins_with_its_first_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (first,) = archive_rows(path, 7, [messages(20, 10)])
    archive_rows(path, 7, [messages(30, 10)])
    lose(path, first.path)
    assert prove(path, Log(messages(0, 40))).faults == []


def test_a_partition_of_which_all_is_lost_is_named(tmp_path: Path) -> None:
    note(tmp_path / "a", (0, 30), began=0)
    report = prove(tmp_path / "a", Log(messages(0, 40), start=30))
    assert (report.faults, report.unchecked, report.lost_offsets) == ([], [], 30)


# ── the status ───────────────────────────────────────────────────────────────────────────────────


def test_the_status_shows_it(holed: Path) -> None:
    found = archive_status(Archive(holed).state(), Brokers({0: (30, 39)}))  # type: ignore[arg-type]
    (one,) = found["partitions"]
    assert (found["lost"], one["lost"], one["began"]) == (15, 15, 0)
    assert one["lost_ranges"] == [{"first": 10, "last": 24, "since": "2027-01-15T08:00:00.000Z", "reason": "removed"}]
    assert one["problem"] == "15 offsets were never archived, at last offsets 10 to 24"


def test_the_status_counts_what_was_removed_since_too(holed: Path) -> None:
    found = archive_status(Archive(holed).state(), Brokers({0: (37, 39)}))  # type: ignore[arg-type]
    (one,) = found["partitions"]
    assert (one["lost"], one["problem"]) == (
        17,
        "2 offsets were removed before they were archived; 15 offsets were never archived, at last offsets 10 to 24",
    )
    offline = archive_status(Archive(holed).state(), None)
    assert (offline["lost"], offline["partitions"][0]["lost"]) == (15, 15)
    assert archive_status(ArchiveState(), None)["lost"] == 0
