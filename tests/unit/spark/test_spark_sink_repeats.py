"""Rows that brokers had already: compared with what is stored, so that rows in another order are not lost in silence."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from bascule.errors import RowsChanged, Unavailable
from bascule.spark.options.reading import ConnectionOptions
from bascule.spark.write.routing import Group
from bascule.spark.write.task import Repeats, SinkConnection, TaskIdentity

STORED = [(10, b"k0", b"v0"), (11, b"k1", b"v1"), (12, b"", b"")]
"""Offsets, keys and values of an earlier attempt."""


class Connection:
    """What is stored, without a broker."""

    def __init__(self, stored: list[tuple[int, bytes, bytes]], newest: int) -> None:
        self.stored = stored
        self.newest = newest
        self.reads: list[tuple[int, int]] = []

    def newest_offset(self, _stream: str, _partition: int) -> int:
        return self.newest

    def messages(self, _stream: str, _partition: int, first: int, last: int) -> Any:
        self.reads.append((first, last))
        for offset, key, value in self.stored:
            if first <= offset <= last:
                yield SimpleNamespace(offset=offset, key=key, value=value)


def check(rows: list[tuple[str | None, str | None]], offsets: list[int], stored: Any = STORED, newest: int = 12) -> Any:
    connection: Any = Connection(stored, newest)
    repeats = Repeats(connection, TaskIdentity("spark:q", 7, 1))
    repeats.begin("s", 0)
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _ in rows], pa.string()),
            "value": pa.array([value for _, value in rows], pa.string()),
        }
    )
    repeats.check(Group(batch, "s", 0, None), array("q", offsets))
    return connection.reads


def test_rows_that_are_new_are_not_read_again() -> None:
    assert check([("a", "b")], [13]) == []
    assert check([("a", "b")], [0], newest=-1) == []


def test_rows_that_came_again_as_they_were_are_fine() -> None:
    rows: list[tuple[str | None, str | None]] = [("k0", "v0"), ("k1", "v1"), (None, None), ("new", "row")]
    assert check(rows, [10, 11, 12, 13]) == [(10, 12)]


@pytest.mark.parametrize(
    "rows", [[("k1", "v1"), ("k0", "v0")], [("k0", "v0"), ("k1", "other")], [("k0", "v0"), ("other", "v1")]]
)
def test_rows_in_another_order_or_others_are_named(rows: Any) -> None:
    with pytest.raises(RowsChanged, match=r"batch 7 came again .* row \d of task 1 .* `s`/0, offset 1\d") as error:
        check(rows, [10, 11])
    assert "orderBy" in (error.value.hint or "")


def test_what_is_not_known_any_more_cannot_be_compared() -> None:
    assert check([("x", "y")], [-1]) == []
    assert check([("x", "y"), ("k1", "v1")], [10, 11], stored=STORED[1:]) == [(10, 11)]


class Silent:
    """A subscription to which nothing comes."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def next(self, _timeout: float) -> None:
        return None


def test_what_a_silent_broker_has_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(subscribe=lambda *_, **__: Silent())
    monkeypatch.setattr("bascule.client.blocking.connect", lambda *_, **__: client)
    connection = SinkConnection(ConnectionOptions(servers="a:9292"))
    with pytest.raises(Unavailable, match="`s`/0 gave nothing for 60 s"):
        list(connection.messages("s", 0, 10, 12))


def test_a_broker_that_stands_still_is_waited_for_as_long_as_sources_do(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("bascule.client.blocking.connect", lambda _servers, **options: given.update(options))
    SinkConnection(ConnectionOptions(servers="a:9292"))
    assert given["timeout"] == 60
