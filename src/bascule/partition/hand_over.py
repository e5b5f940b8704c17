"""Giving the leadership of partitions to others in good health: before a stop, to the preferred leader, at the end of a move.

From the moment it begins a LEADER ack waits like an ALL ack, and the successor has everything that was acked before: nothing that a
publisher was told is lost. For the last step nothing is written any more, until all that was is acked. What arrives then, and until the
new leader listens, is refused; publishers send it again. So nobody is left without an answer. For a few milliseconds both leaders may
hear a message, one keeps it and the other refuses it: then it is there twice, unless its publisher is idempotent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from bascule import limits
from bascule.errors import BasculeError, StateError, Unavailable
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import ChangeLeader
from bascule.metadata.core.model.streams import Partition
from bascule.partition.ingest import Ingest
from bascule.partition.replica import LedPartition
from bascule.proto.api_pb2 import Ack

POLL_SECONDS: Final = 0.002
FROZEN_SECONDS_MAX: Final = 1.0
"""How long messages may wait for the last acks of those before them."""
LISTENING_SECONDS_MAX: Final = 1.0
LISTENING_MARGIN_SECONDS: Final = 0.005
"""A new leader speaks to its followers in the moment in which it begins to listen to publishers: over another connection."""


@dataclass(slots=True)
class HandOverReport:
    moved: list[tuple[str, int, str]] = field(default_factory=list)
    """Stream, partition and the new leader."""
    kept: list[tuple[str, int, str]] = field(default_factory=list)
    """Stream, partition and why."""


class HandOvers:
    def __init__(
        self,
        server_id: str,
        ingest: Ingest,
        settled: Callable[[int], Awaitable[None]],
        has_new_leader: Callable[[LedPartition], bool],
        unsubscribe: Callable[[LedPartition], None],
    ) -> None:
        """`has_new_leader` tells whether the successor has said a word here."""
        self._server_id = server_id
        self._ingest = ingest
        self._settled = settled
        self._has_new_leader = has_new_leader
        self._unsubscribe = unsubscribe
        self._given_away: set[LedPartition] = set()
        self._controller: Controller | None = None

    def connect(self, controller: Controller) -> None:
        self._controller = controller

    async def hand_over(self, local: LedPartition, successor: str | None, *, timeout: float) -> str:
        """Returns the new leader. Raises StateError when there is nobody, Unavailable when it takes too long."""
        assert self._controller is not None
        partition = self._known(local)
        chosen = self._choose(local, partition, successor)
        _ = local.log  # there is a leader at work from here on
        leading = local.leading
        assert leading is not None
        leading.hold_acks(True)
        try:
            await self._catch_up(local, chosen, timeout)
            self._ingest.freeze(local)
            await self._answer_everybody(local, chosen)
            self._given_away.add(local)
            await self._change_leader(local, chosen, timeout)
        except BaseException:
            self._given_away.discard(local)
            leading.hold_acks(False)
            self._ingest.thaw(local)
            raise
        await self._leave_to(local)
        return chosen

    def is_given_away(self, local: LedPartition) -> bool:
        """Whether its messages are still received, to be refused, after it has been stopped here."""
        return local in self._given_away

    async def _leave_to(self, local: LedPartition) -> None:
        """Stay for publishers until the new leader listens: a message that nobody receives is answered by nobody."""
        assert self._controller is not None
        try:
            await self._settled(self._controller.metadata.applied_index)
            deadline = time.monotonic() + LISTENING_SECONDS_MAX
            while not self._has_new_leader(local) and time.monotonic() < deadline:
                await asyncio.sleep(POLL_SECONDS)
            await asyncio.sleep(LISTENING_MARGIN_SECONDS)
        finally:
            self._given_away.discard(local)
            self._unsubscribe(local)
            self._ingest.forget(local)

    def refuse_publishers(self, local: LedPartition) -> None:
        """The partition has been stopped here, and its sink still gets what is published."""
        # Who counts offsets must not be told that a message is not there if there is any doubt: sent again, it would be refused.
        careful = local.settings.concurrency_control
        self._ingest.refuse(local, Ack.Error.UNKNOWN if careful else Ack.Error.NOT_STORED)

    async def _change_leader(self, local: LedPartition, successor: str, timeout: float) -> None:
        assert self._controller is not None
        fence = (local.stream, local.number, self._server_id, local.leader_epoch)
        refusal = await self._controller.submit(ChangeLeader(*fence, (successor,), failed=False), timeout=timeout)
        if refusal is not None:
            raise StateError(refusal.text)

    def _known(self, local: LedPartition) -> Partition:
        assert self._controller is not None
        stream = self._controller.metadata.streams.get(local.stream)
        partition = None if stream is None else stream.partition(local.number)
        if partition is None or partition.leader_epoch != local.leader_epoch:
            raise StateError(f"{local.stream}/{local.number} has another leader by now")
        return partition

    def _choose(self, local: LedPartition, partition: Partition, successor: str | None) -> str:
        assert self._controller is not None
        others = [name for name in partition.in_sync_replicas if name != self._server_id]
        if successor is not None and successor not in others:
            raise StateError(f"{successor} is no in-sync follower of {local.stream}/{local.number}")
        if not others:
            raise StateError(f"no other replica of {local.stream}/{local.number} is in sync")
        metadata = self._controller.metadata
        staying = [name for name in others if name not in metadata.leaving] or others
        return successor or metadata.load.least_led(staying)

    async def _catch_up(self, local: LedPartition, successor: str, timeout: float) -> None:
        assert local.leading is not None
        deadline = time.monotonic() + timeout
        end_offset = local.log.log_end_offset
        while local.leading.log_end_offset_of(successor) < end_offset:
            if time.monotonic() > deadline:
                raise Unavailable(f"{successor} has not caught up with {local.stream}/{local.number} in time")
            await asyncio.sleep(POLL_SECONDS)

    async def _answer_everybody(self, local: LedPartition, successor: str) -> None:
        """Nothing is written any more: what was is fetched by the successor and acked. Raises Unavailable when it is not fetched."""
        leading = local.leading
        assert leading is not None
        deadline = time.monotonic() + FROZEN_SECONDS_MAX
        while local.appending or len(leading.commitment) or not self._has_all(local, successor):
            if time.monotonic() > deadline:
                if not local.appending and self._has_all(local, successor):
                    return  # acks that wait for others than the successor
                raise Unavailable(f"{successor} has not caught up with {local.stream}/{local.number} in time")
            await asyncio.sleep(POLL_SECONDS)

    def _has_all(self, local: LedPartition, successor: str) -> bool:
        assert local.leading is not None
        return local.leading.log_end_offset_of(successor) >= local.log.log_end_offset

    async def hand_over_all(self, led: Iterable[LedPartition], *, timeout: float) -> HandOverReport:
        report = HandOverReport()
        deadline = time.monotonic() + timeout
        gate = asyncio.Semaphore(limits.HAND_OVERS_AT_ONCE_MAX)

        async def move(local: LedPartition) -> None:
            async with gate:
                try:
                    left = max(0.0, deadline - time.monotonic())
                    successor = await self.hand_over(local, None, timeout=left)
                    report.moved.append((local.stream, local.number, successor))
                except BasculeError as error:
                    report.kept.append((local.stream, local.number, error.message))

        await asyncio.gather(*(move(local) for local in led))
        return report
