"""`Drain` and `HandOver`: what one server is asked to give away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.broker.api.calls import Deadline
from bascule.metadata.core.model.ops import SetServerState
from bascule.metadata.core.server_ops import ACTIVE, LEAVING
from bascule.net.grpc.status import Status
from bascule.operations import drain as handing_over
from bascule.operations.checks import submit
from bascule.operations.switchboard import refusal
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.broker.services import Services


async def drain(services: Services, request: extensions.DrainRequest, deadline: Deadline) -> extensions.DrainResponse:
    """On the server itself."""
    server = services.server_id
    if request.mode == extensions.DrainRequest.UNDO:
        await submit(services, SetServerState(server, ACTIVE), deadline)
        return extensions.DrainResponse()
    if request.mode == extensions.DrainRequest.STOP:
        # Answered at once: the connection that the answer takes would otherwise be closed before it.
        services.administration.stop_server()
        return extensions.DrainResponse()
    others = await handing_over.other_servers(services, deadline)
    if not [other for other in others if other not in services.controller.metadata.leaving]:
        raise refusal(
            Status.FAILED_PRECONDITION,
            f"no other server can take what `{server}` leads",
            "start another one, or stop this one with the cluster",
        )
    await submit(services, SetServerState(server, LEAVING), deadline)
    found = await handing_over.hand_over_everything(services, others, deadline)
    await handing_over.hand_over_controller(services.controller, others, deadline)
    return extensions.DrainResponse(
        kept=[
            extensions.KeptLeadership(stream=stream, partition=number, reason=why) for stream, number, why in found.kept
        ]
    )


async def hand_over(
    services: Services, request: extensions.HandOverRequest, deadline: Deadline
) -> extensions.HandOverResponse:
    leader = await services.partitions.hand_over(
        request.stream, request.partition, request.successor or None, timeout=deadline.left()
    )
    return extensions.HandOverResponse(leader=leader)
