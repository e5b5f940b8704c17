"""FetchMetadata, FetchPartitionMetadata and Flight's action `locations`: what this server knows, without asking a leader.

A stream's entry depends on the stream, on the epochs of its partitions and on a few numbers of logs that are open here. Entries are
kept as bytes until one of these moves, so that a client that asks for thousands of streams costs little. Logs that nobody has used are
not opened for it: their offsets are not known, which is -1.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

# On the wire Flight's Action and Result have the fields of these two: a string 1 and bytes 2, and bytes 1.
from google.protobuf.any_pb2 import Any as FlightAction
from google.protobuf.wrappers_pb2 import BytesValue as FlightResult

from bascule.broker.api.calls import SURVEY_SECONDS, Deadline, routes_of
from bascule.config.stream import wire_values
from bascule.config.values.address import Address
from bascule.errors import LogClosed
from bascule.flight.tickets import LOCATIONS_ACTION
from bascule.metadata.core.model.streams import EventTimes, Partition, Stream
from bascule.metadata.stream_options import effective_config
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.proto import api_pb2 as api

if TYPE_CHECKING:
    from bascule.broker.services import Services
    from bascule.metadata.server_directory import ServerInfo
    from bascule.partition.replica import LocalPartition

CUT_OFF: Final = "the server is cut off from the others: ask one of them"
STREAM_METADATA_TAG: Final = 2 << 3 | 2
"""Field 2 of FetchMetadataResponse, with a length in front."""


def routes(services: Services) -> dict[bytes, Route]:
    entries = StreamEntries(services)

    async def fetch(services: Services, request: api.FetchMetadataRequest, call: Call) -> Encoded:
        return await fetch_metadata(services, entries, request, call)

    return {
        **routes_of(
            services,
            {
                "FetchMetadata": (api.FetchMetadataRequest, fetch),
                "FetchPartitionMetadata": (api.FetchPartitionMetadataRequest, fetch_partition_metadata),
            },
        ),
        **routes_of(services, {"DoAction": (FlightAction, find_tables)}, "arrow.flight.protocol.FlightService"),
    }


class Encoded(NamedTuple):
    """A message that is bytes already."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self.data


# ── FetchMetadata ────────────────────────────────────────────────────────────────────────────────


async def fetch_metadata(
    services: Services, entries: StreamEntries, request: api.FetchMetadataRequest, call: Call
) -> Encoded:
    services.authorizer.require(call.peer, "*", "FetchMetadata")
    if services.is_cut_off():
        raise GrpcError(Status.UNAVAILABLE, CUT_OFF)
    head = api.FetchMetadataResponse(
        brokers=await _brokers(services, Deadline.of(call)),
        groupMetadata=[_group(services, name) for name in request.groups],
    )
    return Encoded(b"".join((head.SerializeToString(), *entries.encoded(request.streams, request.includeSettings))))


async def _brokers(services: Services, deadline: Deadline) -> list[api.Broker]:
    timeout = min(SURVEY_SECONDS, deadline.left())
    servers = await services.directory.servers(services.controller.members, timeout=timeout)
    load = services.controller.metadata.load
    return [
        api.Broker(
            id=server.id,
            host=server.host,
            port=server.port,
            partitionCount=load.hosted[server.id],
            leaderCount=load.led[server.id],
            flightPort=server.flight_port,
            answersPings=True,
        )
        for server in servers
    ]


async def find_tables(services: Services, action: FlightAction, call: Call) -> FlightResult:
    """Where the servers serve Arrow Flight: a reader of tables asks the gRPC port, which it knows, in Flight's own protocol."""
    services.authorizer.require(call.peer, "*", "FetchMetadata")
    if action.type_url != LOCATIONS_ACTION:
        raise GrpcError(Status.UNIMPLEMENTED, f"this port has the action `{LOCATIONS_ACTION}` alone: ask a Flight port")
    if services.is_cut_off():
        raise GrpcError(Status.UNAVAILABLE, CUT_OFF)
    servers = await services.directory.servers(
        services.controller.members, timeout=min(SURVEY_SECONDS, Deadline.of(call).left())
    )
    found = flight_locations(servers, is_tls=services.config.tls.is_on)
    return FlightResult(value=json.dumps({"locations": list(found.values())}).encode())


def flight_locations(servers: Iterable[ServerInfo], *, is_tls: bool) -> dict[str, str]:
    """By server id, where each server that has a Flight port is reached."""
    scheme = "grpc+tls" if is_tls else "grpc"
    return {
        server.id: f"{scheme}://{Address(server.host, server.flight_port)}" for server in servers if server.flight_port
    }


def _group(services: Services, name: str) -> api.ConsumerGroupMetadata:
    group = services.controller.metadata.groups.get(name)
    if group is None:
        return api.ConsumerGroupMetadata(groupId=name, error=api.ConsumerGroupMetadata.UNKNOWN_GROUP)
    return api.ConsumerGroupMetadata(groupId=name, coordinator=group.coordinator, epoch=group.epoch)


class StreamEntries:
    """The entries of streams in FetchMetadata, as bytes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: dict[str, tuple[Hashable, bytes]] = {}

    def encoded(self, names: Any, with_settings: bool = False) -> list[bytes]:
        """The named streams in this order, all of them when none is named."""
        streams = self._services.controller.metadata.streams
        if names:
            return [self._entry(streams[name], with_settings) if name in streams else _unknown(name) for name in names]
        found = [self._entry(stream, with_settings) for stream in streams.values()]
        if len(self._kept) > len(streams):
            self._kept = {name: kept for name, kept in self._kept.items() if name in streams}
        return found

    def _entry(self, stream: Stream, with_settings: bool) -> bytes:
        states = [_state(self._services, stream, partition) for partition in stream.partitions]
        key = (stream.id, with_settings, *states)
        kept = self._kept.get(stream.name)
        if kept is not None and kept[0] == key:
            return kept[1]
        entry = api.StreamMetadata(name=stream.name, subject=stream.subject, creationTimestamp=stream.created_ns)
        if with_settings:
            config = effective_config(stream, self._services.config.cluster)
            entry.settings.CopyFrom(api.StreamSettings(**cast("Any", wire_values(config))))
        for partition, state in zip(stream.partitions, states, strict=True):
            _fill(entry.partitions[partition.id], partition, state)
        data = _delimited(entry)
        self._kept[stream.name] = (key, data)
        return data


def _unknown(name: str) -> bytes:
    return _delimited(api.StreamMetadata(name=name, error=api.StreamMetadata.UNKNOWN_STREAM))


def _delimited(entry: api.StreamMetadata) -> bytes:
    data = entry.SerializeToString()
    return b"".join((bytes((STREAM_METADATA_TAG,)), _varint(len(data)), data))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# ── a partition ──────────────────────────────────────────────────────────────────────────────────


class _State(NamedTuple):
    """Everything about a partition that moves."""

    epoch: int
    high_watermark: int
    newest_offset: int
    first_ns: int
    latest_ns: int


def _state(services: Services, stream: Stream, partition: Partition) -> _State:
    local = services.partitions.get(stream.name, partition.id)
    if local is None or local.stream_id != stream.id:
        return _State(partition.epoch, -1, -1, 0, 0)
    high_watermark, newest_offset = _offsets(local) if local.is_open else (-1, -1)
    times = local.received_times
    return _State(partition.epoch, high_watermark, newest_offset, times.first_ns, times.latest_ns)


def _offsets(local: LocalPartition) -> tuple[int, int]:
    try:
        return local.log.high_watermark, local.log.newest_offset
    except LogClosed:
        return -1, -1  # just now


def _fill(entry: api.PartitionMetadata, partition: Partition, state: _State) -> None:
    entry.id = partition.id
    entry.leader = partition.leader
    entry.replicas.extend(partition.replicas)
    entry.isr.extend(partition.in_sync_replicas)
    entry.highWatermark = state.high_watermark
    entry.newestOffset = state.newest_offset
    entry.paused = partition.paused
    entry.readonly = partition.readonly
    entry.messagesReceivedTimestamps.CopyFrom(_times(EventTimes(state.first_ns, state.latest_ns)))
    entry.pauseTimestamps.CopyFrom(_times(partition.pause_times))
    entry.readonlyTimestamps.CopyFrom(_times(partition.readonly_times))


def _times(times: EventTimes) -> api.PartitionEventTimestamps:
    return api.PartitionEventTimestamps(firstTimestamp=times.first_ns, latestTimestamp=times.latest_ns)


# ── FetchPartitionMetadata ───────────────────────────────────────────────────────────────────────


async def fetch_partition_metadata(
    services: Services, request: api.FetchPartitionMetadataRequest, call: Call
) -> api.FetchPartitionMetadataResponse:
    services.authorizer.require(call.peer, request.stream, "FetchPartitionMetadata")
    stream = services.controller.metadata.streams.get(request.stream)
    partition = None if stream is None else stream.partition(request.partition)
    if stream is None or partition is None:
        raise GrpcError(Status.NOT_FOUND, "partition not found")
    local = services.partitions.get(stream.name, partition.id)
    if partition.paused or local is None or not local.is_leader or local.stream_id != stream.id:
        raise GrpcError(Status.FAILED_PRECONDITION, "Server not partition leader")
    if not local.is_open:
        await asyncio.to_thread(_offsets, local)  # reads the disk
    response = api.FetchPartitionMetadataResponse()
    _fill(response.metadata, partition, _state(services, stream, partition))
    return response
