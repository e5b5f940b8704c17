"""The columns of a write: which there may be, of which types, and how their Arrow arrays become bytes and ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import types as t

from bascule.client.columns import HeaderEntries
from bascule.config.given import closest
from bascule.errors import InvalidSchema
from bascule.spark.sink_options import Partitioner, SinkOptions

Numbers = NDArray[np.int64]

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

PRODUCER_HEADERS: Final = frozenset({"bascule-producer", "bascule-epoch", "bascule-sequence"})
"""Of the producer that a row was read from, perhaps: on a message of ours they would be lies."""
TIMESTAMP_HEADER: Final = "bascule-timestamp"


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


# ── from Arrow ───────────────────────────────────────────────────────────────────────────────────


def bytes_and_ends(array: pa.Array) -> tuple[Any, Any]:
    """An array of binaries or strings as one buffer, and where each of them ends. Null is empty."""
    if array.null_count:
        array = pc.fill_null(array, "" if pa.types.is_string(array.type) else b"")
    if not pa.types.is_binary(array.type) and not pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    if not len(array):
        return b"", np.empty(0, np.int64)
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    first, last = int(places[0]), int(places[-1])
    return b"" if data is None else memoryview(data)[first:last], places[1:] - first


def header_entries(array: pa.Array, dropped: frozenset[str]) -> HeaderEntries:
    """Headers as a map, or as a list of pairs of key and value, without those that are not the caller's to give. Null is none."""
    if array.null_count:
        array = array.take(pa.array(np.arange(len(array))))  # what lies below a null is gone then
    places = array.offsets.to_numpy().astype(np.int64)
    first, count = int(places[0]), int(places[-1] - places[0])
    is_map = pa.types.is_map(array.type)
    names = (array.keys if is_map else array.values.field(0)).slice(first, count)
    values = (array.items if is_map else array.values.field(1)).slice(first, count)
    row_ends: Any = places[1:] - first
    kept = pc.invert(pc.is_in(names, value_set=pa.array(sorted(dropped), names.type)))
    if count and not pc.all(kept).as_py():
        names, values = names.filter(kept), values.filter(kept)
        row_ends = np.concatenate(([0], np.cumsum(kept.to_numpy(zero_copy_only=False))))[row_ends]
    return row_ends, *bytes_and_ends(names), *bytes_and_ends(values)


def timestamps_ns(array: pa.Array) -> Numbers:
    """Times in ns; negative for null, and for what was before 1970, which no header can say."""
    micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    found: Numbers = pc.fill_null(micros, -1).to_numpy().astype(np.int64)
    return np.where(found < 0, -1, found * 1_000)


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
