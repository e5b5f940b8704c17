"""Sessions: PublishAsync calls, one to each broker that leads a partition we publish to.

A session that ends is over; PublishSessions starts another one when it is needed. The messages that it had in flight are of unknown
outcome, unless the broker has surely not seen the call.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bascule.client.connection.brokers import Brokers, start
from bascule.client.connection.failures import unknown_outcome
from bascule.client.connection.retry import TimeLimit
from bascule.client.publish.carrier import Carrier, OnFailure, Parcel, Route, WindowCarrier
from bascule.client.publish.rows import ColumnRows
from bascule.errors import ClientClosed, Unavailable
from bascule.kernels.client.streams import PublishAsyncClientStream
from bascule.kernels.window.message import PublishMessage
from bascule.net.grpc.channel import Channel
from bascule.net.grpc.status import status_name

OK: Final = 0


class PublishSession(WindowCarrier):
    def __init__(self, channel: Channel, window: int, on_failure: OnFailure) -> None:
        super().__init__(on_failure)
        self._channel = channel
        self._end_reason = ""
        self._is_finishing = False
        self._rows: set[ColumnRows] = set()
        self.is_over = False
        self.is_retired = False
        self.stream = PublishAsyncClientStream(
            window,
            on_writable=self._room.set,
            on_failed=self._failed,
            on_lost=self._lost_by_call,
            on_ended=self._ended,
        )

    def start(self) -> None:
        """Raises Unavailable when the connection was lost meanwhile."""
        start(self._channel, self.stream, "PublishAsync")

    @property
    def is_usable(self) -> bool:
        return not (self.is_over or self.is_retired or self._is_finishing) and self._channel.is_connected

    @property
    def is_idle(self) -> bool:
        return self.is_over or self.stream.is_idle

    def retire(self) -> None:
        self.is_retired = True
        self._room.set()

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    def post(self, message: PublishMessage, headers: dict[str, bytes] | None, until: float) -> bool:
        if not self.stream.publish_message(message.lane.target, message, headers, until):
            return False
        if self._expiry is None:
            self.arm()
        return True

    def post_rows(self, rows: ColumnRows, until: float) -> None:
        """Send them as fast as the window allows."""
        self._rows.add(rows)
        self.stream.publish_columns(rows.begin(until))
        self.arm()

    def done_with(self, rows: ColumnRows) -> None:
        self._rows.discard(rows)

    def pending(self) -> list[Parcel]:
        return [*self._rows, *self.stream.window.pending()]

    async def wait_for_room(self, deadline: TimeLimit) -> None:
        async with asyncio.timeout(deadline.left):
            while not self.is_over and not self.is_retired and not self.stream.has_room:
                self._room.clear()
                await self._room.wait()

    async def finish(self, timeout: float) -> None:
        """Return when the broker has confirmed that it received everything: the only confirmation of messages without acks."""
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
            self._on_failure(unknown_outcome("messages without acks were sent", self._reason()))

    def close(self) -> None:
        """What is outstanding is of unknown outcome."""
        if not self.is_over:
            self._end_reason = "the publisher was closed"
            self.stream.cancel()

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def expire(self, now: float) -> None:
        self.stream.expire(now)

    def _lost_by_call(self, publishes: list[tuple[int, PublishMessage | None]]) -> None:
        self._lost(publishes, was_sent=not (self.stream.finished and self.stream.unprocessed))

    def _reason(self) -> str:
        if self._end_reason:
            return self._end_reason
        if self.stream.finished:
            return self.stream.status_text or status_name(self.stream.status)
        return "no ack came in time"

    def _ended(self, _status: int, _text: str) -> None:
        self.is_over = True
        self._room.set()
        self.disarm()


class PublishSessions:
    """The session for each partition: to its leader, or to another broker when the leader cannot be reached."""

    def __init__(self, brokers: Brokers, window: int, on_failure: OnFailure) -> None:
        self._brokers = brokers
        self._window = power_of_two(window)
        self._on_failure = on_failure
        self._by_channel: dict[int, PublishSession] = {}
        self._routes: dict[tuple[str, int], Route] = {}
        self._retired: list[PublishSession] = []
        """They have messages in flight and take no new ones."""
        self._closed = False

    def ready(self, stream: str, partition: int) -> Route | None:
        route = self._routes.get((stream, partition))
        return route if route is not None and route.carrier.is_usable else None

    async def get(self, stream: str, partition: int, deadline: TimeLimit) -> Route:
        route = self.ready(stream, partition)
        if route is not None:
            return route
        if (stream, partition) in self._routes:
            self._brokers.forget(stream)  # the session before has ended: another broker may lead now
        channel, leader = await self._channel(stream, partition, deadline)
        if self._closed:
            raise ClientClosed("the publisher was closed")
        self._by_channel = {key: old for key, old in self._by_channel.items() if self._is_kept(old)}
        self._end_retired()
        session = self._by_channel.get(id(channel))
        if session is None:
            session = PublishSession(channel, self._window, self._on_failure)
            session.start()
            self._by_channel[id(channel)] = session
        route = self._routes[stream, partition] = Route(session, leader)
        return route

    async def has_moved(self, stream: str, partition: int, led_by: str) -> bool:
        leader = await self._brokers.leader(stream, partition, TimeLimit.after(self._brokers.timeout))
        if not leader or leader == led_by:
            return False
        route = self._routes.get((stream, partition))
        if route is not None and route.leader == led_by:
            route.carrier.retire()
        return True

    def carriers(self) -> list[Carrier]:
        return [*self._by_channel.values(), *self._retired]

    @property
    def sessions(self) -> list[PublishSession]:
        """Those that take messages, or did until their broker was lost."""
        return list(self._by_channel.values())

    def close(self) -> None:
        self._closed = True
        for session in [*self._by_channel.values(), *self._retired]:
            session.close()

    def _is_kept(self, session: PublishSession) -> bool:
        if session.is_usable:
            return True
        if not session.is_over:
            self._retired.append(session)
        return False

    def _end_retired(self) -> None:
        for session in self._retired:
            if session.is_retired and session.is_idle:
                session.close()
        self._retired = [session for session in self._retired if not session.is_over]

    async def _channel(self, stream: str, partition: int, deadline: TimeLimit) -> tuple[Channel, str]:
        """The connection to publish on, and the partition's leader."""
        leader = (await self._brokers.partition(stream, partition, deadline)).leader
        try:
            return await self._brokers.leader_channel(stream, partition, deadline), leader
        except Unavailable:
            # Every broker takes publishes for every partition.
            self._brokers.forget(stream)
            return await self._brokers.any_channel(deadline), leader


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
