"""What a query names, and what Spark's errors become."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from bascule.errors import DataLost, InvalidQuery, PipelineFailed
from bascule.pipeline.sql import mentioned, needed_columns, plain
from bascule.spark.errors.failures import from_spark

STREAMS = ("orders", "Returns", "shop.events", "a-b", "count")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("SELECT * FROM orders o JOIN returns r ON o.key = r.key", ["orders", "Returns"]),
        ("SELECT * FROM `a-b`, `shop.events`", ["a-b", "shop.events"]),
        ("SELECT 'orders', \"returns\" FROM x -- orders\n/* orders */", []),
        ("SELECT 'it\\'s orders' FROM x", []),
        ("SELECT ORDERS.key FROM orders", ["orders"]),
        ("SELECT reorders FROM orders_2", []),
        ("SELECT count(*) FROM a", ["count"]),
    ],
)
def test_streams_are_found_by_their_names(query: str, found: list[str]) -> None:
    assert mentioned(query, STREAMS) == found


def test_of_names_that_differ_in_case_the_one_that_is_written_is_meant() -> None:
    assert mentioned("SELECT * FROM Orders", ["orders", "Orders"]) == ["Orders"]
    assert mentioned("SELECT * FROM ORDERS", ["orders", "Orders"]) == []


class AnalysisException(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.desc = text


def test_a_table_that_is_not_there_is_named_with_the_one_that_was_meant() -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `ordes` cannot be found. Verify … SQLSTATE: 42P01; line 1 pos 14;\n'Project"
    error = from_spark(AnalysisException(text), ["orders", "returns"])
    assert isinstance(error, InvalidQuery)
    assert str(error) == "there is no stream or archive `ordes`\nhint: did you mean `orders`?"


def test_a_column_that_is_not_there_is_named_with_those_there_are() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `itm` cannot be resolved. Did you mean one of the following? "
        "[`item`, `key`]. SQLSTATE: 42703; line 1 pos 7;\n'Project ['itm]\n+- SubqueryAlias orders"
    )
    assert (
        str(from_spark(AnalysisException(text)))
        == "A column with name `itm` cannot be resolved.\nhint: there are `item`, `key`"
    )


def test_an_error_of_ours_is_found_in_what_spark_wraps_around_it() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed\n"
        "Traceback (most recent call last):\n  File x\nbascule.errors.DataLost: [DATA_LOST] `orders`/0 was to be read from offset 5\n"
        "hint: set `onDataLoss`\n SQLSTATE: XXKST"
    )
    error = from_spark(RuntimeError(text))
    assert isinstance(error, DataLost)
    assert (error.message, error.hint) == ("`orders`/0 was to be read from offset 5", "set `onDataLoss`")


def test_anything_else_is_one_line_without_a_trace() -> None:
    text = "[INTERNAL] Something went wrong. SQLSTATE: XX000\n\tat org.apache.spark.Foo\n\tat …"
    error = from_spark(RuntimeError(text))
    assert isinstance(error, PipelineFailed)
    assert str(error) == "Something went wrong."


def test_a_row_that_does_not_fit_a_query_is_the_querys_affair() -> None:
    text = "[CAST_INVALID_INPUT] The value 'x' of the type cannot be cast. SQLSTATE: 22018\n\tat org.apache.spark.Foo\n\tat …"
    error = from_spark(RuntimeError(text))
    assert isinstance(error, InvalidQuery)
    assert (error.message, "try_cast" in str(error.hint)) == ("The value 'x' of the type cannot be cast.", True)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT count(*) FROM orders", ("offset",)),
        ("SELECT o.key, max(`timestamp`) FROM orders o GROUP BY KEY", ("key", "timestamp")),
        ("SELECT get_json_object(CAST(value AS STRING), '$.key') FROM orders", ("value",)),
        ("SELECT headers['a'] FROM orders WHERE replysubject IS NULL", ("replySubject", "headers")),
        ("WITH a AS (SELECT offset FROM orders) SELECT count( * ) FROM a", ("offset",)),
        ("SELECT * FROM orders", None),
        ("SELECT o.* FROM orders o", None),
        ("WITH a AS (TABLE orders) SELECT 1 FROM a", None),
        ("SELECT 1 FROM orders NATURAL JOIN returns", None),
        ("SELECT 1 FROM orders PIVOT (count(offset) FOR stream IN ('a'))", None),
        ("TABLE orders", None),
        ("FROM orders", None),
        ("FROM orders |> WHERE offset > 1", None),
    ],
)
def test_columns_that_a_query_does_not_name_are_not_read(query: str, columns: tuple[str, ...] | None) -> None:
    assert needed_columns(query) == columns


def test_cells_are_plain() -> None:
    kind = pa.struct(
        [
            ("map", pa.map_(pa.string(), pa.binary())),
            ("list", pa.list_(pa.timestamp("us", "UTC"))),
            ("sum", pa.decimal128(5, 2)),
        ]
    )
    moment = datetime(2026, 11, 15, 12, tzinfo=UTC)
    cell = pa.array(
        [
            {"map": [("a", b"\xff")], "list": [moment], "sum": Decimal("1.50")},
            {"map": [], "list": [], "sum": None},
            None,
        ],
        kind,
    )
    assert [plain(one, kind) for one in cell.to_pylist()] == [
        {"map": {"a": "\\xff"}, "list": ["2026-11-15T12:00:00Z"], "sum": "1.50"},
        {"map": {}, "list": [], "sum": None},
        None,
    ]
