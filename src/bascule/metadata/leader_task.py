"""A task that runs on the controller only: started when this server becomes controller, cancelled when it stops being it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.net.retry import retry

RETRY_SECONDS: Final = 1.0


class LeaderTask:
    def __init__(
        self,
        controller: Controller,
        work: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._controller = controller
        self._work = work
        self._name = name
        self._sleep = sleep
        self._runs = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._runs = True
        self._controller.watch_role(self._on_role)

    async def stop(self) -> None:
        self._runs = False
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _on_role(self, leads: bool) -> None:
        if self._task is not None and not leads:
            self._task.cancel()
            self._task = None
        elif self._task is None and leads and self._runs:
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def _run(self) -> None:
        """A new leader first applies the ops that its predecessors committed, so that the work does not start from stale metadata."""
        await retry(self._controller.fresh_metadata, (BasculeError,), (RETRY_SECONDS,), sleep=self._sleep)
        await self._work()
