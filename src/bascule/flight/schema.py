"""A stream as a table, and its record batches. Order, types and nullability are fixed: Spark compares them with its own, exactly.

key           binary                      null: the message has none
value         binary                      null: the message has none
stream        string, not null
partition     int32, not null
offset        int64, not null
timestamp     timestamp[us, UTC], not null    nanoseconds are rounded down
subject       string, not null
replySubject  string                      null: the publisher wants no reply
headers       map<string, binary>, not null   without `subject` and `reply`, which subscribers find among them: they are columns
leaderEpoch   int64, not null
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

from bascule.errors import CallerError
from bascule.flight.arrow import require
from bascule.kernels.arrow.columns import NAMES, ColumnBuffer, Columns

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = NAMES
"""In the order of the kernel's column bits."""


@cache
def table_schema() -> pa.Schema:
    pa = require()
    return pa.schema(
        [
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("stream", pa.string(), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("subject", pa.string(), nullable=False),
            pa.field("replySubject", pa.string()),
            pa.field(
                "headers",
                pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())),
                nullable=False,
            ),
            pa.field("leaderEpoch", pa.int64(), nullable=False),
        ]
    )


def check_columns(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the named columns in the given order, all columns for None. Raises CallerError for an unknown column."""
    if names is None:
        return COLUMNS
    chosen = tuple(names)
    for name in chosen:
        if name not in COLUMNS:
            raise CallerError(f"a stream has no column {name!r}", hint=f"there are {', '.join(COLUMNS)}")
    if len(set(chosen)) != len(chosen):
        raise CallerError(f"a column is named twice: {', '.join(chosen)}", hint="name each column once")
    if not chosen:
        raise CallerError("no column is named", hint="name at least one, or leave `columns` out for all of them")
    return chosen


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of the chosen columns."""
    whole = table_schema()
    if columns == COLUMNS:
        return whole
    return require().schema([whole.field(name) for name in columns])


# ── record batches ───────────────────────────────────────────────────────────────────────────────


def wanted_bits(columns: tuple[str, ...]) -> int:
    """The columns as the bits of the kernel."""
    return sum(1 << NAMES.index(name) for name in columns)


def take_batch(made: Columns, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return the kernel's rows as a record batch over its buffers, without a copy."""
    schema = schema_of(columns)
    rows, buffers = made.take()
    arrays = [_array(field.type, rows, buffers[field.name]) for field in schema]
    return require().RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, rows: int, buffers: tuple[ColumnBuffer | None, ...]) -> pa.Array:
    pa = require()
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, rows, [_wrapped(one) for one in buffers])
    _, row_ends, name_ends, names, value_ends, values = buffers
    assert name_ends is not None  # the kernel always has the ends of a map's names
    entries = len(name_ends) // 4 - 1
    pairs = pa.Array.from_buffers(
        pa.struct([kind.key_field, kind.item_field]),
        entries,
        [None],
        children=[
            pa.Array.from_buffers(kind.key_type, entries, [None, _wrapped(name_ends), _wrapped(names)]),
            pa.Array.from_buffers(kind.item_type, entries, [None, _wrapped(value_ends), _wrapped(values)]),
        ],
    )
    return pa.Array.from_buffers(kind, rows, [None, _wrapped(row_ends)], children=[pairs])


def _wrapped(buffer: ColumnBuffer | None) -> pa.Buffer | None:
    return None if buffer is None else require().py_buffer(buffer)
