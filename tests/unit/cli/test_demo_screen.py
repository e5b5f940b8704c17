"""What the demo's screen says of the archive, in its table and in its lines."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bascule.demo.archive import DemoArchive
from bascule.demo.main import _Screen
from tests.support.archives import archive_rows
from tests.support.compacting import messages


class Partitions:
    def get(self, _stream: str, _number: int) -> Any:
        return SimpleNamespace(log=SimpleNamespace(record_count=100, high_watermark=99), subscriber_count=2)


BROKER: Any = SimpleNamespace(partitions=Partitions())


def shown(archive: DemoArchive | None) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_Screen(BROKER, archive).tables())
    return console.export_text()


@pytest.fixture
def archive(tmp_path: Path) -> DemoArchive:
    return DemoArchive(tmp_path / "orders", "orders")


def test_without_an_archive_nothing_is_said_of_it() -> None:
    assert "archive" not in shown(None)
    assert _Screen(BROKER, None).line().endswith("2 subscribers")


def test_spark_is_starting_until_there_is_something(archive: DemoArchive) -> None:
    assert "Spark is starting…" in shown(archive)
    assert _Screen(BROKER, archive).line().endswith("; Spark is starting…")
    archive.folder.mkdir()  # being made
    assert "Spark is starting…" in shown(archive)


def test_rows_lag_files_and_place(archive: DemoArchive) -> None:
    archive_rows(archive.folder, 7, [messages(0, 60)])
    screen = _Screen(BROKER, archive)
    assert screen.line().endswith(f"; archived: 60 rows, 40 behind, 1 files in {archive.folder}")
    archive_rows(archive.folder, 7, [messages(60, 30)])
    assert screen.line().endswith(f"; archived: 90 rows, 10 behind, 2 files in {archive.folder}")
    title, row = (
        line for line in shown(archive).splitlines() if "Parquet archive" in line or str(archive.folder) in line
    )
    assert title.split() == ["Parquet", "archive", "rows", "rows", "behind", "files", "bytes", "commits"]
    cells = row.split()
    assert (cells[0], cells[1:4], cells[5]) == (str(archive.folder), ["90", "10", "2"], "2")


def test_what_has_ended_is_said_beside_what_there_is(archive: DemoArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_rows(archive.folder, 7, [messages(0, 60)])
    archive.look()
    monkeypatch.setattr(DemoArchive, "problem", "Spark has ended: no Java")
    assert _Screen(BROKER, archive).line().endswith("; Spark has ended: no Java")
    text = shown(archive)
    assert "Spark has ended: no Java" in text
    assert "Parquet archive" in text
