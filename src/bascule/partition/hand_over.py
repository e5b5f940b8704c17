"""Hand-overs: a healthy leader gives the leadership to another replica, before a stop, to the preferred leader, or after a move.

During a hand-over a LEADER ack waits like an ALL ack, and the successor has everything that was acked before: no acked message is lost.
For the last step the leader stops writing until all written messages are acked. Messages that arrive then are refused until the new
leader receives them, and publishers send them again: every publish gets an answer. For a few milliseconds both leaders may receive a
message; one stores it and the other refuses it. It is then stored twice, unless its publisher is idempotent.
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
from bascule.partition.replication.leading import Leading
from bascule.proto.api_pb2 import Ack

POLL_SECONDS: Final = 0.002
FROZEN_SECONDS_MAX: Final = 1.0
"""How long arriving messages may wait for the last acks."""
LISTENING_SECONDS_MAX: Final = 1.0
LISTENING_MARGIN_SECONDS: Final = 0.005
"""A new leader contacts its followers and subscribes to its subject at the same time, over two connections."""


@dataclass(slots=True)
class HandOverReport:
    moved: list[tuple[str, int, str]] = field(default_factory=list)
    """Stream, partition and the new leader."""
    kept: list[tuple[str, int, str]] = field(default_factory=list)
    """Stream, partition and the reason."""


class HandOvers:
    def __init__(
        self,
        server_id: str,
        controller: Controller,
        ingest: Ingest,
        settled: Callable[[int], Awaitable[None]],
        has_new_leader: Callable[[LedPartition], bool],
        unsubscribe: Callable[[LedPartition], None],
    ) -> None:
        """`has_new_leader` returns whether the replica here has had an answer from the successor."""
        self._server_id = server_id
        self._controller = controller
        self._ingest = ingest
        self._settled = settled
        self._has_new_leader = has_new_leader
        self._unsubscribe = unsubscribe
        self._given_away: set[LedPartition] = set()

    async def hand_over(self, local: LedPartition, successor: str | None, *, timeout: float) -> str:
        """Returns the new leader. Raises StateError if there is no successor, Unavailable on timeout."""
        partition = self._known(local)
        chosen = self._choose(local, partition, successor)
        leading = local.open_leading()
        leading.holds_leader_acks = True
        try:
            await self._catch_up(local, leading, chosen, timeout)
            self._ingest.freeze(local)
            await self._send_last_acks(local, leading, chosen)
            self._given_away.add(local)
            await self._change_leader(local, chosen, timeout)
        except BaseException:
            self._given_away.discard(local)
            leading.holds_leader_acks = False
            self._ingest.thaw(local)
            raise
        await self._leave_to(local)
        return chosen

    def is_given_away(self, local: LedPartition) -> bool:
        """Whether messages of the stopped partition are still received, to be refused."""
        return local in self._given_away

    async def _leave_to(self, local: LedPartition) -> None:
        """Refuse messages until the new leader receives them: a message without a receiver would get no answer."""
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
        """The partition is stopped here, and its sink still receives messages."""
        # NOT_STORED makes a publisher send again. One that counts offsets would be refused if the message was stored after all.
        careful = local.settings.concurrency_control
        self._ingest.refuse(local, Ack.Error.UNKNOWN if careful else Ack.Error.NOT_STORED)

    async def _change_leader(self, local: LedPartition, successor: str, timeout: float) -> None:
        fence = (local.stream, local.number, self._server_id, local.leader_epoch)
        refusal = await self._controller.submit(ChangeLeader(*fence, (successor,), failed=False), timeout=timeout)
        if refusal is not None:
            raise StateError(refusal.text)

    def _known(self, local: LedPartition) -> Partition:
        stream = self._controller.metadata.streams.get(local.stream)
        partition = None if stream is None else stream.partition(local.number)
        if partition is None or partition.leader_epoch != local.leader_epoch:
            raise StateError(f"{local.stream}/{local.number} has another leader")
        return partition

    def _choose(self, local: LedPartition, partition: Partition, successor: str | None) -> str:
        others = [name for name in partition.in_sync_replicas if name != self._server_id]
        if successor is not None and successor not in others:
            raise StateError(f"{successor} is no in-sync follower of {local.stream}/{local.number}")
        if not others:
            raise StateError(f"no other replica of {local.stream}/{local.number} is in sync")
        metadata = self._controller.metadata
        staying = [name for name in others if name not in metadata.leaving] or others
        return successor or metadata.load.least_led(staying)

    async def _catch_up(self, local: LedPartition, leading: Leading, successor: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        end_offset = local.log.log_end_offset
        while leading.log_end_offset_of(successor) < end_offset:
            if time.monotonic() > deadline:
                raise Unavailable(f"{successor} has not caught up with {local.stream}/{local.number} in time")
            await asyncio.sleep(POLL_SECONDS)

    async def _send_last_acks(self, local: LedPartition, leading: Leading, successor: str) -> None:
        """The partition is frozen: wait until the successor has the whole log and all acks are sent. Raises Unavailable on timeout."""
        deadline = time.monotonic() + FROZEN_SECONDS_MAX
        while local.appending or leading.pending_batches or not _has_all(leading, successor):
            if time.monotonic() > deadline:
                if not local.appending and _has_all(leading, successor):
                    return  # the last acks wait for replicas other than the successor
                raise Unavailable(f"{successor} has not caught up with {local.stream}/{local.number} in time")
            await asyncio.sleep(POLL_SECONDS)

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


def _has_all(leading: Leading, successor: str) -> bool:
    return leading.log_end_offset_of(successor) >= leading.log.log_end_offset
