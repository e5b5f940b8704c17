"""The addresses of the cluster's servers. Each server answers for itself, and the directory keeps the last answer of each.

A survey asks all servers at once and waits for their answers. A server that was silent during a survey is missing from the directory,
and later surveys do not wait for it until it has answered again. A server that starts announces its address, because the others may
remember the address or port of its last run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bascule import limits
from bascule.config.values.address import Address
from bascule.errors import RejectedEnvelope, Unavailable
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.internal_pb2 import ServerInfoRequest, ServerInfoResponse
from bascule.raft.transport import Bus, publish_quietly


@dataclass(frozen=True, slots=True)
class ServerInfo:
    id: str
    host: str
    port: int
    rack: str = ""
    flight_port: int = 0
    """Port of Arrow Flight; 0 when it is off."""


class ServerDirectory:
    def __init__(
        self,
        bus: Bus,
        subjects: ControlSubjects,
        own: ServerInfo,
        *,
        age_max_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._own = own
        self._age_max_seconds = age_max_seconds
        self._clock = clock
        self._known: dict[str, tuple[ServerInfo, float]] = {}
        self._silent: set[str] = set()
        self._surveying = asyncio.Lock()
        self._surveyed_at = float("-inf")
        """When the last survey began."""
        self._news = asyncio.Event()

    async def start(self) -> None:
        await self._bus.subscribe(self._subjects.info, self._on_info_subject)
        await self._bus.subscribe(self._subjects.info_inbox(self._own.id), self._on_info)
        await self.introduce()

    async def introduce(self) -> None:
        """Announce this server: the other servers may remember the address of its last run and give it to clients."""
        await publish_quietly(self._bus, self._subjects.info, self._introduction())

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def servers(
        self, members: Iterable[str], *, timeout: float = 3.0, age_max_seconds: float | None = None
    ) -> list[ServerInfo]:
        """The members that answer, this server first. Makes a survey only when an answer is missing or older than `age_max_seconds`,
        by default the directory's own limit."""
        others = sorted(set(members) - {self._own.id})
        age_max_seconds = self._age_max_seconds if age_max_seconds is None else age_max_seconds
        if any(self._is_stale(member, age_max_seconds) for member in others):
            asked_at = self._clock()
            async with self._surveying:
                if self._surveyed_at < asked_at:  # no survey began while this call waited
                    await self._survey(others, timeout)
        return [self._own, *(self._known[member][0] for member in others if member in self._known)]

    def _is_stale(self, member: str, age_max_seconds: float) -> bool:
        known = self._known.get(member)
        return known is None or self._clock() - known[1] > age_max_seconds

    async def _survey(self, members: list[str], timeout: float) -> None:
        asked_at = self._surveyed_at = self._clock()
        request = ServerInfoRequest(id=self._own.id)
        try:
            await self._bus.publish(
                self._subjects.info,
                pack_message(MessageType.SERVER_INFO_REQUEST, request),
                reply=self._subjects.info_inbox(self._own.id),
            )
        except Unavailable:
            return  # without NATS the answers of earlier surveys stay valid
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

    # ── answering ────────────────────────────────────────────────────────────────────────────────
    # Malformed bytes, or those of another program on these subjects, get no answer.

    async def _on_info_subject(self, data: bytes, reply: str) -> None:
        """Requests have a reply subject, announcements have none."""
        await (self._on_info_request(data, reply) if reply else self._on_info(data, reply))

    async def _on_info_request(self, data: bytes, reply: str) -> None:
        try:
            asker = unpack_message(ServerInfoRequest, data, MessageType.SERVER_INFO_REQUEST).id
        except RejectedEnvelope:
            return
        if asker == self._own.id:
            return
        await publish_quietly(self._bus, reply, self._introduction())

    def _introduction(self) -> bytes:
        own = self._own
        response = ServerInfoResponse(
            id=own.id, host=own.host, port=own.port, rack=own.rack, flight_port=own.flight_port
        )
        return pack_message(MessageType.SERVER_INFO_RESPONSE, response)

    async def _on_info(self, data: bytes, _reply: str) -> None:
        try:
            found = unpack_message(ServerInfoResponse, data, MessageType.SERVER_INFO_RESPONSE)
        except RejectedEnvelope:
            return
        if len(self._known) >= limits.RAFT_MEMBERS_MAX and found.id not in self._known:
            return
        if any(
            len(text) > limits.HOST_NAME_CHARACTERS_MAX or not text.isprintable()
            for text in (found.id, found.host, found.rack)
        ):
            return
        if found.id and 0 <= found.port <= 65535 and 0 <= found.flight_port <= 65535:
            info = ServerInfo(found.id, found.host, found.port, found.rack, found.flight_port)
            self._known[found.id] = (info, self._clock())
            self._silent.discard(found.id)
            self._news.set()


def flight_locations(servers: Iterable[ServerInfo], *, uses_tls: bool) -> dict[str, str]:
    """The addresses of Arrow Flight by server id, for the servers that have it."""
    scheme = "grpc+tls" if uses_tls else "grpc"
    return {
        server.id: f"{scheme}://{Address(server.host, server.flight_port)}" for server in servers if server.flight_port
    }
