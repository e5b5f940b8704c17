"""`bascule.Cluster`: operations, for clients that the policy allows them. Any server accepts a call and forwards it if necessary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bascule.broker.api.audited import audited
from bascule.broker.api.calls import Handler, deadline_of, routes_of
from bascule.broker.api.policies import PolicyCalls
from bascule.errors import Unavailable
from bascule.metadata.core.model.ops import SetReplicationThrottle, SetServerState
from bascule.metadata.core.server_ops import ACTIVE
from bascule.metadata.requests import CallDeadline
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.operations.administration import Administration
from bascule.operations.switchboard import METHODS, refusal
from bascule.proto import extensions_pb2 as extensions
from bascule.security.audit.log import AuditLog
from bascule.security.authorization import Authorizer

SERVICE: Final = "bascule.Cluster"

_Answer = Callable[[Any, CallDeadline], Awaitable[Any]]


class ClusterApi:
    def __init__(
        self, administration: Administration, policies: PolicyCalls, authorizer: Authorizer, audit: AuditLog
    ) -> None:
        self._audit = audit
        self._policies = policies
        self._administration = administration
        self._members = administration.members
        self._authorizer = authorizer

    def routes(self) -> dict[bytes, Route]:
        return routes_of(audited(self.handlers(), self._audit), SERVICE)

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
            "Counts": (extensions.CountsRequest, self._by_all("Counts", extensions.CountsResponse)),
            "Keys": (extensions.KeysRequest, self._by_all("Keys", extensions.KeysResponse)),
            "RotateKeys": (extensions.RotateKeysRequest, self._by_all("RotateKeys", extensions.KeysResponse)),
            "ListPolicies": (extensions.ListPoliciesRequest, self._policies.list_policies),
            "GrantPolicies": (extensions.GrantPoliciesRequest, self._policies.grant),
            "RevokePolicies": (extensions.RevokePoliciesRequest, self._policies.revoke),
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

    def _by_all(self, method: str, response: Any) -> _Answer:
        """Ask all servers; the response has the answer of each in `servers`."""

        async def ask(request: Any, deadline: CallDeadline) -> Any:
            servers = self._members.controller.members
            answers = await asyncio.gather(*(self._one_of_all(server, method, request, deadline) for server in servers))
            return response(servers=answers)

        return ask

    async def _one_of_all(self, server: str, method: str, request: Any, deadline: CallDeadline) -> Any:
        """Return the answer of a server, or why it has none: one that is down does not hide those of the others."""
        try:
            return await self._administration.switchboard.call(server, method, request, timeout=deadline.left())
        except Unavailable as error:
            return METHODS[method][1](server=server, error=error.message)
        except GrpcError as error:
            return METHODS[method][1](server=server, error=error.text)

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
