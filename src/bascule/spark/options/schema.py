"""The columns of a stream in Spark's types, and the columns that a user asks for.

Spark accepts a record batch only if its schema equals the declared one in types, order and nullability. A schema that the user gives,
such as `.schema("offset bigint, value binary")`, becomes the declared one, so it also selects columns: the others are never sent.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import MapType, StructField, StructType

from bascule.errors import InvalidSchema
from bascule.flight.schema import table_schema

TABLE: Final = from_arrow_schema(table_schema())
"""All columns of a stream."""

MALFORMED: Final = "malformedValue"
"""The column with the bytes of values that cannot be decoded, in a read with typed values."""

SCHEMA_ID: Final = "valueSchemaId"
"""The column with the schema id in the frame of a value, in a read with `valueFraming`."""


def check_schema(schema: StructType, table: StructType = TABLE) -> tuple[str, ...]:
    """The columns of the table that a schema asks for, in its order. Raises InvalidSchema for an unknown column or another type."""
    by_name = {field.name.lower(): field for field in table}
    return tuple(_column(field, by_name) for field in schema)


def _column(field: StructField, by_name: dict[str, StructField]) -> str:
    known = by_name.get(field.name.lower())
    if known is None:
        listed = ", ".join(f"`{each.name}`" for each in by_name.values())
        raise InvalidSchema(f"a stream has no column `{field.name}`", hint=f"there are {listed}")
    if not _is_same(known.dataType, field.dataType):
        raise InvalidSchema(
            f"column `{field.name}` was asked for as `{field.dataType.simpleString()}`",
            hint=f"it is `{known.dataType.simpleString()}`; convert it in the query, e.g. `CAST(value AS STRING)`",
        )
    return known.name


def _is_same(known: Any, given: Any) -> bool:
    """Whether the types are the same. Nullability may differ: in a user's schema every column is nullable."""
    if isinstance(known, MapType) and isinstance(given, MapType):
        return known.keyType == given.keyType and known.valueType == given.valueType and given.valueContainsNull
    return bool(known == given)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that Spark compares the first batch with."""
    return to_arrow_schema(schema, timezone="UTC")
