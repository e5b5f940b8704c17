"""An archive is what its commits say, each there whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bascule.errors import ArchiveConflict, ArchiveDamaged, CallerError
from bascule.lake.archive import Archive
from bascule.lake.facts import Commit, Covered, DataFile
from bascule.lake.housekeeping import Housekeeping


def data_file(name: str, first: int, last: int) -> DataFile:
    path = f"data/date=2026-11-15/{name}.parquet"
    return DataFile(path, "orders", 7, 0, first, last, last - first + 1, 100, 0xABCD, "2026-11-15")


def append(number: int, *files: DataFile, end: int) -> Commit:
    return Commit(number, "append", 1_000 + number, "query", number, files, (), (Covered("orders", 7, 0, 0, end),))


def archive(path: Path) -> Archive:
    made = Archive(path)
    made.create(["orders"])
    return made


def test_the_state_is_the_sum_of_the_commits(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    made.commit(append(1, data_file("x", 0, 9), end=10))
    made.commit(append(2, data_file("y", 10, 19), end=25))
    merged = data_file("z", 0, 19)
    made.commit(
        Commit(3, "compact", 1_003, added=(merged,), removed=(data_file("x", 0, 9).path, data_file("y", 10, 19).path))
    )
    state = Archive(tmp_path / "a").state()
    assert state.number == 3
    assert state.in_order() == [merged]
    assert state.next_offsets == {("orders", 7, 0): 25}
    assert (state.rows, state.bytes, state.last_commit_ns) == (20, 100, 1_003)


def test_of_two_writers_one_commits(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    made.commit(append(1, end=10))
    with pytest.raises(ArchiveConflict, match=r"00000000000000000001\.json"):
        made.commit(append(1, end=99))
    assert made.state().next_offsets == {("orders", 7, 0): 10}
    assert [path.name for path in (tmp_path / "a/_bascule/commits").iterdir()] == ["00000000000000000001.json"]


def test_one_process_writes(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    with made.writing(), pytest.raises(ArchiveConflict, match="another pipeline"), Archive(tmp_path / "a").writing():
        pass
    with Archive(tmp_path / "a").writing():
        pass


def test_what_no_commit_names_is_not_there_and_goes(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    kept, left = data_file("kept", 0, 0), data_file("left", 1, 1)
    for one in (kept, left):
        path = tmp_path / "a" / one.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    made.commit(append(1, kept, end=1))
    (tmp_path / "a/_bascule/commits/.00000000000000000002.json.7.7").write_text("{")
    assert Housekeeping(made).begin() == made.state()
    assert made.unfinished() == []
    assert (tmp_path / "a" / kept.path).exists()
    assert not (tmp_path / "a" / left.path).exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"format": 1, "number": 1}', "is no commit"),
        ('{"format": 3}', "format 3"),
        ("{", "cannot be read"),
    ],
)
def test_a_commit_that_is_no_commit_is_named(tmp_path: Path, content: str, what: str) -> None:
    made = archive(tmp_path / "a")
    (tmp_path / "a/_bascule/commits/00000000000000000001.json").write_text(content)
    with pytest.raises(ArchiveDamaged, match=what) as caught:
        made.state()
    assert "00000000000000000001.json" in caught.value.message


def test_a_commit_that_is_missing_is_named(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    for number in (1, 2, 3):
        made.commit(append(number, end=number))
    (tmp_path / "a/_bascule/commits/00000000000000000002.json").unlink()
    with pytest.raises(ArchiveDamaged, match="commit 2 is missing"):
        made.state()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(CallerError, match="not empty"):
        Archive(tmp_path).create(["orders"])
    with pytest.raises(ArchiveDamaged, match="does not exist"):
        Archive(tmp_path).state()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    made = archive(tmp_path / "a")
    path = tmp_path / "a/_bascule/archive.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(ArchiveDamaged, match="format 2"):
        made.state()
