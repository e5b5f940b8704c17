"""Header compression for HTTP/2 (RFC 7541)."""

from collections.abc import Iterable

from typing_extensions import Buffer

class CompressionError(ValueError):
    """Bytes that are no header block; a connection cannot go on after it."""

class HpackDecoder:
    def __init__(self, table_bytes_max: int = 4096, list_bytes_max: int = 65536) -> None: ...
    @property
    def generation(self) -> int:
        """Changes whenever the dynamic table does."""
    @property
    def table_bytes(self) -> int: ...
    def decode(self, block: Buffer) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The fields, and whether these are all of them: those beyond the limit on the list are left out."""
    def entries(self) -> list[tuple[bytes, bytes]]:
        """The dynamic table, newest first."""

def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A header block that needs no dynamic table and leaves none."""
