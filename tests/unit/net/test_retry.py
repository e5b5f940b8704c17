"""Retries: which errors are retried, how long the waits are, and what the deadline does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from bascule.errors import StateError, Unavailable
from bascule.net.retry import retry


class Sleeps:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def attempts(*errors: Exception) -> Callable[[], Awaitable[str]]:
    """Raises these errors one after the other, then succeeds."""
    left = list(errors)

    async def attempt() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return attempt


def test_passing_errors_are_retried_and_the_last_wait_repeats() -> None:
    sleep, seen = Sleeps(), []
    found = asyncio.run(
        retry(
            attempts(*(Unavailable(str(number)) for number in range(4))),
            (Unavailable,),
            (1.0, 2.0),
            on_error=lambda error, wait: seen.append((str(error), wait)),
            sleep=sleep,
        )
    )
    assert found == "done"
    assert sleep.seconds == [1.0, 2.0, 2.0, 2.0]
    assert seen == [("0", 1.0), ("1", 2.0), ("2", 2.0), ("3", 2.0)]


def test_other_errors_end_it_at_once() -> None:
    sleep = Sleeps()
    with pytest.raises(StateError):
        asyncio.run(retry(attempts(StateError("no")), (Unavailable,), (1.0,), sleep=sleep))
    with pytest.raises(Unavailable):
        asyncio.run(retry(attempts(Unavailable("no")), lambda _error: False, (1.0,), sleep=sleep))
    assert sleep.seconds == []


def test_no_attempt_starts_after_the_deadline() -> None:
    sleep = Sleeps()
    with pytest.raises(Unavailable):
        asyncio.run(
            retry(attempts(Unavailable("no")), (Unavailable,), (60.0,), deadline=time.monotonic() + 30, sleep=sleep)
        )
    assert sleep.seconds == []
