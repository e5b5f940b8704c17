"""Whether the leaders of partitions have started them: each server answers for its own, and asks the others.

Creating a stream waits for that, and so does resuming a partition, which publishers and subscribers cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

from bascule import limits
from bascule.errors import RejectedEnvelope, Unavailable
from bascule.metadata.core.model.ops import ResumeStream
from bascule.metadata.requests import CallDeadline, submit
from bascule.net.grpc.status import GrpcError, Status
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.internal_pb2 import PartitionStatusRequest, PartitionStatusResponse
from bascule.raft.transport import Bus, publish_quietly

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.metadata.core.model.streams import Partition, Stream

START_TRIES: Final = 5
START_RETRY_SECONDS: Final = 0.1
START_SECONDS: Final = 2.0
"""Minimum time that a leader gets to start a partition: its disk may be slow."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    exists: bool
    is_leader: bool
    has_failed: bool = False
    """The last attempt to start it failed, for want of file handles, disk space or a key; the server goes on trying."""
    stream_id: int = 0
    """Identity of its stream; 0 if the server does not tell it."""


class LocalReplicas(Protocol):
    """The partitions that run on this server."""

    def status(self, stream: str, number: int) -> PartitionStatus: ...

    async def settled(self, index: int) -> None: ...


class PartitionStarts:
    def __init__(self, bus: Bus, subjects: ControlSubjects, controller: Controller, partitions: LocalReplicas) -> None:
        self._bus = bus
        self._subjects = subjects
        self._controller = controller
        self._partitions = partitions
        self._resuming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By stream: a thousand publishers that arrive together need one op."""

    async def start(self) -> None:
        """Answer other servers from now on."""
        await self._bus.subscribe(self._subjects.status(self._controller.server_id), self._on_status_request)

    # ── resuming ─────────────────────────────────────────────────────────────────────────────────

    async def resume(self, stream: str, partition: int, *, timeout: float | None = None) -> None:
        """Resume a paused partition, or all of them if the stream was paused with `resumeAll`, and wait until its leader runs it.

        For a partition that is not paused it only waits. Raises GrpcError.
        """
        deadline = CallDeadline.after(timeout)
        lock = self._resuming.setdefault(stream, asyncio.Lock())
        async with lock:
            found, known = self._find(stream, partition)
            if known.paused:
                paused = tuple(each.id for each in found.partitions if each.paused)
                numbers = paused if found.resume_all else (partition,)
                await submit(self._controller, ResumeStream(stream, time.time_ns(), numbers), deadline)
        if not await self.started(stream, (partition,), deadline):
            raise GrpcError(Status.INTERNAL, f"the leader of {stream}/{partition} has not resumed it yet")

    def _find(self, stream: str, partition: int) -> tuple[Stream, Partition]:
        found = self._controller.metadata.streams.get(stream)
        known = None if found is None else found.partition(partition)
        if found is None or known is None:
            raise GrpcError(Status.NOT_FOUND, f"No such partition [stream={stream}, partition={partition}]")
        return found, known

    # ── waiting for leaders ──────────────────────────────────────────────────────────────────────

    async def settled(self, deadline: CallDeadline) -> None:
        """Wait until this server has carried out every op that it knows, so that the client's next call here sees the effect. Other
        servers follow on their own."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline.left()):
                await self._partitions.settled(self._controller.metadata.applied_index)

    async def started(self, stream: str, numbers: Iterable[int], deadline: CallDeadline) -> bool:
        """Whether the leaders of the partitions have started them; asks several times."""
        waiting = list(numbers)
        began = time.monotonic()
        for attempt in itertools.count():
            if attempt > 0:
                await asyncio.sleep(min(START_RETRY_SECONDS, deadline.left()))
            await self.settled(deadline)
            waiting = await self._not_started(stream, waiting, deadline)
            has_tried = attempt + 1 >= START_TRIES and time.monotonic() - began >= START_SECONDS
            if not waiting or has_tried or deadline.left() == 0:
                break
        return not waiting

    async def check_started(self, stream: str, numbers: Iterable[int], deadline: CallDeadline) -> None:
        """Wait for the leaders like `started`. Raises GrpcError when a leader could not start its partition.

        A leader that does not answer may still be starting: that is no error.
        """
        waiting = list(numbers)
        if await self.started(stream, waiting, deadline):
            return
        for number in await self._not_started(stream, waiting, deadline):
            known = self._controller.metadata.find(stream, number)
            status = None if known is None else await self._leader_status(known.leader, stream, number, deadline)
            if known is not None and status is not None and status.has_failed and not status.is_leader:
                text = (
                    f"stream {stream} was created, but server {known.leader} cannot start its partition {number} yet; "
                    "it retries, and its log has the reason, such as too few file handles"
                )
                raise GrpcError(Status.INTERNAL, text)

    async def _not_started(self, stream: str, numbers: list[int], deadline: CallDeadline) -> list[int]:
        missing: list[int] = []
        for first in range(0, len(numbers), limits.STATUS_REQUESTS_INFLIGHT_MAX):
            piece = numbers[first : first + limits.STATUS_REQUESTS_INFLIGHT_MAX]
            found = await asyncio.gather(*(self._leader_has_started(stream, number, deadline) for number in piece))
            missing += [number for number, is_up in zip(piece, found, strict=True) if not is_up]
        return missing

    async def _leader_has_started(self, stream: str, number: int, deadline: CallDeadline) -> bool:
        known = self._controller.metadata.find(stream, number)
        status = None if known is None else await self._leader_status(known.leader, stream, number, deadline)
        if status is None or not status.is_leader:
            return False
        # A leader that is behind may still lead the partition of a former stream of this name: what it gets now would be lost.
        current = self._controller.metadata.streams.get(stream)
        return current is not None and status.stream_id in (0, current.id)

    async def _leader_status(
        self, leader: str, stream: str, number: int, deadline: CallDeadline
    ) -> PartitionStatus | None:
        """The state of a partition on its leader; None when the leader does not answer."""
        if leader == self._controller.server_id:
            return self._partitions.status(stream, number)
        try:
            return await self.status(leader, stream, number, timeout=min(1.0, deadline.left()))
        except Unavailable:
            return None

    # ── between servers ──────────────────────────────────────────────────────────────────────────

    async def status(self, server: str, stream: str, number: int, *, timeout: float) -> PartitionStatus:
        """The state of a partition on another server. Raises Unavailable when that server does not answer."""
        request = PartitionStatusRequest(stream=stream, partition=number)
        answer = await self._bus.request(
            self._subjects.status(server), pack_message(MessageType.PARTITION_STATUS_REQUEST, request), timeout
        )
        try:
            found = unpack_message(PartitionStatusResponse, answer, MessageType.PARTITION_STATUS_RESPONSE)
        except RejectedEnvelope:
            raise Unavailable(f"the answer of {server} is not a partition status") from None
        return PartitionStatus(found.exists, found.is_leader, found.has_failed, found.stream_id)

    async def _on_status_request(self, data: bytes, reply: str) -> None:
        try:
            asked = unpack_message(PartitionStatusRequest, data, MessageType.PARTITION_STATUS_REQUEST)
        except RejectedEnvelope:
            return  # another program's bytes on our subject
        if reply:
            status = self._partitions.status(asked.stream, asked.partition)
            response = PartitionStatusResponse(
                exists=status.exists,
                is_leader=status.is_leader,
                has_failed=status.has_failed,
                stream_id=status.stream_id,
            )
            await publish_quietly(self._bus, reply, pack_message(MessageType.PARTITION_STATUS_RESPONSE, response))
