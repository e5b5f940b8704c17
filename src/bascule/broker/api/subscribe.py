"""Subscribe: checks the request, finds the range of offsets, and starts a subscription."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from bascule.broker.api.calls import check_texts
from bascule.config.values.kinds import INT64_MAX
from bascule.errors import BasculeError, LogEmpty, TimestampOutOfRange, grpc_status, without_paths
from bascule.kernels.calls.subscribe import SubscribeStream
from bascule.log import PartitionLog
from bascule.metadata.controller import Controller
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.metadata.partition_starts import PartitionStarts
from bascule.names import id_fault
from bascule.net.grpc.server import Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.partition.publisher import InFlight
from bascule.partition.registry import Partitions
from bascule.partition.replica import LocalPartition
from bascule.proto.api_pb2 import StartPosition, StopPosition, SubscribeRequest
from bascule.readers.subscription import ForwardSubscription, HeldSlices, ReverseSubscription
from bascule.security.authorization import Authorizer
from bascule.security.running_calls import RunningCalls

CATCH_UP_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class SubscribedRange:
    """From an offset, to an offset inclusive or without end."""

    start: int
    stop: int | None


class SubscribeApi:
    def __init__(
        self,
        controller: Controller,
        partitions: Partitions,
        in_flight: InFlight,
        starts: PartitionStarts,
        authorizer: Authorizer,
        running: RunningCalls,
        is_cut_off: Callable[[], bool],
    ) -> None:
        self._controller = controller
        self._partitions = partitions
        self._in_flight = in_flight
        self._starts = starts
        self._authorizer = authorizer
        self._running = running
        self._is_cut_off = is_cut_off
        self._held = HeldSlices()
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> dict[bytes, Route]:
        return {b"/proto.API/Subscribe": lambda: SubscribeStream(self.begin)}

    def begin(self, stream: SubscribeStream, data: bytes) -> None:
        try:
            request = SubscribeRequest.FromString(data)
        except DecodeError:
            stream.finish(int(Status.INTERNAL), "the request is not valid protobuf")
            return
        if not request.resume and self._in_flight.is_empty and self._group_fault(request) is None:
            self._try(stream, request)
            return
        task = asyncio.get_running_loop().create_task(self._prepare(stream, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prepare(self, stream: SubscribeStream, request: SubscribeRequest) -> None:
        """Resume a paused partition, and wait for messages that clients of this server have published and NATS has not delivered yet:
        the subscriber's start position may refer to them."""
        if request.resume and not await self._resumed(stream, request):
            return
        if not self._in_flight.is_empty:
            await self._in_flight.arrive()
        if self._group_fault(request) is not None:
            # The member may have joined through another server whose op this one has not applied yet.
            with contextlib.suppress(BasculeError):
                await self._controller.fresh_metadata(timeout=CATCH_UP_SECONDS)
        if not stream.is_over:
            self._try(stream, request)

    async def _resumed(self, stream: SubscribeStream, request: SubscribeRequest) -> bool:
        try:
            self._authorizer.require(stream.peer, request.stream, "Subscribe")
            found = self._controller.metadata.streams.get(request.stream)
            partition = None if found is None else found.partition(request.partition)
            if partition is not None and partition.paused:
                await self._starts.resume(request.stream, request.partition)
        except GrpcError as error:
            if not stream.is_over:
                stream.finish(int(Status.INTERNAL), f"failed to resume the partition: {error.text}")
            return False
        except BasculeError as error:
            if not stream.is_over:
                stream.finish(int(Status[grpc_status(error)]), without_paths(error.message))
            return False
        return True

    def _try(self, stream: SubscribeStream, request: SubscribeRequest) -> None:
        try:
            self._open(stream, request)
        except GrpcError as error:
            stream.finish(int(error.status), without_paths(error.text))
        except BasculeError as error:
            stream.finish(int(Status[grpc_status(error)]), without_paths(error.message))

    # ── checks, in the order that clients rely on ────────────────────────────────────────────────

    def _open(self, stream: SubscribeStream, request: SubscribeRequest) -> None:
        group = request.consumer.groupId
        if group and not request.consumer.consumerId:
            raise GrpcError(Status.INVALID_ARGUMENT, "consumer.consumerId is empty, consumer.groupId is not")
        self._authorizer.require(stream.peer, request.stream, "Subscribe")
        if group:
            self._must_be_member(stream, request)
        local = self._find(stream, request)
        if local is None:
            return
        if group:
            self._must_not_be_older(local, request)
        _check_positions(request)
        if request.reverse:
            self._begin_reverse(stream, local, request)
        else:
            self._begin_forward(stream, local, request)

    def _find(self, stream: SubscribeStream, request: SubscribeRequest) -> LocalPartition | None:
        """The partition; None when the subscriber has been answered already."""
        found = self._controller.metadata.streams.get(request.stream)
        partition = None if found is None else found.partition(request.partition)
        if partition is None:
            raise GrpcError(
                Status.NOT_FOUND, f"No such partition [stream={request.stream}, partition={request.partition}]"
            )
        if found is not None and request.streamId:
            _must_be_the_same(found, request)
        if len(partition.replicas) > 1 and self._is_cut_off():
            raise GrpcError(Status.UNAVAILABLE, "the server is cut off from the others: read from one of them")
        if partition.leader != self._controller.server_id:
            self._must_be_in_sync(partition, request)
        local = self._partitions.get(request.stream, request.partition)
        if local is None and partition.paused:
            # Before the handshake this status would mean that another server leads the partition.
            stream.greet(request.stream.encode(), request.partition)
            stream.finish(int(Status.FAILED_PRECONDITION), "partition is paused")
            return None
        if local is None:
            raise GrpcError(Status.UNAVAILABLE, "the partition is being started")
        return local

    def _must_be_in_sync(self, partition: Partition, request: SubscribeRequest) -> None:
        """A subscriber that asks for it may read from a follower, if that is in sync."""
        if not request.readISRReplica:
            raise GrpcError(Status.FAILED_PRECONDITION, "Server not partition leader")
        if request.consumer.groupId:
            raise GrpcError(Status.INVALID_ARGUMENT, "a consumer group reads from the partition's leader")
        if self._controller.server_id not in partition.in_sync_replicas:
            raise GrpcError(Status.FAILED_PRECONDITION, "Server not an in-sync replica of the partition")

    def _must_be_member(self, stream: SubscribeStream, request: SubscribeRequest) -> None:
        """The reader of a group that has members is one of them. A group that no consumer has joined is one by agreement of its readers
        alone, as in Liftbridge."""
        consumer = request.consumer
        if consumer.groupId not in self._controller.metadata.groups:
            check_texts(
                **{"consumer.groupId": id_fault(consumer.groupId), "consumer.consumerId": id_fault(consumer.consumerId)}
            )
            return
        self._authorizer.require(stream.peer, consumer.groupId, "FetchConsumerGroupAssignments")
        if (fault := self._group_fault(request)) is not None:
            raise GrpcError(Status.FAILED_PRECONDITION, fault)

    def _group_fault(self, request: SubscribeRequest) -> str | None:
        """Why the metadata of this server does not confirm the consumer and its epoch; None if it does, or without a group."""
        consumer = request.consumer
        if not consumer.groupId:
            return None
        group = self._controller.metadata.groups.get(consumer.groupId)
        if group is None:
            return "no consumer has joined the group"
        if consumer.consumerId not in group.members:
            return f"{consumer.consumerId} is not a member of group {consumer.groupId}, which has epoch {group.epoch}"
        if consumer.groupEpoch > group.epoch:
            return f"group {consumer.groupId} has epoch {group.epoch}, the request has {consumer.groupEpoch}"
        return None

    def _must_not_be_older(self, local: LocalPartition, request: SubscribeRequest) -> None:
        present = local.group_subscribers.get(request.consumer.groupId)
        group = self._controller.metadata.groups.get(request.consumer.groupId)
        if present is not None and group is not None and present[0] > group.epoch:
            return  # it subscribed before a consumer joined the group, and gives way to a member
        if present is not None and present[0] > request.consumer.groupEpoch:
            raise GrpcError(
                Status.FAILED_PRECONDITION,
                f"group {request.consumer.groupId} has epoch {present[0]} here, the request has {request.consumer.groupEpoch}",
            )

    # ── beginning ────────────────────────────────────────────────────────────────────────────────

    def _begin_forward(self, stream: SubscribeStream, local: LocalPartition, request: SubscribeRequest) -> None:
        wanted = forward_range(local, request)
        subscription = ForwardSubscription(
            stream, local, wanted.start, wanted.stop, self._held, lambda: self._shortage(local)
        )
        self._begin(stream, local, request, subscription)

    def _shortage(self, local: LocalPartition) -> str | None:
        """Why the partition commits no messages; None if enough replicas are in sync."""
        partition = self._controller.metadata.find(local.stream, local.number)
        minimum = local.settings.min_insync_replicas
        if partition is None or len(partition.in_sync_replicas) >= minimum:
            return None
        missing = ", ".join(one for one in partition.replicas if one not in partition.in_sync_replicas)
        return (
            f"partition {local.number} of stream `{local.stream}` has {len(partition.in_sync_replicas)} of the {minimum} in-sync "
            f"replicas that its `min.insync.replicas` requires; "
            + (
                f"start {missing}, or wait for it"
                if missing
                else f"it needs {minimum} replicas: `bascule cluster reassign`"
            )
        )

    def _begin_reverse(self, stream: SubscribeStream, local: LocalPartition, request: SubscribeRequest) -> None:
        wanted = reverse_range(local, request)
        try:
            subscription = ReverseSubscription(stream, local, wanted.start, wanted.stop)
        except LogEmpty:
            text = f"Failed to create stream reader: partition {local.number} of stream {local.stream} is empty"
            raise GrpcError(Status.OUT_OF_RANGE, text) from None
        self._begin(stream, local, request, subscription)

    def _begin(
        self,
        stream: SubscribeStream,
        local: LocalPartition,
        request: SubscribeRequest,
        subscription: ForwardSubscription | ReverseSubscription,
    ) -> None:
        leave = self._take_over(local, request, subscription)
        call = self._running.begin(
            stream.peer, request.stream, "Subscribe", lambda text: subscription.end(Status.PERMISSION_DENIED, text)
        )

        def on_end(_: object) -> None:
            leave()
            self._running.over(call)

        subscription.on_end = on_end
        stream.greet(request.stream.encode(), request.partition)
        subscription.begin()

    @staticmethod
    def _take_over(
        local: LocalPartition, request: SubscribeRequest, subscription: ForwardSubscription | ReverseSubscription
    ) -> Callable[[], None]:
        """A group has one reader of a partition: a new one replaces the previous one, whose call ends with OK. Returns a function to
        call when the new one ends."""
        group = request.consumer.groupId
        if not group:
            return lambda: None
        before = local.group_subscribers.get(group)
        entry = (request.consumer.groupEpoch, subscription)
        local.group_subscribers[group] = entry
        if before is not None:
            before[1].end(Status.OK, "")

        def leave() -> None:
            # unless a newer reader has replaced it
            if local.group_subscribers.get(group) is entry:
                del local.group_subscribers[group]

        return leave


def _must_be_the_same(stream: Stream, request: SubscribeRequest) -> None:
    """The stream has the identity that the subscriber knows. Identities grow: a smaller one means that this server is behind."""
    if stream.id < request.streamId:
        raise GrpcError(Status.UNAVAILABLE, "the server has not applied the creation of the stream yet")
    if stream.id > request.streamId:
        raise GrpcError(Status.NOT_FOUND, f"stream {request.stream} was deleted and created again")


# ── positions ────────────────────────────────────────────────────────────────────────────────────


def _check_positions(request: SubscribeRequest) -> None:
    if request.startPosition not in StartPosition.values():
        raise GrpcError(Status.INVALID_ARGUMENT, f"Unknown StartPosition {request.startPosition}")
    if request.stopPosition not in StopPosition.values():
        raise GrpcError(Status.INVALID_ARGUMENT, f"Unknown StopPosition {request.stopPosition}")


def forward_range(local: LocalPartition, request: SubscribeRequest) -> SubscribedRange:
    log = local.log
    start = _start_offset(local, request)
    stop = _stop_offset(log, request)
    if log.readonly and log.newest_offset < start and request.stopPosition == StopPosition.STOP_ON_CANCEL:
        stop = None  # no message can follow: the subscription ends on its own
    elif stop is not None and stop < start:
        raise GrpcError(Status.INVALID_ARGUMENT, f"stop offset {stop} is before start offset {start}")
    return SubscribedRange(start, stop)


def reverse_range(local: LocalPartition, request: SubscribeRequest) -> SubscribedRange:
    log = local.log
    start = _start_offset(local, request)
    if request.startPosition == StartPosition.NEW_ONLY:
        start = max(log.newest_offset, 0)  # a reverse subscription reads nothing newer, so it starts at LATEST
    stop = _stop_offset(log, request)
    if stop is not None and stop > start:
        raise GrpcError(Status.INVALID_ARGUMENT, f"stop offset {stop} is after start offset {start}")
    return SubscribedRange(start, stop)


def _start_offset(local: LocalPartition, request: SubscribeRequest) -> int:
    log, end_offset = local.log, local.expected_end_offset
    match request.startPosition:
        case StartPosition.OFFSET:
            offset = max(request.startOffset, log.log_start_offset)
        case StartPosition.EARLIEST:
            offset = log.log_start_offset
        case StartPosition.LATEST:
            offset = end_offset - 1
        case StartPosition.TIMESTAMP:
            offset = log.earliest_offset_at(max(request.startTimestamp, 0))
        case _:
            offset = end_offset
    if request.startPosition == StartPosition.OFFSET and not local.is_leader:
        # A follower may lag: the offset may exist on the leader, and the subscriber may have read up to it there.
        return max(0, offset)
    # an offset after the end means the next message, whatever its offset
    return max(0, min(offset, end_offset))


def _stop_offset(log: PartitionLog, request: SubscribeRequest) -> int | None:
    match request.stopPosition:
        case StopPosition.STOP_OFFSET:
            return request.stopOffset
        case StopPosition.STOP_LATEST:
            if log.oldest_offset < 0:
                raise GrpcError(Status.RESOURCE_EXHAUSTED, "Stream is empty")
            return log.newest_offset
        case StopPosition.STOP_TIMESTAMP:
            try:
                return log.latest_offset_at(min(request.stopTimestamp, INT64_MAX - 1))
            except TimestampOutOfRange:
                text = f"stopTimestamp is {request.stopTimestamp}, and the partition has no message at or before it"
                raise GrpcError(Status.OUT_OF_RANGE, text) from None
    return None
