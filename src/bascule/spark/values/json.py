"""Values in JSON, by the types of the columns that were declared. A field that is missing is null."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bascule.errors import InvalidOption
from bascule.spark.values.decoding import Decode, Undecodable

Convert = Callable[[Any], Any]


def json_decoder(declared: StructType) -> Decode:
    """Raises Undecodable for what is not an object with fields of the declared types. Ranges of numbers are left to the caller."""
    convert = _struct(declared)

    def decode(value: bytes) -> Any:
        try:
            return convert(json.loads(value))
        except RecursionError:
            raise Undecodable("the JSON is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise Undecodable(str(error)) from None

    return decode


def _converter(kind: DataType) -> Convert:
    """The function that makes a value of a column's type; it raises TypeError, ValueError or ArithmeticError for what does not fit."""
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return _array(kind)
    if isinstance(kind, MapType):
        return _map(kind)
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    simple = _SIMPLE.get(type(kind))
    if simple is None:
        raise InvalidOption(
            f"option `valueSchema` has a column of type `{kind.simpleString()}`, which JSON values cannot have",
            hint="read it as `STRING` and convert it in the query",
        )
    return simple


def _struct(kind: StructType) -> Convert:
    fields = [(field.name, _converter(field.dataType), field.nullable) for field in kind]

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _unfit(value, "an object")
        found = {}
        for name, inner, nullable in fields:
            given = value.get(name)
            if given is not None:
                try:
                    found[name] = inner(given)
                except (TypeError, ValueError, ArithmeticError) as error:
                    raise Undecodable(f"`{name}`: {error}") from None
            elif not nullable:
                raise Undecodable(f"`{name}` is missing")
        return found

    return convert


def _array(kind: ArrayType) -> Convert:
    inner = _converter(kind.elementType)

    def convert(value: Any) -> Any:
        if type(value) is not list or (not kind.containsNull and None in value):
            raise _unfit(value, f"a `{kind.simpleString()}`")
        return [None if each is None else inner(each) for each in value]

    return convert


def _map(kind: MapType) -> Convert:
    if not isinstance(kind.keyType, StringType):
        raise InvalidOption(
            f"option `valueSchema` has a column of type `{kind.simpleString()}`: keys in JSON are strings",
            hint="write `MAP<STRING, …>`",
        )
    inner = _converter(kind.valueType)

    def convert(value: Any) -> Any:
        if type(value) is not dict or (not kind.valueContainsNull and None in value.values()):
            raise _unfit(value, f"a `{kind.simpleString()}`")
        return {name: None if each is None else inner(each) for name, each in value.items()}

    return convert


def _decimal(kind: DecimalType) -> Convert:
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        if type(value) not in (int, float, str):
            raise _unfit(value, "a number")
        try:
            return Decimal(str(value)).quantize(unit)
        except InvalidOperation:
            raise _unfit(value, f"a `{kind.simpleString()}`") from None

    return convert


def _string(value: Any) -> str:
    """Text as it is, anything else as JSON again: what Spark's `from_json` does."""
    return value if type(value) is str else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _unfit(value, "`true` or `false`")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise _unfit(value, "a whole number")
    return value


def _double(value: Any) -> float:
    if type(value) not in (int, float):
        raise _unfit(value, "a number")
    return float(value)


def _timestamp(value: Any) -> datetime:
    found = datetime.fromisoformat(value)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


_SIMPLE: Final[dict[type[DataType], Convert]] = {
    StringType: _string,
    BooleanType: _boolean,
    ByteType: _integer,
    ShortType: _integer,
    IntegerType: _integer,
    LongType: _integer,
    FloatType: _double,
    DoubleType: _double,
    BinaryType: lambda value: base64.b64decode(value, validate=True),
    DateType: date.fromisoformat,
    TimestampType: _timestamp,
    TimestampNTZType: lambda value: datetime.fromisoformat(value).replace(tzinfo=None),
}


def _unfit(value: Any, right: str) -> Undecodable:
    return Undecodable(f"{str(value)[:60]!r} is not {right}")
