"""Columns from record batches: what a stream is as a table, in buffers laid out as Arrow wants them."""

from typing import Final, final

from typing_extensions import Buffer

ALL: Final[int]
FULL: Final[int]
END: Final[int]
DAMAGED: Final[int]

NAMES: Final[tuple[str, ...]]
"""The columns in the order of the table; the bit of a column in `wanted` is 1 << its index."""

ROW_BYTES: Final[int]
"""What `nbytes` counts for a row beside the bytes of its key, value, texts and headers."""

HEADER_BYTES: Final[int]
"""What it counts for a header beside its name and value."""

@final
class ColumnBuffer(Buffer):
    def __len__(self) -> int: ...

@final
class Columns:
    def __init__(self, stream: bytes, partition: int, wanted: int = ...) -> None:
        """Rows for one partition; only the columns whose bits are in `wanted` are made."""
    def load(self, batches: Buffer, first_offset: int, end_offset: int) -> None:
        """Clear record batches, of which the records `first_offset <= offset < end_offset` become rows."""
    def fill(self, rows_max: int, bytes_max: int) -> int:
        """Rows from what is loaded, until there are `rows_max`, or `bytes_max` bytes or more (the row that reaches them is whole).

        ALL: load more. FULL: take the rows, then go on. END: the next record is at `end_offset` or beyond. DAMAGED: the next batch,
        or the rest of it, cannot be read; the rows before it are good.
        """
    @property
    def rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """Everything below has been made into rows or does not exist."""
    @property
    def batch_position(self) -> int:
        """Where in the bytes that are loaded the next batch begins, or the one that is being read."""
    def take(self) -> tuple[int, dict[str, tuple[ColumnBuffer | None, ...]]]:
        """How many rows there are, and the buffers of each column; begins with no rows again.

        A number: validity, numbers. Bytes and texts: validity, ends, data. Headers: validity, ends of rows, ends of names, names,
        ends of values, values. A validity of None: no row is null.
        """
