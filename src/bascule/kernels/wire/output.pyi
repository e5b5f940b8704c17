"""An output buffer: kernels write at the end, Python code sends from the front."""

from typing import final

from typing_extensions import Buffer

@final
class OutputBuffer:
    """Grows as needed. Readable as a buffer; while such a view exists, `append` fails if it needs more memory."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def append(self, data: Buffer) -> None: ...
    def drop(self, count: int) -> None:
        """Remove `count` bytes from the front after they were sent."""
    def clear(self) -> None: ...
    def send(self, fd: int) -> int:
        """Send bytes without blocking and remove them. Returns their number, maybe 0. Raises OSError for a closed socket."""
