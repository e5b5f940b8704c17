"""`bascule.Cluster`: running a cluster, for whoever the policy lets. Every server answers; what another has to do is forwarded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from bascule.broker.api.calls import Deadline, Handler, routes_of
from bascule.errors import Unavailable
from bascule.metadata.core.model.ops import SetReplicationThrottle, SetServerState
from bascule.metadata.core.server_ops import ACTIVE
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import Status
from bascule.operations import election
from bascule.operations import status as statuses
from bascule.operations.checks import check_member, submit
from bascule.operations.switchboard import refusal
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.broker.services import Services

SERVICE: Final = "bascule.Cluster"

_Answer = Callable[["Services", Any, Deadline], Awaitable[Any]]


def routes(services: Services) -> dict[bytes, Route]:
    calls: dict[str, tuple[Any, _Answer]] = {
        "Status": (extensions.StatusRequest, statuses.status),
        "Drain": (extensions.DrainRequest, drain),
        "AddServers": (extensions.AddServersRequest, _of_controller("AddServers")),
        "RemoveServer": (extensions.RemoveServerRequest, _of_controller("RemoveServer")),
        "Rebalance": (extensions.RebalanceRequest, _of_controller("Rebalance")),
        "Reassign": (extensions.ReassignRequest, _of_controller("Reassign")),
        "CancelReassignment": (extensions.CancelReassignmentRequest, _of_controller("CancelReassignment")),
        "ElectUnclean": (extensions.ElectUncleanRequest, election.elect_unclean),
        "SetThrottle": (extensions.SetThrottleRequest, set_throttle),
    }
    handlers = {name: (request, _authorized(name, answer)) for name, (request, answer) in calls.items()}
    return routes_of(services, handlers, SERVICE)


def _authorized(name: str, answer: _Answer) -> Handler:
    async def handle(services: Services, request: Any, call: Call) -> Any:
        services.authorizer.require(call.peer, "*", name)
        return await answer(services, request, Deadline.of(call))

    return handle


def _of_controller(method: str) -> _Answer:
    async def forward(services: Services, request: Any, deadline: Deadline) -> Any:
        return await services.administration.call_controller(services, method, request, deadline)

    return forward


async def drain(services: Services, request: extensions.DrainRequest, deadline: Deadline) -> extensions.DrainResponse:
    check_member(services, request.server)
    if request.mode == extensions.DrainRequest.UNDO:
        # Not for the server to do: it may be down meanwhile.
        await submit(services, SetServerState(request.server, ACTIVE), deadline)
        return extensions.DrainResponse()
    try:
        answer: extensions.DrainResponse = await services.administration.call(
            request.server, "Drain", request, timeout=deadline.left()
        )
    except Unavailable as error:
        hint = f"is it running? `bascule cluster remove {request.server}` takes a server out that is gone for good"
        raise refusal(Status.FAILED_PRECONDITION, error.message, hint) from None
    return answer


async def set_throttle(
    services: Services, request: extensions.SetThrottleRequest, deadline: Deadline
) -> extensions.SetThrottleResponse:
    await submit(services, SetReplicationThrottle(request.bytes_per_second), deadline)
    return extensions.SetThrottleResponse()
