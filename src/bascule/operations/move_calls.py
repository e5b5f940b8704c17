"""`AddServers`, `Rebalance`, `Reassign` and `CancelReassignment`: the controller plans the moves and queues them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from bascule.metadata.core.model.ops import CancelReassignment
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.metadata.core.rebalance import (
    LeaderMove,
    ReplicaMove,
    plan_leaders,
    plan_rebalance,
    plan_replication_factor,
)
from bascule.metadata.core.state import ClusterMetadata
from bascule.metadata.stream_options import settings_of
from bascule.net.grpc.status import Status
from bascule.operations.switchboard import Switchboard, refusal
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.metadata.requests import CallDeadline
    from bascule.operations.members import Members
    from bascule.operations.move_queue import MoveQueue

HAND_BACK_SECONDS = 5.0


class MoveCalls:
    def __init__(self, members: Members, moves: MoveQueue, switchboard: Switchboard) -> None:
        self._members = members
        self._moves = moves
        self._switchboard = switchboard

    async def rebalance(
        self, request: extensions.RebalanceRequest, _deadline: CallDeadline
    ) -> extensions.MovesResponse:
        self._members.check_controller()
        for name in request.streams:
            self._members.check_stream(name)
        state = self._members.controller.metadata
        streams = set(request.streams) or None
        moves: Sequence[ReplicaMove] = ()
        if not request.leaders_only:
            moves = plan_rebalance(state, await self._members.places(), streams=streams).moves
        leaders = await self._leader_moves(streams)
        answer = response(state, moves, leaders)
        if not request.dry_run:
            self._moves.add(moves)
            self._moves.add_leaders(streams or state.streams)
        return answer

    async def _leader_moves(self, streams: Collection[str] | None) -> list[LeaderMove]:
        answering = await self._members.answering()
        return [
            move
            for move in plan_leaders(self._members.controller.metadata)
            if (streams is None or move.stream in streams) and {move.leader, move.successor} <= answering
        ]

    async def add_servers(
        self, request: extensions.AddServersRequest, _deadline: CallDeadline
    ) -> extensions.MovesResponse:
        self._members.check_controller()
        if not request.servers:
            raise refusal(Status.INVALID_ARGUMENT, "`servers` is empty", "name the servers to move replicas to")
        brokers = await self._members.places()
        state = self._members.controller.metadata
        for server in request.servers:
            self._members.check_member(server, "servers")
            self._check_can_have_replicas(server, {broker.id for broker in brokers})
        wanted = set(request.servers)
        planned = plan_rebalance(state, brokers).moves
        moves = [move for move in planned if wanted & (set(move.replicas) - set(_goal(state, move)))]
        answer = response(state, moves, [])
        if not request.dry_run:
            self._moves.add(moves)
            self._moves.add_leaders(state.streams)
        return answer

    def _check_can_have_replicas(self, server: str, answering: Collection[str]) -> None:
        if server in self._members.controller.metadata.leaving:
            raise refusal(
                Status.FAILED_PRECONDITION,
                f"server `{server}` is leaving and gets no replicas",
                f"`bascule cluster drain {server} --undo` keeps it in the cluster",
            )
        if server not in answering:
            raise refusal(Status.FAILED_PRECONDITION, f"server `{server}` does not answer", "start it first")

    async def reassign(self, request: extensions.ReassignRequest, _deadline: CallDeadline) -> extensions.MovesResponse:
        self._members.check_controller()
        self._members.check_stream(request.stream)
        state = self._members.controller.metadata
        chosen = _chosen(state, request.stream, request.partitions)
        if bool(request.replicas) == (request.replication_factor != 0):
            raise refusal(
                Status.INVALID_ARGUMENT,
                "give either `replicas` or `replication_factor`",
                "exactly one of them is required",
            )
        moves = await self._named(request, chosen) if request.replicas else await self._resized(request, chosen)
        _check_min_insync_replicas(state.streams[request.stream], moves)
        answer = response(state, moves, [])
        if not request.dry_run:
            self._moves.add(moves)
        return answer

    async def _named(self, request: extensions.ReassignRequest, chosen: list[Partition]) -> list[ReplicaMove]:
        replicas = tuple(request.replicas)
        if len(set(replicas)) != len(replicas):
            raise refusal(
                Status.INVALID_ARGUMENT,
                f"`replicas` is `{','.join(replicas)}`: a server is named twice",
                "name each once",
            )
        answering = await self._members.answering()
        for server in replicas:
            self._members.check_member(server, "replicas")
            if not all(server in partition.replicas for partition in chosen):
                self._check_can_have_replicas(server, answering)
        moves = [ReplicaMove(request.stream, partition.id, replicas) for partition in chosen]
        return [move for move in moves if _goal(self._members.controller.metadata, move) != list(replicas)]

    async def _resized(self, request: extensions.ReassignRequest, chosen: list[Partition]) -> list[ReplicaMove]:
        brokers = await self._members.places()
        plan = plan_replication_factor(
            self._members.controller.metadata, request.stream, request.replication_factor, brokers
        )
        if isinstance(plan, Refusal):
            right = f"use 1 to {len(brokers)}, as many as there are servers that answer, or -1 for all of them"
            raise refusal(
                Status[plan.code],
                f"`replication_factor` is `{request.replication_factor}`: {plan.text.partition(':')[0]}",
                right,
            )
        numbers = {partition.id for partition in chosen}
        return [move for move in plan.moves if move.partition in numbers]

    async def cancel(
        self, request: extensions.CancelReassignmentRequest, deadline: CallDeadline
    ) -> extensions.MovesResponse:
        self._members.check_controller()
        state = self._members.controller.metadata
        if request.stream:
            self._members.check_stream(request.stream)
            chosen = [(request.stream, one) for one in _chosen(state, request.stream, request.partitions)]
        else:
            chosen = list(state.each_partition())
        answer = extensions.MovesResponse()
        for stream, partition in chosen:
            dropped = self._moves.drop((stream, partition.id))
            if partition.target_replicas:
                answer.moves.append(
                    extensions.Move(
                        stream=stream,
                        partition=partition.id,
                        to=partition.original_replicas,
                        **{"from": partition.replicas},
                    )
                )
                await self._give_up(stream, partition, deadline)
            elif dropped is not None:
                answer.moves.append(_move(state, dropped))
        return answer

    async def _give_up(self, stream: str, partition: Partition, deadline: CallDeadline) -> None:
        """Cancel a move. An added replica that already leads hands over first, because the partition returns to its old replicas."""
        before = [one for one in partition.original_replicas if one in partition.in_sync_replicas]
        if partition.leader not in partition.original_replicas and before:
            request = extensions.HandOverRequest(stream=stream, partition=partition.id, successor=before[0])
            timeout = min(HAND_BACK_SECONDS, deadline.left())
            await self._switchboard.call(partition.leader, "HandOver", request, timeout=timeout)
        await self._members.submit(CancelReassignment(stream, partition.id), deadline)


def _check_min_insync_replicas(stream: Stream, moves: Iterable[ReplicaMove]) -> None:
    minimum = settings_of(stream).min_insync_replicas
    for move in moves:
        if len(move.replicas) < minimum:
            raise refusal(
                Status.INVALID_ARGUMENT,
                f"partition {move.partition} of stream `{stream.name}` would have {len(move.replicas)} replicas, but its "
                f"`min.insync.replicas` is {minimum}: it could commit no message",
                f"give it {minimum} replicas or more",
            )


def _chosen(state: ClusterMetadata, stream: str, numbers: Collection[int]) -> list[Partition]:
    partitions = state.streams[stream].partitions
    for number in numbers:
        if not 0 <= number < len(partitions):
            raise refusal(
                Status.NOT_FOUND,
                f"stream `{stream}` has no partition {number}",
                f"its partitions are 0 to {len(partitions) - 1}",
            )
    return [partition for partition in partitions if not numbers or partition.id in numbers]


def response(
    state: ClusterMetadata, moves: Sequence[ReplicaMove], leaders: Iterable[LeaderMove]
) -> extensions.MovesResponse:
    found = list(leaders)
    return extensions.MovesResponse(
        moves=[_move(state, move) for move in moves],
        leaders=[
            extensions.LeaderMove(stream=one.stream, partition=one.partition, to=one.successor, **{"from": one.leader})
            for one in found
        ],
        load=_load(state, moves, found),
    )


def _goal(state: ClusterMetadata, move: ReplicaMove) -> list[str]:
    """The replicas of the partition after its present move."""
    partition = state.find(move.stream, move.partition)
    return [] if partition is None else partition.final_replicas


def _move(state: ClusterMetadata, move: ReplicaMove) -> extensions.Move:
    return extensions.Move(
        stream=move.stream, partition=move.partition, to=move.replicas, **{"from": _goal(state, move)}
    )


def _load(
    state: ClusterMetadata, moves: Iterable[ReplicaMove], leaders: Iterable[LeaderMove]
) -> list[extensions.ServerLoad]:
    """The replicas and leaderships of each server before and after all present and planned moves."""
    found: dict[str, extensions.ServerLoad] = {}

    def of(server: str) -> extensions.ServerLoad:
        return found.setdefault(server, extensions.ServerLoad(server=server))

    for _, partition in state.each_partition():
        for server in partition.final_replicas:
            of(server).replicas_before += 1
            of(server).replicas_after += 1
        of(partition.leader).leaders_before += 1
        of(partition.leader).leaders_after += 1
    for move in moves:
        for server in _goal(state, move):
            of(server).replicas_after -= 1
        for server in move.replicas:
            of(server).replicas_after += 1
    for one in leaders:
        of(one.leader).leaders_after -= 1
        of(one.successor).leaders_after += 1
    return [found[server] for server in sorted(found)]
