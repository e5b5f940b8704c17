"""The acks that a publishing session waits for: a queue of hashes for each partition, with bounded memory."""

from typing import final

@final
class AwaitedAcks:
    """Holds up to `keys_max` hashes; further ones are counted without their value."""

    def __init__(self, keys_max: int = ...) -> None: ...
    def __len__(self) -> int:
        """Acks that are awaited and known by their hash."""
    @property
    def untracked(self) -> int:
        """Acks that are awaited beyond `keys_max`, with any hash."""
    @property
    def queues_kept(self) -> int:
        """Partitions that have a queue."""
    def expect(self, partition: int, key: int) -> None:
        """Await one more ack with this hash from the partition with this hash."""
    def received(self, partition: int, key: int) -> bool:
        """Whether an ack with this hash is awaited; it is awaited once less from now on."""
