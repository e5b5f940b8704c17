"""Which connections a server has: how many in all and from one address, and which of them have been without calls for long.

At a maximum, the server closes the connection that has been without calls longest, of the same address or of the address with most
connections. Without such a connection, it refuses the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from bascule import limits

SWEEP_SECONDS: Final = 5.0
"""Interval at which a server looks for connections without calls."""

EVICTED_AFTER_SECONDS: Final = 60.0
"""Minimum time without calls after which a connection may be closed to make room for a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionBounds:
    connections_max: int = limits.GRPC_CONNECTIONS_MAX
    per_address_max: int = limits.GRPC_CONNECTIONS_PER_ADDRESS_MAX
    idle_seconds: float = limits.GRPC_IDLE_SECONDS
    evicted_after_seconds: float = EVICTED_AFTER_SECONDS


class Countable(Protocol):
    """A connection, as far as it is counted here."""

    host: str

    @property
    def calls_begun(self) -> int: ...

    @property
    def has_calls(self) -> bool: ...


C = TypeVar("C", bound=Countable)


@dataclass(slots=True)
class _Activity:
    calls_begun: int
    idle_since: float


class Admission(Generic[C]):
    """The open connections. A clock's time is an argument, in seconds."""

    def __init__(self, bounds: AdmissionBounds) -> None:
        self.bounds = bounds
        self._by_host: dict[str, dict[C, _Activity]] = {}
        self._evictable: dict[str, dict[C, None]] = {}
        """By address: connections that have been without calls long enough, the longest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[C]:
        return iter([connection for found in self._by_host.values() for connection in found])

    def make_room(self, host: str) -> tuple[bool, C | None]:
        """Return whether one more connection from this address is accepted, and the connection to be closed for it, if any."""
        if len(self._by_host.get(host, ())) >= self.bounds.per_address_max:
            evicted = self._longest_idle(host)
        elif self._count >= self.bounds.connections_max:
            crowded = sorted(self._evictable, key=lambda each: len(self._by_host.get(each, ())), reverse=True)
            evicted = next((found for each in crowded if (found := self._longest_idle(each)) is not None), None)
        else:
            return True, None
        if evicted is not None:
            self.discard(evicted)
        return evicted is not None, evicted

    def _longest_idle(self, host: str) -> C | None:
        for connection in self._evictable.get(host, ()):
            if not connection.has_calls:
                return connection
        return None

    def add(self, connection: C, now: float) -> None:
        self._by_host.setdefault(connection.host, {})[connection] = _Activity(connection.calls_begun, now)
        self._count += 1

    def discard(self, connection: C) -> None:
        found = self._by_host.get(connection.host, {})
        if found.pop(connection, None) is not None:
            self._count -= 1
            if not found:
                del self._by_host[connection.host]
        evictable = self._evictable.get(connection.host, {})
        evictable.pop(connection, None)
        if not evictable:
            self._evictable.pop(connection.host, None)

    def sweep(self, now: float) -> list[C]:
        """Note which connections are without calls; return those that have been so for longer than `idle_seconds`."""
        expired: list[C] = []
        idle: list[tuple[float, C]] = []
        for found in self._by_host.values():
            for connection, activity in found.items():
                if connection.has_calls or connection.calls_begun != activity.calls_begun:
                    activity.calls_begun, activity.idle_since = connection.calls_begun, now
                elif now - activity.idle_since >= self.bounds.idle_seconds:
                    expired.append(connection)
                elif now - activity.idle_since >= self.bounds.evicted_after_seconds:
                    idle.append((activity.idle_since, connection))
        self._evictable.clear()
        for _, connection in sorted(idle, key=lambda each: each[0]):
            self._evictable.setdefault(connection.host, {})[connection] = None
        return expired
