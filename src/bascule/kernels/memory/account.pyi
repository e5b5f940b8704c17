"""Memory accounts: how many bytes a connection, and a server, hold for their clients."""

from collections.abc import Callable
from typing import Any, final

@final
class MemoryAccount:
    """Counts the bytes in use. An account with a `whole` charges that one, too."""

    on_exceeded: Callable[[], Any] | None
    """Called after a read or a flush that finds this account, the whole of others, above its bound."""

    def __init__(self, most: int, whole: MemoryAccount | None = None) -> None: ...
    @property
    def used(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def whole(self) -> MemoryAccount | None: ...
    @property
    def exceeded(self) -> bool: ...
