"""The columns of a stream in Spark's types, and the columns that a user asks for.

Spark takes a record batch only if its schema is the one that was declared, to the letter: types, order, what may be null. A
schema that the user gives, such as `.schema("offset bigint, value binary")`, is what Spark declares then, so it also is how columns
are left out: those that nobody asks for are never sent.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bascule.errors import InvalidSchema

TABLE: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("stream", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("subject", StringType(), nullable=False),
        StructField("replySubject", StringType()),
        StructField("headers", MapType(StringType(), BinaryType()), nullable=False),
        StructField("leaderEpoch", LongType(), nullable=False),
    ]
)

MALFORMED: Final = "malformedValue"
"""The column that a read with typed values has for those that cannot be decoded."""


def check_schema(schema: StructType, table: StructType = TABLE) -> tuple[str, ...]:
    """The columns of the table that a schema asks for, in its order. Raises InvalidSchema for one that there is not."""
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
    """Types are the same; what may be null may differ, for a user's schema says so of everything."""
    if isinstance(known, MapType) and isinstance(given, MapType):
        return known.keyType == given.keyType and known.valueType == given.valueType and given.valueContainsNull
    return bool(known == given)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that Spark compares the first batch with."""
    return to_arrow_schema(schema, timezone="UTC")
