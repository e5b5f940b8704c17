"""Retries on the server side: waits between attempts, an optional deadline."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


async def retry(
    attempt: Callable[[], Awaitable[_T]],
    passing: tuple[type[Exception], ...] | Callable[[Exception], bool],
    waits: Sequence[float],
    *,
    deadline: float = math.inf,
    on_error: Callable[[Exception, float], None] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> _T:
    """The result of the first attempt that succeeds. Raises the error of an attempt when it is not `passing`, or when the next one
    would start after the deadline, on the monotonic clock.

    `waits` are the seconds between attempts; the last one repeats. `on_error` gets each error and the wait that follows it.
    """
    failures = 0
    while True:
        try:
            return await attempt()
        except Exception as error:
            wait = waits[min(failures, len(waits) - 1)]
            is_passing = passing(error) if callable(passing) else isinstance(error, passing)
            if not is_passing or time.monotonic() + wait >= deadline:
                raise
            if on_error is not None:
                on_error(error, wait)
        failures += 1
        await sleep(wait)
