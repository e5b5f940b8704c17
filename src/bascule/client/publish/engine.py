"""The publish engine: what the lanes of one client, or of one publisher, share. Design: docs/internals/client.md, "Publishing"."""

from __future__ import annotations

import asyncio
from time import monotonic

from bascule.client.connection.brokers import Brokers
from bascule.client.connection.failures import unknown_outcome
from bascule.client.connection.retry import LEADER_CHECK_SECONDS
from bascule.client.publish.carrier import OnFailure, Parcel, Routes
from bascule.client.publish.lane import Lane
from bascule.client.publish.unary import UnaryCarrier
from bascule.errors import BasculeError, ClientClosed


class Engine:
    def __init__(self, brokers: Brokers, routes: Routes, on_failure: OnFailure) -> None:
        self.brokers = brokers
        self.routes = routes
        self.unary = UnaryCarrier(brokers)
        self.on_failure = on_failure
        """Called with the error of each parcel that is given up."""
        self.is_closed = False
        self.end_reason: BasculeError | None = None
        """Why nothing more can be published: another producer has fenced this one."""
        self._resending: dict[Lane, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    def check_open(self) -> None:
        if self.is_closed:
            raise ClientClosed("the publisher was closed")
        if self.end_reason is not None:
            raise self.end_reason

    def resend(self, lane: Lane) -> None:
        """Have a task send again what failed in this lane, unless one does."""
        if lane not in self._resending:
            self._resending[lane] = asyncio.create_task(self._resend(lane), name="resend")

    async def _resend(self, lane: Lane) -> None:
        try:
            await lane.resend()
        finally:
            self._resending.pop(lane, None)

    async def close(self) -> None:
        """At once: what is in flight, or waits to be sent again, gets OutcomeUnknown."""
        self.is_closed = True
        self.routes.close()
        self.unary.close()
        lanes, tasks = list(self._resending), list(self._resending.values())
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in lanes:
            lane.abandon()

    # ── leaders that change ──────────────────────────────────────────────────────────────────────

    def watch(self) -> None:
        """Look every second for parcels whose leader was replaced, while any are in flight.

        A broker that hangs keeps its connections and answers nothing. An ack of all replicas may take as long as a dead follower needs
        to be removed, so time alone is no reason to send again; another leader is.
        """
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="leader watch")

    async def _watch(self) -> None:
        try:
            while pending := self._pending():
                before = monotonic() - LEADER_CHECK_SECONDS
                quiet = {(parcel.lane, parcel.led_by) for parcel in pending if parcel.quiet_since() < before}
                for stream in {lane.target.stream for lane, _ in quiet}:
                    self.brokers.forget(stream)
                moved = {key for key in quiet if await self._has_moved(*key)}
                error = unknown_outcome("the message was sent", "another broker leads the partition now")
                for parcel in pending if moved else ():
                    if (parcel.lane, parcel.led_by) in moved:
                        parcel.withdraw(error)
                await asyncio.sleep(LEADER_CHECK_SECONDS)
        finally:
            self._watching = None

    async def _has_moved(self, lane: Lane, led_by: str) -> bool:
        return await self.routes.has_moved(lane.target.stream, lane.target.partition, led_by)

    def _pending(self) -> list[Parcel]:
        """Parcels in flight that may be sent again without an answer, the oldest of each carrier first."""
        return [
            parcel
            for carrier in (*self.routes.carriers(), self.unary)
            for parcel in carrier.pending()
            if parcel.carrier is carrier and parcel.lane.rule.unknown and parcel.lane.target.stream
        ]
