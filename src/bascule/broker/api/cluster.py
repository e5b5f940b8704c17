"""`bascule.Cluster`: operations, for clients that the policy allows them. Any server accepts a call and forwards it if necessary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from bascule.broker.api.calls import Handler, deadline_of, routes_of
from bascule.errors import Unavailable
from bascule.metadata.core.model.ops import SetReplicationThrottle, SetServerState
from bascule.metadata.core.server_ops import ACTIVE
from bascule.metadata.requests import CallDeadline
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import Status
from bascule.operations.administration import Administration
from bascule.operations.switchboard import refusal
from bascule.proto import extensions_pb2 as extensions
from bascule.security.authorization import Authorizer

SERVICE: Final = "bascule.Cluster"

_Answer = Callable[[Any, CallDeadline], Awaitable[Any]]


class ClusterApi:
    def __init__(self, administration: Administration, authorizer: Authorizer) -> None:
        self._administration = administration
        self._members = administration.members
        self._authorizer = authorizer

    def routes(self) -> dict[bytes, Route]:
        return routes_of(self.handlers(), SERVICE)

    def handlers(self) -> dict[str, tuple[Any, Handler]]:
        calls: dict[str, tuple[Any, _Answer]] = {
            "Status": (extensions.StatusRequest, self._administration.status.status),
            "Drain": (extensions.DrainRequest, self.drain),
            "AddServers": (extensions.AddServersRequest, self._by_controller("AddServers")),
            "RemoveServer": (extensions.RemoveServerRequest, self._by_controller("RemoveServer")),
            "Rebalance": (extensions.RebalanceRequest, self._by_controller("Rebalance")),
            "Reassign": (extensions.ReassignRequest, self._by_controller("Reassign")),
            "CancelReassignment": (extensions.CancelReassignmentRequest, self._by_controller("CancelReassignment")),
            "ElectUnclean": (extensions.ElectUncleanRequest, self._administration.elections.elect_unclean),
            "SetThrottle": (extensions.SetThrottleRequest, self.set_throttle),
        }
        return {name: (request, self._authorized(name, answer)) for name, (request, answer) in calls.items()}

    def _authorized(self, name: str, answer: _Answer) -> Handler:
        async def handle(request: Any, call: Call) -> Any:
            self._authorizer.require(call.peer, "*", name)
            return await answer(request, deadline_of(call))

        return handle

    def _by_controller(self, method: str) -> _Answer:
        async def forward(request: Any, deadline: CallDeadline) -> Any:
            return await self._members.call_controller(method, request, deadline)

        return forward

    async def drain(self, request: extensions.DrainRequest, deadline: CallDeadline) -> extensions.DrainResponse:
        self._members.check_member(request.server)
        if request.mode == extensions.DrainRequest.UNDO:
            # Not forwarded: the server may be down.
            await self._members.submit(SetServerState(request.server, ACTIVE), deadline)
            return extensions.DrainResponse()
        try:
            answer: extensions.DrainResponse = await self._administration.switchboard.call(
                request.server, "Drain", request, timeout=deadline.left()
            )
        except Unavailable as error:
            hint = f"is it running? `bascule cluster remove {request.server}` takes a server out that is gone for good"
            raise refusal(Status.FAILED_PRECONDITION, error.message, hint) from None
        return answer

    async def set_throttle(
        self, request: extensions.SetThrottleRequest, deadline: CallDeadline
    ) -> extensions.SetThrottleResponse:
        await self._members.submit(SetReplicationThrottle(request.bytes_per_second), deadline)
        return extensions.SetThrottleResponse()
