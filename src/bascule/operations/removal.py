"""`RemoveServer`: moves everything from a server, running or not, to other servers and takes it out of the cluster.

Each call does what is possible at that moment and reports what is left; the caller repeats it until the server is removed. A change of
controller or an interrupted call in between does no harm, because the progress is in the metadata: the server is `leaving`, its
partitions have targets without it, and at the end nothing refers to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError
from bascule.metadata.core.model.ops import (
    BrokerPlace,
    ChangeCoordinator,
    ElectUnclean,
    ForgetServer,
    Reassign,
    SetServerState,
)
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.rebalance import ReplicaMove, plan_removal
from bascule.metadata.core.server_ops import LEAVING
from bascule.metadata.core.snapshot import decode_snapshot, encode_snapshot
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.stream_options import RESERVED_STREAMS
from bascule.net.grpc.status import Status
from bascule.operations.drain import hand_over_controller
from bascule.operations.move_calls import response
from bascule.operations.switchboard import refusal
from bascule.proto import extensions_pb2 as extensions
from bascule.raft.core.model.membership import RemoveServer

if TYPE_CHECKING:
    from bascule.metadata.requests import CallDeadline
    from bascule.operations.election import Elections
    from bascule.operations.members import Members
    from bascule.operations.move_queue import MoveQueue

MEMBERSHIP_SECONDS: Final = 2.0

_logger = logging.getLogger(__name__)


class Removals:
    def __init__(self, members: Members, moves: MoveQueue, elections: Elections) -> None:
        self._members = members
        self._moves = moves
        self._elections = elections

    async def remove_server(
        self, request: extensions.RemoveServerRequest, deadline: CallDeadline
    ) -> extensions.RemoveServerResponse:
        self._members.check_controller()
        server = request.server
        if not self._is_known(server):
            self._members.check_member(server)
        brokers = [one for one in await self._members.places() if one.id != server]
        answers = await self._members.answers(server)
        state = self._members.controller.metadata
        planned = _plan(state, server, brokers)
        answer = extensions.RemoveServerResponse(
            moves=response(state, planned, []).moves,
            replicas_left=_replicas(state, server),
            blocked=[] if answers else _blocked(state, server),
        )
        if request.dry_run:
            return answer
        await self._members.submit(SetServerState(server, LEAVING), deadline)
        await self._move_groups(server, brokers, deadline)
        if request.force and answer.blocked:
            await self._lose(server, answer, planned, deadline)
        blocked = {(one.stream, one.partition) for one in answer.blocked}
        self._moves.add(move for move in planned if (move.stream, move.partition) not in blocked or request.force)
        answer.replicas_left = _replicas(state, server)
        if answer.replicas_left:
            answer.state = "its replicas move to other servers"
        else:
            await self._part(server, brokers, answer, deadline)
        return answer

    def _is_known(self, server: str) -> bool:
        """True also for a server that has left the Raft group but is still in the metadata: an earlier call was interrupted."""
        state = self._members.controller.metadata
        return server in state.leaving or server in state.server_epochs or _replicas(state, server) > 0

    async def _move_groups(self, server: str, brokers: list[BrokerPlace], deadline: CallDeadline) -> None:
        ids = tuple(one.id for one in brokers)
        for group in list(self._members.controller.metadata.groups.values()):
            if group.coordinator == server:
                await self._members.controller.submit(
                    ChangeCoordinator(group.id, server, group.epoch, ids), timeout=deadline.left()
                )

    async def _lose(
        self,
        server: str,
        answer: extensions.RemoveServerResponse,
        planned: list[ReplicaMove],
        deadline: CallDeadline,
    ) -> None:
        """Give up the data that only the dead server has: the most complete other replica leads, or a new, empty one."""
        targets = {(move.stream, move.partition): move for move in planned}
        for one in answer.blocked:
            key = (one.stream, one.partition)
            partition = self._members.controller.metadata.find(*key)
            if partition is None or partition.in_sync_replicas != [server]:
                continue
            if key in targets:
                move = targets[key]
                await self._members.submit(Reassign(move.stream, move.partition, move.replicas), deadline)
            heir = await self._heir(one.stream, partition, server, deadline)
            if heir is None:
                continue
            _logger.warning(
                "%s/%d: %s leads with its own log; messages that only %s had are lost",
                one.stream,
                one.partition,
                heir,
                server,
            )
            op = ElectUnclean(one.stream, one.partition, heir, partition.leader, partition.leader_epoch)
            await self._members.submit(op, deadline)
        del answer.blocked[:]

    async def _heir(self, stream: str, partition: Partition, server: str, deadline: CallDeadline) -> str | None:
        logs = await self._elections.collect(stream, partition, deadline)
        others = [log for log in logs.values() if log.server != server]
        if others:
            return max(
                others, key=lambda log: (max((one.epoch for one in log.epochs), default=0), log.log_end_offset)
            ).server
        answering = await self._members.answering()
        return next((one for one in partition.replicas if one != server and one in answering), None)

    async def _part(
        self,
        server: str,
        brokers: list[BrokerPlace],
        answer: extensions.RemoveServerResponse,
        deadline: CallDeadline,
    ) -> None:
        controller = self._members.controller
        if server == controller.server_id:
            # A controller cannot remove itself: its successor does, with the next call.
            answer.state = "another server becomes controller"
            await hand_over_controller(controller, [one.id for one in brokers], deadline)
            return
        if server in controller.members:
            try:
                await controller.driver.change_membership(
                    RemoveServer(server), timeout=min(MEMBERSHIP_SECONDS, deadline.left())
                )
            except BasculeError as error:
                _logger.info("%s is still a member: %s", server, error.message)
                answer.state = "the servers agree that it goes"
                return
        await self._members.submit(ForgetServer(server), deadline)
        answer.removed = True


def _replicas(state: ClusterMetadata, server: str) -> int:
    return sum(server in partition.replicas for _, partition in state.each_partition())


def _plan(state: ClusterMetadata, server: str, brokers: list[BrokerPlace]) -> list[ReplicaMove]:
    """The moves of its replicas. Internal streams that have a replica on every server get one replica less."""
    staying = [one.id for one in brokers if one.id not in state.leaving]
    if not staying:
        raise refusal(
            Status.FAILED_PRECONDITION,
            f"no other server that answers can take the replicas of `{server}`",
            "start or add another server first",
        )
    fewer = [
        ReplicaMove(name, one.id, tuple(replica for replica in goal if replica != server))
        for name, one in state.each_partition()
        if name in RESERVED_STREAMS
        and server in (goal := one.final_replicas)
        and set(staying) <= set(goal)
        and len(goal) > 1
    ]
    rehearsed = decode_snapshot(encode_snapshot(state)) if fewer else state
    for move in fewer:
        rehearsed.apply(rehearsed.applied_index + 1, Reassign(move.stream, move.partition, move.replicas))
    plan = plan_removal(rehearsed, server, brokers)
    if isinstance(plan, Refusal):
        raise refusal(
            Status[plan.code],
            plan.text.partition(";")[0],
            "add a server first, or lower the stream's factor: `bascule cluster reassign STREAM --replication-factor N`",
        )
    return [*fewer, *plan.moves]


def _blocked(state: ClusterMetadata, server: str) -> list[extensions.Blocked]:
    """Partitions whose only in-sync replica is on this server, which does not answer."""
    found = []
    for name, partition in state.each_partition():
        if partition.in_sync_replicas == [server]:
            others = [one for one in partition.replicas if one != server]
            reason = "no other replica is in sync" if others else "it has no other replica"
            found.append(extensions.Blocked(stream=name, partition=partition.id, reason=reason, replicas=others))
    return found
