"""Bytes on their way out: kernels write at the end, the shell sends from the front."""

from typing import final

from typing_extensions import Buffer

@final
class OutputBuffer:
    """Grows as it must. Readable as a buffer; while such a view lives, bytes that need more memory are refused."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def append(self, data: Buffer) -> None: ...
    def drop(self, count: int) -> None:
        """Forget so many bytes from the front: they were sent."""
    def clear(self) -> None: ...
    def send(self, fd: int) -> int:
        """Send what the socket takes without blocking and drop it; how much that was, maybe 0. OSError for a dead socket."""
