"""NATS for the control plane, over its own link: a few messages a second, and requests with an answer.

With a cluster secret every message is sealed, and messages without a valid seal reach no handler: see seal.py.
Publishing while the connection is down fails at once instead of being buffered: a Raft message that arrives minutes late is useless.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bascule import limits
from bascule.errors import CallerError, Unavailable
from bascule.kernels.nats.protocol import CallbackSink
from bascule.net.nats.auth import Login
from bascule.net.nats.link import LinkOptions, NatsLink
from bascule.net.nats.seal import SealedChannel

Handler = Callable[[bytes, str], Awaitable[None]]
"""Gets the data of a message and the subject to answer to, which is empty when the sender wants no answer."""

_NO_SUBSCRIBER: Final = b"NATS/1.0 503"
"""Start of the headers with which a NATS server answers a request that has no subscriber."""


class NatsBus:
    def __init__(self, link: NatsLink, channel: SealedChannel | None = None, inbox: str = "_INBOX") -> None:
        """`channel` seals the messages of `link`; None: they are not authenticated. Answers come to subjects below `inbox`."""
        self.link = link
        self.channel = channel
        self.on_state: Callable[[bool, str], None] = _ignore
        """Connected or not, and the server or the reason."""
        self.messages_dropped = 0
        """Messages that were dropped because their handler's queue was full."""
        link.on_state = self._on_state
        self._inbox = f"{inbox}.{secrets.token_hex(11)}"
        self._numbers = itertools.count(1)
        self._answers: dict[str, asyncio.Future[bytes]] = {}
        self._workers: list[asyncio.Task[None]] = []
        link.subscribe(f"{self._inbox}.*".encode(), CallbackSink(self._on_answer))

    @classmethod
    async def connect(
        cls, servers: Sequence[str], name: str, login: Login | None = None, tls: ssl.SSLContext | None = None
    ) -> NatsBus:
        """Connect to one of the servers, and from then on reconnect automatically. Raises Unavailable when none answers."""
        bus = cls(NatsLink(LinkOptions(servers=tuple(servers), name=name, login=login or Login(), tls=tls)))
        await bus.link.connect()
        return bus

    @property
    def is_connected(self) -> bool:
        return self.link.connected

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send without waiting for an answer. Raises Unavailable while the connection is down."""
        if self.channel is not None:
            data = self.channel.seal(subject.encode(), data, reply.encode()) + data
        try:
            self.link.publish(subject.encode(), data, reply.encode())
        except CallerError as error:
            raise Unavailable(f"cannot publish to {subject}: {error.message}") from None

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Send and wait for one answer. Raises Unavailable when the subject has no subscriber, or after the timeout."""
        inbox = f"{self._inbox}.{next(self._numbers)}"
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[inbox] = answer
        try:
            await self.publish(subject, data, inbox)
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise Unavailable(f"no answer on {subject} within {timeout:g} s") from None
        except _NoSubscriber:
            raise Unavailable(f"no server listens on {subject}") from None
        finally:
            del self._answers[inbox]

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Call a handler for each message of a subject, one after the other."""
        waiting: asyncio.Queue[tuple[bytes, str]] = asyncio.Queue(limits.BUS_MESSAGES_WAITING_MAX)

        def take(to: bytes, reply: bytes, _headers: bytes | None, payload: bytes) -> None:
            if self.channel is not None:
                opened = self.channel.open(to, payload, reply)
                if opened is None:
                    return
                payload = bytes(opened)
            try:
                waiting.put_nowait((payload, reply.decode(errors="replace")))
            except asyncio.QueueFull:
                self.messages_dropped += 1

        work = asyncio.get_running_loop().create_task(_work(waiting, handler), name=f"nats-bus {subject}")
        self._workers.append(work)
        self.link.subscribe(subject.encode(), CallbackSink(take))

    async def close(self) -> None:
        await self.link.close()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers.clear()

    # ── callbacks of the link ──

    def _on_answer(self, subject: bytes, _reply: bytes, headers: bytes | None, payload: bytes) -> None:
        answer = self._answers.get(subject.decode(errors="replace"))
        if answer is None or answer.done():
            return  # late, and not worth the work of opening it
        if headers is not None and headers.startswith(_NO_SUBSCRIBER) and not payload:
            answer.set_exception(_NoSubscriber())
        elif self.channel is None:
            answer.set_result(payload)
        elif (opened := self.channel.open(subject, payload)) is not None:
            answer.set_result(bytes(opened))

    def _on_state(self, connected: bool, reason: str) -> None:
        if not connected:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(Unavailable(f"the connection to NATS was lost: {reason}"))
        self.on_state(connected, reason)


class _NoSubscriber(Exception):
    """The subject of a request has no subscriber."""


async def _work(waiting: asyncio.Queue[tuple[bytes, str]], handler: Handler) -> None:
    while True:
        data, reply = await waiting.get()
        try:
            await handler(data, reply)
        except Exception as error:
            context = {"message": "a message from NATS was not handled", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


def _ignore(*_: object) -> None:
    """Default callback."""
