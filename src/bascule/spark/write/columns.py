"""The columns of a write: which there may be, and of which types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from bascule.config.values.given import closest
from bascule.errors import InvalidSchema
from bascule.spark.options.writing import Partitioner, SinkOptions

BYTES: Final = (t.BinaryType, t.StringType)
WHOLE: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
TIMES: Final = (t.TimestampType, t.TimestampNTZType)

WRITTEN: Final[dict[str, tuple[str, tuple[type[t.DataType], ...]]]] = {
    "value": ("binary or string", BYTES),
    "key": ("binary or string", BYTES),
    "headers": ("map<string, binary> or array<struct<key string, value binary>>", (t.MapType, t.ArrayType)),
    "stream": ("string", (t.StringType,)),
    "partition": ("int", WHOLE),
    "subject": ("string", (t.StringType,)),
    "timestamp": ("timestamp", TIMES),
}
"""Columns that are written, what their type has to be, in words and in Spark's classes."""

LEFT_ALONE: Final = frozenset({"offset", "replySubject", "leaderEpoch"})
"""What the source shows besides: rows that were read can be written as they are, and get new ones."""


# ── what there may be ────────────────────────────────────────────────────────────────────────────


def check_columns(schema: t.StructType, options: SinkOptions) -> None:
    """Raises InvalidSchema, saying what is wrong and what would be right."""
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name in LEFT_ALONE:
            continue
        if field.name not in WRITTEN:
            raise _unknown(field.name)
        words, kinds = WRITTEN[field.name]
        if not isinstance(field.dataType, kinds) or (field.name == "headers" and not _are_headers(field.dataType)):
            raise InvalidSchema(f"column `{field.name}` is {field.dataType.simpleString()}", hint=f"it must be {words}")
    if len(set(names)) != len(names):
        raise InvalidSchema("two columns have the same name", hint="name each once")
    if "value" not in names:
        raise InvalidSchema(
            "there is no column `value`", hint='for example `select(to_json(struct("*")).alias("value"))`'
        )
    _check_routing(frozenset(names), options)


def _check_routing(names: frozenset[str], options: SinkOptions) -> None:
    target = options.target
    if options.stream is None and target.subject is None and not {"stream", "subject"} & names:
        raise InvalidSchema(
            "nothing says which stream rows go to", hint="set option `stream`, or give each row a column `stream`"
        )
    for partitioner, column in ((Partitioner.EXPLICIT, "partition"), (Partitioner.KEY, "key")):
        if target.partitioner is partitioner and column not in names:
            raise InvalidSchema(
                f"option `partitioner` is `{partitioner}`, but there is no column `{column}`",
                hint=f"add the column `{column}`, or choose another partitioner",
            )
    for column in options.sureness.order_by or ():
        if column != "*" and column not in names:
            raise InvalidSchema(f"option `orderBy` names a column `{column}`, which is not there", hint=_listed(names))
        if column == "headers":
            raise InvalidSchema("option `orderBy` names `headers`, which have no order", hint="name other columns")


def _unknown(name: str) -> InvalidSchema:
    close = closest(name.lower(), WRITTEN)
    hint = _listed(WRITTEN) if close is None else f"did you mean `{close}`?"
    return InvalidSchema(f"column `{name}` is none that is written", hint=hint)


def _listed(names: Iterable[str]) -> str:
    return "there are " + ", ".join(f"`{name}`" for name in names)


def _are_headers(kind: t.DataType) -> bool:
    if isinstance(kind, t.MapType):
        return isinstance(kind.keyType, t.StringType) and isinstance(kind.valueType, BYTES)
    if not isinstance(kind, t.ArrayType) or not isinstance(kind.elementType, t.StructType):
        return False
    parts = kind.elementType
    is_pair = parts.fieldNames() == ["key", "value"]
    return is_pair and isinstance(parts[0].dataType, t.StringType) and isinstance(parts[1].dataType, BYTES)


# ── in order ─────────────────────────────────────────────────────────────────────────────────────


def sorted_rows(batches: Iterable[pa.RecordBatch], columns: tuple[str, ...]) -> Iterable[pa.RecordBatch]:
    """All rows, sorted by these columns (`*`: by all that have an order), and in batches again."""
    gathered = list(batches)
    if not gathered:
        return gathered
    table = pa.Table.from_batches(gathered)
    names = (
        [name for name in WRITTEN if name in table.column_names and name != "headers"] if "*" in columns else columns
    )
    keys: list[Any] = [(name, "ascending") for name in names]
    ordered: Iterable[pa.RecordBatch] = (
        table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks().to_batches(10_000)
    )
    return ordered
