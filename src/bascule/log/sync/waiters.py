"""Callbacks that run once when the end of a log passes an offset, on the thread that moves the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


class Waiters:
    """One-shot callbacks, at most one per owner. They run on the appending thread and must not block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        """Owners with their offsets and callbacks. A waiter adds itself before it looks at the end: empty means that no call is due."""

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, owner: Hashable, offset: int, callback: Callable[[], None]) -> bool:
        """Register a callback for the time when the end passes `offset`. False if this owner has one already, which stays."""
        with self._lock:
            if owner in self.waiting:
                return False
            self.waiting[owner] = (offset, callback)
            return True

    def remove(self, owner: Hashable) -> None:
        with self._lock:
            self.waiting.pop(owner, None)

    def wake_owner(self, owner: Hashable) -> None:
        with self._lock:
            found = self.waiting.pop(owner, None)
        if found is not None:
            found[1]()

    def wake(self, end_offset: int) -> None:
        """Run the callbacks whose offset is below `end_offset`."""
        if not self.waiting:
            return
        with self._lock:
            due = [owner for owner, (offset, _) in self.waiting.items() if offset < end_offset]
            callbacks = [self.waiting.pop(owner)[1] for owner in due]
        for callback in callbacks:
            callback()

    def wake_all(self) -> None:
        """Run all callbacks, because the log was closed, deleted, rolled or made readonly."""
        with self._lock:
            callbacks = [callback for _, callback in self.waiting.values()]
            self.waiting.clear()
        for callback in callbacks:
            callback()


class LogWaiters:
    """The callbacks of one log: for its end, its high watermark, and its synced end."""

    def __init__(self) -> None:
        self.end = Waiters()
        self.commit = Waiters()
        self.sync = Waiters()

    def remove(self, owner: Hashable) -> None:
        for waiters in (self.commit, self.end, self.sync):
            waiters.remove(owner)

    def wake_owner(self, owner: Hashable) -> None:
        for waiters in (self.commit, self.end, self.sync):
            waiters.wake_owner(owner)

    def wake_all(self) -> None:
        for waiters in (self.commit, self.end, self.sync):
            waiters.wake_all()
