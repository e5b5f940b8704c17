"""Publishers of many messages to one stream: `window` of them are in flight at most, then `send` waits.

    async with client.publisher("orders", partitioner="key") as publisher:
        future = await publisher.send(b"lamp", key=b"customer-7")
        ack = await future                       # or not: the end of the block waits for all acks

The engine sends again what failed, as docs/guides/client.md says under "When a leader dies".
"""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from bascule.client.connection import options
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.options import ACK_NONE, Bytes
from bascule.client.connection.retry import TimeLimit
from bascule.client.publish.carrier import Routes
from bascule.client.publish.engine import Engine
from bascule.client.publish.lane import Lane
from bascule.client.publish.nats_carrier import NatsCarrier
from bascule.client.publish.numbering import NumberedLane, Numbering
from bascule.client.publish.partitioner import Partitioner, by_key, choose, partitioner
from bascule.client.publish.resend_rule import NEVER, ResendRule
from bascule.client.publish.sessions import PublishSessions
from bascule.client.publish.unary import is_large
from bascule.errors import BasculeError
from bascule.kernels.window.message import PublishMessage
from bascule.kernels.window.window import Ack, PublishTarget
from bascule.net.nats.auth import Login
from bascule.producers import NUMBER_MAX, producer_id_fault

SMALL_BYTES: Final = 512 << 10
"""A message with a value up to this size is not large, whatever its headers: they have at most RECORD_HEADERS_BYTES_MAX."""

OnError = Callable[[BasculeError], None]
AckFuture = asyncio.Future[Ack]
Sendable = Bytes | None | tuple[Bytes | None, Bytes | None]
"""A value, or a pair of key and value; a value of None is a tombstone."""


class BasePublisher(ABC):
    """What publishers through brokers and straight to NATS have in common."""

    _can_send_alone = True
    """Large messages are sent as calls of their own."""

    def __init__(
        self,
        brokers: Brokers,
        stream: str,
        *,
        ack: str,
        partition: int | None,
        partitioner_choice: str | Partitioner | None,
        window: int,
        timeout: float,
        on_error: OnError | None,
        resend: bool | None = None,
    ) -> None:
        self.stream = options.stream_name(stream)
        self.ack_policy = options.ack_policy(ack)
        self.resend = resend
        self.resends = options.resends(resend, self.ack_policy)
        """Whether messages that may be stored are sent again."""
        self.window = options.integer("window", window, 1, 1 << 20)
        self.timeout = options.seconds("timeout", timeout)
        self.sent = 0
        """Messages so far."""
        self.failed = 0
        """Messages that were refused, or whose outcome is unknown."""
        self._brokers = brokers
        self._fixed = None if partition is None else options.integer("partition", partition, 0, options.INT32_MAX)
        self._partitioner = partitioner(partitioner_choice)
        self._on_error = on_error
        self._first_error: BasculeError | None = None
        self._closed = False
        self._lanes: dict[int, Lane] = {}
        self._engine = Engine(brokers, self._make_routes(), self._note)
        self._create_future = asyncio.get_running_loop().create_future

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        value: Bytes | None,
        *,
        key: Bytes | None = None,
        headers: Mapping[str, Bytes] | None = None,
        partition: int | None = None,
        expected_offset: int | None = None,
    ) -> AckFuture:
        """Send a message as soon as the window has room; a value of None makes a tombstone. The future's result is its ack; with
        ack='none' it is None, at once.

        Raises Unavailable when the message could not be sent within the publisher's timeout: then it surely was not.
        """
        if self._closed or self._engine.end_reason is not None:
            self._engine.check_open()
        if type(value) is bytes and headers is None:
            body: bytes = value
            extra = None
        else:
            body, extra = options.value_and_headers(value, headers)
        key_bytes = None if key is None else options.payload("key", key)
        expected = -1 if expected_offset is None else options.integer("expected_offset", expected_offset, 0)
        number = self._fixed
        if partition is not None or number is None:
            # Without a key the hash is that of no bytes, for which no metadata is needed.
            is_first = partition is None and key_bytes is None and self._partitioner is by_key
            number = 0 if is_first else await self._choose(partition, key_bytes, body)
        if expected >= 0:
            await self._brokers.check_expected_offset(self.stream, expected, TimeLimit.after(self.timeout))
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = self._make_lane(PublishTarget(self.stream, number, self.ack_policy))
        future: AckFuture = self._create_future()
        alone = len(body) > SMALL_BYTES and self._can_send_alone and is_large(body, key_bytes, extra)
        message = PublishMessage(lane, body, key_bytes, extra, expected, future, monotonic() + self.timeout, alone)
        if not lane.try_send(message):
            await lane.send(message)
        self.sent += 1
        return future

    async def send_all(self, messages: Iterable[Sendable]) -> list[AckFuture]:
        """Send values, or pairs of key and value; a future for each."""
        futures = []
        for message in messages:
            key, value = message if isinstance(message, tuple) else (None, message)
            futures.append(await self.send(value, key=key))
        return futures

    async def flush(self) -> None:
        """Wait until every message so far is acked or has failed; with `ack="none"`, until the broker has received all of them.
        Raises the first failure since the last flush, unless `on_error` was given."""
        await self._drain()
        error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    async def close(self) -> None:
        """Close at once: messages without an ack are of unknown outcome."""
        if not self._closed:
            self._closed = True
            await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    # ── within ───────────────────────────────────────────────────────────────────────────────────

    async def _choose(self, partition: int | None, key: bytes | None, value: bytes) -> int:
        if partition is not None:
            return options.integer("partition", partition, 0, options.INT32_MAX)
        info = await self._brokers.stream(self.stream, TimeLimit.after(self.timeout))
        return choose(self._partitioner, key, value, len(info.partitions))

    def _note(self, error: BasculeError) -> None:
        self.failed += 1
        if self._on_error is not None:
            self._on_error(error)
        elif self._first_error is None:
            self._first_error = error

    async def _drain(self) -> None:
        for lane in list(self._lanes.values()):
            await lane.wait_until_settled()

    @abstractmethod
    def _make_routes(self) -> Routes: ...

    @abstractmethod
    def _make_lane(self, target: PublishTarget) -> Lane: ...


class BrokerPublisher(BasePublisher):
    """Publishes to one stream through the brokers. Made by `Client.publisher`."""

    def _make_routes(self) -> Routes:
        self._sessions = PublishSessions(self._brokers, self.window, self._note)
        return self._sessions

    def _make_lane(self, target: PublishTarget) -> Lane:
        return Lane(self._engine, target, ResendRule(self.resend is not False, self.resends))

    async def _drain(self) -> None:
        await super()._drain()
        if self.ack_policy == ACK_NONE:
            for session in self._sessions.sessions:
                await session.finish(self.timeout)


class IdempotentPublisher(BrokerPublisher):
    """Publishes each message exactly once. Made by `Client.publisher(…, idempotent=True)`."""

    def __init__(
        self, brokers: Brokers, stream: str, *, producer_id: str | None, epoch: int | None, **choices: Any
    ) -> None:
        super().__init__(brokers, stream, **choices)
        if self.ack_policy == ACK_NONE:
            raise options.wrong("ack", "none", "'leader' or 'all': without acks it is unknown what to send again")
        if producer_id is not None and (fault := producer_id_fault(producer_id)):
            raise options.wrong("producer_id", producer_id, fault.removeprefix("it must "))
        if epoch is not None:
            options.integer("epoch", epoch, 0, NUMBER_MAX)
        self.producer_id = producer_id or secrets.token_hex(12)
        """The producer's id in the headers of its messages."""
        # Milliseconds: a publisher of the same id that starts later always has a higher epoch.
        self.epoch = epoch if epoch is not None else (0 if producer_id is None else time.time_ns() // 1_000_000)
        self._numbering = Numbering(self.producer_id.encode(), self.epoch, owns_epoch=epoch is None)

    def _make_lane(self, target: PublishTarget) -> Lane:
        return NumberedLane(self._engine, target, self._numbering)


class NatsPublisher(BasePublisher):
    """Publishes to one stream over NATS. Made by `Client.nats_publisher`; connects when it is first used or entered.

    It saves the way through a broker and needs a connection to NATS. Nothing is sent again. Without acks (`ack="none"`) a message is
    delivered at most once, as core NATS does it.
    """

    _can_send_alone = False

    def __init__(self, brokers: Brokers, stream: str, servers: Iterable[str], login: Login, **choices: Any) -> None:
        self._servers = tuple(servers)
        self._login = login
        super().__init__(brokers, stream, **choices)

    async def connect(self) -> None:
        """Connect and subscribe to the acks. Raises Unavailable. `send` does it by itself."""
        self._engine.check_open()
        await self._carrier.connect()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    def _make_routes(self) -> Routes:
        self._carrier = NatsCarrier(
            self._brokers,
            self.stream,
            self._servers,
            self._login,
            window=self.window,
            timeout=self.timeout,
            on_failure=self._note,
        )
        return self._carrier

    def _make_lane(self, target: PublishTarget) -> Lane:
        return Lane(self._engine, target, NEVER)

    async def _drain(self) -> None:
        await super()._drain()
        await self._carrier.flush()

    async def close(self) -> None:
        await super().close()
        await self._carrier.end()
