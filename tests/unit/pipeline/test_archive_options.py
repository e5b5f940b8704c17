"""What an archive job is told, checked before anything is touched; and which stream a batch was read from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bascule.errors import BasculeError, InvalidOption, Unavailable
from bascule.lake.facts import Covered
from bascule.pipeline.jobs.archive import ArchiveCursors, ArchiveOptions, read_stream_ids
from bascule.pipeline.jobs.latest import LatestOptions


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "nothing says which streams"),
        ({"streams": ("a",), "pattern": "a.*"}, "`streams` and `pattern` both"),
        ({"streams": ("a",), "file_bytes": 0}, "`file_bytes` is 0"),
        ({"streams": ("a",), "compression": "rar"}, "`compression` is `rar`"),
        ({"streams": ("a",), "trigger_seconds": 0.0}, "`trigger_seconds` is 0"),
        ({"pattern": "a("}, r"`pattern` is `a\(`"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidOption, match=what) as caught:
        ArchiveOptions(path="/lake", **given)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("s3a:/bucket/orders", "names no bucket"),
        ("s3://bucket", "is a whole bucket"),
        ("s3:///orders", "names no bucket"),
        ("hdfs://name/orders", "has the scheme `hdfs`"),
        (" ", "is empty"),
    ],
)
def test_a_path_that_is_no_place_of_a_table_is_refused(path: str, what: str) -> None:
    with pytest.raises(InvalidOption, match=what) as caught:
        ArchiveOptions(path=path, streams=("a",))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("path", "uri", "name"),
    [
        ("file:///lake/x", "/lake/x", "x"),
        ("/lake/x/", "/lake/x/", "x"),
        ("s3a://bucket/lake/orders/", "s3://bucket/lake/orders", "orders"),
        ("gs://bucket/orders", "gs://bucket/orders", "orders"),
        ("abfss://c@a.dfs.core.windows.net/o", "abfss://c@a.dfs.core.windows.net/o", "o"),
    ],
)
def test_folders_and_object_stores_are_places(path: str, uri: str, name: str) -> None:
    options = ArchiveOptions(path=path, streams=("a",), storage={"aws_secret_access_key": "very-secret"})
    assert (options.place.uri, options.cursor_name) == (uri, f"archive:{name}")
    assert (options.place.local is None) == ("://" in uri)
    assert "very-secret" not in f"{options!r}{options.place!r}{options.place}"
    if options.place.local is None:
        assert options.checkpoint_path.is_absolute(), "Spark has no file system for object stores"


@pytest.mark.parametrize("path", ["s3://bucket/customers", "s3a:/bucket/customers"])
def test_a_table_of_the_latest_messages_is_in_a_folder(path: str) -> None:
    with pytest.raises(InvalidOption, match="bucket"):
        LatestOptions(path=path, streams=("a",))


def test_how_the_source_is_told_which_streams() -> None:
    more = {"onDataLoss": "skip"}
    named = ArchiveOptions(path="/lake/x", streams=("a", "b"), servers="h:1", source=more).source_options()
    assert named == {"servers": "h:1", "startingOffsets": "earliest", "subscribe": "a,b", "onDataLoss": "skip"}
    assert ArchiveOptions(path="/x", pattern="a.*").source_options()["subscribePattern"] == "a.*"
    assert ArchiveOptions(path="/x", subject="a.>").source_options()["subjectPattern"] == "a.>"


def test_the_cursor_has_the_name_of_the_folder() -> None:
    assert ArchiveOptions(path="file:///lake/orders/", streams=("a",)).cursor_name == "archive:orders"
    assert ArchiveOptions(path="/lake/orders", streams=("a",), cursor="mine").cursor_name == "mine"
    assert ArchiveOptions(path="/lake/orders", streams=("a",), cursor="").cursor_name == ""


def test_a_note_of_spark_on_a_batch_says_which_streams_it_is_of(tmp_path: Path) -> None:
    noted = tmp_path / "7"
    assert read_stream_ids(noted) == {}
    lines = ["v1", '{"batchWatermarkMs":0}', '{"orders": {"0": 6, "id": 17}, "old": {"0": 6}}', "-", "3", '{"n": 3}']
    noted.write_text("\n".join(lines))
    assert read_stream_ids(noted) == {"orders": 17}


class Brokers:
    """Takes a cursor in some time, or not at all."""

    def __init__(self) -> None:
        self.cursors: dict[tuple[str, int], int] = {}
        self.clock = 0.0
        self.seconds = 0.0
        self.failure: BasculeError | None = None
        self.calls: list[int] = []

    def set_cursor(self, _: str, stream: str, partition: int, offset: int) -> None:
        self.clock += self.seconds
        self.calls.append(partition)
        if self.failure is not None:
            raise self.failure
        self.cursors[stream, partition] = offset

    def close(self) -> None:
        self.clock = -1.0


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr(ArchiveOptions, "client", lambda _: found)
    monkeypatch.setattr(time, "monotonic", lambda: found.clock)
    return found


def covered(*ends: int) -> tuple[Covered, ...]:
    return tuple(Covered("orders", 7, partition, 0, end) for partition, end in enumerate(ends))


def test_cursors_that_take_too_long_wait_and_none_is_starved(brokers: Brokers) -> None:
    cursors = ArchiveCursors(ArchiveOptions(path="/lake/x", streams=("orders",)))
    brokers.seconds = 1.0
    cursors.set(covered(10, 10, 10))
    assert brokers.calls == [0, 1]
    cursors.set(covered(20, 20, 20))
    assert brokers.calls == [0, 1, 2, 0]
    assert brokers.cursors == {("orders", 0): 19, ("orders", 1): 9, ("orders", 2): 19}
    cursors.close()
    assert brokers.cursors["orders", 1] == 19


def test_a_cursor_that_fails_is_said_once_and_tried_again(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    cursors = ArchiveCursors(ArchiveOptions(path="/lake/x", streams=("orders",)))
    brokers.failure = Unavailable("nobody there")
    for _ in range(3):
        cursors.set(covered(10))
    assert capsys.readouterr().err == "bascule: cursor `archive:x` was not set: nobody there\n"
    brokers.failure = None
    cursors.set(())
    assert brokers.cursors == {("orders", 0): 9}


def test_without_a_cursor_nobody_is_asked(brokers: Brokers) -> None:
    ArchiveCursors(ArchiveOptions(path="/lake/x", streams=("orders",), cursor="")).set(covered(10))
    assert brokers.calls == []


def test_a_checkpoint_may_be_an_address_of_a_file() -> None:
    options = ArchiveOptions(path="/lake/x", streams=("a",), checkpoint="file:///notes")
    assert options.checkpoint_path == Path("/notes")
    assert ArchiveOptions(path="/lake/x", streams=("a",)).checkpoint_path == Path("/lake/x/_bascule/checkpoint")
