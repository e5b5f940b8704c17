"""`bascule.Streams`: DescribeStream and SetStreamSettings, which Liftbridge's API does not have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from bascule.broker.api.audited import audited
from bascule.broker.api.calls import Handler, deadline_of, routes_of
from bascule.config.stream import StreamOverrides, changed_values, wire_values
from bascule.errors import BasculeError, InvalidConfig, LogClosed
from bascule.metadata.core.model.ops import SetStreamConfig
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.metadata.requests import CallDeadline, submit
from bascule.metadata.stream_options import RESERVED_STREAMS, effective_config
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import extensions_pb2 as extensions

if TYPE_CHECKING:
    from bascule.config.sections.cluster import ClusterConfig
    from bascule.metadata.controller import Controller
    from bascule.metadata.partition_starts import PartitionStarts
    from bascule.operations.switchboard import Switchboard
    from bascule.partition.registry import Partitions
    from bascule.partition.replica import LocalPartition
    from bascule.security.audit.log import AuditLog
    from bascule.security.authorization import Authorizer

SERVICE: Final = "bascule.Streams"
LEADER_SECONDS_MAX: Final = 3.0
"""Timeout of a question to a leader; a slower one counts as one that does not answer."""


class StreamCalls:
    def __init__(
        self,
        controller: Controller,
        switchboard: Switchboard,
        starts: PartitionStarts,
        authorizer: Authorizer,
        defaults: ClusterConfig,
        audit: AuditLog,
    ) -> None:
        self._controller = controller
        self._switchboard = switchboard
        self._starts = starts
        self._authorizer = authorizer
        self._defaults = defaults
        self._audit = audit

    def routes(self) -> dict[bytes, Route]:
        handlers: dict[str, tuple[Any, Handler]] = {
            "DescribeStream": (extensions.DescribeStreamRequest, self.describe),
            "SetStreamSettings": (extensions.SetStreamSettingsRequest, self.set_settings),
        }
        return routes_of(audited(handlers, self._audit), SERVICE)

    def _stream(self, name: str) -> Stream:
        stream = self._controller.metadata.streams.get(name)
        if stream is None:
            raise GrpcError(Status.NOT_FOUND, "stream not found")
        return stream

    # ── settings ─────────────────────────────────────────────────────────────────────────────────

    async def set_settings(
        self, request: extensions.SetStreamSettingsRequest, call: Call
    ) -> extensions.SetStreamSettingsResponse:
        deadline = deadline_of(call)
        self._authorizer.require(call.peer, request.name, "SetStreamSettings")
        if request.name in RESERVED_STREAMS:
            raise GrpcError(Status.INVALID_ARGUMENT, "Stream is reserved")
        stream = self._stream(request.name)
        given = {field.name: value.value for field, value in request.ListFields() if field.name != "name"}
        if not given:
            raise GrpcError(Status.INVALID_ARGUMENT, "the request names no setting: set at least one")
        try:
            values = changed_values(StreamOverrides(**given), effective_config(stream, self._defaults))
        except InvalidConfig as error:
            raise GrpcError(Status.INVALID_ARGUMENT, f"{error.message}: {error.hint}") from None
        await submit(self._controller, SetStreamConfig(request.name, values), deadline)
        await self._starts.settled(deadline)
        return extensions.SetStreamSettingsResponse()

    # ── describing ───────────────────────────────────────────────────────────────────────────────

    async def describe(
        self, request: extensions.DescribeStreamRequest, call: Call
    ) -> extensions.DescribeStreamResponse:
        deadline = deadline_of(call)
        self._authorizer.require(call.peer, request.name, "DescribeStream")
        stream = self._stream(request.name)
        config = effective_config(stream, self._defaults)
        known = await self._ask_leaders(stream, min(LEADER_SECONDS_MAX, deadline.left()))
        return extensions.DescribeStreamResponse(
            name=stream.name,
            subject=stream.subject,
            group=stream.group,
            creation_timestamp=stream.created_ns,
            settings={name: _text(value) for name, value in wire_values(config).items()},
            partitions=[_described(one, known) for one in stream.partitions],
        )

    async def _ask_leaders(self, stream: Stream, timeout: float) -> dict[int, extensions.PartitionDescription | str]:
        """What each leader stores, or why it is not known, by partition."""
        led: dict[str, list[int]] = {}
        for partition in stream.partitions:
            led.setdefault(partition.leader, []).append(partition.id)
        answers = await asyncio.gather(*(self._ask(stream.name, *one, timeout) for one in led.items()))
        return {number: found for answer in answers for number, found in answer.items()}

    async def _ask(
        self, stream: str, leader: str, numbers: list[int], timeout: float
    ) -> dict[int, extensions.PartitionDescription | str]:
        if not leader:
            return dict.fromkeys(numbers, "the partition has no leader")
        request = extensions.LogsRequest(stream=stream, partitions=numbers)
        try:
            answer = await self._switchboard.call(leader, "Logs", request, timeout=timeout)
        except BasculeError as error:
            return dict.fromkeys(numbers, error.message)
        except GrpcError as error:
            return dict.fromkeys(numbers, error.text)
        return {one.partition: one for one in answer.partitions}


class LocalLogs:
    """Answers `Logs` for the partitions that this server leads."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def answer(self, request: extensions.LogsRequest, _deadline: CallDeadline) -> extensions.LogsResponse:
        return await asyncio.to_thread(self._look, request)  # may open logs

    def _look(self, request: extensions.LogsRequest) -> extensions.LogsResponse:
        found = [self._one(request.stream, number) for number in request.partitions]
        return extensions.LogsResponse(partitions=found)

    def _one(self, stream: str, number: int) -> extensions.PartitionDescription:
        local = self._partitions.get(stream, number)
        if local is None:
            last = self._partitions.last_known(stream, number)
            if last is None:
                return extensions.PartitionDescription(
                    partition=number, error="the leader has not started the partition"
                )
            return extensions.PartitionDescription(
                partition=number,
                log_start_offset=last.log_start_offset,
                high_watermark=last.high_watermark,
                log_end_offset=last.newest_offset + 1,
                first_timestamp=last.first_ns,
                last_timestamp=last.latest_ns,
            )
        try:
            return _of_log(local, number)
        except LogClosed:
            return extensions.PartitionDescription(partition=number, error="the partition is being stopped")
        except BasculeError as error:
            return extensions.PartitionDescription(partition=number, error=error.message)


def _of_log(local: LocalPartition, number: int) -> extensions.PartitionDescription:
    log = local.log
    return extensions.PartitionDescription(
        partition=number,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        log_end_offset=log.log_end_offset,
        size_bytes=log.size_bytes,
        messages=log.record_count,
        first_timestamp=max(0, log.segments.oldest.first_timestamp),
        last_timestamp=log.last_timestamp if log.record_count else 0,
    )


def _described(
    partition: Partition, known: dict[int, extensions.PartitionDescription | str]
) -> extensions.PartitionDescription:
    found = known.get(partition.id, "the leader did not answer for this partition")
    one = extensions.PartitionDescription(partition=partition.id, high_watermark=-1)
    if isinstance(found, str):
        one.error = found
    else:
        one.CopyFrom(found)
    one.leader = partition.leader
    one.replicas.extend(partition.replicas)
    one.in_sync_replicas.extend(partition.in_sync_replicas)
    one.paused = partition.paused
    one.readonly = partition.readonly
    return one


def _text(value: int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
