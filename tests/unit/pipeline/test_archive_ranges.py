"""What a batch of the archive's query has to read is in Spark's notes, or it is not taken from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bascule.pipeline.jobs.archive_ranges import noted_ranges
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options

OPTIONS = source_options({"subscribe": "orders"}, STREAMING)


def note(checkpoint: Path, batch_id: int, *sources: object) -> None:
    """As Spark writes it before it runs a batch."""
    lines = ["v1", json.dumps({"batchWatermarkMs": 0}), *(json.dumps(source) for source in sources)]
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines))


def ranges(checkpoint: Path, batch_id: int, floors: dict[tuple[str, int], int] | None = None) -> Any:
    found = noted_ranges(checkpoint, batch_id, OPTIONS, floors or {})
    return None if found is None else [(one.stream, one.stream_id, one.partition, one.start, one.end) for one in found]


def test_the_first_batch_begins_where_its_note_says(tmp_path: Path) -> None:
    note(tmp_path, 0, {"orders": {"0": 9, "1": 5, "id": 17, "from": {"0": 4, "1": 5}}})
    assert ranges(tmp_path, 0) == [("orders", 17, 0, 4, 9)]


def test_the_next_one_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    note(tmp_path, 6, {"orders": {"0": 9, "1": 5, "id": 17}})
    note(tmp_path, 7, {"orders": {"0": 12, "1": 6, "id": 17}, "later": {"0": 3, "id": 20, "from": {"0": 1}}})
    assert sorted(ranges(tmp_path, 7)) == [("later", 20, 0, 1, 3), ("orders", 17, 0, 9, 12), ("orders", 17, 1, 5, 6)]


def test_what_is_archived_already_is_not_read_again(tmp_path: Path) -> None:
    note(tmp_path, 0, {"orders": {"0": 9, "1": 5, "id": 17, "from": {"0": 0, "1": 0}}})
    assert ranges(tmp_path, 0, {("orders", 0): 9, ("orders", 1): 2}) == [("orders", 17, 1, 2, 5)]


def test_notes_that_do_not_say_it_are_not_guessed_at(tmp_path: Path) -> None:
    assert ranges(tmp_path, 0) is None
    note(tmp_path, 3, {"orders": {"0": 9, "id": 17}})
    assert ranges(tmp_path, 3) is None, "the one before is gone"
    note(tmp_path, 2, {"orders": {"0": 4, "id": 17}}, {"other": {"0": 1}})
    assert ranges(tmp_path, 3) is None, "two sources are not this query"
    note(tmp_path, 2, "-")
    assert ranges(tmp_path, 3) is None
    note(tmp_path, 0, {"orders": {"0": 9, "id": 17}})
    assert ranges(tmp_path, 0) is None, "where it began is not noted"
    (tmp_path / "offsets/0").write_text("v1\n{}\nno json")
    assert ranges(tmp_path, 0) is None
