"""The servers of the cluster, for operations: which are members, which answer, and what the controller is asked to decide."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import BasculeError, Unavailable
from bascule.metadata.core.model.ops import BrokerPlace, Op
from bascule.net.grpc.status import GrpcError, Status
from bascule.operations.switchboard import Switchboard, refusal
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.metadata.controller import Controller
    from bascule.metadata.requests import CallDeadline
    from bascule.metadata.server_directory import ServerDirectory

SURVEY_SECONDS: Final = 1.0
ANSWER_AGE_SECONDS_MAX: Final = 2.0
CONTROLLER_POLL_SECONDS: Final = 0.02


class Members:
    def __init__(self, controller: Controller, directory: ServerDirectory, switchboard: Switchboard) -> None:
        self.controller = controller
        self._directory = directory
        self._switchboard = switchboard

    # ── checks of a request ──────────────────────────────────────────────────────────────────────

    def check_member(self, server: str, field: str = "server") -> None:
        members = self.controller.members
        if server not in members:
            raise refusal(
                Status.INVALID_ARGUMENT,
                f"`{field}` is `{server}`: no server of the cluster has this id",
                f"its servers are {', '.join(members)}",
            )

    def check_controller(self) -> None:
        """Raises UNAVAILABLE unless this server is the controller; the caller was sent to a former one and retries."""
        if not self.controller.is_leader:
            raise refusal(Status.UNAVAILABLE, "no known metadata leader", "ask again in a moment")

    def check_stream(self, name: str) -> None:
        if name not in self.controller.metadata.streams:
            raise refusal(Status.NOT_FOUND, f"there is no stream `{name}`")

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def submit(self, op: Op, deadline: CallDeadline) -> None:
        """Apply the op. Raises GrpcError when it is refused, and passes Unavailable and OutcomeUnknown on."""
        refused = await self.controller.submit(op, timeout=deadline.left())
        if refused is not None:
            raise refusal(Status[refused.code], refused.text)

    async def call_controller(self, method: str, request: Any, deadline: CallDeadline) -> Any:
        """Call the controller; during an election, wait for the next one."""
        while (controller := self.controller.leader) is None:
            if deadline.left() == 0:
                raise Unavailable("no known metadata leader", hint="is a majority of the servers running?")
            await asyncio.sleep(CONTROLLER_POLL_SECONDS)
        return await self._switchboard.call(controller, method, request, timeout=deadline.left())

    async def answers(self, server: str) -> bool:
        """Whether this server answers now."""
        try:
            await self._switchboard.call(server, "Report", extensions.ReportRequest(), timeout=SURVEY_SECONDS)
        except (BasculeError, GrpcError):
            return False
        return True

    async def answering(self) -> set[str]:
        """The members that answered within the last two seconds."""
        found = await self._directory.servers(
            self.controller.members, timeout=SURVEY_SECONDS, age_max_seconds=ANSWER_AGE_SECONDS_MAX
        )
        return {server.id for server in found}

    async def places(self) -> list[BrokerPlace]:
        """The members that answer, with their racks. Includes those that are leaving; planners leave them out."""
        answering = await self.answering()
        servers = await self._directory.servers(self.controller.members)
        return [BrokerPlace(server.id, server.rack) for server in servers if server.id in answering]
