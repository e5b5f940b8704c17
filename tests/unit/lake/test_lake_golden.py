"""golden_archive/ is an archive as format 1 has it. It must be readable, provable and gone on with for ever: nobody rewrites it.

Stream `orders` with id 7 and two partitions, over midnight. Three commits, the sum of them, a compaction, and a commit behind that.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bascule.flight.schema import table_schema
from bascule.lake.archive import Archive
from bascule.lake.compaction import Compaction
from bascule.lake.facts import Commit
from bascule.lake.files import WriteTask, read_file
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
def archive(tmp_path: Path) -> Archive:
    """A copy, for who writes it."""
    shutil.copytree(GOLDEN, tmp_path / "lake")
    return Archive(tmp_path / "lake")


def rows_of(archive: Archive) -> list[dict[str, Any]]:
    return [
        row for one in archive.state().in_order() for batch in read_file(archive.path, one) for row in batch.to_pylist()
    ]


def test_it_holds_what_was_published(archive: Archive) -> None:
    state = archive.state()
    assert (state.number, state.rows, len(state.files)) == (5, 45, 6)
    assert state.next_offsets == {("orders", 7, 0): 25, ("orders", 7, 1): 20}
    assert {one.date for one in state.files.values()} == {"2026-11-14", "2026-11-15"}
    assert rows_of(archive) == [message(0, n) for n in range(25)] + [message(1, n) for n in range(20)]


def test_its_proof_still_holds(archive: Archive) -> None:
    """A checksum that came out otherwise would call every archive damaged."""
    report = Verification(archive, None, lambda _: None).run()
    assert (report.faults, report.rows) == ([], 45)


def test_without_its_sum_the_commits_say_the_same(archive: Archive) -> None:
    state = archive.state()
    shutil.rmtree(archive.path / "_bascule/state")
    assert archive.state() == state


def test_it_can_be_gone_on_with(archive: Archive) -> None:
    with archive.writing():
        keeper = Housekeeping(archive, 0.0)
        state = keeper.begin()
        (added,) = WriteTask(str(archive.path), {("orders", 0): 25}).write(iter([messages(0, range(20, 30))]))
        archive.commit(Commit(6, "append", 1, "", 5, (replace(added, stream_id=7),)))
        state.apply(next(archive.commits(5)))
        while (commit := Compaction(archive).round(state)) is not None:
            keeper.after(commit, state)
        keeper.save(state)
    assert rows_of(archive) == [message(0, n) for n in range(30)] + [message(1, n) for n in range(20)]
