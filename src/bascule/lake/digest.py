"""A checksum of messages that is the same wherever they are: in the log, in Arrow, in a Parquet file.

For every column in the order of the schema: which values are null, one byte a row; then the lengths as 32-bit little-endian numbers
and the bytes behind each other, or the numbers themselves as 64 bits; of headers how many each row has, then names and values likewise.
It is CRC-32C, so it finds damage and mistakes, not forgery. Rows count in the order of their offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bascule.flight.schema import COLUMNS
from bascule.kernels.wire.checksum import crc32c

if TYPE_CHECKING:
    import pyarrow as pa


class Digest:
    """Of rows that are added piece by piece. However they are cut, the same rows give the same digest."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], int] = {}
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for number, name in enumerate(COLUMNS):
            column = batch.column(batch.schema.get_field_index(name))
            for part, piece in enumerate(_pieces(column)):
                self._parts[number, part] = crc32c(piece, self._parts.get((number, part), 0))
        self.rows += batch.num_rows

    @property
    def value(self) -> int:
        return crc32c(b"".join(crc.to_bytes(4, "little") for _, crc in sorted(self._parts.items())))


def _pieces(column: pa.Array) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    yield _numbers(pc.cast(column.is_null(), pa.uint8()))
    if pa.types.is_map(column.type):
        yield from _entries(column)
    elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        yield from _values(column)
    else:
        yield _numbers(column.cast(pa.int64()).fill_null(0))


def _entries(column: pa.MapArray) -> Iterator[Any]:
    """How many names and values each row has, and these."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = column.offsets
    yield _numbers(pc.subtract(offsets[1:], offsets[:-1]))
    first, end = offsets[0].as_py(), offsets[-1].as_py()
    names, values = column.keys.slice(first, end - first), column.items.slice(first, end - first)
    yield from _values(names)
    yield _numbers(pc.cast(values.is_null(), pa.uint8()))
    yield from _values(values)


def _values(column: pa.Array) -> Iterator[Any]:
    """How long each value is, and the values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    filled = column.cast(pa.binary()).fill_null(b"")
    yield _numbers(pc.binary_length(filled))
    yield _joined(filled)


def _numbers(array: pa.Array) -> Any:
    """The numbers of an array without nulls, and without what lies before or behind it in its buffer."""
    width = array.type.bit_width // 8
    buffer = array.buffers()[1]
    return b"" if buffer is None else memoryview(buffer)[array.offset * width : (array.offset + len(array)) * width]


def _joined(array: pa.Array) -> Any:
    """The bytes of all values."""
    import pyarrow as pa

    if not len(array):
        return b""
    offsets = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, array.buffers()[1]], offset=array.offset)
    data = array.buffers()[2]
    return b"" if data is None else memoryview(data)[offsets[0].as_py() : offsets[-1].as_py()]
