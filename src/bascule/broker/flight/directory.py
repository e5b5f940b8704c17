"""Streams, partitions, leaders, Flight locations and offsets for Flight calls. Runs on Flight's threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from bascule import limits
from bascule.errors import StreamNotFound, StreamRecreated, Unavailable
from bascule.flight.failures import not_leader
from bascule.flight.tickets import OffsetsQuery
from bascule.log import PartitionLog
from bascule.metadata.core.model.streams import Partition, Stream
from bascule.metadata.server_directory import ServerDirectory, flight_locations
from bascule.metadata.stream_options import settings_of
from bascule.net.grpc.status import GrpcError
from bascule.partition.replica import LedPartition

if TYPE_CHECKING:
    from bascule.broker.flight.service import FlightGate
    from bascule.metadata.controller import Controller
    from bascule.metadata.partition_starts import PartitionStarts
    from bascule.partition.registry import Partitions
    from bascule.security.authorization import Authorizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSources:
    """The parts of a broker that Arrow Flight reads from."""

    controller: Controller
    servers: ServerDirectory
    partitions: Partitions
    starts: PartitionStarts
    authorizer: Authorizer
    uses_tls: bool


class Directory:
    def __init__(self, sources: TableSources, gate: FlightGate) -> None:
        self._sources = sources
        self._server_id = sources.controller.server_id
        self._loop = gate.loop
        self._describing = gate.describing

    # ── streams ──────────────────────────────────────────────────────────────────────────────────

    def streams(self) -> list[Stream]:
        """Return all streams by name, copied at once, since the event loop changes the metadata meanwhile."""
        streams = list(self._sources.controller.metadata.streams.values())
        streams.sort(key=lambda stream: stream.name)
        return streams

    def stream(self, name: str, stream_id: int | None = None) -> Stream:
        found = self._sources.controller.metadata.streams.get(name)
        if found is None:
            raise StreamNotFound(f"there is no stream {name!r}")
        if stream_id is not None and found.id != stream_id:
            raise StreamRecreated(
                f"the stream {name!r} was deleted and created again: it has the id {found.id}, asked for was {stream_id}",
                hint="offsets of the former stream mean nothing in this one; begin anew",
            )
        return found

    def partition(self, stream: Stream, number: int) -> Partition:
        found = stream.partition(number)
        if found is None:
            raise StreamNotFound(
                f"the stream {stream.name!r} has no partition {number}, it has {len(stream.partitions)}"
            )
        return found

    def led(self, stream: Stream, number: int) -> LedPartition:
        """Return the partition if this server leads it, and resume it if it is paused. Raises NotLeader, Unavailable."""
        partition = self.partition(stream, number)
        if partition.paused:
            self._resume(stream.name, number)
            partition = self.partition(self.stream(stream.name, stream.id), number)
        if partition.leader != self._server_id:
            raise not_leader(stream.name, number, partition.leader, self.locations().get(partition.leader))
        local = self._sources.partitions.led(stream.name, number)
        if local is None or local.stream_id != stream.id:
            raise Unavailable(f"{stream.name}/{number} is being started", hint="try again in a moment")
        return local

    def _resume(self, stream: str, number: int) -> None:
        try:
            self.in_loop(self._sources.starts.resume(stream, number, timeout=limits.FLIGHT_CALL_SECONDS))
        except GrpcError as error:
            raise Unavailable(f"{stream}/{number} is paused and cannot be resumed: {error.text}") from None

    # ── servers ──────────────────────────────────────────────────────────────────────────────────

    def locations(self) -> dict[str, str]:
        """Return the Flight locations of the servers that answer, by server id."""
        servers = self.in_loop(self._sources.servers.servers(self._sources.controller.members))
        return flight_locations(servers, uses_tls=self._sources.uses_tls)

    def in_loop(self, work: Coroutine[Any, Any, T], *, timeout: float | None = limits.FLIGHT_CALL_SECONDS) -> T:
        """Run a coroutine on the event loop and wait for its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except (TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            raise Unavailable("the server is too busy, or is stopping", hint="try again in a moment") from None

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────

    def offsets(self, query: OffsetsQuery) -> dict[str, Any]:
        """Return leader and location of each partition, and the offsets of those that this server leads."""
        names = None if query.streams is None else dict.fromkeys(query.streams)
        streams = self.streams() if names is None else [self.stream(name) for name in names]
        locations = self.locations()
        described = {stream.name: self._described(stream, query, locations) for stream in streams}
        return {"server": self._server_id, "locations": locations, "streams": described}

    def _described(self, stream: Stream, query: OffsetsQuery, locations: dict[str, str]) -> dict[str, Any]:
        times = (query.timestamps or {}).get(stream.name, {})
        partitions: dict[str, Any] = {}
        for partition in list(stream.partitions):
            if partition.paused and partition.leader == self._server_id and query.streams is not None:
                self._resume(stream.name, partition.id)  # waits for the event loop, hence before the semaphore
            with self._describing:
                partitions[str(partition.id)] = {
                    "leader": partition.leader,
                    "location": locations.get(partition.leader),
                    "leader_epoch": partition.leader_epoch,
                    "paused": partition.paused,
                    **self._ends(stream, partition, resumes=query.streams is not None),
                    **self._at(stream, partition, times.get(partition.id)),
                }
        return {"id": stream.id, "subject": stream.subject, "retention": _retention(stream), "partitions": partitions}

    def _ends(self, stream: Stream, partition: Partition, *, resumes: bool) -> dict[str, int | None]:
        unknown = dict.fromkeys(("log_start", "high_watermark", "log_end", "last_timestamp", "size_bytes"))
        if partition.leader != self._server_id or (partition.paused and not resumes):
            return unknown
        log = self.led(stream, partition.id).log
        high_watermark = log.readable_end_offset(committed=True) - 1
        return {
            "log_start": retained_from(log),
            "high_watermark": high_watermark,
            "log_end": log.log_end_offset,
            "last_timestamp": log.last_timestamp,
            "size_bytes": log.size_bytes,
        }

    def _at(self, stream: Stream, partition: Partition, timestamp: int | None) -> dict[str, int | None]:
        """Return the first offset at or after the time, the end of the committed records when all are older."""
        if timestamp is None:
            return {}
        if partition.leader != self._server_id:
            return {"timestamp_offset": None}
        log = self.led(stream, partition.id).log
        end_offset = log.readable_end_offset(committed=True)
        return {"timestamp_offset": min(log.earliest_offset_at(timestamp), end_offset)}


def _retention(stream: Stream) -> dict[str, int]:
    """Return the retention of a stream; 0 means no limit."""
    options = settings_of(stream).log_options
    return {
        "max_age_ns": options.retention_age_max_ns,
        "max_bytes": options.retention_bytes_max,
        "max_messages": options.retention_records_max,
    }


def retained_from(log: PartitionLog) -> int:
    """Return the offset before which retention has deleted messages; what compaction removed does not count."""
    return log.durability.retention_start_offset(log.log_start_offset)
