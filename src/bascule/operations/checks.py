"""What every operation asks first: is it a server of this cluster, is this the controller, did the op go through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.broker.api.calls import Deadline
from bascule.metadata.core.model.ops import Broker, Op
from bascule.net.grpc.status import Status
from bascule.operations.switchboard import refusal

if TYPE_CHECKING:
    from bascule.broker.services import Services


def check_member(services: Services, server: str, field: str = "server") -> None:
    members = services.controller.members
    if server not in members:
        raise refusal(
            Status.INVALID_ARGUMENT,
            f"`{field}` is `{server}`: no server of the cluster has this id",
            f"its servers are {', '.join(members)}",
        )


def check_controller(services: Services) -> None:
    """For what only the controller can do: a caller that was sent to a former one asks again."""
    if not services.controller.is_leader:
        raise refusal(Status.UNAVAILABLE, "no known metadata leader", "ask again in a moment")


def check_stream(services: Services, name: str) -> None:
    if name not in services.controller.metadata.streams:
        raise refusal(Status.NOT_FOUND, f"there is no stream `{name}`")


async def submit(services: Services, op: Op, deadline: Deadline) -> None:
    """Have the op done. Raises GrpcError when it is refused, Unavailable and OutcomeUnknown as they are."""
    refused = await services.controller.submit(op, timeout=deadline.left())
    if refused is not None:
        raise refusal(Status[refused.code], refused.text)


async def brokers_that_answer(services: Services) -> list[Broker]:
    """Where replicas can be put now, those that are leaving included: planners leave them out."""
    answering = await services.administration.answering(services)
    servers = await services.directory.servers(services.controller.members)
    return [Broker(server.id, server.rack) for server in servers if server.id in answering]
