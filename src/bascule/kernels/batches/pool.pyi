"""Memory for batches that are being collected."""

from collections.abc import Callable
from typing import final

from bascule.kernels.records.builder import BatchBuilder

@final
class BatchPool:
    """Memory for the batches of all partitions of a broker. For the thread of the event loop alone."""

    def __init__(self, new_builder: Callable[[], BatchBuilder], bytes_max: int) -> None:
        """`bytes_max` limits the unused memory that is kept."""

    @property
    def bytes_max(self) -> int: ...
    @property
    def bytes_kept(self) -> int: ...
