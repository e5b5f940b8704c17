"""Whether this server is still a member of its cluster. A removed server gets no Raft messages, so Raft does not report its removal.

A server that has had no leader for some seconds therefore asks. Only a leader that a quorum has just confirmed answers. A server that
is not a member must stop using the data of the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError
from bascule.net.nats.envelope import MessageType, pack_message, unpack_message
from bascule.net.nats.subjects import ControlSubjects
from bascule.proto.extensions_pb2 import MembershipRequest, MembershipResponse
from bascule.raft.transport import Bus, publish_quietly

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller

LOOK_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 3.0
"""Time without a leader after which the server asks; longer than an election takes."""
ANSWER_SECONDS: Final = 2.0


class MembershipWatch:
    def __init__(
        self, bus: Bus, subjects: ControlSubjects, controller: Controller, on_removed: Callable[[], None]
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._controller = controller
        self._on_removed = on_removed
        self._task: asyncio.Task[None] | None = None
        self._runs = True

    async def start(self) -> None:
        await self._bus.subscribe(self._subjects.membership, self._on_question)
        self._task = asyncio.create_task(self._watch(), name="membership")

    async def stop(self) -> None:
        self._runs = False  # a timeout at the same moment can swallow the cancellation
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        silent = 0.0
        while self._runs:
            await asyncio.sleep(LOOK_SECONDS)
            silent = silent + LOOK_SECONDS if self._controller.leader is None else 0.0
            if silent >= SILENCE_SECONDS and await self._was_removed():
                self._on_removed()
                return

    async def _was_removed(self) -> bool:
        request = MembershipRequest(server=self._controller.server_id)
        try:
            answer = await self._bus.request(
                self._subjects.membership, pack_message(MessageType.PROPAGATED_REQUEST, request), ANSWER_SECONDS
            )
            return not unpack_message(MembershipResponse, answer, MessageType.PROPAGATED_RESPONSE).is_member
        except BasculeError:
            return False  # no answer: there may be no quorum

    # ── answering ────────────────────────────────────────────────────────────────────────────────

    async def _on_question(self, data: bytes, reply: str) -> None:
        if not reply or not self._controller.is_leader:
            return
        try:
            server = unpack_message(MembershipRequest, data, MessageType.PROPAGATED_REQUEST).server
            # A deposed leader that does not know it yet must not answer.
            await self._controller.fresh_metadata(timeout=1.0)
        except BasculeError:
            return
        if server and self._controller.is_leader:
            response = MembershipResponse(is_member=server in self._controller.members)
            await publish_quietly(self._bus, reply, pack_message(MessageType.PROPAGATED_RESPONSE, response))
