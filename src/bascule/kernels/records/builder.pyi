"""Builds record batches: many records in one buffer, and a header."""

from collections.abc import Callable, Iterable
from typing import final

from typing_extensions import Buffer

class LimitError(ValueError):
    """The record is larger than a limit; the builder is unchanged."""

    field: str
    size: int
    limit: int
    def __init__(self, field: str, size: int, limit: int) -> None: ...

@final
class BatchBuilder:
    """Collects the records of one batch and writes its header. Not thread-safe."""

    def __init__(
        self,
        *,
        key_bytes_max: int,
        value_bytes_max: int,
        headers_max: int,
        headers_bytes_max: int,
        subject_bytes_max: int,
        batch_bytes_max: int,
        records_max: int,
        error: Callable[[str, int, int], Exception] = ...,
    ) -> None:
        """`error` creates the exception for a refused record from field, size and limit; LimitError by default."""

    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """The present size of the batch."""
    def add(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[bytes, bytes]] = (),
        subject: bytes = b"",
        reply: bytes = b"",
        time_delta: int = 0,
    ) -> None:
        """Append one record. `time_delta` is in ns after the first timestamp of the batch, and at least that of the record before."""
    def add_columns(
        self,
        values: Buffer,
        value_ends: Buffer,
        keys: Buffer | None = None,
        key_ends: Buffer | None = None,
        subject: bytes = b"",
    ) -> None:
        """Append all records or none: `value_ends` are int64 end positions in `values`, `key_ends` in `keys`."""
    def stamp(self, base_offset: int, leader_epoch: int, timestamp: int) -> memoryview:
        """Return the finished batch. Until the view is released, changes of the builder raise BufferError."""
    def clear(self) -> None: ...
