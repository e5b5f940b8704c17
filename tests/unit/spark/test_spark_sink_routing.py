"""Where rows go: by option, by column, by key, in turn. Arrow batches in, groups of rows out; no Spark and no broker."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.client.arrow.columns import MessageColumns
from bascule.client.arrow.message_columns import message_columns
from bascule.client.publish.partitioner import by_key
from bascule.errors import InvalidRecord
from bascule.spark.options.declaration import BATCH
from bascule.spark.options.writing import sink_options
from bascule.spark.write.columns import sorted_rows
from bascule.spark.write.routing import Router


def router(partitions: int = 3, turn: int = 0, **options: str) -> Router:
    return Router(sink_options(options, BATCH), lambda _: partitions, turn)


def batch(**columns: Any) -> pa.RecordBatch:
    kinds = {"value": pa.binary(), "key": pa.binary(), "partition": pa.int32()}
    arrays = {name: pa.array(items, kinds.get(name, pa.string())) for name, items in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def routed(route: Router, rows: pa.RecordBatch) -> dict[Any, list[bytes]]:
    """The values of each target, which comes once in a batch."""
    found: dict[Any, list[bytes]] = {}
    for group in route.split(rows):
        target = group.subject if not group.stream else (group.stream, group.partition)
        assert target not in found
        found[target] = group.rows.column("value").to_pylist()
    return found


# ── partitions ───────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.none() | st.binary(max_size=12), min_size=1), st.integers(1, 7))
def test_keys_are_hashed_as_every_client_does(keys: list[bytes | None], partitions: int) -> None:
    values = [b"%d" % number for number in range(len(keys))]
    expected: dict[Any, list[bytes]] = {}
    for key, value in zip(keys, values, strict=True):
        expected.setdefault(("s", by_key(key, value, partitions)), []).append(value)
    assert routed(router(partitions, stream="s", partitioner="key"), batch(value=values, key=keys)) == expected


def test_a_key_of_go_liftbridge_goes_where_it_goes_there() -> None:
    """CRC-32 of IEEE of "foo" is 0x8c736521, which modulo 3 is 2."""
    assert list(routed(router(3, stream="s", partitioner="key"), batch(value=[b"v"], key=[b"foo"]))) == [("s", 2)]


def test_round_robin_goes_on_from_batch_to_batch_and_begins_where_it_is_told() -> None:
    route = router(3, turn=4, stream="s", partitioner="round-robin")
    assert routed(route, batch(value=[b"a", b"b"])) == {("s", 1): [b"a"], ("s", 2): [b"b"]}
    assert routed(route, batch(value=[b"c", b"d"])) == {("s", 0): [b"c"], ("s", 1): [b"d"]}


def test_automatic_takes_the_column_then_the_key_then_turns() -> None:
    rows = batch(value=[b"a", b"b", b"c", b"d"], key=[b"foo", b"foo", None, None], partition=[0, None, None, 0])
    assert routed(router(3, turn=4, stream="s"), rows) == {
        ("s", 0): [b"a", b"d"],
        ("s", 1): [b"c"],
        ("s", 2): [b"b"],
    }


def test_an_option_sends_all_rows_to_one_partition() -> None:
    rows = batch(value=[b"a", b"b"], key=[b"k", b"l"], partition=[0, 1])
    assert routed(router(3, stream="s", partition="2"), rows) == {("s", 2): [b"a", b"b"]}


@pytest.mark.parametrize(
    ("options", "rows", "complaint"),
    [
        ({"partitioner": "explicit"}, {"partition": [1, None]}, "no partition"),
        ({}, {"partition": [1, 3]}, "partition 3 of `s`, which has 3"),
        ({}, {"partition": [-1, 1]}, "partition -1 of `s`"),
        ({"partition": "3"}, {}, "partition 3 of `s`"),
    ],
)
def test_partitions_that_are_not_there_are_refused(options: Any, rows: Any, complaint: str) -> None:
    with pytest.raises(InvalidRecord, match=complaint):
        routed(router(3, stream="s", **options), batch(value=[b"a", b"b"], **rows))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_rows_keep_their_order_within_a_partition_and_none_is_lost(partitions: list[int]) -> None:
    values = [b"%d" % number for number in range(len(partitions))]
    found = routed(router(5, stream="s"), batch(value=values, partition=partitions))
    for (_, partition), rows in found.items():
        assert rows == [value for value, chosen in zip(values, partitions, strict=True) if chosen == partition]
    assert sum(map(len, found.values())) == len(values)


# ── streams and subjects ─────────────────────────────────────────────────────────────────────────


def test_a_column_sends_each_row_to_its_stream_or_subject() -> None:
    rows = batch(value=[b"a", b"b", b"c", b"d"], stream=["s", None, "t", "s"], subject=["x", "y", "x", None])
    found = routed(router(1), rows)
    assert found == {("s", 0): [b"a", b"d"], ("t", 0): [b"c"], "y": [b"b"]}


def test_the_option_is_stronger_than_the_column() -> None:
    rows = batch(value=[b"a"], stream=["s"], subject=["x"])
    assert routed(router(1, stream="o"), rows) == {("o", 0): [b"a"]}
    assert routed(router(1, subject="q"), rows) == {"q": [b"a"]}


def test_a_row_without_a_target_is_refused() -> None:
    for columns in (
        {"stream": ["s", None]},
        {"stream": [None, None], "subject": ["x", None]},
        {"subject": [None, "x"]},
    ):
        with pytest.raises(InvalidRecord, match="where it goes"):
            routed(router(1), batch(value=[b"a", b"b"], **columns))


def test_no_rows_go_nowhere() -> None:
    assert routed(router(1, stream="s"), batch(value=[])) == {}


# ── what is published ────────────────────────────────────────────────────────────────────────────


def texts(data: Any, ends: Any) -> list[bytes]:
    places = [0, *memoryview(ends).tolist()]
    return [bytes(data)[start:end] for start, end in pairwise(places)]


def headers_of(columns: MessageColumns) -> list[list[tuple[bytes, bytes]]]:
    assert columns.headers is not None
    rows, names, name_ends, values, value_ends = columns.headers
    pairs = list(zip(texts(names, name_ends), texts(values, value_ends), strict=True))
    places = [0, *memoryview(rows).tolist()]
    return [pairs[start:end] for start, end in pairwise(places)]


HEADERS = pa.map_(pa.string(), pa.binary())
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_nulls_are_empty_and_slices_are_themselves() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(["a", None, "ö", ""], pa.string()),
            "key": pa.array([b"k", None, b"", b"l"], pa.binary()),
            "headers": pa.array([[("a", b"1"), ("b", None)], None, [], [("c", b"22")]], HEADERS),
        }
    )
    for first, length in ((0, 4), (1, 3), (2, 2), (3, 1)):
        columns = message_columns(rows.slice(first, length))
        assert texts(columns.values, columns.value_ends) == [b"a", b"", "ö".encode(), b""][first:]
        assert texts(columns.keys, columns.key_ends) == [b"k", b"", b"", b"l"][first:]
        assert headers_of(columns) == [[(b"a", b"1"), (b"b", b"")], [], [], [(b"c", b"22")]][first:]


def test_headers_may_be_pairs_as_kafka_has_them() -> None:
    pairs = [[{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], None, [{"key": "b", "value": None}]]
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"", b"", b""]), "headers": pa.array(pairs, PAIRS)})
    assert headers_of(message_columns(rows)) == [[(b"a", b"1"), (b"a", b"2")], [], [(b"b", b"")]]


def test_headers_of_the_producer_that_a_row_was_read_from_are_left_out() -> None:
    """A copy that said it came from the producer of the original would be taken for a repeat, or for a gap."""
    given_headers = [
        [("bascule-producer", b"p"), ("a", b"1"), ("bascule-epoch", b"0")],
        [("bascule-sequence", b"7")],
        [("b", b"2"), ("bascule-timestamp", b"5")],
    ]
    columns = {"value": pa.array([b"", b"", b""]), "headers": pa.array(given_headers, HEADERS)}
    found = headers_of(message_columns(pa.RecordBatch.from_pydict(columns)))
    assert found == [[(b"a", b"1")], [], [(b"b", b"2"), (b"bascule-timestamp", b"5")]]
    times = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC"))
    found = headers_of(message_columns(pa.RecordBatch.from_pydict({**columns, "timestamp": times})))
    assert found[2] == [(b"b", b"2")], "the column says it now"


def test_times_are_nanoseconds_and_none_before_1970() -> None:
    moments = [datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None, datetime(1969, 1, 1, tzinfo=UTC)]
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"", b"", b""]), "timestamp": pa.array(moments, pa.timestamp("us", "UTC"))}
    )
    times: Any = message_columns(rows).timestamps
    assert memoryview(times).tolist() == [1_767_225_600_000_001_000, -1, -1]


def test_rows_are_sorted_by_what_they_are_whatever_order_they_come_in() -> None:
    rows = [(b"b", b"1"), (b"a", b"2"), (None, b"3"), (b"a", b"1")]
    orders = []
    for places in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        batches = [batch(key=[rows[place][0]], value=[rows[place][1]]) for place in places]
        found = pa.Table.from_batches(sorted_rows(batches, ("*",)))
        orders.append(list(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)))
    assert orders[0] == orders[1] == orders[2]
    by_key_only = pa.Table.from_batches(sorted_rows([batch(key=[b"b", b"a"], value=[b"1", b"2"])], ("key",)))
    assert by_key_only["key"].to_pylist() == [b"a", b"b"]
    assert list(sorted_rows([], ("*",))) == []
