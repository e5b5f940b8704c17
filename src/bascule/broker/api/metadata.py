"""FetchMetadata, FetchPartitionMetadata and Flight's action `locations`: what this server knows, without asking a leader.

A stream's entry depends on the stream, on the epochs of its partitions and on a few offsets of logs that are open here. Encoded entries
are cached until one of these changes, so that a request for thousands of streams is cheap. Logs that are not open stay closed: their
offsets and times are those of the last time that they were open.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable, Iterable, Sized
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

# On the wire Flight's Action and Result have the fields of these two: a string 1 and bytes 2, and bytes 1.
from google.protobuf.any_pb2 import Any as FlightAction
from google.protobuf.wrappers_pb2 import BytesValue as FlightResult

from bascule import limits
from bascule.broker.api.calls import deadline_of, routes_of
from bascule.config.stream import wire_values
from bascule.errors import LogClosed
from bascule.flight.tickets import LOCATIONS_ACTION
from bascule.metadata.core.model.streams import EventTimestamps, Partition, Stream
from bascule.metadata.server_directory import ServerInfo, flight_locations
from bascule.metadata.stream_options import effective_config
from bascule.net.grpc.server import Call, Route
from bascule.net.grpc.status import GrpcError, Status
from bascule.partition.states import LastKnown, last_known_of
from bascule.proto import api_pb2 as api
from bascule.readers.pace import Pace

if TYPE_CHECKING:
    from bascule.config.sections.cluster import ClusterConfig
    from bascule.metadata.controller import Controller
    from bascule.metadata.server_directory import ServerDirectory
    from bascule.partition.registry import Partitions
    from bascule.partition.replica import LocalPartition
    from bascule.security.authorization import Authorizer

CUT_OFF: Final = "the server is cut off from the others: ask one of them"
STREAM_METADATA_TAG: Final = 2 << 3 | 2
"""Field 2 of FetchMetadataResponse, length-delimited."""
SURVEY_SECONDS: Final = 3.0


class Encoded(NamedTuple):
    """A message that is already encoded."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self.data


class MetadataApi:
    def __init__(
        self,
        controller: Controller,
        directory: ServerDirectory,
        partitions: Partitions,
        authorizer: Authorizer,
        defaults: ClusterConfig,
        is_cut_off: Callable[[], bool],
        age_max_ns: int,
        *,
        uses_tls: bool,
    ) -> None:
        """`age_max_ns`: `metadata.cache.max.age`."""
        self._controller = controller
        self._directory = directory
        self._partitions = partitions
        self._authorizer = authorizer
        self._is_cut_off = is_cut_off
        self._uses_tls = uses_tls
        self._age_max_seconds = min(age_max_ns, defaults.replication.replica_max_leader_timeout_ns) / 1e9
        """A client that connects to a server which is down may wait for minutes: such a server is not listed for longer than this."""
        self._entries = StreamEntries(controller, partitions, defaults)

    def routes(self) -> dict[bytes, Route]:
        return {
            **routes_of(
                {
                    "FetchMetadata": (api.FetchMetadataRequest, self.fetch_metadata),
                    "FetchPartitionMetadata": (api.FetchPartitionMetadataRequest, self.fetch_partition_metadata),
                }
            ),
            **routes_of({"DoAction": (FlightAction, self.find_tables)}, "arrow.flight.protocol.FlightService"),
        }

    async def fetch_metadata(self, request: api.FetchMetadataRequest, call: Call) -> Encoded:
        self._authorizer.require(call.peer, "*", "FetchMetadata")
        if self._is_cut_off():
            raise GrpcError(Status.UNAVAILABLE, CUT_OFF)
        _check_names(streams=request.streams, groups=request.groups)
        head = api.FetchMetadataResponse(
            brokers=await self._brokers(call),
            groupMetadata=[self._group(name, request.includeMembers) for name in self._groups(request)],
        )
        entries = await self._entries.encoded(request.streams, request.includeSettings)
        return Encoded(b"".join((head.SerializeToString(), *entries)))

    async def _servers(self, call: Call) -> list[ServerInfo]:
        timeout = min(SURVEY_SECONDS, deadline_of(call).left())
        return await self._directory.servers(
            self._controller.members, timeout=timeout, age_max_seconds=self._age_max_seconds
        )

    async def _brokers(self, call: Call) -> list[api.Broker]:
        load = self._controller.metadata.load
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
            for server in await self._servers(call)
        ]

    async def find_tables(self, action: FlightAction, call: Call) -> FlightResult:
        """The Flight addresses of all servers: a reader of tables asks the gRPC port, which it knows, in Flight's own protocol."""
        self._authorizer.require(call.peer, "*", "FetchMetadata")
        if action.type_url != LOCATIONS_ACTION:
            text = f"this port has the action `{LOCATIONS_ACTION}` alone: ask a Flight port"
            raise GrpcError(Status.UNIMPLEMENTED, text)
        if self._is_cut_off():
            raise GrpcError(Status.UNAVAILABLE, CUT_OFF)
        found = flight_locations(await self._servers(call), uses_tls=self._uses_tls)
        return FlightResult(value=json.dumps({"locations": list(found.values())}).encode())

    def _groups(self, request: api.FetchMetadataRequest) -> list[str]:
        if request.includeMembers and not request.groups:
            return sorted(self._controller.metadata.groups)
        return list(dict.fromkeys(request.groups))

    def _group(self, name: str, with_members: bool) -> api.ConsumerGroupMetadata:
        group = self._controller.metadata.groups.get(name)
        if group is None:
            return api.ConsumerGroupMetadata(groupId=name, error=api.ConsumerGroupMetadata.UNKNOWN_GROUP)
        entry = api.ConsumerGroupMetadata(groupId=name, coordinator=group.coordinator, epoch=group.epoch)
        for consumer in sorted(group.members) if with_members else ():
            member = group.members[consumer]
            assignments = [
                api.PartitionAssignment(stream=stream, partitions=member.assignments[stream])
                for stream in sorted(member.assignments)
            ]
            entry.members.add(consumerId=consumer, streams=member.streams, assignments=assignments)
        return entry

    async def fetch_partition_metadata(
        self, request: api.FetchPartitionMetadataRequest, call: Call
    ) -> api.FetchPartitionMetadataResponse:
        self._authorizer.require(call.peer, request.stream, "FetchPartitionMetadata")
        stream = self._controller.metadata.streams.get(request.stream)
        partition = None if stream is None else stream.partition(request.partition)
        if stream is None or partition is None:
            raise GrpcError(Status.NOT_FOUND, "partition not found")
        local = self._partitions.get(stream.name, partition.id)
        if partition.paused or local is None or not local.is_leader or local.stream_id != stream.id:
            raise GrpcError(Status.FAILED_PRECONDITION, "Server not partition leader")
        if not local.is_open:
            await asyncio.to_thread(lambda: local.log)  # reads the disk
        response = api.FetchPartitionMetadataResponse()
        _fill(response.metadata, partition, _state(self._partitions, stream, partition))
        return response


class StreamEntries:
    """The entries of streams in FetchMetadata, as bytes."""

    def __init__(self, controller: Controller, partitions: Partitions, defaults: ClusterConfig) -> None:
        self._controller = controller
        self._partitions = partitions
        self._defaults = defaults
        self._kept: dict[tuple[str, bool], tuple[Hashable, bytes]] = {}
        """By the stream's name, without and with its settings."""

    async def encoded(self, names: Iterable[str], with_settings: bool = False) -> list[bytes]:
        """The entries of the named streams in this order, each once; of all streams when none is named.

        Raises GrpcError when they are too large together.
        """
        pace, found, size = Pace(), [], 0
        streams = self._controller.metadata.streams
        for name in list(dict.fromkeys(names)) or list(streams):
            stream = streams.get(name)
            found.append(_unknown(name) if stream is None else self._entry(stream, with_settings))
            size += len(found[-1])
            if size > limits.METADATA_ANSWER_BYTES_MAX:
                text = f"the answer has more than {limits.METADATA_ANSWER_BYTES_MAX} bytes: name fewer streams"
                raise GrpcError(Status.RESOURCE_EXHAUSTED, text)
            await pace.rest()
        if len(self._kept) > 2 * len(streams):
            self._kept = {key: kept for key, kept in self._kept.items() if key[0] in streams}
        return found

    def _entry(self, stream: Stream, with_settings: bool) -> bytes:
        states = [_state(self._partitions, stream, partition) for partition in stream.partitions]
        key = (stream.id, *states)
        kept = self._kept.get((stream.name, with_settings))
        if kept is not None and kept[0] == key:
            return kept[1]
        entry = api.StreamMetadata(
            name=stream.name, subject=stream.subject, creationTimestamp=stream.created_ns, id=stream.id
        )
        if with_settings:
            config = effective_config(stream, self._defaults)
            entry.settings.CopyFrom(api.StreamSettings(**cast("Any", wire_values(config))))
        for partition, state in zip(stream.partitions, states, strict=True):
            _fill(entry.partitions[partition.id], partition, state)
        data = _delimited(entry)
        self._kept[stream.name, with_settings] = (key, data)
        return data


def _check_names(**names: Sized) -> None:
    for field, given in names.items():
        if len(given) > limits.METADATA_NAMES_MAX:
            text = f"{field} has {len(given)} names, at most {limits.METADATA_NAMES_MAX} are allowed"
            raise GrpcError(Status.INVALID_ARGUMENT, text)


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


class _State(NamedTuple):
    """The changing values of a partition."""

    epoch: int
    high_watermark: int
    newest_offset: int
    first_ns: int
    latest_ns: int


def _state(partitions: Partitions, stream: Stream, partition: Partition) -> _State:
    local = partitions.get(stream.name, partition.id)
    if local is not None and local.stream_id != stream.id:
        local = None
    last = _last_known(partitions, stream, partition, local)
    times = EventTimestamps() if local is None else local.received_times
    first_ns, latest_ns = times.first_ns or last.first_ns, times.latest_ns or last.latest_ns
    return _State(partition.epoch, last.high_watermark, last.newest_offset, first_ns, latest_ns)


def _last_known(
    partitions: Partitions, stream: Stream, partition: Partition, local: LocalPartition | None
) -> LastKnown:
    """Of the log if it is open, else from the last time that it was."""
    if local is not None and local.is_open:
        try:
            return last_known_of(local.log)
        except LogClosed:
            pass  # since the check
    return partitions.last_known(stream.name, partition.id) or LastKnown()


def _fill(entry: api.PartitionMetadata, partition: Partition, state: _State) -> None:
    entry.id = partition.id
    entry.leader = partition.leader
    entry.replicas.extend(partition.replicas)
    entry.isr.extend(partition.in_sync_replicas)
    entry.highWatermark = state.high_watermark
    entry.newestOffset = state.newest_offset
    entry.paused = partition.paused
    entry.readonly = partition.readonly
    entry.messagesReceivedTimestamps.CopyFrom(_times(EventTimestamps(state.first_ns, state.latest_ns)))
    entry.pauseTimestamps.CopyFrom(_times(partition.pause_times))
    entry.readonlyTimestamps.CopyFrom(_times(partition.readonly_times))


def _times(times: EventTimestamps) -> api.PartitionEventTimestamps:
    return api.PartitionEventTimestamps(firstTimestamp=times.first_ns, latestTimestamp=times.latest_ns)
