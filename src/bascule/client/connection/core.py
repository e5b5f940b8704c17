"""What the mixed-in parts of a client share."""

from __future__ import annotations

from bascule.client.connection import options, wire
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.retry import TimeLimit


class ClientCore:
    _brokers: Brokers

    def _seconds(self, timeout: float | None) -> float:
        return self._brokers.timeout if timeout is None else options.seconds("timeout", timeout)

    def _deadline(self, timeout: float | None) -> TimeLimit:
        return TimeLimit.after(self._seconds(timeout))

    async def _call(self, method: str, timeout: float | None, *, once: bool = False, **fields: object) -> bytes:
        request = wire.encode(f"{method}Request", **fields)
        return await self._brokers.call(method, request, timeout=self._seconds(timeout), once=once)
