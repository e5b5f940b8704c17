"""Values in JSON, by the types of the columns that were declared. A field that is missing is null."""

from __future__ import annotations

import base64
import binascii
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
from bascule.spark.values.decoding import Decode, Malformed

Convert = Callable[[Any], Any]

_INTEGER_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


def json_decoder(declared: StructType) -> Decode:
    convert = _converter(declared)

    def decode(value: bytes) -> dict[str, Any]:
        try:
            document = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"it is no JSON: {error}") from None
        if document is None:
            raise Malformed("it is null, not an object")
        found: dict[str, Any] = convert(document)
        return found

    return decode


def _converter(kind: DataType) -> Convert:
    """What makes a value of a column's type; Malformed for what does not fit."""
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return _array(kind)
    if isinstance(kind, MapType):
        return _map(kind)
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    bits = _INTEGER_BITS.get(type(kind))
    if bits is not None:
        return _integer(bits, kind)
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
        if not isinstance(value, dict):
            raise _unfit(value, "an object")
        found = {}
        for name, inner, nullable in fields:
            given = value.get(name)
            if given is None and not nullable:
                raise Malformed(f"`{name}` is missing")
            found[name] = None if given is None else inner(given)
        return found

    return convert


def _array(kind: ArrayType) -> Convert:
    inner = _converter(kind.elementType)

    def convert(value: Any) -> Any:
        if not isinstance(value, list) or (not kind.containsNull and None in value):
            raise _unfit(value, "an array")
        return [None if each is None else inner(each) for each in value]

    return convert


def _map(kind: MapType) -> Convert:
    if not isinstance(kind.keyType, StringType):
        raise InvalidOption(
            "option `valueSchema` has a map whose keys are no strings", hint="JSON has strings only: `MAP<STRING, …>`"
        )
    inner = _converter(kind.valueType)

    def convert(value: Any) -> Any:
        if not isinstance(value, dict) or (not kind.valueContainsNull and None in value.values()):
            raise _unfit(value, "an object")
        return [(name, None if each is None else inner(each)) for name, each in value.items()]

    return convert


def _integer(bits: int, kind: DataType) -> Convert:
    most = (1 << (bits - 1)) - 1

    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or not -most - 1 <= value <= most:
            raise _unfit(value, f"a `{kind.simpleString()}`")
        return value

    return convert


def _decimal(kind: DecimalType) -> Convert:
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Any:
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise InvalidOperation
            number = Decimal(str(value)).quantize(unit)
        except InvalidOperation:
            raise _unfit(value, f"a `{kind.simpleString()}`") from None
        if not number.is_finite() or len(number.as_tuple().digits) > kind.precision:
            raise _unfit(value, f"a `{kind.simpleString()}`")
        return number

    return convert


def _string(value: Any) -> str:
    """Text as it is, anything else as JSON again: what Spark's `from_json` does."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Malformed("it has half a character") from None
    return text


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unfit(value, "`true` or `false`")
    return value


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unfit(value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _unfit(value, "a number") from None


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error, ValueError):
        raise _unfit(value, "bytes in base 64") from None


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise _unfit(value, "a date such as `2026-11-15`") from None


def _timestamp(value: Any) -> datetime:
    found = _moment(value)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _local_timestamp(value: Any) -> datetime:
    return _moment(value).replace(tzinfo=None)


def _moment(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _unfit(value, "a time such as `2026-11-15T09:30:00Z`") from None


_SIMPLE: Final[dict[type[DataType], Convert]] = {
    StringType: _string,
    BooleanType: _boolean,
    FloatType: _double,
    DoubleType: _double,
    BinaryType: _binary,
    DateType: _date,
    TimestampType: _timestamp,
    TimestampNTZType: _local_timestamp,
}


def _unfit(value: Any, right: str) -> Malformed:
    return Malformed(f"{str(value)[:60]!r} is not {right}")
