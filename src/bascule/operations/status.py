"""`Status` combines the metadata with the `Report` of every server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from bascule import __version__, limits
from bascule.errors import BasculeError, Unavailable
from bascule.metadata.core.model.streams import Partition
from bascule.metadata.core.rebalance import ReplicaMove
from bascule.metadata.core.state import ClusterMetadata
from bascule.net.grpc.status import GrpcError
from bascule.operations.move_queue import MoveQueue, stalled
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.log.disk.space import DiskSpace
    from bascule.metadata.controller import Controller
    from bascule.metadata.requests import CallDeadline
    from bascule.metadata.server_directory import ServerDirectory
    from bascule.operations.server_life import ServerLife
    from bascule.operations.switchboard import Switchboard
    from bascule.partition.registry import Partitions
    from bascule.partition.states import ReplicaState

REPORT_SECONDS: Final = 1.0
"""Timeout of a report; a slower server counts as one that does not answer."""

Reports = dict[str, extensions.ReportResponse]
_Key = tuple[str, int]


class ServerReports:
    def __init__(
        self, controller: Controller, partitions: Partitions, moves: MoveQueue, life: ServerLife, space: DiskSpace
    ) -> None:
        self._space = space
        self._controller = controller
        self._partitions = partitions
        self._moves = moves
        self._life = life

    async def report(self, _request: extensions.ReportRequest, _deadline: CallDeadline) -> extensions.ReportResponse:
        answer = extensions.ReportResponse(
            version=__version__,
            uptime_ms=int((time.monotonic() - self._life.started) * 1000),
            draining=self._life.is_draining,
            disk_full=self._space.is_full(),
        )
        if (known := self._space.known) is not None:
            answer.data_free_bytes, answer.data_size_bytes = known.free_bytes, known.size_bytes
        state = self._controller.metadata
        for one in self._partitions.replica_states():
            partition = state.find(one.stream, one.partition)
            if partition is None or not partition.target_replicas:
                continue
            if len(answer.partitions) == limits.STATUS_PARTITIONS_MAX:
                answer.left_out += 1
            else:
                answer.partitions.append(_progress(one, partition))
        if self._controller.is_leader:
            waiting = self._moves.waiting
            answer.waiting.extend(_waiting(state, move) for move in waiting[: limits.STATUS_PARTITIONS_MAX])
            answer.leaders_waiting = self._moves.leaders_waiting
        return answer


class StatusCalls:
    def __init__(self, controller: Controller, directory: ServerDirectory, switchboard: Switchboard) -> None:
        self._controller = controller
        self._directory = directory
        self._switchboard = switchboard

    async def status(self, _request: extensions.StatusRequest, deadline: CallDeadline) -> extensions.StatusResponse:
        reports = await self._reports(min(REPORT_SECONDS, deadline.left()))
        controller = self._controller
        if controller.leader in reports:
            # A move that the controller has started is no longer in its queue; stale metadata would not show it either.
            with contextlib.suppress(Unavailable):
                await controller.fresh_metadata(timeout=min(REPORT_SECONDS, deadline.left()))
        state = controller.metadata
        answer = extensions.StatusResponse(
            controller=controller.leader or "",
            members=await self._members(reports),
            throttle_bytes_per_second=state.replication_throttle,
        )
        told = {(one.stream, one.partition): one for found in reports.values() for one in found.partitions}
        for name, partition in state.each_partition():
            if partition.target_replicas:
                if len(answer.reassignments) == limits.STATUS_PARTITIONS_MAX:
                    answer.reassignments_left_out += 1
                else:
                    answer.reassignments.append(_reassignment(name, partition, told, set(reports)))
            if partition.leader not in reports or partition.is_under_replicated:
                if len(answer.troubles) == limits.STATUS_PARTITIONS_MAX:
                    answer.troubles_left_out += 1
                else:
                    answer.troubles.append(_trouble(name, partition, reports))
        controller_report = reports.get(controller.leader or "")
        if controller_report is not None:
            answer.waiting.extend(controller_report.waiting)
            answer.leaders_waiting = controller_report.leaders_waiting
        return answer

    async def _reports(self, timeout: float) -> Reports:
        """The reports of the members that answer."""

        async def ask(server: str) -> extensions.ReportResponse | None:
            try:
                found: extensions.ReportResponse = await self._switchboard.call(
                    server, "Report", extensions.ReportRequest(), timeout=timeout
                )
                return found
            except (BasculeError, GrpcError):
                return None

        members = self._controller.members
        found = await asyncio.gather(*map(ask, members))
        return {server: one for server, one in zip(members, found, strict=True) if one is not None}

    async def _members(self, reports: Reports) -> list[extensions.Member]:
        controller = self._controller
        state = controller.metadata
        addresses = {one.id: one for one in await self._directory.servers(controller.members, timeout=REPORT_SECONDS)}
        replicas: Counter[str] = Counter()
        leaders: Counter[str] = Counter()
        for _, partition in state.each_partition():
            replicas.update(partition.replicas)
            leaders[partition.leader] += 1
        found = []
        for server in controller.members:
            address, said = addresses.get(server), reports.get(server)
            member = extensions.Member(
                id=server,
                host="" if address is None else address.host,
                port=0 if address is None else address.port,
                is_controller=server == controller.leader,
                is_voter=server in controller.driver.node.membership.voters,
                answers=said is not None,
                state=extensions.Member.LEAVING if server in state.leaving else extensions.Member.ACTIVE,
                replicas=replicas[server],
                leaders=leaders[server],
                groups=state.coordinated(server),
            )
            if said is not None:
                member.version, member.uptime_ms = said.version, said.uptime_ms
                member.disk_full = said.disk_full
                member.data_free_bytes, member.data_size_bytes = said.data_free_bytes, said.data_size_bytes
                if said.draining:
                    member.state = extensions.Member.DRAINING
            found.append(member)
        return found


def _progress(one: ReplicaState, partition: Partition) -> extensions.Reassignment:
    found = extensions.Reassignment(
        stream=one.stream,
        partition=one.partition,
        log_end_offset=one.log_end_offset,
        high_watermark=one.high_watermark,
    )
    for server in partition.replicas:
        progress = one.replicas.get(server)
        if server == partition.leader:
            found.replicas.add(server=server, log_end_offset=one.log_end_offset, in_sync=True)
        elif progress is not None:
            found.replicas.add(
                server=server,
                log_end_offset=progress.log_end_offset,
                lag_messages=progress.lag_messages,
                in_sync=server in partition.in_sync_replicas,
                seen_ms_ago=int(progress.seconds_since_seen * 1000),
            )
    return found


def _waiting(state: ClusterMetadata, move: ReplicaMove) -> extensions.Move:
    partition = state.find(move.stream, move.partition)
    before = [] if partition is None else partition.replicas
    return extensions.Move(stream=move.stream, partition=move.partition, to=move.replicas, **{"from": before})


def _reassignment(
    name: str, partition: Partition, told: dict[_Key, extensions.Reassignment], answering: set[str]
) -> extensions.Reassignment:
    found = extensions.Reassignment(stream=name, partition=partition.id, log_end_offset=-1, high_watermark=-1)
    known = told.get((name, partition.id))
    if known is not None:
        found.CopyFrom(known)
    else:
        for server in partition.replicas:
            in_sync = server in partition.in_sync_replicas
            found.replicas.add(server=server, log_end_offset=-1, lag_messages=-1, in_sync=in_sync, seen_ms_ago=-1)
    found.leader = partition.leader
    getattr(found, "from").extend(partition.original_replicas)
    found.to.extend(partition.target_replicas)
    found.stalled = stalled(partition, answering)
    return found


def _trouble(name: str, partition: Partition, reports: Reports) -> extensions.PartitionTrouble:
    return extensions.PartitionTrouble(
        stream=name,
        partition=partition.id,
        leader=partition.leader,
        leader_answers=partition.leader in reports,
        replicas=partition.replicas,
        in_sync_replicas=partition.in_sync_replicas,
        paused=partition.paused,
    )
