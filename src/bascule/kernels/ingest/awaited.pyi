"""The acks that a publishing session waits for: a counted set of hashes with bounded memory."""

from typing import final

@final
class AwaitedAcks:
    """Counts hashes up to `keys_max` different ones; further ones are counted without their value."""

    def __init__(self, keys_max: int = ...) -> None: ...
    def __len__(self) -> int:
        """Different hashes that are awaited."""
    @property
    def untracked(self) -> int:
        """Acks that are awaited beyond `keys_max`, with any hash."""
    def expect(self, key: int) -> None:
        """Await one more ack with this hash."""
    def received(self, key: int) -> bool:
        """Whether an ack with this hash is awaited; it is awaited once less from now on."""
