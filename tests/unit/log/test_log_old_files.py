"""Logs that an earlier version wrote open, hold the same records, and grow. See `old_logs.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bascule.log import PartitionLog
from bascule.log.recovery.inspection import inspect_log
from tests.support.logs import Draft, batch_of, read_all
from tests.unit.log.old_logs import OPTIONS, RECORDS, WRITTEN, drafts, epoch_at, old_log

LATEST = range(RECORDS - 5, RECORDS)
"""The newest record of each of the five keys."""


def opened(tmp_path: Path, name: str) -> PartitionLog:
    shutil.copytree(WRITTEN / name, tmp_path / name)
    return old_log(tmp_path, name)


def test_every_kind_of_log_is_there() -> None:
    assert {path.name for path in WRITTEN.iterdir()} == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_old_log_has_its_records_and_grows(tmp_path: Path, name: str) -> None:
    log = opened(tmp_path, name)
    report = log.open()
    assert report.is_clean and (report.verified_bytes > 0) == (name == "killed")
    expected = list(drafts())
    stored = read_all(log)
    offsets = [one.offset for one in stored]
    assert offsets == list(LATEST if name == "compacted" else range(RECORDS))
    for one in stored:
        draft = expected[one.offset]
        assert (one.key, one.value, one.headers) == (draft.key, draft.value, draft.headers)
        assert (one.subject, one.reply, one.leader_epoch) == (draft.subject, draft.reply, epoch_at(one.offset))
    assert log.latest_epoch == 4
    assert log.append(batch_of([Draft(b"new", b"record")]), leader_epoch=4).base_offset == RECORDS
    log.close()
    again = old_log(tmp_path, name)
    assert again.open().is_clean
    assert [one.offset for one in read_all(again)] == [*offsets, RECORDS]
    again.close()


@pytest.mark.parametrize("name", OPTIONS)
def test_an_old_log_has_several_segments_without_damage(name: str) -> None:
    inspection = inspect_log(WRITTEN / name)
    assert not inspection.damage and inspection.checkpoint is not None
    assert len(inspection.segments) > 1 or name == "compacted"


@pytest.mark.parametrize("name", ["encrypted", "compressed"])
def test_a_sealed_old_log_holds_no_clear_text(name: str) -> None:
    for path in (WRITTEN / name).glob("*.log"):
        assert b"value 3, value 3" not in path.read_bytes()
