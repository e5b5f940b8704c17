"""Values in Avro's binary encoding, without a header: one record by its schema. Types become those that Spark's own Avro gives.

    null, boolean, int, long, float, double, bytes, string      the same
    record, array, map                                          struct, array, map<string, …>
    enum, fixed                                                 string, binary
    union of null and one type                                  that type, nullable
    date, timestamp-millis, timestamp-micros, decimal, uuid     date, timestamp, decimal, string

Lengths come from outside: each is checked against what is left.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
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

from bascule.errors import InvalidOption
from bascule.spark.values.decoding import Decode, Malformed

Schema = dict[str, Any] | list[Any] | str
Read = Callable[["_Bytes"], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class _Type:
    """How a type looks in Spark, and how it is read."""

    spark: DataType
    read: Read
    nullable: bool = False


def parse_schema(text: str) -> _Type:
    """Raises InvalidOption for what is no record, or has types that have no match in Spark."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"it is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("type") != "record":
        raise _wrong("it is no record")
    return _compile(document, "", {})


def avro_type(schema: _Type) -> DataType:
    return schema.spark


def avro_decoder(schema: _Type) -> Decode:
    def decode(value: bytes) -> dict[str, Any]:
        left = _Bytes(value)
        try:
            found: dict[str, Any] = schema.read(left)
        except (OverflowError, UnicodeDecodeError) as error:
            raise Malformed(str(error)) from None
        if left.position != len(value):
            raise Malformed(f"{len(value) - left.position} bytes are left behind the record")
        return found

    return decode


class _Bytes:
    """Bytes that are read from the front. Nothing is read past the end."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self.data) - self.position:
            raise Malformed(f"it ends at byte {len(self.data)}, in the middle of the record")
        self.position += count
        return self.data[self.position - count : self.position]

    def long(self) -> int:
        """A zigzag varint of at most ten bytes."""
        result = 0
        for shift in range(0, 70, 7):
            (byte,) = self.take(1)
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                found = (result >> 1) ^ -(result & 1)
                if not -(1 << 63) <= found < 1 << 63:
                    break
                return found
        raise Malformed("it has a number of more than 64 bits")


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────


def _compile(schema: Schema, namespace: str, named: dict[str, _Type | None]) -> _Type:
    if isinstance(schema, list):
        return _union(schema, namespace, named)
    if isinstance(schema, str):
        return _named(schema, namespace, named)
    if not isinstance(schema, dict):
        raise _wrong(f"`{schema}` is no type")
    kind = schema.get("type")
    logical = _LOGICAL.get((schema.get("logicalType"), kind)) if isinstance(kind, str) else None
    if logical is not None:
        return logical
    makers = {"record": _record, "enum": _enum, "fixed": _fixed, "array": _array, "map": _map}
    if isinstance(kind, str) and kind in makers:
        return makers[kind](schema, namespace, named)
    if kind == "bytes" and schema.get("logicalType") == "decimal":
        return _decimal(schema, lambda left: left.take(left.long()))
    return _compile(kind, namespace, named) if isinstance(kind, dict | list | str) else _raise(f"`{kind}` is no type")


def _named(name: str, namespace: str, named: dict[str, _Type | None]) -> _Type:
    if name in _PRIMITIVE:
        return _PRIMITIVE[name]
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    found = named.get(full, named.get(name))
    if found is None:
        raise _wrong(f"`{name}` contains itself" if full in named else f"`{name}` is no type")
    return found


def _full_name(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong("a record, an enum or a fixed has no name")
    space = schema.get("namespace", namespace)
    full = name if "." in name or not space else f"{space}.{name}"
    return full, full.rpartition(".")[0]


def _record(schema: dict[str, Any], namespace: str, named: dict[str, _Type | None]) -> _Type:
    full, inside = _full_name(schema, namespace)
    named[full] = None
    entries = schema.get("fields")
    if not isinstance(entries, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in entries
    ):
        raise _wrong(f"`{full}` has no fields")
    fields = [(each["name"], _compile(each.get("type", ""), inside, named)) for each in entries]
    spark = StructType([StructField(name, each.spark, each.nullable) for name, each in fields])
    readers = [(name, each.read) for name, each in fields]
    found = named[full] = _Type(spark, lambda left: {name: read(left) for name, read in readers})
    return found


def _enum(schema: dict[str, Any], namespace: str, named: dict[str, _Type | None]) -> _Type:
    full, _ = _full_name(schema, namespace)
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
        raise _wrong(f"`{full}` has no symbols")

    def read(left: _Bytes) -> str:
        number = left.long()
        if not 0 <= number < len(symbols):
            raise Malformed(f"`{full}` has no symbol {number}")
        return str(symbols[number])

    found = named[full] = _Type(StringType(), read)
    return found


def _fixed(schema: dict[str, Any], namespace: str, named: dict[str, _Type | None]) -> _Type:
    full, _ = _full_name(schema, namespace)
    size = schema.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise _wrong(f"`{full}` has no size")
    if schema.get("logicalType") == "decimal":
        found = _decimal(schema, lambda left: left.take(size))
    else:
        found = _Type(BinaryType(), lambda left: left.take(size))
    named[full] = found
    return found


def _decimal(schema: dict[str, Any], take: Callable[[_Bytes], bytes]) -> _Type:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if (
        not isinstance(precision, int)
        or not isinstance(scale, int)
        or not 0 <= scale <= precision <= 38
        or precision < 1
    ):
        raise _wrong("a decimal has a precision from 1 to 38 and a scale up to it")

    def read(left: _Bytes) -> Decimal:
        number = int.from_bytes(take(left), "big", signed=True)
        if abs(number) >= 10**precision:
            raise Malformed(f"a decimal has more than {precision} digits")
        return Decimal(number).scaleb(-scale)

    return _Type(DecimalType(precision, scale), read)


def _array(schema: dict[str, Any], namespace: str, named: dict[str, _Type | None]) -> _Type:
    item = _compile(schema.get("items", ""), namespace, named)
    return _Type(ArrayType(item.spark, item.nullable), lambda left: _blocks(left, item.read))


def _map(schema: dict[str, Any], namespace: str, named: dict[str, _Type | None]) -> _Type:
    item = _compile(schema.get("values", ""), namespace, named)
    return _Type(
        MapType(StringType(), item.spark, item.nullable),
        lambda left: _blocks(left, lambda inner: (_text(inner), item.read(inner))),
    )


def _blocks(left: _Bytes, read: Read) -> list[Any]:
    """Blocks of items, each with its count; a negative one is followed by the block's size."""
    found: list[Any] = []
    while (count := left.long()) != 0:
        if count < 0:
            count = -count
            left.long()
        if count > len(left.data):
            # Only items without bytes could be as many, and those would cost memory without end.
            raise Malformed(f"it claims {count} items in {len(left.data)} bytes")
        found += [read(left) for _ in range(count)]
        if len(found) > len(left.data):
            raise Malformed(f"it claims {len(found)} items in {len(left.data)} bytes")
    return found


def _union(schema: list[Any], namespace: str, named: dict[str, _Type | None]) -> _Type:
    others = [each for each in schema if each != "null"]
    if len(others) != 1 or len(schema) > 2:
        raise _wrong("a union is of `null` and one other type; Spark has no column for more")
    inner = _compile(others[0], namespace, named)
    if len(schema) == 1:
        return inner
    null = schema.index("null")

    def read(left: _Bytes) -> Any:
        branch = left.long()
        if branch not in (0, 1):
            raise Malformed(f"a union of two has no branch {branch}")
        return None if branch == null else inner.read(left)

    return _Type(inner.spark, read, nullable=True)


# ── values ───────────────────────────────────────────────────────────────────────────────────────


def _boolean(left: _Bytes) -> bool:
    (byte,) = left.take(1)
    if byte > 1:
        raise Malformed(f"{byte} is no boolean")
    return bool(byte)


def _int(left: _Bytes) -> int:
    number = left.long()
    if not -(1 << 31) <= number < 1 << 31:
        raise Malformed(f"{number} is no int")
    return number


def _text(left: _Bytes) -> str:
    return left.take(left.long()).decode()


def _timestamp(unit_us: int) -> Read:
    return lambda left: _EPOCH + timedelta(microseconds=left.long() * unit_us)


def _raise(why: str) -> Any:
    raise _wrong(why)


def _wrong(why: str) -> InvalidOption:
    return InvalidOption(
        f"option `valueSchema` is no schema of Avro that Spark can show: {why}",
        hint="it must be a record's schema in JSON",
    )


_PRIMITIVE: Final[dict[str, _Type]] = {
    "boolean": _Type(BooleanType(), _boolean),
    "int": _Type(IntegerType(), _int),
    "long": _Type(LongType(), _Bytes.long),
    "float": _Type(FloatType(), lambda left: _FLOAT.unpack(left.take(4))[0]),
    "double": _Type(DoubleType(), lambda left: _DOUBLE.unpack(left.take(8))[0]),
    "bytes": _Type(BinaryType(), lambda left: left.take(left.long())),
    "string": _Type(StringType(), _text),
}

_LOGICAL: Final[dict[tuple[Any, str], _Type]] = {
    ("date", "int"): _Type(DateType(), lambda left: date(1970, 1, 1) + timedelta(days=_int(left))),
    ("timestamp-millis", "long"): _Type(TimestampType(), _timestamp(1_000)),
    ("timestamp-micros", "long"): _Type(TimestampType(), _timestamp(1)),
    ("uuid", "string"): _PRIMITIVE["string"],
}
