"""`ElectUnclean`: a replica that may lack messages is to lead, because none that has them all is left.

What would be lost is found by comparing logs: up to where the chosen one's equals another's, by leader epochs, nothing is; what the
other has behind that is. Logs of servers that do not answer cannot be compared, and that is said too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.broker.api.calls import Deadline
from bascule.errors import BasculeError
from bascule.metadata.core.model.ops import ElectUnclean
from bascule.metadata.core.model.streams import Partition
from bascule.net.grpc.status import GrpcError, Status
from bascule.operations.checks import check_member, check_stream, submit
from bascule.operations.switchboard import refusal
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.broker.services import Services

SURVEY_SECONDS: Final = 2.0

Logs = dict[str, extensions.ReplicaLog]


# ── on the replica ───────────────────────────────────────────────────────────────────────────────


async def replica_log(
    services: Services, request: extensions.ReplicaLogRequest, _deadline: Deadline
) -> extensions.ReplicaLog:
    local = services.partitions.get(request.stream, request.partition)
    if local is None:
        raise refusal(Status.NOT_FOUND, f"{services.server_id} runs no replica of {request.stream}/{request.partition}")
    log = await asyncio.to_thread(lambda: local.log)
    return extensions.ReplicaLog(
        server=services.server_id,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        epochs=[extensions.LeaderEpoch(epoch=one.epoch, start_offset=one.start_offset) for one in log.epoch_entries],
    )


# ── where it was asked for ───────────────────────────────────────────────────────────────────────


async def elect_unclean(
    services: Services, request: extensions.ElectUncleanRequest, deadline: Deadline
) -> extensions.ElectUncleanResponse:
    partition = _find(services, request.stream, request.partition)
    check_member(services, request.replica, "replica")
    _check_replica(request, partition)
    logs = await collect(services, request.stream, partition, deadline)
    answering = [server for server in partition.in_sync_replicas if server in logs]
    if answering:
        raise refusal(
            Status.FAILED_PRECONDITION,
            f"{answering[0]} is in sync with {request.stream}/{partition.id} and answers: it can lead without a loss",
            "wait until it does; a leader that does not answer is replaced by itself",
        )
    chosen = logs.get(request.replica)
    if chosen is None:
        raise refusal(
            Status.FAILED_PRECONDITION,
            f"server `{request.replica}` does not answer: it cannot lead",
            _others_hint(logs),
        )
    answer = _response(partition, logs, chosen)
    if request.confirm:
        op = ElectUnclean(request.stream, partition.id, request.replica, partition.leader, partition.leader_epoch)
        await submit(services, op, deadline)
        answer.elected = True
    return answer


def _find(services: Services, stream: str, number: int) -> Partition:
    check_stream(services, stream)
    found = services.controller.metadata.streams[stream]
    partition = found.partition(number)
    if partition is None:
        raise refusal(
            Status.NOT_FOUND,
            f"stream `{stream}` has no partition {number}",
            f"its partitions are 0 to {len(found.partitions) - 1}",
        )
    return partition


def _check_replica(request: extensions.ElectUncleanRequest, partition: Partition) -> None:
    if request.replica not in partition.replicas:
        raise refusal(
            Status.INVALID_ARGUMENT,
            f"`replica` is `{request.replica}`: it has no replica of {request.stream}/{partition.id}",
            f"its replicas are {', '.join(partition.replicas)}",
        )
    if partition.paused:
        raise refusal(
            Status.FAILED_PRECONDITION,
            f"{request.stream}/{partition.id} is paused",
            f"`bascule stream resume {request.stream}` wakes it",
        )


def _others_hint(logs: Logs) -> str:
    if not logs:
        return "start a server that has a replica"
    return f"these have a replica and answer: {', '.join(sorted(logs))}"


async def collect(services: Services, stream: str, partition: Partition, deadline: Deadline) -> Logs:
    """The logs of those replicas that answer."""
    request = extensions.ReplicaLogRequest(stream=stream, partition=partition.id)
    timeout = min(SURVEY_SECONDS, deadline.left())

    async def ask(server: str) -> extensions.ReplicaLog | None:
        try:
            found: extensions.ReplicaLog = await services.administration.call(
                server, "ReplicaLog", request, timeout=timeout
            )
        except (BasculeError, GrpcError):
            return None
        found.in_sync = server in partition.in_sync_replicas
        return found

    found = await asyncio.gather(*map(ask, partition.replicas))
    return {log.server: log for log in found if log is not None}


def _response(partition: Partition, logs: Logs, chosen: extensions.ReplicaLog) -> extensions.ElectUncleanResponse:
    losses = [found for log in logs.values() if log is not chosen and (found := loss(chosen, log)).messages]
    first = min((one.from_offset for one in losses), default=chosen.log_end_offset)
    end = max((one.end_offset for one in losses), default=first)
    committed_end = max((one.committed_end_offset for one in losses), default=first)
    return extensions.ElectUncleanResponse(
        logs=[logs[server] for server in sorted(logs)],
        silent=[server for server in partition.in_sync_replicas if server not in logs],
        lost_from_offset=first,
        lost_to_offset=end - 1,
        lost_messages=end - first,
        lost_committed_messages=max(0, committed_end - first),
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """What one log has and the chosen one lacks."""

    from_offset: int
    end_offset: int
    committed_end_offset: int

    @property
    def messages(self) -> int:
        return self.end_offset - self.from_offset


def loss(chosen: extensions.ReplicaLog, other: extensions.ReplicaLog) -> Loss:
    common = common_end(chosen, other)
    return Loss(common, max(common, other.log_end_offset), min(other.high_watermark + 1, other.log_end_offset))


def common_end(one: extensions.ReplicaLog, other: extensions.ReplicaLog) -> int:
    """Up to which offset two logs are equal: an epoch has one leader, so what both have of the same epoch is the same."""
    ends, others = _epoch_ends(one), _epoch_ends(other)
    shared = [epoch for epoch in ends if epoch in others]
    if not shared:
        return min(one.log_end_offset, other.log_end_offset, _first_epoch_start(one), _first_epoch_start(other))
    latest = max(shared)
    return min(ends[latest], others[latest])


def _epoch_ends(log: extensions.ReplicaLog) -> dict[int, int]:
    """Exclusive end of each epoch, those without records left out."""
    entries = sorted((one.epoch, one.start_offset) for one in log.epochs)
    ends = [*(start for _, start in entries), log.log_end_offset][1:]
    return {epoch: end for (epoch, start), end in zip(entries, ends, strict=True) if end > start}


def _first_epoch_start(log: extensions.ReplicaLog) -> int:
    return min((one.start_offset for one in log.epochs), default=log.log_end_offset)
