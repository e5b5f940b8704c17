"""`Drain` and `HandOver`: a server hands its leaderships over on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.metadata.core.model.ops import SetServerState
from bascule.metadata.core.server_ops import ACTIVE, LEAVING
from bascule.net.grpc.status import Status
from bascule.operations.drain import Drain, hand_over_controller
from bascule.operations.switchboard import refusal
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.metadata.requests import CallDeadline
    from bascule.operations.members import Members
    from bascule.operations.server_life import ServerLife
    from bascule.partition.registry import Partitions


class DrainCalls:
    def __init__(self, drain: Drain, members: Members, partitions: Partitions, life: ServerLife) -> None:
        self._drain = drain
        self._members = members
        self._partitions = partitions
        self._life = life

    async def drain(self, request: extensions.DrainRequest, deadline: CallDeadline) -> extensions.DrainResponse:
        """On the server that is drained."""
        controller = self._members.controller
        server = controller.server_id
        if request.mode == extensions.DrainRequest.UNDO:
            await self._members.submit(SetServerState(server, ACTIVE), deadline)
            return extensions.DrainResponse()
        if request.mode == extensions.DrainRequest.STOP:
            # Answered first: stopping closes the connection that the answer goes through.
            self._life.stop()
            return extensions.DrainResponse()
        others = await self._drain.other_servers(deadline)
        if not [other for other in others if other not in controller.metadata.leaving]:
            raise refusal(
                Status.FAILED_PRECONDITION,
                f"no other server can take what `{server}` leads",
                "start another one, or stop this one with the cluster",
            )
        await self._members.submit(SetServerState(server, LEAVING), deadline)
        found = await self._drain.hand_over_everything(others, deadline)
        await hand_over_controller(controller, others, deadline)
        return extensions.DrainResponse(
            kept=[
                extensions.KeptLeadership(stream=stream, partition=number, reason=why)
                for stream, number, why in found.kept
            ]
        )

    async def hand_over(
        self, request: extensions.HandOverRequest, deadline: CallDeadline
    ) -> extensions.HandOverResponse:
        leader = await self._partitions.hand_over(
            request.stream, request.partition, request.successor or None, timeout=deadline.left()
        )
        return extensions.HandOverResponse(leader=leader)
