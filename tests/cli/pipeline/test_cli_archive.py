"""`bascule pipeline compact`, `status` and `verify` of a folder: no broker, no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.lake.archive import Archive
from bascule.lake.facts import Commit, Covered, Lost
from tests.cli.command_line import Outcome, Run
from tests.support.compacting import small_files


@pytest.fixture
def pipeline(call: Run) -> Run:
    """`bascule pipeline`, called in this process."""

    def run(*arguments: str) -> Outcome:
        return call("pipeline", *arguments)

    return run


def test_compact_merges_and_the_archive_is_the_same(tmp_path: Path, pipeline: Run) -> None:
    archive = small_files(tmp_path / "lake", files=12)
    done = pipeline("compact", str(archive.path), "--keep-replaced", "0s")
    assert (done.code, done.out) == (0, "12 files before, 1 now; 120 messages.\n"), done
    assert len(list(archive.path.rglob("*.parquet"))) == 1
    assert pipeline("compact", str(archive.path)).out == "1 file before, 1 now; 120 messages.\n"
    shown = pipeline("status", str(archive.path), "--offline", "--json").json
    assert (shown["messages"], shown["files"], shown["lag"]) == (120, 1, None)
    proved = pipeline("verify", str(archive.path), "--offline")
    assert proved.out == "equal: 120 messages in 1 file, 0 compared with the log.\n"


def test_replaced_files_stay_unless_it_is_said_otherwise(tmp_path: Path, pipeline: Run) -> None:
    archive = small_files(tmp_path / "lake", files=4)
    pipeline("compact", str(archive.path))
    assert len(list(archive.path.rglob("*.parquet"))) == 5


def test_a_part_is_proved(tmp_path: Path, pipeline: Run) -> None:
    archive = small_files(tmp_path / "lake", files=2, day=3)
    proved = pipeline("verify", str(archive.path), "--offline", "--since", "1970-01-05T00:00Z")
    assert proved.out.startswith("equal: 0 messages")
    pipeline("verify", str(archive.path), "--offline", "--stream", "orderz").failed(2, "`--stream` is `orderz`")
    pipeline("verify", str(archive.path), "--offline", "--since", "soon").failed(2, "`--since` is `soon`")


def test_what_was_lost_is_named_before_anything_is_called_equal(tmp_path: Path, pipeline: Run) -> None:
    archive = small_files(tmp_path / "lake", files=2)
    key = ("orders", 7, 0)
    lost = (Lost(*key, 20, 30, "removed", 1_800_000_000 * 10**9), Lost(*key, 35, 36, "deleted", 1_800_000_001 * 10**9))
    archive.commit(Commit(archive.state().number + 1, "append", 1, covered=(Covered(*key, 20, 36),), lost=lost))
    assert pipeline("verify", str(archive.path), "--offline").out.splitlines() == [
        "lost: orders/0: offsets 20 to 29 were never archived, retention deleted them first, "
        "since 2027-01-15T08:00:00.000000000Z; `skip` allowed it",
        "lost: orders/0: offset 35 was never archived, the stream was deleted, "
        "since 2027-01-15T08:00:01.000000000Z; `skip` allowed it",
        "equal but for 11 offsets that were never archived: 20 messages in 2 files, 0 compared with the log.",
    ]
    found = pipeline("verify", str(archive.path), "--offline", "--json").json
    assert (found["equal"], found["complete"], found["lost_offsets"]) == (True, False, 11)
    assert found["lost"][0] == {
        "stream": "orders",
        "stream_id": 7,
        "partition": 0,
        "first": 20,
        "last": 29,
        "reason": "removed",
        "since": "2027-01-15T08:00:00.000000000Z",
        "allowed_by": "onDataLoss=skip",
    }
    assert "Lost, offsets\t11" in pipeline("status", str(archive.path), "--offline").out


def test_bad_values_and_folders_are_named(tmp_path: Path, pipeline: Run) -> None:
    archive = small_files(tmp_path / "lake", files=1)
    pipeline("compact", str(archive.path), "--keep-replaced", "never").failed(2, "`--keep-replaced` is `never`")
    pipeline("compact", str(tmp_path / "nowhere")).failed(4, "is no archive")
    assert not (tmp_path / "nowhere").exists()
    with Archive(archive.path).writing():
        pipeline("compact", str(archive.path)).failed(3, "being written by another pipeline")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("--on-data-loss", "archive"), "`--on-data-loss` is `archive`"),
        (("--storage-option", "secret"), "`--storage-option` is not KEY=VALUE"),
        (("--pattern", "a("), "`pattern` is `a(`"),
        (("--every", "0s"), "`--every` is `0s`"),
    ],
)
def test_what_an_archive_cannot_be_told_is_named_before_anybody_is_asked(
    tmp_path: Path, pipeline: Run, given: tuple[str, ...], what: str
) -> None:
    streams = () if "--pattern" in given else ("orders",)
    pipeline("archive", str(tmp_path / "lake"), *streams, *given).failed(2, what)
    assert not (tmp_path / "lake").exists()
