"""Tests that are coroutines: each has a loop of its own, and a time after which it has hung."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tests.support.waiting import PATIENCE_SECONDS

_P = ParamSpec("_P")
_T = TypeVar("_T")

TEST_SECONDS_MAX = 400.0


def on_loop(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run a test on a loop. Whatever a task raised that nobody looked at fails the test too."""

    @functools.wraps(test)
    def run(*arguments: _P.args, **fixtures: _P.kwargs) -> None:
        problems: list[dict[str, Any]] = []

        async def body() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
            async with asyncio.timeout(TEST_SECONDS_MAX):
                await test(*arguments, **fixtures)

        asyncio.run(body())
        assert not problems, problems

    return run


async def soon(work: Awaitable[_T], seconds: float = PATIENCE_SECONDS) -> _T:
    """What comes within a while, or the test fails."""
    async with asyncio.timeout(seconds):
        return await work


async def until(look: Callable[[], _T | None], what: str, seconds: float = PATIENCE_SECONDS) -> _T:
    """The first true answer of `look`. `what` ends the sentence `it never came true that …`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not (found := look()):
        assert loop.time() < deadline, f"it never came true that {what} (waited {seconds:g} s, last answer {found!r})"
        await asyncio.sleep(0.01)
    return found
