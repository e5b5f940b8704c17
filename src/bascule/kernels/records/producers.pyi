"""The idempotent producers of a partition and their stored sequences. docs/internals/idempotence.md has the rules."""

from typing import Final, final

from typing_extensions import Buffer

NEW: Final[int]
DUPLICATE: Final[int]
FENCED: Final[int]
OUT_OF_SEQUENCE: Final[int]

@final
class ProducerTable:
    """The producers of a log's records. At the limit, the one whose last message is oldest is removed."""

    def __init__(self, producers_max: int) -> None: ...
    @property
    def producers_max(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def forgotten(self) -> int:
        """The number of producers removed at the limit."""
    def judge(self, producer: bytes, epoch: int, sequence: int) -> tuple[int, int, int]:
        """Return the verdict; for a duplicate also the offset of the original (−1: unknown), and an upper bound of it."""
    def note(self, producer: bytes, epoch: int, sequence: int, offset: int) -> None:
        """Note a stored message."""
    def note_batches(self, data: Buffer, first_offset: int, end_offset: int) -> None:
        """Note the records in [first_offset, end_offset) of all marked batches in `data`. Raises ValueError if a marked batch is sealed
        or malformed."""
    def entries(self) -> list[tuple[bytes, int, int, list[tuple[int, int, int]]]]:
        """Return id, epoch, last sequence and runs (sequence, offset, count) of each producer, oldest first."""
    def encode(self) -> bytes:
        """Return the entries as bytes, see docs/internals/formats.md."""
    @staticmethod
    def decode(data: Buffer, producers_max: int) -> ProducerTable:
        """Return the table of encode(). Raises ValueError for other bytes."""
    def copy(self) -> ProducerTable: ...

def marks(data: Buffer) -> tuple[bool, bool]:
    """Return whether any batch in `data` is marked, and whether any marked one is sealed."""
