"""A lane: parcels for one partition, in order, sent until each is settled.

A parcel is sent directly while the partition's carrier has room. One that fails, and that the rule sends again, is put back and goes
out before newer ones, the oldest first, after a pause that grows with each failure.
"""

from __future__ import annotations

import asyncio
import heapq
from time import monotonic
from typing import TYPE_CHECKING, Final

from bascule.client.connection.brokers import timed_out
from bascule.client.connection.failures import LOOK_FIRST, unknown_outcome
from bascule.client.connection.options import ACK_NONE
from bascule.client.connection.retry import Backoff, TimeLimit
from bascule.client.publish.carrier import Carrier, Parcel, Route
from bascule.client.publish.resend_rule import ResendRule
from bascule.client.publish.rows import ColumnRows
from bascule.errors import BasculeError, OutcomeUnknown, Unavailable
from bascule.kernels.window.message import PublishLane, PublishMessage
from bascule.kernels.window.window import PublishTarget

if TYPE_CHECKING:
    from bascule.client.publish.engine import Engine

CALM_SECONDS: Final = 5.0
"""After this time without a failure the next pause is the shortest again."""

LARGE_TRIES: Final = 3
"""An attempt to send a large message may take this many times as long as another."""

CUT_OFF: Final = "not connected to NATS"
"""A broker's answer to every message while it has no connection to NATS."""


class Lane(PublishLane):
    def __init__(self, engine: Engine, target: PublishTarget, rule: ResendRule) -> None:
        self.target = target
        self.partition = target.partition
        self.rule = rule
        self._engine = engine
        self._route = engine.routes.ready(target.stream, target.partition)
        self._is_unacked = target.ack_policy == ACK_NONE
        self._is_watched = rule.unknown
        """Attempts are timed: they may be given up without an answer."""
        self._again: list[tuple[int, Parcel]] = []
        """A heap of the parcels to send again, by sequence."""
        self._lone: Parcel | None = None
        """A large message: nothing is sent after it before it is settled."""
        self._backoff = Backoff()
        self._failed_at = 0.0
        self._has_failed = False
        """An attempt failed since the last decision about what to send again."""
        self._news: asyncio.Event | None = None

    # ── sending ──────────────────────────────────────────────────────────────────────────────────

    def try_send(self, parcel: Parcel) -> bool:
        """Send it now. False when the carrier has no room, or older parcels have to go first."""
        route = self._route
        if route is None or self._again or self._lone is not None or parcel.is_alone or not route.carrier.is_usable:
            return False
        return self._post(parcel, route)

    async def send(self, parcel: Parcel) -> None:
        """Send it as soon as there is room. An error means that it surely was not sent: Unavailable when that took too long."""
        if self.try_send(parcel):
            return
        seconds = parcel.deadline - monotonic()
        deadline, backoff = TimeLimit(parcel.deadline), Backoff()
        while True:
            problem: BasculeError = Unavailable("the connection to the broker was lost")
            try:
                await self._wait_for_turn(parcel, deadline)
                route = await self._find_route(parcel, deadline)
                await route.carrier.wait_for_room(deadline)
                self._engine.check_open()
                if not self._must_wait(parcel) and self._post(parcel, route):
                    return
            except TimeoutError:
                raise timed_out("waiting for room to publish", seconds) from None
            except Unavailable as error:
                problem = error
            if not self._must_wait(parcel) and not await backoff.wait(deadline):
                raise problem from None

    async def deliver(self, parcel: Parcel) -> None:
        """Send it and wait until it is settled."""
        try:
            await self.send(parcel)
        except BasculeError as error:
            parcel.fail(error)
        await asyncio.wait([parcel.future])

    async def wait_until_settled(self) -> None:
        """Return when every parcel so far is settled."""
        while self.in_flight or self._again:
            await self._change()

    def headers(self, message: PublishMessage) -> dict[str, bytes] | None:
        return message.headers

    def _post(self, parcel: Parcel, route: Route) -> bool:
        carrier, leader = route
        now, until = 0.0, parcel.deadline
        if self._is_watched:
            now = monotonic()
            until = min(until, now + self.rule.try_seconds * (LARGE_TRIES if parcel.is_alone else 1))
        if type(parcel) is PublishMessage:
            if not carrier.post(parcel, self.headers(parcel), until):
                return False
            parcel.sent(carrier, leader, now)
            if parcel.is_alone:
                self._lone = parcel
            elif self._is_unacked:
                parcel.settle(None)
        else:
            assert isinstance(parcel, ColumnRows), "the other kind of parcel"
            parcel.sent(carrier, leader, now)
            carrier.post_rows(parcel, until)
        if self._is_watched:
            self._engine.watch()
        return True

    async def _find_route(self, parcel: Parcel, deadline: TimeLimit) -> Route:
        stream, partition = self.target.stream, self.target.partition
        if not parcel.is_alone:
            self._route = await self._engine.routes.get(stream, partition, deadline)
            return self._route
        leader = await self._engine.brokers.leader(stream, partition, deadline) if stream and self.rule.unknown else ""
        return Route(self._engine.unary, leader)

    # ── order ────────────────────────────────────────────────────────────────────────────────────

    def _has_lone(self) -> bool:
        if self._lone is not None and self._lone.is_settled:
            self._lone = None
        return self._lone is not None

    def _must_wait(self, parcel: Parcel) -> bool:
        """Older parcels have to be sent, or answered, before this one."""
        return bool(self._again) or self._has_lone() or (parcel.is_alone and self.in_flight > 0)

    async def _wait_for_turn(self, parcel: Parcel, deadline: TimeLimit) -> None:
        if self._must_wait(parcel):
            async with asyncio.timeout(deadline.left):
                while self._must_wait(parcel):
                    await self._change()

    async def _change(self) -> None:
        """Return when nothing is in flight any more, or everything was sent again."""
        if self._news is None:
            self._news = asyncio.Event()
            self.on_idle = self._news.set
        self._news.clear()
        await self._news.wait()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()

    # ── sending again ────────────────────────────────────────────────────────────────────────────

    def failed(self, parcel: Parcel, carrier: Carrier, error: BasculeError) -> None:
        """An attempt got no ack."""
        if parcel.is_settled or parcel.carrier is not carrier:
            return  # another attempt counts
        parcel.carrier = None
        self.left()
        parcel.error = error
        parcel.is_in_doubt |= isinstance(error, OutcomeUnknown)
        if error.message == CUT_OFF:
            carrier.retire()
        if self._engine.is_closed or self._is_final(parcel):
            self._give_up(parcel)
        else:
            self._put_back(parcel)

    def _is_final(self, parcel: Parcel) -> bool:
        return not self.rule.resends(parcel.error, parcel.expected_offset)

    def _give_up(self, parcel: Parcel) -> None:
        error = parcel.error or Unavailable("the message could not be sent in time")
        if parcel.is_in_doubt and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(f"it is unknown whether the message is stored: {error.message}", hint=LOOK_FIRST)
        parcel.fail(error)
        self._engine.on_failure(error)

    def _put_back(self, parcel: Parcel) -> None:
        heapq.heappush(self._again, (parcel.sequence, parcel))  # sequences differ: parcels are never compared
        self._has_failed = True
        if self._lone is parcel:
            self._lone = None
        now = monotonic()
        if now - self._failed_at > CALM_SECONDS:
            self._backoff.reset()
        self._failed_at = now
        self._engine.resend(self)

    async def resend(self) -> None:
        """Send again what failed, until nothing is left to send."""
        while self._again:
            if await self._prepare():
                await self._backoff.pause()
                await self._send_again()
        self._tell()

    def abandon(self) -> None:
        """Give up what was to be sent again: the publisher was closed."""
        for _, parcel in self._again:
            parcel.error = unknown_outcome("the message was sent", "the publisher was closed")
            self._give_up(parcel)
        self._again.clear()
        self._tell()

    async def _prepare(self) -> bool:
        """Decide about the oldest parcel to send again. False when it is done with."""
        self._has_failed = False
        parcel = self._again[0][1]
        if not is_done(parcel):
            if monotonic() < parcel.deadline:
                return True
            self._give_up(parcel)
        heapq.heappop(self._again)
        return False

    async def _send_again(self) -> None:
        """Send until the carrier takes no more, or something fails."""
        while self._again and not self._has_failed:
            parcel = self._again[0][1]
            deadline = TimeLimit(min(parcel.deadline, monotonic() + self.rule.try_seconds))
            try:
                while self._has_lone() or (parcel.is_alone and self.in_flight):
                    await self._change()
                route = await self._find_route(parcel, deadline)
                await route.carrier.wait_for_room(deadline)
            except (Unavailable, TimeoutError):
                return
            except BasculeError as error:
                parcel.error = error
                self._cannot_send(parcel)
                return
            if self._has_failed:
                return
            heapq.heappop(self._again)
            if not is_done(parcel) and not self._post(parcel, route):
                heapq.heappush(self._again, (parcel.sequence, parcel))
                return
        self._tell()

    def _cannot_send(self, parcel: Parcel) -> None:
        if not self._has_failed:
            heapq.heappop(self._again)
            self._give_up(parcel)


def is_done(parcel: Parcel) -> bool:
    """Acked by an earlier attempt, or cancelled by the caller."""
    return parcel.is_settled or parcel.future.done()
