"""Tickets, commands and errors of Arrow Flight: what is written is read again, what makes no sense is refused by its name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule import errors, limits
from bascule.flight import tickets
from bascule.flight.failures import as_bascule_errors, below_start, from_flight, not_leader, to_flight
from bascule.flight.schema import COLUMNS, check_columns, schema_of, table_schema

ROOT = Path(__file__).resolve().parents[3]

# ── the schema ───────────────────────────────────────────────────────────────────────────────────


def test_the_schema_is_the_one_that_spark_compares_with() -> None:
    from pyspark.sql import types as spark
    from pyspark.sql.pandas.types import to_arrow_schema

    def field(name: str, kind: Any, nullable: bool = False) -> Any:
        return spark.StructField(name, kind, nullable)

    declared = spark.StructType(
        [
            field("key", spark.BinaryType(), True),
            field("value", spark.BinaryType(), True),
            field("stream", spark.StringType()),
            field("partition", spark.IntegerType()),
            field("offset", spark.LongType()),
            field("timestamp", spark.TimestampType()),
            field("subject", spark.StringType()),
            field("replySubject", spark.StringType(), True),
            field("headers", spark.MapType(spark.StringType(), spark.BinaryType(), True)),
            field("leaderEpoch", spark.LongType()),
        ]
    )
    assert to_arrow_schema(declared, timezone="UTC").equals(table_schema(), check_metadata=True)


def test_chosen_columns_keep_their_order_and_types() -> None:
    schema = schema_of(("offset", "key"))
    assert schema.names == ["offset", "key"]
    assert schema.field("key") == table_schema().field("key")
    assert schema_of(COLUMNS) is table_schema()
    assert check_columns(None) == COLUMNS


@pytest.mark.parametrize("names", [["price"], ["key", "key"], []])
def test_columns_that_make_no_table_are_refused(names: list[str]) -> None:
    with pytest.raises(errors.CallerError, match="column"):
        check_columns(names)


# ── tickets and commands ─────────────────────────────────────────────────────────────────────────


@given(
    st.builds(
        tickets.ReadTicket,
        stream=st.text(min_size=1, max_size=20),
        partition=st.integers(0, 2**31 - 1),
        stream_id=st.none() | st.integers(0, 2**63 - 1),
        start=st.none() | st.integers(0, 1000),
        end=st.none() | st.integers(1000, 2**63 - 1),
        columns=st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True).map(tuple),
        batch_rows=st.integers(1, limits.FLIGHT_BATCH_ROWS_MAX),
        batch_bytes=st.integers(1, limits.FLIGHT_BATCH_BYTES_MAX),
    )
)
def test_a_ticket_that_was_written_is_read_again(ticket: tickets.ReadTicket) -> None:
    assert tickets.parse_ticket(ticket.encode()) == ticket


def test_a_ticket_needs_no_more_than_a_stream_and_a_partition() -> None:
    ticket = tickets.parse_ticket(b'{"stream": "orders", "partition": 3}')
    assert ticket == tickets.ReadTicket(stream="orders", partition=3)
    assert (ticket.start, ticket.end, ticket.columns, ticket.stream_id) == (None, None, COLUMNS, None)


WRONG: dict[str, Any] = {
    "stream": [1, "", None],
    "partition": [-1, 2**31, "0", True, None, 1.0],
    "stream_id": [-1, "17", 2**63],
    "start": ["latest", -1, 2**63, True, None],
    "end": [-1, "earliest", 2**63],
    "columns": ["key", ["price"], [], [1]],
    "batch_rows": [0, -1, limits.FLIGHT_BATCH_ROWS_MAX + 1, "many"],
    "batch_bytes": [0, limits.FLIGHT_BATCH_BYTES_MAX + 1],
    "ends": [1],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    fields = {"stream": "orders", "partition": 0, field: value}
    with pytest.raises(errors.CallerError) as refused:
        tickets.parse_ticket(json.dumps(fields).encode())
    assert field.rstrip("s") in refused.value.message


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(data: bytes) -> None:
    parsers = (
        tickets.parse_ticket,
        tickets.parse_command,
        tickets.parse_offsets_query,
        tickets.parse_pattern,
    )
    for parse in parsers:
        try:
            parse(data)
        except errors.CallerError as error:
            assert error.message


def test_commands_that_were_written_are_read_again() -> None:
    command = tickets.TableCommand(stream="orders", partitions=(1, 2), columns=("key",))
    assert tickets.parse_command(command.encode()) == command
    query = tickets.OffsetsQuery(streams=("orders",), timestamps={"orders": {0: 5}})
    assert tickets.parse_offsets_query(query.encode()) == query
    assert tickets.parse_offsets_query(b"") == tickets.OffsetsQuery()
    assert tickets.parse_pattern(b"") is None


PATTERNS = [
    ("orders", "orders", True),
    ("orders", "order", False),
    ("orders", "orders2", False),
    ("orders-*", "orders-eu", True),
    ("orders-*", "orders", False),
    ("*", "", True),
    ("*.eu", "a.eu.eu", True),
    ("a*b*c", "a-b-b-c", True),
    ("a*b*c", "a-b-b-d", False),
    ("o?ders", "orders", True),
    ("o?ders", "oders", False),
    ("a.c", "abc", False),
    ("([a-z]+)+!", "aaaa!", False),
    ("[ab]", "a", False),
    ("", "x", False),
]


@pytest.mark.parametrize(("pattern", "name", "expected"), PATTERNS)
def test_a_pattern_is_a_glob(pattern: str, name: str, expected: bool) -> None:
    assert tickets.NamePattern(pattern).matches(name) is expected


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_matches_as_its_regular_expression_does(pattern: str, name: str) -> None:
    translated = "".join({"*": ".*", "?": "."}.get(one, one) for one in pattern)
    assert tickets.NamePattern(pattern).matches(name) is (re.fullmatch(translated, name) is not None)


def test_no_pattern_takes_long() -> None:
    """256 stars and a name of 4,096 characters: a million steps, where backtracking would not end."""
    assert not tickets.NamePattern("a*" * 127 + "b").matches("a" * 4_096)
    assert not tickets.NamePattern("*a" * 127 + "*b").matches("a" * 4_096)


def test_a_pattern_that_is_too_long_is_refused() -> None:
    with pytest.raises(errors.CallerError, match="257 characters"):
        tickets.parse_pattern(json.dumps({"pattern": "x" * 257}).encode())


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (tickets.parse_offsets_query, {"streams": "orders"}),
        (tickets.parse_offsets_query, {"timestamps": {"orders": 5}}),
        (tickets.parse_offsets_query, {"timestamps": {"orders": {"first": 5}}}),
        (tickets.parse_offsets_query, {"timestamps": {"orders": {"0": -5}}}),
        (tickets.parse_command, {"stream": "s", "partitions": 1}),
        (tickets.parse_command, {"stream": "s", "partitions": [-1]}),
    ],
)
def test_bad_commands_are_refused(parse: Any, data: Any) -> None:
    with pytest.raises(errors.CallerError):
        parse(json.dumps(data).encode())


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        errors.StreamNotFound("there is no stream 'x'"),
        errors.CallerError("wrong", hint="do it right"),
        errors.PermissionDenied("no"),
        errors.StreamRecreated("another one"),
        errors.Unavailable("stopping"),
        below_start("orders", 0, 5, 9),
        not_leader("orders", 0, "b", "grpc://b:9294"),
    ],
    ids=lambda error: error.code,
)
def test_an_error_arrives_as_it_was_sent(error: errors.BasculeError) -> None:
    sent = to_flight(error)
    assert str(sent).startswith(f"{error.code}: ")
    got = from_flight(sent)
    assert type(got) is type(error)
    assert (got.message, got.hint) == (error.message, error.hint)
    for fact in ("log_start_offset", "leader", "location"):
        assert getattr(got, fact, None) == getattr(error, fact, None)


def test_the_text_alone_says_the_code() -> None:
    got = from_flight(
        flight.FlightServerError("STREAM_NOT_FOUND: there is none. Detail: Failed. gRPC client debug context: x")
    )
    assert type(got) is errors.StreamNotFound


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (flight.FlightUnavailableError("failed to connect"), errors.Unavailable),
        (flight.FlightTimedOutError("too slow"), errors.Unavailable),
        (flight.FlightUnauthenticatedError("who are you"), errors.PermissionDenied),
        (flight.FlightInternalError("oh"), errors.BasculeError),
        (pa.ArrowInvalid("what"), errors.BasculeError),
    ],
)
def test_what_the_transport_says_has_a_place_among_our_errors(
    error: Exception, kind: type[errors.BasculeError]
) -> None:
    with pytest.raises(kind), as_bascule_errors():
        raise error


# ── without Arrow ────────────────────────────────────────────────────────────────────────────────

WITHOUT_ARROW = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def test_who_lacks_arrow_is_told_what_to_install() -> None:
    code = """
import bascule
try:
    bascule.read_table("orders")
except bascule.errors.MissingExtra as error:
    print(error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ARROW + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT / "src",
    )
    assert 'pip install "bascule[spark]"' in done.stdout, done.stderr
