"""A member's calls to its group: join, fetch assignments, follow a new coordinator, report one that does not answer, leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from bascule.client.connection import wire
from bascule.client.connection.brokers import Brokers
from bascule.client.connection.failures import error_of
from bascule.client.connection.retry import Backoff, TimeLimit
from bascule.client.consume.group import Membership, Next, Place
from bascule.errors import BasculeError, CallerError, OutcomeUnknown, StateError, Unavailable
from bascule.net.grpc.channel import GrpcStatusError
from bascule.net.grpc.status import Status

HEARTBEAT_SECONDS_MAX: Final = 5.0
"""Timeout of a heartbeat."""

JOIN_REFUSALS_MAX: Final = 20
"""Refusals in a row after which the consumer ends with the group's error."""

CONSUMER_TIMEOUT_NS_DEFAULT: Final = 15_000_000_000


class Coordination:
    def __init__(
        self,
        brokers: Brokers,
        group: str,
        consumer_id: str,
        streams: Sequence[str],
        *,
        on_assignments: Callable[[frozenset[Place], int], None],
        on_put_out: Callable[[], None],
    ) -> None:
        self.membership = Membership()
        self._brokers = brokers
        self._group = group
        self._consumer_id = consumer_id
        self._streams = list(streams)
        self._on_assignments = on_assignments
        self._on_put_out = on_put_out
        self._hurry = asyncio.Event()
        self._backoff = Backoff()

    def hurry(self) -> None:
        """Send the next heartbeat now."""
        self._hurry.set()

    # ── joining and leaving ──────────────────────────────────────────────────────────────────────

    async def join(self) -> None:
        request = wire.encode(
            "JoinConsumerGroupRequest", groupId=self._group, consumerId=self._consumer_id, streams=self._streams
        )
        in_doubt = False
        deadline = TimeLimit.after(self._brokers.timeout)
        while True:
            try:
                answer = await self._brokers.call("JoinConsumerGroup", request, timeout=deadline.left, once=True)
            except OutcomeUnknown:
                in_doubt = True
                if deadline.has_passed:
                    raise
                continue
            except StateError:
                if not in_doubt:
                    raise
                await self._find_myself(deadline)  # the first call was carried out: we are a member
                return
            break
        fields = wire.decode("JoinConsumerGroupResponse", answer)
        self.membership.joined(
            fields["coordinator"], fields["epoch"], fields["consumerTimeout"], fields["coordinatorTimeout"], monotonic()
        )

    async def _find_myself(self, deadline: TimeLimit) -> None:
        group = (await self._brokers.refresh((), [self._group], deadline=deadline)).groups.get(self._group)
        if group is None:
            raise Unavailable(f"group `{self._group}` does not exist any more")
        timeout = CONSUMER_TIMEOUT_NS_DEFAULT
        self.membership.joined(group.coordinator, group.epoch, timeout, timeout, monotonic())

    async def leave(self) -> None:
        """Leave, and ignore failures: the group removes a member that sends no heartbeats."""
        request = wire.encode("LeaveConsumerGroupRequest", groupId=self._group, consumerId=self._consumer_id)
        with contextlib.suppress(BasculeError):
            await self._brokers.call("LeaveConsumerGroup", request)

    # ── heartbeats ───────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Send heartbeats until cancelled. Raises errors that retries do not help against."""
        step = Next.HEARTBEAT
        refusals = 0
        while True:
            if step is Next.HEARTBEAT:
                step = await self._heartbeat()
                continue
            try:
                if step is Next.JOIN:
                    self._on_put_out()
                    await self.join()
                    step = Next.HEARTBEAT
                    refusals = 0
                    continue
                if step is Next.REPORT:
                    await self._report()
                step = await self._refresh()
            except CallerError:
                raise
            except StateError:
                # Perhaps the streams were deleted, or we are a member already: both may pass.
                refusals += 1
                if refusals > JOIN_REFUSALS_MAX:
                    raise
                await self._backoff.pause()
                step = Next.REFRESH if refusals % 2 else Next.JOIN
            except BasculeError:
                await self._backoff.pause()

    async def _heartbeat(self) -> Next:
        member = self.membership
        request = wire.encode(
            "FetchConsumerGroupAssignmentsRequest",
            groupId=self._group,
            consumerId=self._consumer_id,
            epoch=member.epoch,
        )
        self._hurry.clear()
        try:
            deadline = TimeLimit.after(min(HEARTBEAT_SECONDS_MAX, max(member.heartbeat_seconds, 0.5)))
            channel = await self._brokers.broker_channel(member.coordinator, deadline)
            answer = await self._brokers.ask(channel, "FetchConsumerGroupAssignments", request, deadline)
        except GrpcStatusError as error:
            if error.status in (Status.INVALID_ARGUMENT, Status.PERMISSION_DENIED):
                raise error_of(error.status, error.text) from None
            step = member.failed(error.status, monotonic())
            if error.status not in (Status.NOT_FOUND, Status.FAILED_PRECONDITION):
                await self._backoff.pause()
            return step
        except Unavailable:
            await self._backoff.pause()
            return member.failed(Status.UNAVAILABLE, monotonic())
        fields = wire.decode("FetchConsumerGroupAssignmentsResponse", answer)
        self._backoff.reset()
        wait = member.answered(fields["epoch"], monotonic())
        self._on_assignments(
            frozenset((entry["stream"], number) for entry in fields["assignments"] for number in entry["partitions"]),
            member.epoch,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._hurry.wait()
                await asyncio.sleep(min(wait, 0.02))  # several partitions may be revoked at the same time
        return Next.HEARTBEAT

    async def _refresh(self) -> Next:
        found = await self._brokers.refresh((), [self._group])
        return self.membership.refreshed(found.groups.get(self._group), monotonic())

    async def _report(self) -> None:
        member = self.membership
        request = wire.encode(
            "ReportConsumerGroupCoordinatorRequest",
            groupId=self._group,
            consumerId=self._consumer_id,
            coordinator=member.coordinator,
            epoch=member.epoch,
        )
        with contextlib.suppress(BasculeError):
            await self._brokers.call("ReportConsumerGroupCoordinator", request)
