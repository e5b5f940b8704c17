"""Bounds the failed logins of each address: a bucket of attempts that time refills."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

from bascule import limits


class FailedAttempts:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Failed attempts by address, and when they were counted; the address that failed last is at the end."""

    def seconds_to_wait(self, address: str) -> float:
        """Return how long this address has to wait for its next attempt; 0 when it may try now."""
        return max(
            0.0, (self._left(network_of(address)) - limits.TOKEN_FAILURES_MAX + 1) * limits.TOKEN_FAILURE_SECONDS
        )

    def note(self, address: str) -> None:
        """Count a failed attempt."""
        key = network_of(address)
        self._spent[key] = (self._left(key) + 1, self._clock())
        self._spent.move_to_end(key)
        if len(self._spent) > limits.TOKEN_ADDRESSES_MAX:
            self._spent.popitem(last=False)

    def _left(self, key: str) -> float:
        spent, at = self._spent.get(key, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) / limits.TOKEN_FAILURE_SECONDS)


def network_of(address: str) -> str:
    """Return the IP address of `host:port`; of IPv6 its /64 network, which one client usually has as a whole."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host or address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found)
