"""What an archive job is told, checked before anything is touched; and which stream a batch was read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bascule.errors import InvalidOption
from bascule.pipeline.jobs.archive import ArchiveOptions, read_stream_ids


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
