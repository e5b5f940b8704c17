"""A call of PublishAsync to one broker: messages go out as they come, acks find their way back to whoever waits.

A session that ends is over. What it had sent and was not answered is of unknown outcome, unless the broker has surely not seen
the call. Sessions go to the leader of a partition: whoever waits for long can ask whether it still is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

from bascule.client.connection.brokers import Address, Brokers, start
from bascule.client.connection.failures import publish_failure, status_name, unknown_outcome
from bascule.client.connection.retry import LEADER_CHECK_SECONDS, Deadline
from bascule.errors import BasculeError, ClientClosed, Unavailable
from bascule.kernels.client.streams import PublishAsyncClientStream
from bascule.kernels.window.window import Ack, PublishColumns, PublishTarget
from bascule.net.grpc.channel import Channel

OK: Final = 0

EXPIRY_SECONDS: Final = 0.05
"""How late it may be noticed that an ack did not come in time."""

AckFuture = asyncio.Future[Ack]

CUT_OFF: Final = "not connected to NATS"
"""What a broker says of every message while it is on its own."""

OnFailure = Callable[["PublishSession", int, AckFuture | None, BasculeError], None]
"""Called with the session, the number of the publish (−1 when it is not known), whoever waits, and why there is no ack."""


def fail(future: asyncio.Future[Any] | None, error: BasculeError) -> None:
    """Give a future its error. It counts as looked at: publishers report failures in their own way too."""
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()


class PublishSession:
    def __init__(self, channel: Channel, window: int, on_failure: OnFailure) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._room: asyncio.Event = asyncio.Event()
        self._settled: asyncio.Event = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._end_reason = ""
        self._is_finishing = False
        self.channel = channel
        self.is_over = False
        self.is_retired = False
        """It takes no more messages: some of those it has will not be answered, and keep their places."""
        self.stream = PublishAsyncClientStream(
            window,
            on_writable=self._room.set,
            on_failed=self._failed,
            on_lost=self._lost,
            on_ended=self._ended,
        )

    def start(self) -> None:
        """Raises Unavailable when the connection is gone meanwhile."""
        start(self.channel, self.stream, "PublishAsync")

    @property
    def is_usable(self) -> bool:
        return not self.is_over and not self._is_finishing and not self.is_retired and self.channel.is_connected

    def retire(self) -> None:
        self.is_retired = True
        self._room.set()

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        target: PublishTarget,
        value: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        expected_offset: int,
        future: AckFuture | None,
        deadline: float,
    ) -> int:
        """Its number; below 0 when there is no room, and nothing was sent."""
        number = self.stream.publish(target, value, key, headers, expected_offset, future, deadline)
        if self._expiry is None and future is not None and number >= 0:
            self._expiry = self._loop.call_later(EXPIRY_SECONDS, self._expire)
        return number

    def publish_columns(self, columns: PublishColumns) -> None:
        self.stream.publish_columns(columns)
        if self._expiry is None:
            self._expiry = self._loop.call_later(EXPIRY_SECONDS, self._expire)

    async def wait_for_room(self, deadline: Deadline) -> None:
        """Until a message may be sent, or never more. TimeoutError when that takes too long."""
        async with asyncio.timeout(deadline.left):
            while not self.is_over and not self.is_retired and not self.stream.has_room:
                self._room.clear()
                await self._room.wait()

    async def wait_until_idle(self, is_given_up: Callable[[], bool] = lambda: False) -> None:
        """Until every message was answered or given up, by this session or by whoever uses it."""
        looked_at = monotonic()
        while not self.is_over and not self.stream.is_idle:
            await asyncio.sleep(0 if self.stream.window.outstanding < 2 else 0.001)
            if monotonic() - looked_at > EXPIRY_SECONDS:
                looked_at = monotonic()
                if is_given_up():
                    return

    async def finish(self, timeout: float) -> None:
        """Until the broker says that it has taken everything: the only word there is of messages without acks."""
        if self.is_over:
            return
        self._is_finishing = True
        self.stream.half_close()
        try:
            async with asyncio.timeout(timeout):
                while not self.is_over:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            self.close()
        if self.stream.status != OK:
            self._on_failure(self, -1, None, unknown_outcome("messages without acks were sent", self._reason()))

    def close(self) -> None:
        """What is outstanding is of unknown outcome."""
        if not self.is_over:
            self._end_reason = "the publisher was closed"
            self.stream.cancel()

    # ── what the kernel tells ────────────────────────────────────────────────────────────────────

    def _failed(self, waiter: AckFuture | None, number: int, code: int, text: str) -> None:
        if text == CUT_OFF:
            self.retire()  # the next message is for a broker that can do something with it
        self._on_failure(self, number, waiter, publish_failure(code, text))

    def _lost(self, publishes: list[tuple[int, AckFuture | None]]) -> None:
        error: BasculeError
        for number, waiter in publishes:
            if self.stream.finished and self.stream.unprocessed:
                error = Unavailable(f"the message was not sent: {self._reason()}")
            else:
                error = unknown_outcome("the message was sent", self._reason())
            self._on_failure(self, number, waiter, error)

    def _reason(self) -> str:
        if self._end_reason:
            return self._end_reason
        if self.stream.finished:
            return self.stream.status_text or status_name(self.stream.status)
        return "its time was up"

    def _ended(self, _status: int, _text: str) -> None:
        self.is_over = True
        self._room.set()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        self._expiry = None
        self.stream.expire(monotonic())
        if not self.is_over and self.stream.window.outstanding:
            self._expiry = self._loop.call_later(EXPIRY_SECONDS, self._expire)


class PublishSessions:
    """One session for each broker that is published to: the leader of the partition, or another one when it cannot be reached."""

    def __init__(self, brokers: Brokers, window: int, on_failure: OnFailure) -> None:
        self._brokers = brokers
        self._window = window
        self._on_failure = on_failure
        self._by_channel: dict[int, PublishSession] = {}
        self._by_partition: dict[tuple[str, int], PublishSession] = {}
        self._leaders: dict[tuple[str, int], str] = {}
        """Who led a partition when its session was chosen."""
        self._retired: list[PublishSession] = []
        """Sessions with publishes that nobody waits for any more, and perhaps with others: they take no new ones."""
        self._closed = False

    def ready(self, stream: str, partition: int) -> PublishSession | None:
        """The session that this partition had, while it can be used."""
        session = self._by_partition.get((stream, partition))
        return session if session is not None and session.is_usable else None

    async def get(self, stream: str, partition: int, deadline: Deadline) -> PublishSession:
        """Raises Unavailable when no broker can be reached, StreamNotFound for a partition that is not there."""
        session = self.ready(stream, partition)
        if session is not None:
            return session
        if (stream, partition) in self._by_partition:
            self._brokers.forget(stream)  # the one before has ended: somebody else may lead by now
        channel, leader = await self._channel(stream, partition, deadline)
        if self._closed:
            raise ClientClosed("the publisher was closed")
        self._by_channel = {key: old for key, old in self._by_channel.items() if old.is_usable}
        self._end_retired()
        session = self._by_channel.get(id(channel))
        if session is None:
            session = PublishSession(channel, self._window, self._on_failure)
            session.start()
            self._by_channel[id(channel)] = session
        self._by_partition[stream, partition] = session
        self._leaders[stream, partition] = leader
        return session

    def leader_of(self, stream: str, partition: int) -> str:
        """Who led the partition when its session was chosen."""
        return self._leaders.get((stream, partition), "")

    async def has_moved(
        self, stream: str, partition: int, led_by: str, deadline: Deadline, *, asks: bool = True
    ) -> bool:
        """Whether another broker leads the partition by now: an ack that has not come will not. The next message goes to the one that
        leads now. Without `asks` what is known will do."""
        if asks:
            self._brokers.forget(stream)
        leader = await self._brokers.leader(stream, partition, deadline)
        if not leader or leader == led_by:
            return False
        session = self._by_partition.get((stream, partition))
        if session is not None and self.leader_of(stream, partition) == led_by:
            self._retire(session)
        return True

    def _retire(self, session: PublishSession) -> None:
        """Publishes that are not answered keep their places in its window: who goes on needs another one."""
        self._by_partition = {key: one for key, one in self._by_partition.items() if one is not session}
        self._by_channel = {key: one for key, one in self._by_channel.items() if one is not session}
        self._retired.append(session)
        session.retire()

    def _end_retired(self) -> None:
        for session in self._retired:
            if session.stream.is_idle:
                session.close()
        self._retired = [session for session in self._retired if not session.is_over]

    async def answer(self, future: AckFuture, target: PublishTarget, deadline: Deadline) -> Ack:
        """The ack of what was sent just now. Raises OutcomeUnknown too when another broker leads the partition meanwhile."""
        led_by = self.leader_of(target.stream, target.partition)
        while not deadline.has_passed:
            done, _ = await asyncio.wait([future], timeout=min(LEADER_CHECK_SECONDS, deadline.left))
            if done:
                break
            has_moved = await self.has_moved(target.stream, target.partition, led_by, deadline)
            if has_moved and not future.done():
                raise unknown_outcome("the message was sent", "another broker leads the partition by now")
        return await future

    async def _channel(self, stream: str, partition: int, deadline: Deadline) -> tuple[Channel, str]:
        """Where to publish, and who leads."""
        leader = (await self._brokers.partition(stream, partition, deadline)).leader
        try:
            return await self._brokers.leader_channel(stream, partition, deadline), leader
        except Unavailable:
            # Every broker takes publishes for every partition.
            self._brokers.forget(stream)
            return await self._brokers.any_channel(deadline), leader

    @property
    def sessions(self) -> list[PublishSession]:
        return list(self._by_channel.values())

    def close(self) -> None:
        self._closed = True
        for session in [*self.sessions, *self._retired]:
            session.close()


__all__ = ["AckFuture", "Address", "PublishSession", "PublishSessions", "fail"]
