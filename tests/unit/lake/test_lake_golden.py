"""golden_archive/ is an archive of the former format. An upgrade must make a Delta table of it for ever: nobody rewrites it.

Stream `orders` with id 7 and two partitions, over midnight. Three commits, the sum of them, a compaction, and a commit behind that.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bascule.errors import ArchiveDamaged, BasculeError, CallerError
from bascule.flight.schema import table_schema
from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction
from bascule.lake.delta.writer import DeltaWriter
from bascule.lake.facts import Commit, Covered
from bascule.lake.files import WriteTask, read_file
from bascule.lake.former.upgrade import upgrade
from bascule.lake.housekeeping import Housekeeping
from bascule.lake.verification import Verification

GOLDEN = Path(__file__).parent / "golden_archive"
BEGAN = datetime(2026, 11, 14, 23, 59, 50, tzinfo=UTC)


def message(partition: int, offset: int) -> dict[str, Any]:
    """What was published there: with and without key, value, reply and headers."""
    return {
        "key": None if offset % 3 == 0 else b"k%d" % offset,
        "value": None if offset % 5 == 4 else b"\x00\xff" * partition + b"value %d" % offset,
        "stream": "orders",
        "partition": partition,
        "offset": offset,
        "timestamp": BEGAN + timedelta(seconds=offset, microseconds=partition),
        "subject": f"shop.orders.{'é' * (offset % 2)}{offset}",
        "replySubject": f"_INBOX.{offset}" if offset % 4 == 0 else None,
        "headers": [(f"h{number}", b"\x00" * number) for number in range(offset % 3)],
        "leaderEpoch": 3 + offset // 10,
    }


def messages(partition: int, offsets: range) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([message(partition, offset) for offset in offsets], schema=table_schema())


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A copy, for who writes it."""
    return shutil.copytree(GOLDEN, tmp_path / "lake")


def rows_of(archive: Archive) -> list[dict[str, Any]]:
    return [
        row
        for one in archive.state().in_order()
        for batch in read_file(archive.place, one)
        for row in batch.to_pylist()
    ]


def must_be_upgraded(path: Path) -> Archive:
    archive = Archive(path)
    state = archive.state()
    assert (state.rows, len(state.files)) == (45, 6)
    assert state.next_offsets == {("orders", 7, 0): 25, ("orders", 7, 1): 20}
    assert rows_of(archive) == [message(0, n) for n in range(25)] + [message(1, n) for n in range(20)]
    report = Verification(archive, None, lambda _: None).run()
    assert (report.faults, report.rows) == ([], 45)
    return archive


def test_an_upgrade_makes_it_a_delta_table_without_touching_a_file(former: Path) -> None:
    files = {path: path.read_bytes() for path in former.rglob("*.parquet")}
    with pytest.raises(CallerError, match="former format") as caught:
        Archive(former).state()
    assert caught.value.hint == f"`bascule pipeline upgrade {former}` makes it a Delta table, in place"
    upgrade(former)
    must_be_upgraded(former)
    assert {path: path.read_bytes() for path in former.rglob("*.parquet")} == files
    table = DeltaTable(former).to_pyarrow_table()
    assert sorted(set(map(str, table["date"].to_pylist()))) == ["2026-11-14", "2026-11-15"]
    assert polars.scan_delta(str(former)).filter(polars.col("offset") >= 20).collect().height == 5
    with pytest.raises(CallerError, match="no archive of the former format"):
        upgrade(former)


def test_what_is_written_after_an_upgrade_joins_it(former: Path) -> None:
    upgrade(former)
    archive = Archive(former)
    with archive.writing():
        keeper = Housekeeping(archive, 0.0)
        state = keeper.begin()
        (added,) = WriteTask(archive.place, {("orders", 0): 25}).write(iter([messages(0, range(20, 30))]))
        commit = Commit(2, "append", 1, "", 5, (replace(added, stream_id=7),), (), (Covered("orders", 7, 0, 25, 30),))
        state.apply(archive.commit(commit, state))
        while (merged := Compaction(archive).round(state)) is not None:
            keeper.after(merged, state)
    assert rows_of(archive) == [message(0, n) for n in range(30)] + [message(1, n) for n in range(20)]
    assert Verification(archive, None, lambda _: None).run().faults == []


@pytest.mark.parametrize("step", ["create", "commit", "_sync"])
def test_an_upgrade_that_was_cut_short_is_refused_by_all_and_completed_by_the_next(
    former: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(DeltaWriter, step, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            upgrade(former)
    with pytest.raises(CallerError, match="former format"):
        Archive(former).create(["orders"])
    upgrade(former)
    must_be_upgraded(former)


def test_without_its_sum_the_commits_say_the_same(former: Path) -> None:
    shutil.rmtree(former / "_bascule/state")
    upgrade(former)
    must_be_upgraded(former)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda path: next((path / "data").rglob("*.parquet")).unlink(), "cannot be read"),
        (lambda path: next((path / "data").rglob("*.parquet")).write_bytes(b"PAR1"), "cannot be read"),
        (lambda path: _edit(path / "_bascule/archive.json", format=3), "format 3"),
        (lambda path: sorted((path / "_bascule/state").iterdir())[-1].write_text("{}"), "format None"),
        (lambda path: sorted((path / "_bascule/commits").iterdir())[-2].unlink(), "is missing"),
    ],
)
def test_an_archive_that_is_damaged_is_not_upgraded(former: Path, damage: Any, what: str) -> None:
    damage(former)
    with pytest.raises((ArchiveDamaged, BasculeError), match=what):
        upgrade(former)
    assert (former / "_bascule/archive.json").exists()


def _edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
