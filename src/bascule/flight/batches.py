"""From the kernel's buffers to a record batch: the bytes stay where they are, Arrow only learns where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.flight.arrow import require
from bascule.flight.schema import schema_of
from bascule.kernels.arrow.columns import NAMES, ColumnBuffer, Columns

if TYPE_CHECKING:
    import pyarrow as pa

_Buffers = tuple[ColumnBuffer | None, ...]


def wanted_bits(columns: tuple[str, ...]) -> int:
    """The columns as the kernel wants them."""
    return sum(1 << NAMES.index(name) for name in columns)


def take_batch(made: Columns, columns: tuple[str, ...]) -> pa.RecordBatch:
    """The rows that were made so far."""
    schema = schema_of(columns)
    rows, buffers = made.take()
    arrays = [_array(field.type, rows, buffers[field.name]) for field in schema]
    return require().RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, rows: int, buffers: _Buffers) -> pa.Array:
    pa = require()
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, rows, [_wrapped(one) for one in buffers])
    _, row_ends, name_ends, names, value_ends, values = buffers
    assert name_ends is not None
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
