"""`ElectUnclean`: makes a replica leader that may lack messages, because no in-sync replica is left.

The answer lists what is lost. The logs of the replicas are compared by their leader epochs: the messages of another log after the
common prefix are lost. Logs of servers that do not answer cannot be compared; the answer names those servers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError
from bascule.metadata.core.model.ops import ElectUnclean
from bascule.metadata.core.model.streams import Partition
from bascule.net.grpc.status import GrpcError, Status
from bascule.operations.switchboard import Switchboard, refusal
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.metadata.requests import CallDeadline
    from bascule.operations.members import Members
    from bascule.partition.registry import Partitions

SURVEY_SECONDS: Final = 2.0

Logs = dict[str, extensions.ReplicaLog]


class Elections:
    def __init__(self, members: Members, switchboard: Switchboard, partitions: Partitions) -> None:
        self._members = members
        self._switchboard = switchboard
        self._partitions = partitions

    async def replica_log(
        self, request: extensions.ReplicaLogRequest, _deadline: CallDeadline
    ) -> extensions.ReplicaLog:
        """On the replica: the extent and the leader epochs of its log."""
        server_id = self._members.controller.server_id
        local = self._partitions.get(request.stream, request.partition)
        if local is None:
            raise refusal(Status.NOT_FOUND, f"{server_id} runs no replica of {request.stream}/{request.partition}")
        log = await asyncio.to_thread(lambda: local.log)
        return extensions.ReplicaLog(
            server=server_id,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
            epochs=[
                extensions.LeaderEpoch(epoch=one.epoch, start_offset=one.start_offset) for one in log.epoch_entries
            ],
        )

    # ── where it was asked for ───────────────────────────────────────────────────────────────────

    async def elect_unclean(
        self, request: extensions.ElectUncleanRequest, deadline: CallDeadline
    ) -> extensions.ElectUncleanResponse:
        partition = self._find(request.stream, request.partition)
        self._members.check_member(request.replica, "replica")
        _check_replica(request, partition)
        logs = await self.collect(request.stream, partition, deadline)
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
            await self._members.submit(op, deadline)
            answer.elected = True
        return answer

    def _find(self, stream: str, number: int) -> Partition:
        self._members.check_stream(stream)
        found = self._members.controller.metadata.streams[stream]
        partition = found.partition(number)
        if partition is None:
            raise refusal(
                Status.NOT_FOUND,
                f"stream `{stream}` has no partition {number}",
                f"its partitions are 0 to {len(found.partitions) - 1}",
            )
        return partition

    async def collect(self, stream: str, partition: Partition, deadline: CallDeadline) -> Logs:
        """The logs of the replicas that answer."""
        request = extensions.ReplicaLogRequest(stream=stream, partition=partition.id)
        timeout = min(SURVEY_SECONDS, deadline.left())

        async def ask(server: str) -> extensions.ReplicaLog | None:
            try:
                found: extensions.ReplicaLog = await self._switchboard.call(
                    server, "ReplicaLog", request, timeout=timeout
                )
            except (BasculeError, GrpcError):
                return None
            found.in_sync = server in partition.in_sync_replicas
            return found

        found = await asyncio.gather(*map(ask, partition.replicas))
        return {log.server: log for log in found if log is not None}


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
    """The offsets that another log has and the log of the chosen replica lacks."""

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
    """The offset up to which two logs are equal. An epoch has one leader, so two logs agree where both have the epoch."""
    ends, others = _epoch_ends(one), _epoch_ends(other)
    shared = [epoch for epoch in ends if epoch in others]
    if not shared:
        return min(one.log_end_offset, other.log_end_offset, _first_epoch_start(one), _first_epoch_start(other))
    latest = max(shared)
    return min(ends[latest], others[latest])


def _epoch_ends(log: extensions.ReplicaLog) -> dict[int, int]:
    """Exclusive end of each epoch that has records."""
    entries = sorted((one.epoch, one.start_offset) for one in log.epochs)
    ends = [*(start for _, start in entries), log.log_end_offset][1:]
    return {epoch: end for (epoch, start), end in zip(entries, ends, strict=True) if end > start}


def _first_epoch_start(log: extensions.ReplicaLog) -> int:
    return min((one.start_offset for one in log.epochs), default=log.log_end_offset)
