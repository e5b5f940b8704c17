"""A proof names what is wrong and what it could not look at, whatever archive and log do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bascule.errors import OffsetBelowStart, StreamNotFound
from bascule.lake.archive import Archive
from bascule.lake.verification import Report, Verification
from tests.support.archives import archive_rows
from tests.support.compacting import messages, small_files


class Log:
    """A partition of `orders` in memory, as a connection shows it."""

    def __init__(self, rows: pa.RecordBatch, start: int = 0, stream_id: int = 7) -> None:
        self.rows = rows
        self.start = start
        self.stream_id = stream_id
        self.before_read: Callable[[], None] = lambda: None

    def offsets(self, streams: list[str]) -> dict[str, Any]:
        if streams != ["orders"]:
            raise StreamNotFound(f"no stream {streams}")
        return {"orders": {"id": self.stream_id, "partitions": {0: {"log_start": self.start, "high_watermark": 999}}}}

    def read(
        self, _stream: str, _partition: int, start: int, end: int, columns: Any = None, **_: Any
    ) -> Iterator[pa.RecordBatch]:
        self.before_read()
        if start < self.start:
            raise OffsetBelowStart("removed")
        for at in range(0, self.rows.num_rows, 7):
            piece = self.rows.slice(at, 7)
            piece = piece.filter([start <= offset < end for offset in piece["offset"].to_pylist()])
            yield piece if columns is None else piece.select(list(columns))


def prove(path: Path, log: Log | None, **options: Any) -> Report:
    return Verification(Archive(path), log, lambda _: None, **options).run()  # type: ignore[arg-type]


def test_what_the_log_no_longer_has_is_one_line_for_a_partition(tmp_path: Path) -> None:
    small_files(tmp_path / "a", files=6)
    report = prove(tmp_path / "a", Log(messages(0, 60), start=34))
    assert (report.faults, report.rows, report.rows_compared) == ([], 60, 26)
    assert report.unchecked == ["orders/0: the log no longer has offsets 0 to 33"]


def test_a_file_of_which_the_log_has_a_part_is_compared_in_that_part(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (one,) = archive_rows(path, 7, [messages(0, 40)])
    changed = messages(0, 40).to_pylist()
    changed[30]["value"] = b"other"
    log = pa.RecordBatch.from_pylist(changed, schema=messages(0, 1).schema)
    report = prove(path, Log(log, start=20))
    assert [fault.text for fault in report.faults] == [f"{one.path}: offsets 30 of orders/0 are not what the log has"]
    table = pq.read_table(path / one.path, partitioning=None)
    pq.write_table(
        pa.concat_tables([table.slice(0, 5), table.slice(6)]), path / one.path
    )  # offset 5, which the log lacks
    report = prove(path, Log(messages(0, 40), start=20))
    assert [fault.text for fault in report.faults] == [f"{one.path}: 1 of its 40 messages are not in it"]


def test_retention_that_is_faster_than_the_proof_is_no_fault(tmp_path: Path) -> None:
    small_files(tmp_path / "a", files=4)
    log = Log(messages(0, 40))

    def remove() -> None:
        log.start = 15

    log.before_read = remove
    report = prove(tmp_path / "a", log)
    assert (report.faults, report.rows, report.rows_compared) == ([], 40, 25)
    assert report.unchecked == ["orders/0: the log no longer has offsets 0 to 14"]


def test_gaps_that_nobody_can_explain_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for first in (0, 20, 40, 60):
        archive_rows(path, 7, [messages(first, 10)])
    report = prove(path, Log(messages(0, 70), start=55))
    assert report.unchecked == [
        "orders/0: the log no longer has 30 offsets in 3 places, the first 0 to 9,",
        "orders/0: the log no longer shows why 30 offsets in 3 places, the first 10 to 19, are missing",
    ]
    assert report.faults == []
    report = prove(path, Log(messages(0, 70)))
    assert {fault.kind for fault in report.faults} == {"gap"}
    assert report.faults[0].text.startswith("orders/0: the log has offsets 10, 11, 12")


def test_a_stream_that_is_gone_or_another_is_not_compared(tmp_path: Path) -> None:
    small_files(tmp_path / "a", files=2)
    report = prove(tmp_path / "a", Log(messages(0, 20), stream_id=8))
    assert (report.rows_compared, report.unchecked) == (0, ["orders/0: the log no longer has offsets 0 to 19"])


def test_without_the_log_nothing_is_said_of_it(tmp_path: Path) -> None:
    small_files(tmp_path / "a", files=2)
    assert prove(tmp_path / "a", None).unchecked == []


def test_rows_in_another_order_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (one,) = archive_rows(path, 7, [messages(0, 10)])
    table = pq.read_table(path / one.path, partitioning=None)
    pq.write_table(table.take([0, 1, 3, 2, *range(4, 10)]), path / one.path)
    for log in (Log(messages(0, 10)), None):
        (fault,) = prove(path, log).faults
        assert (fault.kind, fault.text.startswith(f"{one.path}: its rows are not in order")) == ("file-changed", True)


def test_rows_that_were_invented_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (one,) = archive_rows(path, 7, [messages(0, 10)])
    log = pa.RecordBatch.from_pylist(
        [row for row in messages(0, 10).to_pylist() if row["offset"] != 4], schema=messages(0, 1).schema
    )
    assert [(fault.kind, fault.text) for fault in prove(path, Log(log)).faults] == [
        ("rows-invented", f"{one.path}: offsets 4 of orders/0 are in it and not in the log")
    ]


def test_a_part_of_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for day in (0, 1, 2):
        archive_rows(path, 7, [messages(day * 10, 10, day=day)])
    assert prove(path, None, since="1970-01-02").rows == 20
    assert prove(path, None, streams=["other"]).rows == 0
    (path / Archive(path).state().in_order()[0].path).unlink()
    assert prove(path, None, since="1970-01-02").is_equal
    assert [fault.kind for fault in prove(path, None).faults] == ["file-missing"]


@pytest.mark.parametrize("rows", [40_000])
def test_rows_are_counted_as_they_are_read(tmp_path: Path, rows: int) -> None:
    archive_rows(tmp_path / "a", 7, [messages(0, rows)])
    counts: list[int] = []
    Verification(Archive(tmp_path / "a"), None, counts.append).run()
    assert (sum(counts), len(counts) > 1) == (rows, True)
