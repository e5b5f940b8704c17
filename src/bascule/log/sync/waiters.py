"""Who wants to be told when an offset is passed. Nobody polls: a waiter is called once, by the thread that moves the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


class Waiters:
    """One-shot callbacks, at most one for each owner. A callback must not block: it runs on the appending thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, owner: Hashable, offset: int, callback: Callable[[], None]) -> bool:
        """Call back once the end has passed `offset`. False when this owner waits already: the first registration stands."""
        with self._lock:
            if owner in self._waiting:
                return False
            self._waiting[owner] = (offset, callback)
            return True

    def remove(self, owner: Hashable) -> None:
        with self._lock:
            self._waiting.pop(owner, None)

    def wake_owner(self, owner: Hashable) -> None:
        with self._lock:
            found = self._waiting.pop(owner, None)
        if found is not None:
            found[1]()

    def wake(self, end_offset: int) -> None:
        """Call everybody whose offset lies below `end_offset`."""
        if not self._waiting:
            return
        with self._lock:
            due = [owner for owner, (offset, _) in self._waiting.items() if offset < end_offset]
            callbacks = [self._waiting.pop(owner)[1] for owner in due]
        for callback in callbacks:
            callback()

    def wake_all(self) -> None:
        """Something else has happened (closed, deleted, readonly, rolled): everybody has a look."""
        with self._lock:
            callbacks = [callback for _, callback in self._waiting.values()]
            self._waiting.clear()
        for callback in callbacks:
            callback()


class LogWaiters:
    """Everybody who waits at a log: for its end, for its high watermark, for the platter."""

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
