"""Values in Avro's binary encoding, without a header: one record by its schema. Types become those that Spark's own Avro gives.

    boolean, int, long, float, double, bytes, string            the same
    record, array, map                                          struct, array, map<string, …>
    enum, fixed                                                 string, binary
    union of null and one type                                  that type, nullable
    date, timestamp-millis, timestamp-micros, decimal, uuid     date, timestamp, decimal, string

`fastavro` reads the bytes and stops at the end of the value. A count of items in hostile bytes therefore costs at most one item for
each byte of the value: schemas with types that take no bytes (a record without fields, a fixed of size 0) are refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bascule.errors import InvalidOption, MissingExtra
from bascule.spark.values.decoding import Decode, Undecodable

try:
    from fastavro import schemaless_reader
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema
except ImportError as error:
    raise MissingExtra(
        f"Avro values need the package `fastavro`: {error}", hint='pip install "bascule[spark]"'
    ) from None

_PRIMITIVE: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: Final[dict[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A record's schema as fastavro has parsed it, and the struct that it becomes."""

    parsed: Any
    spark: DataType


def read_schema(text: str) -> AvroSchema:
    """Raises InvalidOption unless it is a record's schema whose types Spark has too."""
    named: dict[str, Any] = {}
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("type") != "record":
            raise _wrong("it is not the schema of a record")
        parsed = parse_schema(document, named)
    except UnknownType as error:
        raise _wrong(f"`{error.name}` is not a type") from None
    except KeyError as error:
        raise _wrong(f"a type has no {error}") from None
    except (SchemaParseException, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _wrong(str(error)) from None
    return AvroSchema(parsed, _spark_type(parsed, named, ())[0])


def avro_decoder(schema: AvroSchema) -> Decode:
    """Raises Undecodable for bytes that are not exactly one record. Ranges of numbers are left to the caller."""

    def decode(value: bytes) -> Any:
        left = BytesIO(value)
        try:
            found = schemaless_reader(left, schema.parsed, None)
        except EOFError:
            raise Undecodable("the bytes end before the record does") from None
        except IndexError:
            raise Undecodable("a number has no end, or an enum or a union has no such entry") from None
        except (ValueError, OverflowError) as error:
            raise Undecodable(str(error)) from None
        if left.tell() != len(value):
            raise Undecodable(f"{len(value) - left.tell()} bytes are left after the record")
        return found

    return decode


def _spark_type(schema: Any, named: dict[str, Any], outer: tuple[str, ...]) -> tuple[DataType, bool]:
    """The column of a parsed schema, and whether it is nullable. Logical types that have no column of their own are removed."""
    if isinstance(schema, list):
        return _union(schema, named, outer)
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, str):
        return _PRIMITIVE.get(schema) or _raise(f"`{schema}` has no column in Spark"), False
    kind = schema["type"]
    if kind == "record":
        return _record(schema, named, outer), False
    if kind == "array":
        return ArrayType(*_spark_type(schema["items"], named, outer)), False
    if kind == "map":
        return MapType(StringType(), *_spark_type(schema["values"], named, outer)), False
    return _simple(schema, kind), False


def _record(schema: Any, named: dict[str, Any], outer: tuple[str, ...]) -> StructType:
    name = schema["name"]
    if name in outer:
        raise _wrong(f"`{name}` contains itself")
    if not schema["fields"]:
        raise _wrong(f"`{name}` has no fields")
    inside = (*outer, name)
    return StructType(
        [StructField(each["name"], *_spark_type(each["type"], named, inside)) for each in schema["fields"]]
    )


def _union(schema: list[Any], named: dict[str, Any], outer: tuple[str, ...]) -> tuple[DataType, bool]:
    types = [each for each in schema if each != "null"]
    if len(types) != 1 or len(schema) > 2:
        raise _wrong("a union is of `null` and one other type; Spark has no column for more")
    return _spark_type(types[0], named, outer)[0], len(schema) == 2


def _simple(schema: Any, kind: str) -> DataType:
    if kind == "fixed" and not (isinstance(schema["size"], int) and schema["size"] > 0):
        raise _wrong(f"`{schema['name']}` has no size")
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision <= 38:
            raise _wrong("a decimal has a precision from 1 to 38 and a scale up to it")
        return DecimalType(precision, scale)
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    schema.pop("logicalType", None)
    return _PRIMITIVE.get(kind) or _raise(f"`{kind}` has no column in Spark")


def _raise(why: str) -> Any:
    raise _wrong(why)


def _wrong(why: str) -> InvalidOption:
    return InvalidOption(
        f"option `valueSchema` is not an Avro schema that Spark has columns for: {why}",
        hint="it must be a record's schema in JSON",
    )
