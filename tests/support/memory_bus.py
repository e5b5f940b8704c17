"""A NATS of one process: publish, request and subscribe, delivered in order by the event loop."""

from __future__ import annotations

import asyncio
import itertools

from bascule.errors import Unavailable
from bascule.net.nats.bus import Handler


class MemoryBus:
    def __init__(self) -> None:
        self._handlers: dict[str, list[Handler]] = {}
        self._inboxes = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_down = False
        self.published: list[tuple[str, bytes]] = []

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if self.is_down:
            raise Unavailable("the connection to NATS is down")
        self.published.append((subject, data))
        for handler in self._handlers.get(subject, ()):
            task = asyncio.ensure_future(handler(data, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        if subject not in self._handlers:
            raise Unavailable(f"no server listens on {subject}")
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        inbox = f"inbox.{next(self._inboxes)}"

        async def on_answer(answer: bytes, _reply: str) -> None:
            answers.put_nowait(answer)

        await self.subscribe(inbox, on_answer)
        await self.publish(subject, data, inbox)
        try:
            return await asyncio.wait_for(answers.get(), timeout)
        except TimeoutError:
            raise Unavailable(f"no answer on {subject} within {timeout:g} s") from None

    async def subscribe(self, subject: str, handler: Handler) -> None:
        self._handlers.setdefault(subject, []).append(handler)
