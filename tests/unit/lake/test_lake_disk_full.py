"""A disk that is really full under an archive: nothing half is left, the folder is named, and with room it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from bascule.errors import CallerError, DiskFull
from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import Commit, Covered, DataFile
from bascule.lake.files import WriteTask
from bascule.lake.housekeeping import Housekeeping
from tests.support.archives import archive_rows
from tests.support.compacting import messages, small_files
from tests.support.small_disk import MountedDisk, NotPermitted
from tests.unit.lake.test_lake_verification import prove

ROOT: Final = Path(__file__).parents[3]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[MountedDisk]:
    try:
        made = MountedDisk(tmp_path / "small", 2 << 20)
    except (NotPermitted, OSError) as error:
        pytest.skip(f"mounting a file system is not permitted here: {error}")
    yield made
    made.close()


@pytest.fixture
def lake(disk: MountedDisk) -> Path:
    path = disk.path / "lake"
    archive_rows(path, 7, [messages(0, 100)])
    return path


def on_disk(path: Path) -> set[str]:
    """Everything that looks as if it belonged to the archive, and what was begun."""
    return {
        str(one.relative_to(path)) for one in path.rglob("*") if one.is_file() and one.name not in ("lock", "head.json")
    }


def more(path: Path) -> Iterator[DataFile]:
    yield from WriteTask(LakePlace(str(path)), {}).write(messages(at, 50, size=2_000) for at in range(100, 500, 50))


# ── data ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_does_not_fit_is_gone_and_the_folder_is_named(disk: MountedDisk, lake: Path) -> None:
    before = on_disk(lake)
    disk.fill()
    with pytest.raises(DiskFull, match=r"no room in .*/lake for date=.*\.parquet: No space left on device") as full:
        list(more(lake))
    assert full.value.hint is not None and "make room" in full.value.hint
    assert on_disk(lake) == before
    disk.relieve()
    added = tuple(replace(one, stream_id=7) for one in more(lake))
    archive = Archive(lake)
    archive.commit(Commit(2, "append", 1, added=added, covered=(Covered("orders", 7, 0, 100, 500),)))
    assert (prove(lake, None).faults, archive.state().rows) == ([], 500)


def test_a_disk_that_becomes_full_in_the_middle_of_a_file_leaves_nothing_of_it(disk: MountedDisk, lake: Path) -> None:
    before = on_disk(lake)

    def rows() -> Iterator[object]:
        for at in range(100, 100_000, 500):
            yield messages(at, 500, size=4_000)  # noise: it cannot be compressed away

    with pytest.raises(DiskFull):
        list(WriteTask(LakePlace(str(lake)), {}, compression="none").write(rows()))
    assert on_disk(lake) == before
    assert disk.free_bytes() > 1 << 20, "what was written of it is given back"


# ── commits ──────────────────────────────────────────────────────────────────────────────────────


def test_a_commit_that_does_not_fit_is_not_there(disk: MountedDisk, lake: Path) -> None:
    archive, before = Archive(lake), on_disk(lake)
    disk.fill()
    commit = Commit(2, "append", 1, "q" * 9_000, covered=(Covered("orders", 7, 0, 100, 200),))
    with pytest.raises(DiskFull, match=r"lake/_delta_log/00000000000000000002\.json: there is no room"):
        archive.commit(commit)
    assert (on_disk(lake), archive.state().number) == (before, 1), "who reads it finds it as it was"
    disk.relieve()
    archive.commit(commit)
    assert archive.state().number == 2


def test_an_archive_that_could_not_be_made_can_be_made_when_there_is_room(disk: MountedDisk) -> None:
    path = disk.path / "new"
    disk.fill()
    with pytest.raises(DiskFull, match="new"):
        Archive(path).create(["orders"])
    assert not Archive(path).exists
    disk.relieve()
    (path / "_bascule").mkdir(parents=True, exist_ok=True)
    Archive(path).create(["orders"])
    assert Archive(path).state().number == 0
    (disk.path / "other").mkdir()
    (disk.path / "other/_bascule").write_text("somebody else's")
    with pytest.raises(CallerError, match="not empty"):
        Archive(disk.path / "other").create(["orders"])


def test_a_merge_that_does_not_fit_leaves_the_files_as_they_were(disk: MountedDisk) -> None:
    path = disk.path / "many"
    small_files(path, files=6)
    archive, before = Archive(path), on_disk(path)
    disk.fill()
    with archive.writing():
        state = Housekeeping(archive).begin()
        with pytest.raises(DiskFull, match="many"):
            Compaction(archive).round(state)
        assert on_disk(path) == before
        disk.relieve()
        assert Compaction(archive).round(state) is not None
    assert prove(path, None).faults == []


# ── where no file system can be mounted: a limit on the size of files ─────────────────────────────

WRITER: Final = """
import json, resource, sys
from pathlib import Path
from bascule.errors import DiskFull
from bascule.lake.files import WriteTask
from bascule.lake.archive import Archive
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import Commit
from tests.support.compacting import messages

lake = Path(sys.argv[1])
archive = Archive(lake)
archive.create(["orders"])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
said = []
for step in (
    lambda: list(WriteTask(LakePlace(str(lake)), {}, compression="none").write(iter([messages(0, 100, size=4_000)]))),
    lambda: archive.commit(Commit(1, "append", 1, "q" * 30_000)),
):
    try:
        step()
    except DiskFull as error:
        said.append(error.message)
left = [str(one.relative_to(lake)) for one in lake.rglob("*") if one.is_file()]
print(json.dumps([said, left, archive.state().number]))
"""


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path / "lake")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, left, number = json.loads(done.stdout)
    assert [f"{tmp_path}/lake" in text and "no room" in text for text in said] == [True, True], said
    assert sorted(left) == ["_bascule/head.json", "_delta_log/00000000000000000000.json"] and number == 0
    assert "ignored" not in done.stderr, "nothing tries to finish it later"
