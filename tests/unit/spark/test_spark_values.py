"""Typed values: JSON, Avro and protobuf become columns; a value that does not fit is kept apart or named."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bascule.errors import InvalidOption, InvalidSchema, MalformedValue
from bascule.spark.options.reading import value_options
from bascule.spark.options.schema import TABLE
from bascule.spark.read.batch_reader import ReadRange, SparkRows
from bascule.spark.source import BasculeSource
from bascule.spark.values.avro import read_schema
from bascule.spark.values.decoding import ValueColumn, ValueReader
from bascule.spark.values.json import json_decoder

ORDER = StructType([StructField("id", LongType(), nullable=False), StructField("name", StringType())])
JSON = {"valueFormat": "json", "valueSchema": "id BIGINT NOT NULL, name STRING"}


def value_reader(**options: str) -> ValueReader:
    return ValueReader.of(value_options(options))


# ── columns ──────────────────────────────────────────────────────────────────────────────────────


def typed(schema: StructType, reader: ValueReader, values: list[bytes | None]) -> list[dict[str, Any]]:
    rows = SparkRows(schema, pickle.loads(pickle.dumps(reader)))
    assert rows.asked == ("value", "offset")
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64())], list(rows.asked)
    )
    found: list[dict[str, Any]] = rows.conform(batch, ReadRange("orders", 1, 3, 0, len(values))).to_pylist()
    return found


def decoded(reader: ValueReader, declared: StructType, *values: bytes) -> list[dict[str, Any] | None]:
    """A struct for each value; None, which has a reason then, for one that cannot be decoded."""
    structs, reasons = ValueColumn(reader, declared).decode(pa.array(values, pa.binary()))
    found: list[dict[str, Any] | None] = structs.to_pylist()
    assert [row for row, struct in enumerate(found) if struct is None] == sorted(reasons)
    assert all(reasons.values())
    return found


PERMISSIVE = StructType([StructField("value", ORDER), StructField("malformedValue", BinaryType())])


def test_values_that_cannot_be_decoded_are_kept_apart() -> None:
    rows = typed(
        PERMISSIVE, value_reader(**JSON), [b'{"id": 1, "name": "lamp"}', b"{", None, b'{"name": "x"}', b'{"id": 2}']
    )
    assert rows == [
        {"value": {"id": 1, "name": "lamp"}, "malformedValue": None},
        {"value": None, "malformedValue": b"{"},
        {"value": None, "malformedValue": None},
        {"value": None, "malformedValue": b'{"name": "x"}'},
        {"value": {"id": 2, "name": None}, "malformedValue": None},
    ]


def test_a_value_that_cannot_be_decoded_ends_the_query_and_is_named_on_request() -> None:
    schema = StructType([StructField("value", ORDER)])
    with pytest.raises(MalformedValue, match="value of `orders`/3 at offset 1 cannot be decoded"):
        typed(schema, value_reader(**JSON, valueMode="failfast"), [b'{"id": 1}', b"[]"])


def test_the_table_has_a_struct_for_a_value() -> None:
    ddl = BasculeSource({**JSON}).schema()
    assert isinstance(ddl, str)
    assert "`value` STRUCT<id BIGINT NOT NULL, name STRING>" in ddl and ddl.endswith("`malformedValue` binary")
    assert "`headers` map<string,binary> NOT NULL" in ddl
    assert "malformedValue" not in str(BasculeSource({**JSON, "valueMode": "failfast"}).schema())
    assert BasculeSource({"stream": "orders"}).schema() == TABLE


def test_a_schema_for_typed_values_is_checked() -> None:
    source = BasculeSource({"stream": "orders", **JSON})
    source.reader(PERMISSIVE)
    for field in (StructField("value", BinaryType()), StructField("malformedValue", BinaryType())):
        with pytest.raises(InvalidSchema):
            source.reader(StructType([field]))


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────

KINDS = StructType(
    [
        StructField("flag", BooleanType()),
        StructField("small", IntegerType()),
        StructField("real", DoubleType()),
        StructField("price", DecimalType(5, 2)),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("raw", BinaryType()),
        StructField("tags", ArrayType(StringType())),
        StructField("counts", MapType(StringType(), LongType())),
        StructField("inner", ORDER),
        StructField("text", StringType()),
    ]
)


def test_json_becomes_every_type() -> None:
    document = {
        "flag": True,
        "small": 7,
        "real": 1,
        "price": "12.345",
        "day": "2026-11-15",
        "at": "2026-11-15T10:00:00+01:00",
        "raw": "/wA=",
        "tags": ["a", None],
        "counts": {"x": 1},
        "inner": {"id": 1},
        "text": {"any": [1]},
        "unknown": 1,
    }
    (found,) = decoded(value_reader(**JSON), KINDS, json.dumps(document).encode())
    assert found == {
        "flag": True,
        "small": 7,
        "real": 1.0,
        "price": Decimal("12.34"),
        "day": date(2026, 11, 15),
        "at": datetime.fromisoformat("2026-11-15T09:00:00+00:00"),
        "raw": b"\xff\x00",
        "tags": ["a", None],
        "counts": [("x", 1)],
        "inner": {"id": 1, "name": None},
        "text": '{"any":[1]}',
    }


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        b'{"flag": 1}',
        b'{"small": 3000000000}',
        b'{"small": true}',
        b'{"small": 1.5}',
        b'{"real": "1"}',
        b'{"real": 1' + b"0" * 400 + b"}",
        b'{"price": 1000}',
        b'{"price": "NaN"}',
        b'{"price": []}',
        b'{"day": "15.11.2026"}',
        b'{"at": 5}',
        b'{"raw": "?"}',
        b'{"raw": 5}',
        b'{"tags": "a"}',
        b'{"counts": []}',
        b'{"counts": {"x": "1"}}',
        b'{"inner": {}}',
        b'{"text": "\\ud800"}',
    ],
    ids=lambda document: document[:24].decode("latin-1"),
)
def test_json_that_does_not_fit_is_malformed(document: bytes) -> None:
    assert decoded(value_reader(**JSON), KINDS, document) == [None]


@pytest.mark.parametrize("kind", [CalendarIntervalType(), MapType(LongType(), LongType())])
def test_types_that_json_does_not_have_are_refused(kind: Any) -> None:
    with pytest.raises(InvalidOption, match="valueSchema"):
        json_decoder(StructType([StructField("x", kind)]))


# ── Avro ─────────────────────────────────────────────────────────────────────────────────────────

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "flag", "type": "boolean"},
            {"name": "real", "type": "double"},
            {"name": "single", "type": "float"},
            {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
            {"name": "digest", "type": {"type": "fixed", "name": "Two", "size": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
            {"name": "second", "type": "Colour"},
            {"name": "raw", "type": ["bytes", "null"]},
        ],
    }
)
# Encoded by hand from the specification: zigzag varints, lengths before bytes, blocks that end with 0.
ENCODED = bytes.fromhex(
    "02"  # id 1
    "02086c616d70"  # branch 1: "lamp"
    "01"
    "000000000000f83f"  # 1.5
    "0000c03f"  # 1.5
    "02"  # BLUE
    "0402610262"  # two tags in a block …
    "00"
    "010602780e"  # a block of -1 items, its size, "x": 7
    "00"
    "ff00"
    "d00f"  # 1000 ms
    "04"  # day 2
    "0404d2"  # 1234
    "00"  # RED
    "02"  # null
)


def avro_reader(schema: str) -> ValueReader:
    return value_reader(valueFormat="avro", valueSchema=schema)


def avro_struct(schema: str) -> StructType:
    found = avro_reader(schema).value_type()
    assert isinstance(found, StructType)
    return found


def test_avro_becomes_the_types_that_spark_gives_it() -> None:
    kind = avro_struct(AVRO)
    assert kind["name"].nullable and not kind["id"].nullable
    assert [field.dataType.simpleString() for field in kind] == [
        "bigint", "string", "boolean", "double", "float", "string", "array<string>", "map<string,int>", "binary",
        "timestamp", "date", "decimal(5,2)", "string", "binary",
    ]  # fmt: skip
    (found,) = decoded(avro_reader(AVRO), kind, ENCODED)
    assert found is not None
    assert list(found.values()) == [
        1, "lamp", True, 1.5, 1.5, "BLUE", ["a", "b"], [("x", 7)], b"\xff\x00",
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), date(1970, 1, 3), Decimal("12.34"), "RED", None,
    ]  # fmt: skip


@given(st.integers(0, len(ENCODED) - 1))
def test_avro_that_ends_early_is_malformed(length: int) -> None:
    assert decoded(avro_reader(AVRO), avro_struct(AVRO), ENCODED[:length]) == [None]


@given(st.binary(max_size=80), st.integers(0, len(ENCODED) - 1), st.integers(0, 255))
def test_any_bytes_are_a_record_or_malformed(value: bytes, place: int, byte: int) -> None:
    damaged = ENCODED[:place] + bytes([byte]) + ENCODED[place + 1 :]
    candidates = (value, ENCODED[: len(value)] + value, damaged, ENCODED)
    *_, good = decoded(avro_reader(AVRO), avro_struct(AVRO), *candidates)
    assert good is not None, "one bad value does not spoil the others"
    assert decoded(avro_reader(AVRO), avro_struct(AVRO), ENCODED + value[:1] + b"\0") == [None]


def avro_field(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "A", "fields": [{"name": "x", "type": kind}]})


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
MANY = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2⁶³ − 1
FEWER_THAN_NONE = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # −2⁶³


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", MANY + b"a"),
        ("string", FEWER_THAN_NONE + b"a"),
        ("bytes", b"\x01a"),
        ("string", b"\x02\xff"),
        ({"type": "array", "items": "string"}, MANY + b"\x02a" * 1_000),
        ({"type": "array", "items": "string"}, FEWER_THAN_NONE + b"\x02" + b"\x02a" * 1_000),
        ({"type": "map", "values": "long"}, MANY + b"\x02a\x02" * 1_000),
        ({"type": "fixed", "name": "F", "size": 1 << 40}, b"abc"),
        ("long", b"\xff" * 40),
        ("int", b"\xfe\xff\xff\xff\xff\x0f"),
        (COLOUR, b"\x04"),
        (["null", "string"], b"\x04"),
        (PRICE, b"\x04\x7f\xff"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f"),
        ({"type": "long", "logicalType": "timestamp-micros"}, MANY),
        ({"type": "long", "logicalType": "timestamp-millis"}, FEWER_THAN_NONE),
        ("double", b"1234567"),
        ("boolean", b""),
        ("boolean", b"\x01\x01"),
    ],
)
def test_avro_of_hostile_bytes_is_malformed(kind: Any, value: bytes) -> None:
    schema = avro_field(kind)
    assert decoded(avro_reader(schema), avro_struct(schema), value) == [None]


@pytest.mark.parametrize("logical", ["uuid", "time-micros", "anything"])
def test_other_logical_types_of_avro_are_read_as_their_own_type(logical: str) -> None:
    schema = avro_field([{"type": "string", "logicalType": logical}, "null"])
    assert decoded(avro_reader(schema), avro_struct(schema), b"\x00\x02a") == [{"x": "a"}]


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "[]",
        '"string"',
        '{"type": "record", "name": "A"}',
        '{"type": "record", "fields": []}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": "A"}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A"]}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": ["int", "string"]}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": "nothing"}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": 5}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": "null"}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "fixed", "name": "F"}}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "fixed", "name": "F", "size": 0}}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "array", "items": '
        '{"type": "record", "name": "B", "fields": []}}}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "enum", "name": "F"}}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": '
        '{"type": "bytes", "logicalType": "decimal", "precision": 99}}]}',
    ],
)
def test_avro_schemas_that_spark_cannot_show_are_refused(schema: str) -> None:
    with pytest.raises(InvalidOption, match="valueSchema"):
        read_schema(schema)


# ── protobuf ─────────────────────────────────────────────────────────────────────────────────────

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string name = 2;
  enum Colour { RED = 0; BLUE = 1; }
  Colour colour = 3;
  repeated string tags = 4;
  map<string, int32> counts = 5;
  Line line = 6;
  google.protobuf.Timestamp at = 7;
  uint64 large = 8;
  bytes raw = 9;
}
message Line { double price = 1; }
message Tree { repeated Tree children = 1; }
"""


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("proto")
    (directory / "shop.proto").write_text(PROTO)
    made = directory / "shop.desc"
    arguments = ["-I", str(directory), "--include_imports", f"--descriptor_set_out={made}", "shop.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)
    return made


def test_protobuf_becomes_columns(descriptors: Path) -> None:
    from google.protobuf import message_factory

    from bascule.spark.values.protobuf import _descriptor

    reader = value_reader(valueFormat="protobuf", valueSchema=str(descriptors), valueMessage="shop.Order")
    kind = reader.value_type()
    assert isinstance(kind, StructType)
    assert [field.dataType.simpleString() for field in kind] == [
        "bigint", "string", "string", "array<string>", "map<string,int>", "struct<price:double>", "timestamp",
        "decimal(20,0)", "binary",
    ]  # fmt: skip
    order: Any = message_factory.GetMessageClass(_descriptor(descriptors.read_bytes(), "shop.Order"))(
        id=1, colour=1, tags=["a"], counts={"x": 7}, line={"price": 1.5}, large=2**64 - 1
    )
    order.at.seconds, order.at.nanos = 1, 2_000
    schema = StructType([StructField("value", kind), StructField("malformedValue", BinaryType())])
    (good, bad) = typed(schema, reader, [order.SerializeToString(), b"\xff"])
    assert good["value"] == {
        "id": 1,
        "name": None,
        "colour": "BLUE",
        "tags": ["a"],
        "counts": [("x", 7)],
        "line": {"price": 1.5},
        "at": datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC),
        "large": Decimal(2**64 - 1),
        "raw": b"",
    }
    assert bad == {"value": None, "malformedValue": b"\xff"}


@pytest.mark.parametrize(("message", "said"), [("shop.Nothing", "does not have"), ("shop.Tree", "contains itself")])
def test_protobuf_messages_that_cannot_be_shown_are_refused(descriptors: Path, message: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        value_reader(valueFormat="protobuf", valueSchema=str(descriptors), valueMessage=message)


def test_a_descriptor_set_has_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "x.desc"
    for content in (None, b"\xff\xff"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidOption, match="valueSchema"):
            value_reader(valueFormat="protobuf", valueSchema=str(file), valueMessage="shop.Order")
