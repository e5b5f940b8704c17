"""Columns from record batches: the kernel and its twin make the same rows of good bytes, and stop at the same place in bad ones."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from bascule.flight.schema import COLUMNS, schema_of, take_batch, wanted_bits
from bascule.kernels.arrow import columns as arrow
from bascule.log.partition.batches import new_batch
from tests.parity.inputs.generate import any_bytes, log
from tests.parity.inputs.strategies import RANDOMS, examples
from tests.parity.twins import twin_arrow, twin_records

EVERYTHING = 2**62
STREAM = "orders"


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """As plain objects. Arrow's own check looks at every offset, every bit and every text."""
    batch.validate(full=True)
    if "timestamp" in batch.schema.names:
        at = batch.schema.get_field_index("timestamp")
        batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def random_columns(rng: random.Random) -> tuple[str, ...]:
    if rng.random() < 0.4:
        return COLUMNS
    return tuple(rng.sample(COLUMNS, rng.randint(1, len(COLUMNS))))


def agree(rng: random.Random, data: bytes, view: Any, columns: tuple[str, ...] = COLUMNS) -> list[dict[str, Any]]:
    """Both make rows with the same budgets from the same bytes; all rows that were made."""
    kernel = arrow.Columns(STREAM.encode(), 3, wanted_bits(columns))
    twin = twin_arrow.Columns(STREAM, 3, columns)
    first = rng.choice((0, 0, 1, 1001, 2**40 + 1))
    end = rng.choice((EVERYTHING, EVERYTHING, 2, 1003, 2**40 + 3))
    kernel.load(view, first, end)
    twin.load(data, first, end)
    rows: list[dict[str, Any]] = []
    while True:
        rows_max, bytes_max = rng.choice((1, 2, 5, 10**6)), rng.choice((1, 100, 1000, 2**40))
        outcome = kernel.fill(rows_max, bytes_max)
        assert outcome == twin.fill(rows_max, bytes_max)
        assert (kernel.rows, kernel.nbytes, kernel.next_offset) == (len(twin.rows), twin.nbytes, twin.next_offset)
        if outcome != arrow.FULL or rng.random() < 0.8:
            made = rows_of(take_batch(kernel, columns))
            assert made == [{name: row[name] for name in columns} for row in twin.take()]
            rows += made
        if outcome != arrow.FULL:
            return rows


def test_both_know_the_same_columns() -> None:
    assert arrow.NAMES == twin_arrow.COLUMNS == COLUMNS
    assert (arrow.ROW_BYTES, arrow.HEADER_BYTES) == (twin_arrow.ROW_BYTES, twin_arrow.HEADER_BYTES)


@examples(300)
@given(RANDOMS)
def test_good_batches(rng: random.Random) -> None:
    data = log(rng, batches_min=1, records_max=8, sealed=0).data
    agree(rng, data, data, random_columns(rng))


@examples(200)
@given(RANDOMS)
def test_every_record_is_a_row(rng: random.Random) -> None:
    data = log(rng, batches_min=1, records_max=8, sealed=0).data
    kernel = arrow.Columns(b"orders", 0)
    kernel.load(data, 0, EVERYTHING)
    assert kernel.fill(10**6, 2**40) == arrow.ALL
    rows = rows_of(take_batch(kernel, COLUMNS))
    records = twin_records.decode(data)
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (record.offset, record.key, record.value) for record in records
    ]


@examples(800)
@given(RANDOMS)
def test_damaged_batches_give_the_rows_before_the_damage(rng: random.Random) -> None:
    data = any_bytes(rng)
    agree(rng, data, data, random_columns(rng))


# ── directed ─────────────────────────────────────────────────────────────────────────────────────


def batch_of(*records: tuple[Any, ...], base_offset: int = 0, epoch: int = 0, timestamp: int = 5) -> bytes:
    batch = new_batch()
    for record in records:
        batch.add(*record)
    with batch.stamp(base_offset, epoch, timestamp) as data:
        return bytes(data)


def rows_from(data: bytes, first: int = 0, end: int = EVERYTHING, columns: tuple[str, ...] = COLUMNS) -> list[Any]:
    kernel = arrow.Columns(b"orders", 0, wanted_bits(columns))
    kernel.load(data, first, end)
    kernel.fill(10**6, 2**40)
    return rows_of(take_batch(kernel, columns))


def test_a_name_that_comes_twice_has_its_last_value() -> None:
    headers = ((b"a", b"1"), (b"b", b"2"), (b"a", b"333"), (b"c", b""), (b"b", b"4"))
    (row,) = rows_from(batch_of((b"k", b"v", headers, b"s", b"")))
    assert row["headers"] == [("a", b"333"), ("c", b""), ("b", b"4")]


def test_names_that_become_equal_count_as_one() -> None:
    (row,) = rows_from(batch_of((None, b"v", ((b"n\xff", b"1"), (b"n\xfe", b"2")), b"s", b"")))
    assert row["headers"] == [("n\ufffd", b"2")]


def test_nothing_is_null_and_empty_is_empty() -> None:
    empty, nothing = rows_from(batch_of((b"", b"", (), b"s", b""), (None, None, (), b"s", b"")))
    assert (empty["key"], empty["value"], nothing["key"], nothing["value"]) == (b"", b"", None, None)
    assert (nothing["replySubject"], nothing["headers"]) == (None, [])


def test_texts_that_are_not_utf8_stay_readable() -> None:
    (row,) = rows_from(batch_of((None, b"\xff", ((b"n", b"\xff"),), b"s\xc3", b"\xf0\x9f\x92")))
    assert (row["subject"], row["replySubject"]) == ("s\ufffd", "\ufffd")
    assert (row["value"], row["headers"]) == (b"\xff", [("n", b"\xff")])


def test_times_are_microseconds_rounded_down() -> None:
    (row,) = rows_from(batch_of((None, b"v", (), b"s", b""), timestamp=1_999))
    assert row["timestamp"] == 1


def test_nulls_come_and_go_over_byte_borders() -> None:
    keys = [b"k" if number % 3 else None for number in range(41)]
    rows = rows_from(batch_of(*[(key, b"v", (), b"s", b"") for key in keys]))
    assert [row["key"] for row in rows] == keys


def test_columns_come_in_the_order_they_are_asked_for() -> None:
    columns = ("offset", "key", "stream")
    data = batch_of((b"k", b"v" * 100, (), b"s", b""), base_offset=7)
    kernel = arrow.Columns(b"orders", 0, wanted_bits(columns))
    kernel.load(data, 0, EVERYTHING)
    kernel.fill(10, 2**40)
    assert kernel.nbytes == arrow.ROW_BYTES + 1  # what is not wanted costs nothing
    batch = take_batch(kernel, columns)
    assert batch.schema == schema_of(columns)
    assert rows_of(batch) == [{"offset": 7, "key": b"k", "stream": "orders"}]


def test_rows_of_several_loads_go_into_one_batch() -> None:
    kernel = arrow.Columns(b"orders", 1)
    for number in range(3):
        kernel.load(batch_of((b"k", b"v%d" % number, (), b"s", b""), base_offset=number), number, EVERYTHING)
        assert kernel.fill(10, 2**40) == arrow.ALL
    assert [row["value"] for row in rows_of(take_batch(kernel, COLUMNS))] == [b"v0", b"v1", b"v2"]
    assert kernel.rows == kernel.nbytes == 0
    assert rows_of(take_batch(kernel, COLUMNS)) == []


def test_nothing_is_loaded_in_the_beginning() -> None:
    assert arrow.Columns(b"orders", 0).fill(1, 1) == arrow.ALL
    with pytest.raises(ValueError, match="columns"):
        arrow.Columns(b"orders", 0, 1 << len(COLUMNS))


def test_batches_whose_offsets_go_back_are_damage() -> None:
    data = batch_of((None, b"a", (), b"s", b""), base_offset=5) + batch_of((None, b"b", (), b"s", b""), base_offset=5)
    kernel = arrow.Columns(b"orders", 0)
    kernel.load(data, 0, EVERYTHING)
    assert kernel.fill(10, 2**40) == arrow.DAMAGED
    assert [row["offset"] for row in rows_of(take_batch(kernel, COLUMNS))] == [5]
    assert kernel.batch_position > 0


def test_buffers_outlive_the_columns_they_came_from() -> None:
    kernel = arrow.Columns(b"orders", 0)
    kernel.load(batch_of((b"key", b"value", (), b"s", b"")), 0, EVERYTHING)
    kernel.fill(10, 2**40)
    _, buffers = kernel.take()
    del kernel
    assert bytes(buffers["value"][2] or b"") == b"value"
    assert memoryview(buffers["value"][2] or b"").readonly


def test_a_buffer_that_is_used_again_has_other_subjects_in_the_same_place() -> None:
    """Subjects of a row are known again by where they lie: but not from one load to the next."""
    buffer = bytearray(batch_of((None, b"v", (), b"first", b""), (None, b"v", (), b"first", b"")))
    kernel = arrow.Columns(b"orders", 0)
    kernel.load(buffer, 0, EVERYTHING)
    kernel.fill(10, 2**40)
    buffer[:] = batch_of((None, b"v", (), b"other", b""), (None, b"v", (), b"other", b""), base_offset=2)
    kernel.load(buffer, 0, EVERYTHING)
    kernel.fill(10, 2**40)
    rows = rows_of(take_batch(kernel, COLUMNS))
    assert [row["subject"] for row in rows] == ["first", "first", "other", "other"]


def test_what_every_row_has_is_right_in_batches_of_any_size() -> None:
    kernel = arrow.Columns(b"orders", 7)
    made = []
    for count in (3, 0, 1, 5, 2, 8):
        kernel.load(batch_of(*[(None, b"v", (), b"s\xff", b"")] * 10), 0, EVERYTHING)
        kernel.fill(count, 2**40)
        made.append((count, take_batch(kernel, COLUMNS)))
    for count, batch in made:
        rows = rows_of(batch)
        assert [(row["stream"], row["partition"], row["subject"]) for row in rows] == [("orders", 7, "s\ufffd")] * count
