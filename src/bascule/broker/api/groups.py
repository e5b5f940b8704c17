"""JoinConsumerGroup, LeaveConsumerGroup, FetchConsumerGroupAssignments, ReportConsumerGroupCoordinator."""

from __future__ import annotations

from typing import Any

from bascule import limits
from bascule.broker.api.calls import check_texts, deadline_of, routes_of
from bascule.config.sections.cluster import Groups
from bascule.errors import BasculeError
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.ops import JoinConsumerGroup, LeaveConsumerGroup
from bascule.metadata.core.model.refusal import NO_GROUP, Refusal
from bascule.metadata.requests import CallDeadline, leader_known, reachable, refused, submit
from bascule.metadata.server_directory import ServerDirectory
from bascule.names import id_fault
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import api_pb2 as api
from bascule.readers.groups import GroupCoordinator
from bascule.security.authorization import Authorizer


class GroupApi:
    def __init__(
        self,
        controller: Controller,
        directory: ServerDirectory,
        groups: GroupCoordinator,
        authorizer: Authorizer,
        timeouts: Groups,
    ) -> None:
        self._controller = controller
        self._directory = directory
        self._groups = groups
        self._authorizer = authorizer
        self._timeouts = timeouts

    def routes(self) -> dict[bytes, Route]:
        return routes_of(
            {
                "JoinConsumerGroup": (api.JoinConsumerGroupRequest, self.join),
                "LeaveConsumerGroup": (api.LeaveConsumerGroupRequest, self.leave),
                "FetchConsumerGroupAssignments": (api.FetchConsumerGroupAssignmentsRequest, self.fetch_assignments),
                "ReportConsumerGroupCoordinator": (api.ReportConsumerGroupCoordinatorRequest, self.report_coordinator),
            }
        )

    async def join(self, request: api.JoinConsumerGroupRequest, call: Call) -> api.JoinConsumerGroupResponse:
        deadline = deadline_of(call)
        _require(groupId=request.groupId, consumerId=request.consumerId, streams=request.streams)
        check_texts(groupId=id_fault(request.groupId), consumerId=id_fault(request.consumerId))
        self._authorizer.require(call.peer, request.groupId, "JoinConsumerGroup")
        controller = self._controller
        group = controller.metadata.groups.get(request.groupId)
        if group is not None and len(group.members) >= limits.GROUP_MEMBERS_MAX:
            raise GrpcError(Status.RESOURCE_EXHAUSTED, f"the group has {limits.GROUP_MEMBERS_MAX} members already")
        await leader_known(controller, deadline)
        brokers = tuple(server.id for server in await reachable(controller, self._directory, deadline))
        op = JoinConsumerGroup(request.groupId, request.consumerId, tuple(dict.fromkeys(request.streams)), brokers)
        await submit(controller, op, deadline)
        group = controller.metadata.groups.get(request.groupId)
        if group is None:
            raise refused(NO_GROUP)  # all members have left since the op was applied
        return api.JoinConsumerGroupResponse(
            coordinator=group.coordinator,
            epoch=group.epoch,
            consumerTimeout=self._timeouts.consumer_timeout_ns,
            coordinatorTimeout=self._timeouts.coordinator_timeout_ns,
        )

    async def leave(self, request: api.LeaveConsumerGroupRequest, call: Call) -> api.LeaveConsumerGroupResponse:
        self._check_known(request.groupId, request.consumerId)
        self._authorizer.require(call.peer, request.groupId, "LeaveConsumerGroup")
        await submit(self._controller, LeaveConsumerGroup(request.groupId, request.consumerId), deadline_of(call))
        return api.LeaveConsumerGroupResponse()

    async def fetch_assignments(
        self, request: api.FetchConsumerGroupAssignmentsRequest, call: Call
    ) -> api.FetchConsumerGroupAssignmentsResponse:
        self._authorizer.require(call.peer, request.groupId, "FetchConsumerGroupAssignments")
        asked = (request.groupId, request.consumerId, request.epoch)
        found = self._groups.assignments(*asked)
        if isinstance(found, Refusal):
            # The member may have joined through another server whose op this one has not applied yet.
            await self._catch_up(deadline_of(call))
            found = self._groups.assignments(*asked)
        if isinstance(found, Refusal):
            raise refused(found)
        group, member = found
        assignments = [
            api.PartitionAssignment(stream=stream, partitions=member.assignments[stream])
            for stream in sorted(member.assignments)
        ]
        return api.FetchConsumerGroupAssignmentsResponse(epoch=group.epoch, assignments=assignments)

    def _check_known(self, group_id: str, consumer_id: str) -> None:
        """Ids have to be valid, or those of a member that joined through an older server: it may leave."""
        group = self._controller.metadata.groups.get(group_id)
        if group is None or consumer_id not in group.members:
            check_texts(groupId=id_fault(group_id), consumerId=id_fault(consumer_id))

    async def _catch_up(self, deadline: CallDeadline) -> None:
        """Apply everything that was acknowledged on other servers before now; without a quorum, go on with the state as it is."""
        try:
            await self._controller.fresh_metadata(timeout=min(1.0, deadline.left()))
        except BasculeError:
            return

    async def report_coordinator(
        self, request: api.ReportConsumerGroupCoordinatorRequest, call: Call
    ) -> api.ReportConsumerGroupCoordinatorResponse:
        deadline = deadline_of(call)
        _require(groupId=request.groupId, consumerId=request.consumerId, coordinator=request.coordinator)
        self._check_known(request.groupId, request.consumerId)
        check_texts(coordinator=id_fault(request.coordinator))
        self._authorizer.require(call.peer, request.groupId, "ReportConsumerGroupCoordinator")
        await leader_known(self._controller, deadline)
        try:
            refusal = await self._controller.report_coordinator(
                request.groupId, request.consumerId, request.coordinator, request.epoch, timeout=deadline.left()
            )
        except BasculeError as error:
            raise GrpcError(Status.INTERNAL, error.message) from None
        if refusal is not None:
            raise refused(refusal)
        await self._catch_up(deadline)  # the controller may have replaced the coordinator
        return api.ReportConsumerGroupCoordinatorResponse()


def _require(**fields: Any) -> None:
    for name, value in fields.items():
        if not value:
            raise GrpcError(Status.INVALID_ARGUMENT, f"no {name} provided")
