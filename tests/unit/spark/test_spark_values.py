"""Typed values: JSON, Avro and protobuf become columns; what does not fit is kept apart or named."""

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
from pyspark.sql.pandas.types import to_arrow_type
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
from bascule.spark.read.task import ReadRange, Rows
from bascule.spark.source import BasculeSource
from bascule.spark.values.avro import avro_decoder, avro_type, parse_schema
from bascule.spark.values.decoding import Malformed, ValueReader
from bascule.spark.values.json import json_decoder

ORDER = StructType([StructField("id", LongType(), nullable=False), StructField("name", StringType())])
JSON = {"valueFormat": "json", "valueSchema": "id BIGINT NOT NULL, name STRING"}


def value_reader(**options: str) -> ValueReader:
    found = ValueReader.of(value_options(options))
    assert found is not None
    return found


# ── columns ──────────────────────────────────────────────────────────────────────────────────────


def typed(schema: StructType, reader: ValueReader, values: list[bytes | None]) -> list[dict[str, Any]]:
    rows = Rows(schema, pickle.loads(pickle.dumps(reader)))
    assert rows.asked == ("value", "offset")
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(range(len(values)), pa.int64())], list(rows.asked)
    )
    found: list[dict[str, Any]] = rows.conform(batch, ReadRange("orders", 1, 3, 0, len(values))).to_pylist()
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
    found = json_decoder(KINDS)(json.dumps(document).encode())
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
    with pytest.raises(Malformed):
        json_decoder(KINDS)(document)


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


def test_avro_becomes_the_types_that_spark_gives_it() -> None:
    schema = parse_schema(AVRO)
    kind = avro_type(schema)
    assert isinstance(kind, StructType)
    assert kind["name"].nullable and not kind["id"].nullable
    assert [field.dataType.simpleString() for field in kind] == [
        "bigint", "string", "boolean", "double", "float", "string", "array<string>", "map<string,int>", "binary",
        "timestamp", "date", "decimal(5,2)", "string", "binary",
    ]  # fmt: skip
    found = avro_decoder(schema)(ENCODED)
    assert list(found.values()) == [
        1, "lamp", True, 1.5, 1.5, "BLUE", ["a", "b"], [("x", 7)], b"\xff\x00",
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), date(1970, 1, 3), Decimal("12.34"), "RED", None,
    ]  # fmt: skip
    assert pa.array([found], to_arrow_type(kind, timezone="UTC")).to_pylist() == [found]


@given(st.integers(0, len(ENCODED) - 1))
def test_avro_that_ends_early_is_malformed(length: int) -> None:
    with pytest.raises(Malformed):
        avro_decoder(parse_schema(AVRO))(ENCODED[:length])


@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_malformed(value: bytes) -> None:
    decode = avro_decoder(parse_schema(AVRO))
    for candidate in (value, ENCODED[: len(value)] + value, ENCODED + value[:1] + b"\0"):
        try:
            decode(candidate)
        except Malformed:
            continue


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
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "fixed", "name": "F"}}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": {"type": "enum", "name": "F"}}]}',
        '{"type": "record", "name": "A", "fields": [{"name": "x", "type": '
        '{"type": "bytes", "logicalType": "decimal", "precision": 99}}]}',
    ],
)
def test_avro_schemas_that_spark_cannot_show_are_refused(schema: str) -> None:
    with pytest.raises(InvalidOption, match="valueSchema"):
        parse_schema(schema)


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
