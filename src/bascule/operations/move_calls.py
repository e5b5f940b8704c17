"""`AddServers`, `Rebalance`, `Reassign` and `CancelReassignment`: the controller plans, and queues what is to be moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from bascule.broker.api.calls import Deadline
from bascule.metadata.core.model.ops import CancelReassignment
from bascule.metadata.core.model.refusal import Refusal
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.rebalance import (
    LeaderMove,
    ReplicaMove,
    plan_leaders,
    plan_rebalance,
    plan_replication_factor,
)
from bascule.metadata.core.state import Metadata
from bascule.net.grpc.status import Status
from bascule.operations.checks import brokers_that_answer, check_controller, check_member, check_stream, submit
from bascule.operations.switchboard import refusal
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.broker.services import Services

HAND_BACK_SECONDS = 5.0


async def rebalance(
    services: Services, request: extensions.RebalanceRequest, _deadline: Deadline
) -> extensions.MovesResponse:
    check_controller(services)
    for name in request.streams:
        check_stream(services, name)
    state = services.controller.metadata
    streams = set(request.streams) or None
    moves: Sequence[ReplicaMove] = ()
    if not request.leaders_only:
        moves = plan_rebalance(state, await brokers_that_answer(services), streams=streams).moves
    leaders = await _leader_moves(services, streams)
    answer = response(state, moves, leaders)
    if not request.dry_run:
        services.administration.moves.add(moves)
        services.administration.moves.add_leaders(streams or state.streams)
    return answer


async def _leader_moves(services: Services, streams: Collection[str] | None) -> list[LeaderMove]:
    answering = await services.administration.answering(services)
    return [
        move
        for move in plan_leaders(services.controller.metadata)
        if (streams is None or move.stream in streams) and {move.leader, move.successor} <= answering
    ]


async def add_servers(
    services: Services, request: extensions.AddServersRequest, _deadline: Deadline
) -> extensions.MovesResponse:
    check_controller(services)
    if not request.servers:
        raise refusal(Status.INVALID_ARGUMENT, "`servers` is empty", "name the servers that are to get replicas")
    brokers = await brokers_that_answer(services)
    state = services.controller.metadata
    for server in request.servers:
        check_member(services, server, "servers")
        _check_can_have_replicas(services, server, {broker.id for broker in brokers})
    wanted = set(request.servers)
    planned = plan_rebalance(state, brokers).moves
    moves = [move for move in planned if wanted & (set(move.replicas) - set(_goal(state, move)))]
    answer = response(state, moves, [])
    if not request.dry_run:
        services.administration.moves.add(moves)
        services.administration.moves.add_leaders(state.streams)
    return answer


def _check_can_have_replicas(services: Services, server: str, answering: Collection[str]) -> None:
    if server in services.controller.metadata.leaving:
        raise refusal(
            Status.FAILED_PRECONDITION,
            f"server `{server}` is leaving and is given no replicas",
            f"`bascule cluster drain {server} --undo` takes that back",
        )
    if server not in answering:
        raise refusal(Status.FAILED_PRECONDITION, f"server `{server}` does not answer", "start it first")


async def reassign(
    services: Services, request: extensions.ReassignRequest, _deadline: Deadline
) -> extensions.MovesResponse:
    check_controller(services)
    check_stream(services, request.stream)
    state = services.controller.metadata
    chosen = _chosen(state, request.stream, request.partitions)
    if bool(request.replicas) == (request.replication_factor != 0):
        raise refusal(
            Status.INVALID_ARGUMENT, "either `replicas` or `replication_factor` has to be given", "give one of them"
        )
    moves = await _named(services, request, chosen) if request.replicas else await _resized(services, request, chosen)
    answer = response(state, moves, [])
    if not request.dry_run:
        services.administration.moves.add(moves)
    return answer


async def _named(services: Services, request: extensions.ReassignRequest, chosen: list[Partition]) -> list[ReplicaMove]:
    replicas = tuple(request.replicas)
    if len(set(replicas)) != len(replicas):
        raise refusal(
            Status.INVALID_ARGUMENT, f"`replicas` is `{','.join(replicas)}`: a server is named twice", "name each once"
        )
    answering = await services.administration.answering(services)
    for server in replicas:
        check_member(services, server, "replicas")
        if not all(server in partition.replicas for partition in chosen):
            _check_can_have_replicas(services, server, answering)
    moves = [ReplicaMove(request.stream, partition.id, replicas) for partition in chosen]
    return [move for move in moves if _goal(services.controller.metadata, move) != list(replicas)]


async def _resized(
    services: Services, request: extensions.ReassignRequest, chosen: list[Partition]
) -> list[ReplicaMove]:
    brokers = await brokers_that_answer(services)
    plan = plan_replication_factor(services.controller.metadata, request.stream, request.replication_factor, brokers)
    if isinstance(plan, Refusal):
        right = f"use 1 to {len(brokers)}, as many as there are servers that answer, or -1 for all of them"
        raise refusal(
            Status[plan.code],
            f"`replication_factor` is `{request.replication_factor}`: {plan.text.partition(':')[0]}",
            right,
        )
    numbers = {partition.id for partition in chosen}
    return [move for move in plan.moves if move.partition in numbers]


def _chosen(state: Metadata, stream: str, numbers: Collection[int]) -> list[Partition]:
    partitions = state.streams[stream].partitions
    for number in numbers:
        if not 0 <= number < len(partitions):
            raise refusal(
                Status.NOT_FOUND,
                f"stream `{stream}` has no partition {number}",
                f"its partitions are 0 to {len(partitions) - 1}",
            )
    return [partition for partition in partitions if not numbers or partition.id in numbers]


# ── cancelling ───────────────────────────────────────────────────────────────────────────────────


async def cancel(
    services: Services, request: extensions.CancelReassignmentRequest, deadline: Deadline
) -> extensions.MovesResponse:
    check_controller(services)
    state = services.controller.metadata
    if request.stream:
        check_stream(services, request.stream)
        chosen = [(request.stream, one) for one in _chosen(state, request.stream, request.partitions)]
    else:
        chosen = list(state.each_partition())
    answer = extensions.MovesResponse()
    for stream, partition in chosen:
        dropped = services.administration.moves.drop((stream, partition.id))
        if partition.target_replicas:
            answer.moves.append(
                extensions.Move(
                    stream=stream,
                    partition=partition.id,
                    to=partition.original_replicas,
                    **{"from": partition.replicas},
                )
            )
            await _give_up(services, stream, partition, deadline)
        elif dropped is not None:
            answer.moves.append(_move(state, dropped))
    return answer


async def _give_up(services: Services, stream: str, partition: Partition, deadline: Deadline) -> None:
    """A replica that was added and leads already hands over first: the partition goes back to those it had."""
    before = [one for one in partition.original_replicas if one in partition.in_sync_replicas]
    if partition.leader not in partition.original_replicas and before:
        request = extensions.HandOverRequest(stream=stream, partition=partition.id, successor=before[0])
        timeout = min(HAND_BACK_SECONDS, deadline.left())
        await services.administration.call(partition.leader, "HandOver", request, timeout=timeout)
    await submit(services, CancelReassignment(stream, partition.id), deadline)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def response(state: Metadata, moves: Sequence[ReplicaMove], leaders: Iterable[LeaderMove]) -> extensions.MovesResponse:
    found = list(leaders)
    return extensions.MovesResponse(
        moves=[_move(state, move) for move in moves],
        leaders=[
            extensions.LeaderMove(stream=one.stream, partition=one.partition, to=one.successor, **{"from": one.leader})
            for one in found
        ],
        load=_load(state, moves, found),
    )


def _goal(state: Metadata, move: ReplicaMove) -> list[str]:
    """Where the partition is, or is going already."""
    partition = state.find(move.stream, move.partition)
    return [] if partition is None else partition.target_replicas or partition.replicas


def _move(state: Metadata, move: ReplicaMove) -> extensions.Move:
    return extensions.Move(
        stream=move.stream, partition=move.partition, to=move.replicas, **{"from": _goal(state, move)}
    )


def _load(state: Metadata, moves: Iterable[ReplicaMove], leaders: Iterable[LeaderMove]) -> list[extensions.ServerLoad]:
    """What each server has, and will have when everything that is under way or planned has come to its end."""
    found: dict[str, extensions.ServerLoad] = {}

    def of(server: str) -> extensions.ServerLoad:
        return found.setdefault(server, extensions.ServerLoad(server=server))

    for _, partition in state.each_partition():
        for server in partition.target_replicas or partition.replicas:
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
