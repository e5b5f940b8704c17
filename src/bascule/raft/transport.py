"""Raft messages over NATS, one subject per server. Messages that cannot be sent are dropped, which Raft tolerates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

from bascule.errors import Unavailable
from bascule.net.nats.bus import Handler
from bascule.net.nats.subjects import ControlSubjects
from bascule.raft.core.model.message_codec import RefusedMessage, decode_message, encode_message
from bascule.raft.core.model.messages import RaftMessage

OUTBOX_MESSAGES_MAX: Final = 4096
"""Messages that wait for the connection; further ones are dropped, because old messages are useless after a reconnect."""


class Bus(Protocol):
    async def publish(self, subject: str, data: bytes, reply: str = "") -> None: ...

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes: ...

    async def subscribe(self, subject: str, handler: Handler) -> None: ...


async def publish_quietly(bus: Bus, subject: str, data: bytes) -> bool:
    """Publish a message whose loss does no harm, because one side retries. False when it was not sent."""
    try:
        await bus.publish(subject, data)
    except Unavailable:
        return False
    return True


class RaftTransport:
    def __init__(self, bus: Bus, subjects: ControlSubjects, server_id: str, cluster_id: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._server_id = server_id
        self._cluster_id = cluster_id
        self._outbox: asyncio.Queue[RaftMessage] = asyncio.Queue(OUTBOX_MESSAGES_MAX)
        self._task: asyncio.Task[None] | None = None
        self.refused = 0
        """Messages that were malformed or came from another cluster."""
        self.dropped = 0
        """Messages that could not be sent."""

    async def start(self, receive: Callable[[RaftMessage], None]) -> None:
        async def on_message(data: bytes, _reply: str) -> None:
            try:
                message = decode_message(data, self._cluster_id)
            except RefusedMessage:
                self.refused += 1
                return
            receive(message)

        await self._bus.subscribe(self._subjects.raft(self._server_id), on_message)
        self._task = asyncio.create_task(self._run(), name="raft-transport")

    def send(self, message: RaftMessage) -> None:
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.dropped += 1

    async def _run(self) -> None:
        while True:
            message = await self._outbox.get()
            data = encode_message(message, self._cluster_id)
            self.dropped += not await publish_quietly(self._bus, self._subjects.raft(message.to), data)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
