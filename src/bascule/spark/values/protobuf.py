"""Values in protobuf, by a descriptor set: `protoc --include_imports --descriptor_set_out=shop.desc shop.proto`.

Types become those that Spark's own protobuf gives: enums are strings, unsigned 32-bit numbers bigints, unsigned 64-bit ones decimals,
`google.protobuf.Timestamp` timestamps. A field that may be absent and is, is null; without presence it has its default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
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

from bascule.errors import InvalidOption, OperatorError
from bascule.spark.options.value_options import ValueOptions
from bascule.spark.values.decoding import Decode, Undecodable

Convert = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP: Final = "google.protobuf.Timestamp"


def read_descriptors(options: ValueOptions) -> bytes:
    """The file that `valueSchema` names; its message is looked up, so that a mistake is known at once."""
    try:
        found = Path(options.schema or "").read_bytes()
    except OSError as error:
        raise InvalidOption(
            f"option `valueSchema` is `{options.schema}`, which cannot be read: {error.strerror}",
            hint="it must be the path of a descriptor set on the driver",
        ) from None
    message_type(found, options.message or "")
    return found


def message_type(descriptors: bytes, message: str) -> DataType:
    return _compile(_descriptor(descriptors, message), ()).spark


def protobuf_decoder(descriptors: bytes, message: str) -> Decode:
    from google.protobuf import message_factory
    from google.protobuf.message import DecodeError

    descriptor = _descriptor(descriptors, message)
    kind = message_factory.GetMessageClass(descriptor)
    convert = _compile(descriptor, ()).convert

    def decode(value: bytes) -> dict[str, Any]:
        found = kind()
        try:
            found.ParseFromString(value)
            result: dict[str, Any] = convert(found)
        except (DecodeError, OverflowError) as error:
            raise Undecodable(str(error)) from None
        return result

    return decode


@lru_cache(maxsize=8)
def _descriptor(descriptors: bytes, message: str) -> Any:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError
    except ImportError:
        raise OperatorError("protobuf values need the package `protobuf`", hint="pip install protobuf") from None
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise InvalidOption(
            f"option `valueMessage` is `{message}`, which the descriptor set does not have",
            hint="it must be a full name such as `shop.Order`",
        ) from None
    except (DecodeError, TypeError) as error:
        raise InvalidOption(
            f"option `valueSchema` names a file that is no complete descriptor set: {error}",
            hint="write it with `protoc --include_imports --descriptor_set_out=…`",
        ) from None


@dataclass(frozen=True, slots=True)
class _Type:
    spark: DataType
    convert: Convert


def _compile(descriptor: Any, outer: tuple[str, ...]) -> _Type:
    """The type of a message. One that contains itself has no column in Spark."""
    if descriptor.full_name == _TIMESTAMP:
        return _Type(
            TimestampType(), lambda value: _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
        )
    if descriptor.full_name in outer:
        raise InvalidOption(
            f"option `valueMessage` leads to `{descriptor.full_name}`, which contains itself: Spark has no column for it",
            hint="leave `valueFormat` out, and decode what you need in the query",
        )
    inside = (*outer, descriptor.full_name)
    fields = [_field(field, inside) for field in descriptor.fields]
    spark = StructType([StructField(name, kind.spark) for name, kind in fields])
    readers = [(name, kind.convert) for name, kind in fields]
    return _Type(spark, lambda value: {name: read(value) for name, read in readers})


def _field(field: Any, outer: tuple[str, ...]) -> tuple[str, _Type]:
    """How a field is read from its message."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_single(each, outer) for each in field.message_type.fields)
        spark: DataType = MapType(key.spark, value.spark)
        return name, _Type(
            spark,
            lambda whole: [(key.convert(one), value.convert(other)) for one, other in getattr(whole, name).items()],
        )
    single = _single(field, outer)
    if field.is_repeated:
        return name, _Type(
            ArrayType(single.spark), lambda whole: [single.convert(each) for each in getattr(whole, name)]
        )
    if field.has_presence:
        return name, _Type(
            single.spark, lambda whole: single.convert(getattr(whole, name)) if whole.HasField(name) else None
        )
    return name, _Type(single.spark, lambda whole: single.convert(getattr(whole, name)))


def _single(field: Any, outer: tuple[str, ...]) -> _Type:
    if field.message_type is not None:
        return _compile(field.message_type, outer)
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return _Type(StringType(), lambda number: names.get(number, str(number)))
    if field.cpp_type == field.CPPTYPE_UINT64:
        return _Type(DecimalType(20, 0), Decimal)
    if field.type == field.TYPE_BYTES:
        return _Type(BinaryType(), bytes)
    spark = {
        field.CPPTYPE_INT32: IntegerType(),
        field.CPPTYPE_INT64: LongType(),
        field.CPPTYPE_UINT32: LongType(),
        field.CPPTYPE_FLOAT: FloatType(),
        field.CPPTYPE_DOUBLE: DoubleType(),
        field.CPPTYPE_BOOL: BooleanType(),
        field.CPPTYPE_STRING: StringType(),
    }[field.cpp_type]
    return _Type(spark, lambda value: value)
