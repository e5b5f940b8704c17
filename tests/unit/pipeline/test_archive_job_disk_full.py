"""A batch of the archive job that finds no room gives back what it has taken. Spark's part is played by the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bascule.errors import DiskFull, StorageError
from bascule.flight.schema import COLUMNS
from bascule.lake.archive import Archive
from bascule.lake.files import WriteTask
from bascule.pipeline.jobs.archive import ArchiveJob, ArchiveOptions
from tests.support.compacting import messages

BATCH: Any = SimpleNamespace(dtypes=[(name, "binary" if name == "value" else "any") for name in COLUMNS])


class Job(ArchiveJob):
    """Its tasks write this file, and then comes what comes."""

    ending: Callable[[], None] = staticmethod(lambda: None)

    def _written(self, batch: Any, batch_id: int, task: WriteTask) -> Any:
        del batch
        rows = [row for stats in task(iter([messages(batch_id * 10, 10)])) for row in stats.to_pylist()]
        self.ending()
        return SimpleNamespace(collect=lambda: [SimpleNamespace(asDict=lambda row=row: row) for row in rows])


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(ArchiveOptions, "stream_ids", lambda _: {"orders": 7})
    made = Job(None, ArchiveOptions(streams=("orders",), path=str(tmp_path / "lake"), cursor=""))  # type: ignore[arg-type]
    made.open()
    made.write(BATCH, 0)
    return made


def on_disk(job: Job) -> set[str]:
    return {str(path.relative_to(job.archive.path)) for path in job.archive.path.rglob("date=*/*.parquet")}


def raises(error: Exception) -> Callable[[], None]:
    def end() -> None:
        raise error

    return end


@pytest.mark.parametrize("error", [DiskFull("no room"), RuntimeError("Job aborted: [DISK_FULL] no room in x\nat Java")])
def test_what_other_tasks_had_finished_is_removed(job: Job, error: Exception) -> None:
    before = on_disk(job)
    job.ending = raises(error)
    with pytest.raises(type(error)):
        job.write(BATCH, 1)
    assert on_disk(job) == before == set(job.archive.state().files)
    job.ending = lambda: None
    job.write(BATCH, 1)
    assert (job.archive.state().rows, on_disk(job)) == (20, set(job.archive.state().files))


def test_after_another_failure_it_stays_for_the_next_start_to_remove(job: Job) -> None:
    job.ending = raises(RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        job.write(BATCH, 1)
    assert len(on_disk(job)) == 2


def test_files_of_a_commit_that_is_there_although_it_failed_are_kept(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder could not be synced: whoever reads it finds it all the same."""
    commit = Archive.commit

    def fails_late(self: Archive, one: Any, state: Any) -> None:
        commit(self, one, state)
        raise DiskFull("no room to sync")

    monkeypatch.setattr(Archive, "commit", fails_late)
    with pytest.raises(StorageError):
        job.write(BATCH, 1)
    assert (len(on_disk(job)), on_disk(job)) == (2, set(job.archive.state().files))
