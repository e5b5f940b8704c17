"""Where the servers of the cluster can be reached. Each answers for itself; answers are remembered by server, not as a list.

A server that was briefly away is therefore missing only for as long as it does not answer, and one that is dead delays nobody twice:
once it has been silent for a survey, surveys do not wait for it until it speaks again. A server that starts tells the others where
it is now: it may have another address or another port than the one they remember.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from bascule.errors import RejectedEnvelope, Unavailable
from bascule.net.nats.envelope import MessageType, decode, encode
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.internal_pb2 import (
    PartitionStatusRequest,
    PartitionStatusResponse,
    ServerInfoRequest,
    ServerInfoResponse,
)
from bascule.raft.transport import Bus, publish_quietly


@dataclass(frozen=True, slots=True)
class ServerInfo:
    id: str
    host: str
    port: int
    rack: str = ""
    flight_port: int = 0
    """Where it serves tables; 0 when it does not."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    exists: bool
    is_leader: bool


class ServerDirectory:
    def __init__(
        self,
        bus: Bus,
        subjects: ControlSubjects,
        own: ServerInfo,
        partition_status: Callable[[str, int], PartitionStatus],
        *,
        age_max_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._own = own
        self._partition_status = partition_status
        self._age_max_seconds = age_max_seconds
        self._clock = clock
        self._known: dict[str, tuple[ServerInfo, float]] = {}
        self._silent: set[str] = set()
        self._news = asyncio.Event()

    async def start(self) -> None:
        await self._bus.subscribe(self._subjects.info, self._on_info_request)
        await self._bus.subscribe(self._subjects.info, self._on_info)
        await self._bus.subscribe(self._subjects.info_inbox(self._own.id), self._on_info)
        await self._bus.subscribe(self._subjects.status(self._own.id), self._on_status_request)
        # Others may remember where this server was before it stopped, and would tell clients so.
        await publish_quietly(self._bus, self._subjects.info, self._introduction())

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def servers(
        self, members: Iterable[str], *, timeout: float = 3.0, age_max_seconds: float | None = None
    ) -> list[ServerInfo]:
        """Those of the members that answer, this one first. Asks only when an answer is missing or old: older than the directory
        allows, or than somebody can bear who wants to rely on the server now."""
        others = sorted(set(members) - {self._own.id})
        age_max_seconds = self._age_max_seconds if age_max_seconds is None else age_max_seconds
        if any(self._is_stale(member, age_max_seconds) for member in others):
            await self._survey(others, timeout)
        return [self._own, *(self._known[member][0] for member in others if member in self._known)]

    def _is_stale(self, member: str, age_max_seconds: float) -> bool:
        known = self._known.get(member)
        return known is None or self._clock() - known[1] > age_max_seconds

    async def _survey(self, members: list[str], timeout: float) -> None:
        asked_at = self._clock()
        request = ServerInfoRequest(id=self._own.id).SerializeToString()
        try:
            await self._bus.publish(
                self._subjects.info,
                encode(MessageType.SERVER_INFO_REQUEST, request),
                reply=self._subjects.info_inbox(self._own.id),
            )
        except Unavailable:
            return  # nobody was asked: what is known is still the best there is
        awaited = [member for member in members if member not in self._silent]
        try:
            async with asyncio.timeout(timeout):
                while any(self._answered_at(member) < asked_at for member in awaited):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        for member in members:
            if self._answered_at(member) < asked_at:
                self._silent.add(member)
                self._known.pop(member, None)

    def _answered_at(self, member: str) -> float:
        known = self._known.get(member)
        return float("-inf") if known is None else known[1]

    async def partition_status(self, server_id: str, stream: str, partition: int, *, timeout: float) -> PartitionStatus:
        """How a partition is doing on one server. Raises Unavailable when it does not answer."""
        request = PartitionStatusRequest(stream=stream, partition=partition).SerializeToString()
        answer = await self._bus.request(
            self._subjects.status(server_id), encode(MessageType.PARTITION_STATUS_REQUEST, request), timeout
        )
        try:
            found = PartitionStatusResponse.FromString(decode(answer, MessageType.PARTITION_STATUS_RESPONSE))
        except (RejectedEnvelope, DecodeError):
            raise Unavailable(f"{server_id} answered with something that is no partition status") from None
        return PartitionStatus(found.exists, found.is_leader)

    # ── answering ────────────────────────────────────────────────────────────────────────────────
    # Foreign or malformed bytes on these subjects are not worth an answer.

    async def _on_info_request(self, data: bytes, reply: str) -> None:
        try:
            asker = ServerInfoRequest.FromString(decode(data, MessageType.SERVER_INFO_REQUEST)).id
        except (RejectedEnvelope, DecodeError):
            return
        if not reply or asker == self._own.id:
            return
        await publish_quietly(self._bus, reply, self._introduction())

    def _introduction(self) -> bytes:
        own = self._own
        response = ServerInfoResponse(
            id=own.id, host=own.host, port=own.port, rack=own.rack, flight_port=own.flight_port
        ).SerializeToString()
        return encode(MessageType.SERVER_INFO_RESPONSE, response)

    async def _on_info(self, data: bytes, _reply: str) -> None:
        try:
            found = ServerInfoResponse.FromString(decode(data, MessageType.SERVER_INFO_RESPONSE))
        except (RejectedEnvelope, DecodeError):
            return
        if found.id and 0 <= found.port <= 65535 and 0 <= found.flight_port <= 65535:
            info = ServerInfo(found.id, found.host, found.port, found.rack, found.flight_port)
            self._known[found.id] = (info, self._clock())
            self._silent.discard(found.id)
            self._news.set()

    async def _on_status_request(self, data: bytes, reply: str) -> None:
        try:
            asked = PartitionStatusRequest.FromString(decode(data, MessageType.PARTITION_STATUS_REQUEST))
        except (RejectedEnvelope, DecodeError):
            return
        if reply:
            status = self._partition_status(asked.stream, asked.partition)
            response = PartitionStatusResponse(exists=status.exists, is_leader=status.is_leader).SerializeToString()
            await publish_quietly(self._bus, reply, encode(MessageType.PARTITION_STATUS_RESPONSE, response))
