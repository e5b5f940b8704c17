"""Building record batches: many records into one buffer, a header on top."""

from collections.abc import Callable, Iterable
from typing import final

from typing_extensions import Buffer

class LimitError(ValueError):
    """A record that is larger than the builder takes; the builder is as it was before."""

    field: str
    size: int
    limit: int
    def __init__(self, field: str, size: int, limit: int) -> None: ...

@final
class BatchBuilder:
    """Collects the records of one batch in one growing buffer and stamps the header on top. Not for two threads at once."""

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
        """`error` makes the exception for a refusal from field, size and limit; LimitError by default."""

    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Size of the batch if it were stamped now."""
    def add(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[bytes, bytes]] = (),
        subject: bytes = b"",
        reply: bytes = b"",
        time_delta: int = 0,
    ) -> None:
        """Append one record. `time_delta` is ns behind the batch's first timestamp; smaller than the last one counts as equal."""
    def add_columns(
        self,
        values: Buffer,
        value_ends: Buffer,
        keys: Buffer | None = None,
        key_ends: Buffer | None = None,
        subject: bytes = b"",
    ) -> None:
        """Append many records at once: `value_ends` are int64 end positions into `values`, `key_ends` likewise; all or none."""
    def stamp(self, base_offset: int, leader_epoch: int, timestamp: int) -> memoryview:
        """The finished batch. While the view lives the builder cannot change (BufferError): release it."""
    def clear(self) -> None: ...
