"""The methods of Arrow Flight: they authorize and parse a call. `reads` executes DoGet.

The actions that the authorizer checks have the names of the gRPC calls, so that one policy serves both ports:

    ListFlights, and offsets of all streams           FetchMetadata on *
    GetFlightInfo, GetSchema, offsets of a stream     FetchPartitionMetadata on the stream
    DoGet                                             Subscribe on the stream

There is no DoPut, no DoExchange and no Handshake: pyarrow decodes record batches before a check is possible, and a few kilobytes of
zstd or of nulls become gigabytes. `DoorKeeper` ends such a call before its first message is read. Clients publish over gRPC.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from bascule.broker.flight.directory import Directory, TableSources
from bascule.broker.flight.reads import Read
from bascule.broker.flight.service import FlightGate
from bascule.errors import BasculeError, CallerError, StreamNotFound
from bascule.flight.failures import to_flight
from bascule.flight.schema import schema_of
from bascule.flight.tickets import (
    OFFSETS_ACTION,
    OffsetsQuery,
    ReadTicket,
    TableCommand,
    parse_command,
    parse_offsets_query,
    parse_pattern,
    parse_ticket,
)
from bascule.net.grpc.server import Peer
from bascule.security.running_calls import JudgedCall

_logger = logging.getLogger(__name__)

T = TypeVar("T")

METHODS: Final = frozenset(
    {
        flight.FlightMethod.LIST_FLIGHTS,
        flight.FlightMethod.GET_FLIGHT_INFO,
        flight.FlightMethod.GET_SCHEMA,
        flight.FlightMethod.LIST_ACTIONS,
        flight.FlightMethod.DO_ACTION,
        flight.FlightMethod.DO_GET,
    }
)
"""The calls that are served."""


AUTHORIZATION: Final = "authorization"
"""Name of the middleware that keeps the header, and of the header."""


class HeaderKeeper(flight.ServerMiddlewareFactory):  # type: ignore[misc] # pyarrow has no types
    """Keeps the `authorization` header of each call; `_caller` verifies it, which may take longer than a middleware should."""

    def start_call(self, _info: Any, headers: dict[str, list[str]]) -> Any:
        found = (values[0] for name, values in headers.items() if name.lower() == AUTHORIZATION and values)
        return KeptHeader(next(found, None))


class KeptHeader(flight.ServerMiddleware):  # type: ignore[misc] # pyarrow has no types
    def __init__(self, authorization: str | None) -> None:
        self.authorization = authorization


class DoorKeeper(flight.ServerMiddlewareFactory):  # type: ignore[misc] # pyarrow has no types
    """Refuses calls that this service does not have, before their first message is read into memory."""

    def start_call(self, info: Any, headers: Any) -> None:
        del headers
        if info.method not in METHODS:
            raise flight.FlightUnauthorizedError(
                f"UNSUPPORTED: {info.method.name} is not served here. Publish over the gRPC port, as FlightConnection.put does"
            )


def make_server(location: str, gate: FlightGate) -> Any:
    """Start a server, which runs on its own threads."""
    return FlightServer(location, gate)


class FlightServer(flight.FlightServerBase):  # type: ignore[misc] # pyarrow has no types
    def __init__(self, location: str, gate: FlightGate) -> None:
        self._gate = gate
        super().__init__(location, middleware={"door": DoorKeeper(), AUTHORIZATION: HeaderKeeper()})

    # ── streams and offsets ────────────────────────────────────────────────────────────────────────────

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        return _guarded(_answer(lambda: self._list(context, criteria)))

    def _list(self, context: Any, criteria: bytes) -> Iterator[Any]:
        sources = self._gate.parts()
        sources.authorizer.require(self._caller(context), "*", "FetchMetadata")
        pattern = parse_pattern(criteria)
        directory = Directory(sources, self._gate)
        names = [stream.name for stream in directory.streams() if pattern is None or pattern.matches(stream.name)]
        return self._listed(directory, names, directory.locations())

    def _listed(self, directory: Directory, names: list[str], locations: dict[str, str]) -> Iterator[Any]:
        """Yield one description at a time, so that a client that does not read costs no memory."""
        with self._gate.call():
            for name in names:
                try:
                    with self._gate.describing:
                        info = self._info(directory, TableCommand(stream=name), None, locations)
                except StreamNotFound:
                    continue  # deleted meanwhile
                yield info

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        return _answer(lambda: self._describe(context, descriptor))

    def _describe(self, context: Any, descriptor: Any) -> Any:
        sources = self._gate.parts()
        command = _command(descriptor)
        sources.authorizer.require(self._caller(context), command.stream, "FetchPartitionMetadata")
        directory = Directory(sources, self._gate)
        locations = directory.locations()
        with self._gate.describing:
            return self._info(directory, command, descriptor, locations)

    def _info(
        self, directory: Directory, command: TableCommand, descriptor: Any | None, locations: dict[str, str]
    ) -> Any:
        stream = directory.stream(command.stream)
        asked = command.partitions
        numbers = range(len(stream.partitions)) if asked is None else tuple(dict.fromkeys(asked))
        endpoints = []
        for number in numbers:
            partition = directory.partition(stream, number)
            ticket = ReadTicket(stream=stream.name, stream_id=stream.id, partition=number, columns=command.columns)
            place = locations.get(partition.leader)
            endpoints.append(flight.FlightEndpoint(ticket.encode(), [place] if place else []))
        return flight.FlightInfo(
            schema_of(command.columns), descriptor or flight.FlightDescriptor.for_path(stream.name), endpoints, -1, -1
        )

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return _answer(lambda: self._schema(context, descriptor))

    def _schema(self, context: Any, descriptor: Any) -> Any:
        sources = self._gate.parts()
        command = _command(descriptor)
        sources.authorizer.require(self._caller(context), command.stream, "FetchPartitionMetadata")
        Directory(sources, self._gate).stream(command.stream)
        return flight.SchemaResult(schema_of(command.columns))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        del context
        return [(OFFSETS_ACTION, "Offsets, leaders and locations of partitions, and offsets by time, as JSON")]

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        return _guarded(_answer(lambda: self._act(context, action)))

    def _act(self, context: Any, action: Any) -> Iterator[Any]:
        sources = self._gate.parts()
        if action.type != OFFSETS_ACTION:
            raise CallerError(f"there is no action {action.type!r}", hint=f"there is `{OFFSETS_ACTION}`")
        query = parse_offsets_query(action.body.to_pybytes())
        caller = self._caller(context)
        if query.streams is None:
            sources.authorizer.require(caller, "*", "FetchMetadata")
        for name in {*(query.streams or ()), *(query.timestamps or ())}:
            sources.authorizer.require(caller, name, "FetchPartitionMetadata")
        return self._offsets(sources, query)

    def _offsets(self, sources: TableSources, query: OffsetsQuery) -> Iterator[Any]:
        """Yield the answer within a counted call: it may wait long for a client that does not read."""
        local_reads = self._gate.local_reads
        with self._gate.call():
            answer = Directory(sources, self._gate).offsets(query)
            answer["local"] = None if local_reads is None else local_reads.name
            with self._gate.describing:
                result = flight.Result(json.dumps(answer).encode())
            yield result

    # ── reading ──────────────────────────────────────────────────────────────────────

    def do_get(self, context: Any, ticket: Any) -> Any:
        return _answer(lambda: self._read(context, ticket))

    def _read(self, context: Any, ticket: Any) -> Any:
        sources = self._gate.parts()
        wanted = parse_ticket(ticket.ticket)
        judged = JudgedCall(sources.authorizer, self._caller(context), wanted.stream, "Subscribe")
        directory = Directory(sources, self._gate)
        local = directory.led(directory.stream(wanted.stream, wanted.stream_id), wanted.partition)

        def is_cancelled() -> bool:
            """Asked between batches. Raises PermissionDenied after a change of the policy."""
            judged.check()
            return bool(context.is_cancelled())

        read = Read(sources, self._gate, wanted, local, is_cancelled)
        return flight.GeneratorStream(schema_of(wanted.columns), _guarded(read.batches()))

    def _caller(self, context: Any) -> Peer:
        """Return the client of a call. Raises Unauthenticated."""
        kept = context.get_middleware(AUTHORIZATION)
        return self._gate.identities.of_thread(self._gate.loop, self._connected(context), kept.authorization)

    def _connected(self, context: Any) -> Peer:
        """Return the client of the connection."""
        relay = self._gate.relay
        if relay is None:
            return Peer(context.peer().partition(":")[2])
        try:
            return relay.peer_of(context.peer())
        except (LookupError, ValueError):
            raise flight.FlightUnauthenticatedError(
                "PERMISSION_DENIED: this socket is reached through the broker's port only"
            ) from None


def _command(descriptor: Any) -> TableCommand:
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return parse_command(descriptor.command)
    return TableCommand(stream=_stream_in(descriptor))


def _stream_in(descriptor: Any) -> str:
    path: list[bytes] = list(descriptor.path or ())
    if len(path) != 1:
        raise CallerError(f"a path of {len(path)} parts names no stream", hint="give one part, the stream's name")
    return path[0].decode("utf-8", "replace")


def _answer(work: Callable[[], T]) -> T:
    try:
        return work()
    except BasculeError as error:
        raise to_flight(error) from None
    except (flight.FlightError, pa.ArrowException):
        raise
    except Exception:
        _logger.exception("a call of Arrow Flight failed")
        raise flight.FlightInternalError("INTERNAL: the call failed on the server; see its log") from None


def _guarded(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the same batches; errors become Flight errors."""
    while True:
        found = _answer(lambda: next(batches, None))
        if found is None:
            return
        yield found
