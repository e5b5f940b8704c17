"""The same messages have the same digest, however they are cut and wherever they have been; others have another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from bascule.flight.schema import table_schema  # noqa: E402
from bascule.lake.digest import Digest  # noqa: E402

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.binary(max_size=4),
            "value": st.none() | st.binary(max_size=20),
            "stream": st.just("orders"),
            "partition": st.integers(0, 3),
            "offset": st.integers(0, 1 << 40),
            "timestamp": st.integers(0, 1 << 50),
            "subject": st.text(max_size=5),
            "replySubject": st.none() | st.text(max_size=5),
            "headers": st.lists(
                st.tuples(st.text(min_size=1, max_size=3), st.none() | st.binary(max_size=3)), max_size=3
            ),
            "leaderEpoch": st.integers(0, 1 << 40),
        }
    ),
    max_size=12,
)


def batch_of(rows: list[dict[str, Any]]) -> Any:
    schema = table_schema()
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def digest(*batches: Any) -> int:
    made = Digest()
    for batch in batches:
        made.add(batch)
    return made.value


@given(ROWS, st.data())
def test_cuts_do_not_matter(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = batch_of(rows)
    at = data.draw(st.integers(0, len(rows)))
    assert digest(whole.slice(0, at), whole.slice(at)) == digest(whole)
    again = [batch_of(rows[:at]), batch_of(rows[at:])]
    assert digest(*[one for one in again if one.num_rows]) == (digest(whole) if rows else digest())


@given(ROWS.filter(bool), st.data())
def test_any_change_matters(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    before = digest(batch_of(rows))
    number = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(["key", "value", "offset", "headers", "replySubject", "timestamp"]))
    changed: dict[str, Any] = {
        "key": b"another",
        "value": (rows[number]["value"] or b"") + b"!",
        "offset": rows[number]["offset"] + 1,
        "timestamp": rows[number]["timestamp"] + 1,
        "replySubject": "elsewhere",
        "headers": [*rows[number]["headers"], ("more", b"")],
    }
    other = [dict(row) for row in rows]
    other[number][name] = changed[name]
    assert digest(batch_of(other)) != before
    assert digest(batch_of(rows[:number] + rows[number + 1 :])) != before
    assert digest(batch_of([*rows, rows[number]])) != before


ROW: dict[str, Any] = {
    "key": None,
    "value": None,
    "stream": "s",
    "partition": 0,
    "offset": 0,
    "timestamp": 0,
    "subject": "",
    "replySubject": None,
    "headers": [("a", None)],
    "leaderEpoch": 1,
}


@pytest.mark.parametrize(
    ("name", "rows", "others"),
    [
        ("value", (b"ab", b"c"), (b"a", b"bc")),
        ("headers", ([("a", b"1"), ("b", b"2")], []), ([("a", b"1")], [("b", b"2")])),
        ("headers", ([("ab", b"1"), ("c", b"2")], []), ([("a", b"1"), ("bc", b"2")], [])),
    ],
)
def test_the_same_bytes_in_other_rows_matter(name: str, rows: tuple[Any, Any], others: tuple[Any, Any]) -> None:
    assert digest(batch_of([{**ROW, name: one} for one in rows])) != digest(
        batch_of([{**ROW, name: one} for one in others])
    )


def test_a_slice_has_the_digest_of_its_rows() -> None:
    rows = [{**ROW, "key": b"k%d" % n, "offset": n, "headers": [("h", b"%d" % n)] * (n % 3)} for n in range(9)]
    assert digest(batch_of(rows).slice(3, 4)) == digest(batch_of(rows[3:7]))


def test_null_is_not_empty() -> None:
    seen = {digest(batch_of([ROW]))}
    for name, value in (("key", b""), ("value", b""), ("replySubject", ""), ("headers", [("a", b"")]), ("headers", [])):
        seen.add(digest(batch_of([{**ROW, name: value}])))
    assert len(seen) == 6


def test_a_trip_through_parquet_changes_nothing(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    rows = [
        {
            "key": None if number % 3 else b"k%d" % number,
            "value": b"v" * (number % 50),
            "stream": "orders",
            "partition": 1,
            "offset": number,
            "timestamp": number * 1000,
            "subject": "orders.eu",
            "replySubject": None,
            "headers": [("h", b"%d" % number)] if number % 5 == 0 else [],
            "leaderEpoch": 3,
        }
        for number in range(1000)
    ]
    batch = batch_of(rows)
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "x.parquet", compression="zstd", row_group_size=130)
    assert digest(*pq.ParquetFile(tmp_path / "x.parquet").iter_batches(77)) == digest(batch)
