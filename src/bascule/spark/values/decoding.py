"""Values as typed columns: `valueFormat` makes a struct of the column `value`.

A format gives a decoder, which makes a dict of bytes, or raises Undecodable. Decoders are built from text in the driver and again in
each task. A value that cannot be decoded is null and its bytes are in `malformedValue`, or it ends the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, LongType, StructField, StructType

from bascule.spark.options.schema import MALFORMED, SCHEMA_ID, TABLE
from bascule.spark.options.value_options import SourceValueMode, ValueFormat, ValueFraming, ValueOptions


class Undecodable(ValueError):
    """Bytes that are not of the format, or do not fit the schema."""


Decode = Callable[[bytes], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Turns columns `value` into structs. Plain text inside, because it is pickled; `descriptors` are protobuf's."""

    options: ValueOptions
    descriptors: bytes = b""

    @classmethod
    def of(cls, options: ValueOptions) -> ValueReader:
        """For options with a `format`. Reads the files that options name: called in the driver."""
        if options.format is not ValueFormat.PROTOBUF:
            return cls(options)
        from bascule.spark.values.protobuf import read_descriptors

        return cls(options, read_descriptors(options))

    @property
    def is_permissive(self) -> bool:
        return self.options.mode is SourceValueMode.PERMISSIVE

    @property
    def is_framed(self) -> bool:
        return self.options.framing is ValueFraming.CONFLUENT

    def table(self) -> StructType | str:
        """The columns of a stream with this value. Text where only Spark can read the schema."""
        value = self.value_type()
        if isinstance(value, str):
            columns = [
                f"`value` STRUCT<{value}>" if field.name == "value" else _ddl(field) for field in self._columns()
            ]
            return ", ".join(columns)
        return self._table_with(value)

    def table_like(self, schema: StructType) -> StructType:
        """The columns that there are, for a schema to be held against: JSON is read as any struct that is asked for."""
        table = self.table()
        if isinstance(table, StructType):
            return table
        asked = next((field.dataType for field in schema if field.name.lower() == "value"), None)
        value = asked if isinstance(asked, StructType) else StructType()
        return self._table_with(value)

    def _table_with(self, value: DataType) -> StructType:
        return StructType(
            [StructField("value", value) if field.name == "value" else field for field in self._columns()]
        )

    def _columns(self) -> list[StructField]:
        """Those of a stream, and those that decoding adds."""
        added = [StructField(MALFORMED, BinaryType())] if self.is_permissive else []
        if self.is_framed:
            added.append(StructField(SCHEMA_ID, LongType()))
        return [*TABLE, *added]

    def value_type(self) -> DataType | str:
        if self.options.format is ValueFormat.JSON:
            return self.options.schema or ""
        if self.options.format is ValueFormat.AVRO:
            from bascule.spark.values.avro import read_schema

            return read_schema(self.options.schema or "").spark
        from bascule.spark.values.protobuf import message_type

        return message_type(self.descriptors, self.options.message or "")

    def decoder(self, declared: StructType) -> Decode:
        from bascule.spark.values.framing import framed_decoder, hinting_decoder

        plain = self._plain_decoder(declared)
        if self.is_framed:
            return framed_decoder(plain, self.options.schema_ids or ())
        return hinting_decoder(plain) if self.options.format is ValueFormat.AVRO else plain

    def _plain_decoder(self, declared: StructType) -> Decode:
        if self.options.format is ValueFormat.JSON:
            from bascule.spark.values.json import json_decoder

            return json_decoder(declared)
        if self.options.format is ValueFormat.AVRO:
            from bascule.spark.values.avro import avro_decoder, read_schema

            return avro_decoder(read_schema(self.options.schema or ""))
        from bascule.spark.values.protobuf import protobuf_decoder

        return protobuf_decoder(self.descriptors, self.options.message or "")


def _ddl(field: StructField) -> str:
    null = "" if field.nullable else " NOT NULL"
    return f"`{field.name}` {field.dataType.simpleString()}{null}"


class ValueColumn:
    """The decoding of one task."""

    def __init__(self, reader: ValueReader, declared: StructType) -> None:
        self._decode = reader.decoder(declared)
        self._type = to_arrow_type(declared, timezone="UTC")

    def decode(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The structs, and by row the reason for each value that cannot be decoded: its struct is null."""
        structs: list[dict[str, Any] | None] = []
        reasons: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                structs.append(None if value is None else self._decode(value))
            except Undecodable as error:
                structs.append(None)
                reasons[row] = str(error)
        return self._array(structs, 0, reasons), reasons

    def _array(self, structs: list[dict[str, Any] | None], first_row: int, reasons: dict[int, str]) -> pa.Array:
        """Arrow checks the ranges of numbers. If a row does not fit, halves are tried until that row is found."""
        try:
            return pa.array(structs, self._type)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
            if len(structs) == 1:
                reasons[first_row] = str(error)
                return pa.nulls(1, self._type)
        half = len(structs) // 2
        return pa.concat_arrays(
            [
                self._array(structs[:half], first_row, reasons),
                self._array(structs[half:], first_row + half, reasons),
            ]
        )


def malformed_values(values: pa.Array, reasons: Mapping[int, str]) -> pa.Array:
    """The bytes of the values that could not be decoded; null in all other rows."""
    if not reasons:
        return pa.nulls(len(values), pa.binary())
    return pa.array([values[row].as_py() if row in reasons else None for row in range(len(values))], pa.binary())
