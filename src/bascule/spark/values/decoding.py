"""Values as typed columns: `valueFormat` makes a struct of the column `value`.

A format gives a decoder, which makes a dict of bytes, or raises Malformed. Decoders are built from text in the driver and again in
each task. What cannot be decoded is null and stands in `malformedValue`, or ends the query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from bascule.errors import MalformedValue
from bascule.spark.options.reading import ValueFormat, ValueMode, ValueOptions
from bascule.spark.options.schema import MALFORMED, TABLE


class Malformed(ValueError):
    """Bytes that are not of the format, or do not fit the schema."""


Decode = Callable[[bytes], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Turns columns `value` into structs. Plain text inside, because it is pickled; `descriptors` are protobuf's."""

    options: ValueOptions
    descriptors: bytes = b""

    @classmethod
    def of(cls, options: ValueOptions) -> ValueReader | None:
        """None when values stay bytes. Reads the files that options name: called in the driver."""
        if options.format is None:
            return None
        if options.format is not ValueFormat.PROTOBUF:
            return cls(options)
        from bascule.spark.values.protobuf import read_descriptors

        return cls(options, read_descriptors(options))

    @property
    def is_permissive(self) -> bool:
        return self.options.mode is ValueMode.PERMISSIVE

    def table(self) -> StructType | str:
        """The columns of a stream with this value. Text where only Spark can read the schema."""
        value = self.value_type()
        tail = [StructField(MALFORMED, BinaryType())] if self.is_permissive else []
        if isinstance(value, str):
            columns = [
                f"`value` STRUCT<{value}>" if field.name == "value" else _ddl(field) for field in [*TABLE, *tail]
            ]
            return ", ".join(columns)
        return StructType(
            [StructField("value", value) if field.name == "value" else field for field in [*TABLE, *tail]]
        )

    def table_like(self, schema: StructType) -> StructType:
        """The columns that there are, for a schema to be held against: JSON is read as any struct that is asked for."""
        table = self.table()
        if isinstance(table, StructType):
            return table
        asked = next((field.dataType for field in schema if field.name.lower() == "value"), None)
        value = asked if isinstance(asked, StructType) else StructType()
        tail = [StructField(MALFORMED, BinaryType())] if self.is_permissive else []
        return StructType(
            [StructField("value", value) if field.name == "value" else field for field in [*TABLE, *tail]]
        )

    def value_type(self) -> DataType | str:
        assert self.options.schema is not None
        if self.options.format is ValueFormat.JSON:
            return self.options.schema
        if self.options.format is ValueFormat.AVRO:
            from bascule.spark.values.avro import avro_type, parse_schema

            return avro_type(parse_schema(self.options.schema))
        from bascule.spark.values.protobuf import message_type

        return message_type(self.descriptors, self.options.message or "")

    def decoder(self, declared: StructType) -> Decode:
        assert self.options.schema is not None
        if self.options.format is ValueFormat.JSON:
            from bascule.spark.values.json import json_decoder

            return json_decoder(declared)
        if self.options.format is ValueFormat.AVRO:
            from bascule.spark.values.avro import avro_decoder, parse_schema

            return avro_decoder(parse_schema(self.options.schema))
        from bascule.spark.values.protobuf import protobuf_decoder

        return protobuf_decoder(self.descriptors, self.options.message or "")


def _ddl(field: StructField) -> str:
    null = "" if field.nullable else " NOT NULL"
    return f"`{field.name}` {field.dataType.simpleString()}{null}"


class ValueColumn:
    """The decoding of one task."""

    def __init__(self, reader: ValueReader, declared: StructType) -> None:
        self._is_permissive = reader.is_permissive
        self._decode = reader.decoder(declared)
        self._type = to_arrow_type(declared, timezone="UTC")

    def decode(self, values: pa.Array, place: Callable[[int], str]) -> tuple[pa.Array, pa.Array]:
        """The structs, and the bytes of those that could not be made. `place` names a row for an error."""
        structs: list[dict[str, Any] | None] = []
        malformed: list[bytes | None] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                structs.append(None if value is None else self._decode(value))
                malformed.append(None)
            except Malformed as error:
                if not self._is_permissive:
                    raise MalformedValue(
                        f"the value of {place(row)} cannot be decoded: {error}",
                        hint="set `valueMode` to `permissive` to get it in the column `malformedValue` instead",
                    ) from None
                structs.append(None)
                malformed.append(value)
        return pa.array(structs, self._type), pa.array(malformed, pa.binary())
