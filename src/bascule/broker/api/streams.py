"""CreateStream, DeleteStream, PauseStream, SetStreamReadonly; and resuming, which publishers and subscribers cause.

Whether an op fits the state of now is decided by the state machine, when the op is applied. What is checked here is what the
state cannot know: how the request is written, who asks, whether this server could encrypt.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from bascule import limits
from bascule.broker.api.calls import Deadline, leader_known, reachable, routes_of, submit
from bascule.config.stream import StreamConfig, StreamOverrides, resolve
from bascule.errors import EncryptionKeyError, InvalidConfig, Unavailable
from bascule.log.disk.encryption import KEY_VARIABLES, master_keys_from_environment
from bascule.metadata.core.model.ops import (
    Broker,
    CreateStream,
    DeleteStream,
    PauseStream,
    ResumeStream,
    SetStreamReadonly,
)
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.metadata.stream_options import RESERVED_STREAMS, stored_config
from bascule.names import stream_name_fault, subject_fault
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import api_pb2 as api

if TYPE_CHECKING:
    from bascule.broker.services import Services

START_TRIES: Final = 5
START_RETRY_SECONDS: Final = 0.1
START_SECONDS: Final = 2.0
"""How long a leader may at least take to start a partition: its disk may be slow."""


def routes(services: Services) -> dict[bytes, Route]:
    return routes_of(
        services,
        {
            "CreateStream": (api.CreateStreamRequest, create_stream),
            "DeleteStream": (api.DeleteStreamRequest, delete_stream),
            "PauseStream": (api.PauseStreamRequest, pause_stream),
            "SetStreamReadonly": (api.SetStreamReadonlyRequest, set_stream_readonly),
        },
    )


# ── creating ─────────────────────────────────────────────────────────────────────────────────────


async def create_stream(services: Services, request: api.CreateStreamRequest, call: Call) -> api.CreateStreamResponse:
    deadline = Deadline.of(call)
    partitions = request.partitions or 1
    _check_request(request, partitions)
    services.authorizer.require(call.peer, request.name, "CreateStream")
    config = _resolved(services, request)
    if config.encryption:
        _check_master_key()
    factor = request.replicationFactor or 1
    _check_replication_factor(factor, len(services.controller.members))
    await leader_known(services.controller, deadline)
    # On members that answer: one that does not would leave a partition without a leader.
    brokers = tuple(Broker(server.id, server.rack) for server in await reachable(services, deadline))
    _must_fit(brokers, factor)
    op = CreateStream(
        name=request.name,
        subject=request.subject,
        partitions=partitions,
        replication_factor=factor,
        brokers=brokers,
        created_ns=time.time_ns(),
        group=request.group,
        config=stored_config(config),
    )
    await submit(services.controller, op, deadline)
    await started(services, request.name, range(partitions), deadline)
    return api.CreateStreamResponse()


def _check_request(request: api.CreateStreamRequest, partitions: int) -> None:
    """In the order in which clients expect to hear of it."""
    if not request.name:
        raise GrpcError(Status.INVALID_ARGUMENT, "Name cannot be empty")
    if subject_fault(request.subject):
        raise GrpcError(Status.INVALID_ARGUMENT, "Subject is invalid")
    if request.name in RESERVED_STREAMS:
        raise GrpcError(Status.INVALID_ARGUMENT, "Stream is reserved")
    if (fault := stream_name_fault(request.name)) is not None:
        raise GrpcError(Status.INVALID_ARGUMENT, f"Name is invalid: {fault}")
    if request.group and (fault := subject_fault(request.group)) is not None:
        raise GrpcError(Status.INVALID_ARGUMENT, f"Group is invalid: {fault}")
    if not 1 <= partitions <= limits.STREAM_PARTITIONS_MAX:
        text = f"partitions is {partitions}, it must be from 1 to {limits.STREAM_PARTITIONS_MAX}"
        raise GrpcError(Status.INVALID_ARGUMENT, text)


def _check_replication_factor(factor: int, members: int) -> None:
    """Against the cluster as it is: servers that do not answer now count, they may be back in a moment."""
    if factor < -1 or factor > members:
        text = f"Invalid replicationFactor {factor}, cluster size {members}: use 1 to {members}, or -1 for all"
        raise GrpcError(Status.INVALID_ARGUMENT, text)


def _must_fit(brokers: tuple[Broker, ...], factor: int) -> None:
    if factor > len(brokers):
        text = f"replicationFactor is {factor}, but only {len(brokers)} servers answer: start the others, or use less"
        raise GrpcError(Status.UNAVAILABLE, text)


def _resolved(services: Services, request: api.CreateStreamRequest) -> StreamConfig:
    try:
        return resolve(services.config.cluster, overrides_of(request))
    except InvalidConfig as error:
        raise GrpcError(Status.INVALID_ARGUMENT, f"{error.message}: {error.hint}") from None


def overrides_of(request: api.CreateStreamRequest) -> StreamOverrides:
    """The settings that the request has: a field that is present with 0 or false counts, an absent one does not."""
    names = {item.name: item.metadata["wire_name"] for item in fields(StreamOverrides)}
    given = {name: getattr(request, wire).value for name, wire in names.items() if request.HasField(wire)}
    return StreamOverrides(**given)


def _check_master_key() -> None:
    try:
        keys = master_keys_from_environment()
    except EncryptionKeyError as error:
        raise GrpcError(Status.FAILED_PRECONDITION, f"{error.message}: {error.hint}") from None
    if keys is None:
        text = f"invalid AES key size: there is no master key: set {KEY_VARIABLES[0]} to exactly 16 or 32 bytes"
        raise GrpcError(Status.FAILED_PRECONDITION, text)


# ── deleting, pausing, readonly ──────────────────────────────────────────────────────────────────


async def delete_stream(services: Services, request: api.DeleteStreamRequest, call: Call) -> api.DeleteStreamResponse:
    deadline = Deadline.of(call)
    services.authorizer.require(call.peer, request.name, "DeleteStream")
    if request.name in RESERVED_STREAMS:
        raise GrpcError(Status.INVALID_ARGUMENT, "Stream is reserved")
    await submit(services.controller, DeleteStream(request.name), deadline)
    await _carried_out(services, deadline)
    return api.DeleteStreamResponse()


async def pause_stream(services: Services, request: api.PauseStreamRequest, call: Call) -> api.PauseStreamResponse:
    deadline = Deadline.of(call)
    services.authorizer.require(call.peer, request.name, "PauseStream")
    op = PauseStream(request.name, time.time_ns(), tuple(request.partitions), request.resumeAll)
    await submit(services.controller, op, deadline)
    await _carried_out(services, deadline)
    return api.PauseStreamResponse()


async def set_stream_readonly(
    services: Services, request: api.SetStreamReadonlyRequest, call: Call
) -> api.SetStreamReadonlyResponse:
    deadline = Deadline.of(call)
    services.authorizer.require(call.peer, request.name, "SetStreamReadonly")
    op = SetStreamReadonly(request.name, time.time_ns(), request.readonly, tuple(request.partitions))
    await submit(services.controller, op, deadline)
    await _carried_out(services, deadline)
    return api.SetStreamReadonlyResponse()


async def _carried_out(services: Services, deadline: Deadline) -> None:
    """On this server, so that a client that asks it next finds what it was told; the others follow by themselves."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline.left()):
            await services.partitions.settled(services.controller.metadata.applied_index)


# ── resuming ─────────────────────────────────────────────────────────────────────────────────────

_resuming: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
"""One op is enough for a thousand publishers that come at once."""


async def resume(services: Services, stream: str, partition: int, *, timeout: float | None = None) -> None:
    """Resume a partition, or all that are paused if the stream was paused so, and wait until its leader has started it.

    One that is not paused is only waited for. Raises GrpcError.
    """
    deadline = Deadline.after(timeout)
    lock = _resuming.setdefault((id(services.controller), stream), asyncio.Lock())
    async with lock:
        found, known = _find(services, stream, partition)
        if known.paused:
            numbers = tuple(each.id for each in found.partitions if each.paused) if found.resume_all else (partition,)
            await submit(services.controller, ResumeStream(stream, time.time_ns(), numbers), deadline)
    if not await started(services, stream, (partition,), deadline):
        raise GrpcError(Status.INTERNAL, f"the leader of {stream}/{partition} has not resumed it yet")


def _find(services: Services, stream: str, partition: int) -> tuple[Stream, Partition]:
    found = services.controller.metadata.streams.get(stream)
    known = None if found is None else found.partition(partition)
    if found is None or known is None:
        raise GrpcError(Status.NOT_FOUND, f"No such partition [stream={stream}, partition={partition}]")
    return found, known


# ── waiting for leaders ──────────────────────────────────────────────────────────────────────────


async def started(services: Services, stream: str, numbers: Iterable[int], deadline: Deadline) -> bool:
    """Whether the leaders of the partitions have started them; looks a few times."""
    waiting = list(numbers)
    began = time.monotonic()
    for attempt in itertools.count():
        if attempt > 0:
            await asyncio.sleep(min(START_RETRY_SECONDS, deadline.left()))
        await _carried_out(services, deadline)
        waiting = await _not_started(services, stream, waiting, deadline)
        has_tried = attempt + 1 >= START_TRIES and time.monotonic() - began >= START_SECONDS
        if not waiting or has_tried or deadline.left() == 0:
            break
    return not waiting


async def _not_started(services: Services, stream: str, numbers: list[int], deadline: Deadline) -> list[int]:
    missing: list[int] = []
    for first in range(0, len(numbers), limits.STATUS_REQUESTS_INFLIGHT_MAX):
        piece = numbers[first : first + limits.STATUS_REQUESTS_INFLIGHT_MAX]
        found = await asyncio.gather(*(_leader_has_started(services, stream, number, deadline) for number in piece))
        missing += [number for number, is_up in zip(piece, found, strict=True) if not is_up]
    return missing


async def _leader_has_started(services: Services, stream: str, number: int, deadline: Deadline) -> bool:
    found = services.controller.metadata.streams.get(stream)
    known = None if found is None else found.partition(number)
    if known is None:
        return False
    if known.leader == services.server_id:
        return services.partitions.status(stream, number).is_leader
    timeout = min(1.0, deadline.left())
    try:
        status = await services.directory.partition_status(known.leader, stream, number, timeout=timeout)
    except Unavailable:
        return False
    return status.is_leader
