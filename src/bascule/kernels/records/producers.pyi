"""Idempotent producers of a partition: which sequences it has of whom. The rules stand in docs/internals/idempotence.md."""

from typing import Final, final

from typing_extensions import Buffer

NEW: Final[int]
DUPLICATE: Final[int]
FENCED: Final[int]
OUT_OF_SEQUENCE: Final[int]

@final
class ProducerTable:
    """A function of a log's records, bounded: the producer that stored longest ago is forgotten first."""

    def __init__(self, producers_max: int) -> None: ...
    @property
    def producers_max(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def forgotten(self) -> int:
        """Producers that made room for others."""
    def judge(self, producer: bytes, epoch: int, sequence: int) -> tuple[int, int, int]:
        """The verdict; for a duplicate also where the original is (−1: not known), and an offset that it is not behind."""
    def note(self, producer: bytes, epoch: int, sequence: int, offset: int) -> None:
        """The message is stored there."""
    def note_batches(self, data: Buffer, first_offset: int, end_offset: int) -> None:
        """Note the records of all marked batches in `data` whose offsets lie in [first_offset, end_offset). Bodies must be in the
        clear. ValueError when a marked batch cannot be read."""
    def entries(self) -> list[tuple[bytes, int, int, list[tuple[int, int, int]]]]:
        """Id, epoch, last sequence, runs (sequence, offset, count) of each, oldest first."""
    def encode(self) -> bytes:
        """The entries as bytes, see docs/internals/formats.md."""
    @staticmethod
    def decode(data: Buffer, producers_max: int) -> ProducerTable:
        """ValueError for anything that encode() did not write."""
    def copy(self) -> ProducerTable: ...

def marks(data: Buffer) -> tuple[bool, bool]:
    """Whether any batch in `data` is marked, and whether any marked one is sealed."""
