"""JoinConsumerGroup, LeaveConsumerGroup, FetchConsumerGroupAssignments, ReportConsumerGroupCoordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bascule.broker.api.calls import Deadline, leader_known, reachable, refused, routes_of, submit
from bascule.errors import BasculeError
from bascule.metadata.core.model.ops import JoinConsumerGroup, LeaveConsumerGroup
from bascule.metadata.core.model.refusal import NO_GROUP, Refusal
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import api_pb2 as api

if TYPE_CHECKING:
    from bascule.broker.services import Services


def routes(services: Services) -> dict[bytes, Route]:
    return routes_of(
        services,
        {
            "JoinConsumerGroup": (api.JoinConsumerGroupRequest, join),
            "LeaveConsumerGroup": (api.LeaveConsumerGroupRequest, leave),
            "FetchConsumerGroupAssignments": (api.FetchConsumerGroupAssignmentsRequest, fetch_assignments),
            "ReportConsumerGroupCoordinator": (api.ReportConsumerGroupCoordinatorRequest, report_coordinator),
        },
    )


async def join(services: Services, request: api.JoinConsumerGroupRequest, call: Call) -> api.JoinConsumerGroupResponse:
    deadline = Deadline.of(call)
    _require(groupId=request.groupId, consumerId=request.consumerId, streams=request.streams)
    services.authorizer.require(call.peer, request.groupId, "JoinConsumerGroup")
    controller = services.controller
    await leader_known(controller, deadline)
    brokers = tuple(server.id for server in await reachable(services, deadline))
    op = JoinConsumerGroup(request.groupId, request.consumerId, tuple(request.streams), brokers)
    await submit(controller, op, deadline)
    group = controller.metadata.groups.get(request.groupId)
    if group is None:
        raise refused(NO_GROUP)  # it was there: everybody has left meanwhile
    timeouts = services.config.cluster.groups
    return api.JoinConsumerGroupResponse(
        coordinator=group.coordinator,
        epoch=group.epoch,
        consumerTimeout=timeouts.consumer_timeout_ns,
        coordinatorTimeout=timeouts.coordinator_timeout_ns,
    )


async def leave(
    services: Services, request: api.LeaveConsumerGroupRequest, call: Call
) -> api.LeaveConsumerGroupResponse:
    services.authorizer.require(call.peer, request.groupId, "LeaveConsumerGroup")
    await submit(services.controller, LeaveConsumerGroup(request.groupId, request.consumerId), Deadline.of(call))
    return api.LeaveConsumerGroupResponse()


async def fetch_assignments(
    services: Services, request: api.FetchConsumerGroupAssignmentsRequest, call: Call
) -> api.FetchConsumerGroupAssignmentsResponse:
    services.authorizer.require(call.peer, request.groupId, "FetchConsumerGroupAssignments")
    asked = (request.groupId, request.consumerId, request.epoch)
    found = services.groups.assignments(*asked)
    if isinstance(found, Refusal):
        # Perhaps this server only has not heard yet of what the member knows: it joined through another one.
        await _catch_up(services, Deadline.of(call))
        found = services.groups.assignments(*asked)
    if isinstance(found, Refusal):
        raise refused(found)
    group, member = found
    assignments = [
        api.PartitionAssignment(stream=stream, partitions=member.assignments[stream])
        for stream in sorted(member.assignments)
    ]
    return api.FetchConsumerGroupAssignmentsResponse(epoch=group.epoch, assignments=assignments)


async def _catch_up(services: Services, deadline: Deadline) -> None:
    """What others were told before now, this server knows."""
    try:
        await services.controller.fresh_metadata(timeout=min(1.0, deadline.left()))
    except BasculeError:
        return  # then what is known here has to do


async def report_coordinator(
    services: Services, request: api.ReportConsumerGroupCoordinatorRequest, call: Call
) -> api.ReportConsumerGroupCoordinatorResponse:
    deadline = Deadline.of(call)
    _require(groupId=request.groupId, consumerId=request.consumerId, coordinator=request.coordinator)
    services.authorizer.require(call.peer, request.groupId, "ReportConsumerGroupCoordinator")
    await leader_known(services.controller, deadline)
    try:
        refusal = await services.controller.report_coordinator(
            request.groupId, request.consumerId, request.coordinator, request.epoch, timeout=deadline.left()
        )
    except BasculeError as error:
        raise GrpcError(Status.INTERNAL, error.message) from None
    if refusal is not None:
        raise refused(refusal)
    await _catch_up(services, deadline)  # the controller may have done something about it
    return api.ReportConsumerGroupCoordinatorResponse()


def _require(**fields: Any) -> None:
    for name, value in fields.items():
        if not value:
            raise GrpcError(Status.INVALID_ARGUMENT, f"no {name} provided")
