"""This server's part in running the cluster for people: what it answers for itself, and, while it is controller, for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bascule.broker.api.calls import Deadline
from bascule.broker.metrics import cursors
from bascule.errors import BasculeError, Unavailable
from bascule.net.grpc.status import GrpcError
from bascule.net.nats.subjects import ControlSubjects
from bascule.operations import drain_calls as draining
from bascule.operations import election, removal, status
from bascule.operations import move_calls as moving
from bascule.operations.move_queue import MoveQueue
from bascule.operations.switchboard import Method, Switchboard
from bascule.proto import extensions_pb2 as extensions
from bascule.raft.transport import Bus

if TYPE_CHECKING:
    from bascule.broker.services import Services

SURVEY_SECONDS: Final = 1.0
ANSWER_AGE_SECONDS_MAX: Final = 2.0
CONTROLLER_POLL_SECONDS: Final = 0.02

METHODS: Final[dict[str, Method]] = {
    # of the controller
    "AddServers": Method(extensions.AddServersRequest, extensions.MovesResponse, moving.add_servers),
    "Rebalance": Method(extensions.RebalanceRequest, extensions.MovesResponse, moving.rebalance),
    "Reassign": Method(extensions.ReassignRequest, extensions.MovesResponse, moving.reassign),
    "CancelReassignment": Method(extensions.CancelReassignmentRequest, extensions.MovesResponse, moving.cancel),
    "RemoveServer": Method(extensions.RemoveServerRequest, extensions.RemoveServerResponse, removal.remove_server),
    # of the server that is meant
    "Drain": Method(extensions.DrainRequest, extensions.DrainResponse, draining.drain),
    "HandOver": Method(extensions.HandOverRequest, extensions.HandOverResponse, draining.hand_over),
    "Report": Method(extensions.ReportRequest, extensions.ReportResponse, status.report),
    "Cursors": Method(extensions.CursorsRequest, extensions.CursorsResponse, cursors.answer),
    "ReplicaLog": Method(extensions.ReplicaLogRequest, extensions.ReplicaLog, election.replica_log),
}


class Administration:
    def __init__(self, bus: Bus, subjects: ControlSubjects, server_id: str, stop_server: Callable[[], None]) -> None:
        self._server_id = server_id
        self._switchboard = Switchboard(bus, subjects, server_id, METHODS)
        self.moves = MoveQueue(self)
        self.stop_server = stop_server
        """Have this server drain and stop, as a signal would."""
        self.is_draining = False
        self.started = time.monotonic()

    async def start(self, services: Services) -> None:
        await self._switchboard.start(services)
        self.moves.start(services)

    async def stop(self) -> None:
        await self.moves.stop()
        await self._switchboard.stop()

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    async def call(self, server: str, method: str, request: Any, *, timeout: float) -> Any:
        """Ask one server, which may be this one. Raises GrpcError and Unavailable."""
        return await self._switchboard.call(server, method, request, timeout=timeout)

    async def call_controller(self, services: Services, method: str, request: Any, deadline: Deadline) -> Any:
        """Ask whoever is controller; an election that is under way is waited for."""
        while (controller := services.controller.leader) is None:
            if deadline.left() == 0:
                raise Unavailable("no known metadata leader", hint="is a majority of the servers running?")
            await asyncio.sleep(CONTROLLER_POLL_SECONDS)
        return await self.call(controller, method, request, timeout=deadline.left())

    async def answers(self, server: str) -> bool:
        """Whether one server does at this moment."""
        try:
            await self.call(server, "Report", extensions.ReportRequest(), timeout=SURVEY_SECONDS)
        except (BasculeError, GrpcError):
            return False
        return True

    async def answering(self, services: Services) -> set[str]:
        """The members that answered a moment ago."""
        found = await services.directory.servers(
            services.controller.members, timeout=SURVEY_SECONDS, age_max_seconds=ANSWER_AGE_SECONDS_MAX
        )
        return {server.id for server in found}
