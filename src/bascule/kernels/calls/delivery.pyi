"""From record batches to the messages of a Subscribe stream."""

from typing import Final, final

from typing_extensions import Buffer

from bascule.kernels.wire.output import OutputBuffer

ALL_DONE: Final[int]
"""Every batch of the buffer is done."""
BUDGET_USED: Final[int]
"""Call again with the same cursor."""
END_REACHED: Final[int]
"""The next record is at the end offset or beyond it."""
DAMAGED: Final[int]
"""The batch at the cursor is incomplete, sealed or does not parse."""

@final
class Cursor:
    """Where a delivery stands in a buffer of batches."""

    def __init__(self, next_offset: int = 0, batch_at: int = 0) -> None: ...
    @property
    def batch_at(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def last_offset(self) -> int:
        """Of the last message that was written; −1 before the first."""
    @property
    def messages(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

@final
class Delivery:
    """Writes records of one partition as gRPC messages."""

    def __init__(self, stream: bytes, partition: int) -> None: ...
    def write(self, output: OutputBuffer, data: Buffer, cursor: Cursor, end_offset: int, budget: int) -> int:
        """Append the records from the cursor on, below `end_offset`, until `budget` bytes or more are written."""
