"""The partitions of the cluster, as publishers know them."""

from typing import final

@final
class Targets:
    """All partitions of the cluster, as publishers know them."""

    def __init__(self) -> None: ...
    def set(
        self,
        stream: str,
        partition: int,
        subject: str,
        *,
        paused: bool,
        readonly: bool,
        concurrency_control: bool,
        receiver: str | None = None,
    ) -> None:
        """With a receiver only brokers publish to the partition, and seal their messages for this server."""
    def remove(self, stream: str) -> None: ...
    def __len__(self) -> int: ...
