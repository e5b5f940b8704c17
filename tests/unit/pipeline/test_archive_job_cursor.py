"""The archive's cursor never runs ahead of the archive. Spark's part is played by the test."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bascule.errors import StorageError
from bascule.flight.schema import COLUMNS
from bascule.lake.archive import Archive
from bascule.lake.files import WriteTask
from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions
from tests.support.compacting import messages

BATCH: Any = SimpleNamespace(dtypes=[(name, "binary" if name == "value" else "any") for name in COLUMNS])


class Job(ArchiveJob):
    """Each batch has ten messages."""

    def _written(self, batch: Any, batch_id: int, task: WriteTask) -> Any:
        del batch
        rows = [row for stats in task(iter([messages(batch_id * 10, 10)])) for row in stats.to_pylist()]
        return SimpleNamespace(collect=lambda: [SimpleNamespace(asDict=lambda row=row: row) for row in rows])


class Cursors:
    """A client that notes each cursor that is set, and how far the archive was by then."""

    def __init__(self, archive: Path) -> None:
        self.archive = Archive(archive)
        self.noted: list[tuple[int, int]] = []

    def set_cursor(self, _name: str, stream: str, partition: int, offset: int) -> None:
        ends = {(key[0], key[2]): end for key, end in self.archive.state().next_offsets.items()}
        self.noted.append((offset, ends.get((stream, partition), 0)))

    def close(self) -> None:
        pass


@pytest.fixture
def cursors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cursors:
    made = Cursors(tmp_path / "lake")
    monkeypatch.setattr(ArchiveOptions, "stream_ids", lambda _: {"orders": 7})
    monkeypatch.setattr(ArchiveOptions, "client", lambda _: made)
    return made


@pytest.fixture
def job(tmp_path: Path, cursors: Cursors) -> Job:
    del cursors
    made = Job(None, ArchiveOptions(streams=("orders",), path=str(tmp_path / "lake")))  # type: ignore[arg-type]
    made.open()
    return made


def test_a_cursor_is_set_after_the_commit_of_what_it_covers(job: Job, cursors: Cursors) -> None:
    for number in range(3):
        job.write(BATCH, number)
    job.close()
    assert [offset for offset, _ in cursors.noted] == [9, 19, 29]
    assert all(offset < end for offset, end in cursors.noted)


def test_without_a_commit_there_is_no_cursor(job: Job, cursors: Cursors, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_archive: Archive, _commit: Any, _state: Any) -> None:
        raise StorageError("no commit")

    job.write(BATCH, 0)
    monkeypatch.setattr(Archive, "commit", fails)
    with pytest.raises(StorageError):
        job.write(BATCH, 1)
    job.close()
    assert [offset for offset, _ in cursors.noted] == [9]
