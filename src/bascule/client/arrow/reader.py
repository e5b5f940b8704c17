"""The reading end of Arrow Flight: follows leaders, covers exactly what was asked for or says why it cannot.

    with FlightConnection("127.0.0.1:9292") as tables:
        ends = tables.offsets(["orders"])["orders"]["partitions"][0]
        for batch in tables.read("orders", 0, ends["log_start"], ends["high_watermark"] + 1):
            ...

A connection may be used by many threads. It holds no thread and no socket until it is used; it is not pickled: keep `servers`, and
make one in each process.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from bascule import limits
from bascule.client.arrow.local import NoShortCut, read_local
from bascule.client.arrow.servers import FlightServers, Patience, Servers, Tls
from bascule.client.connection.options import wrong
from bascule.errors import IncompleteRead, NotLeader, StreamNotFound, Unavailable
from bascule.flight.arrow import require
from bascule.flight.schema import check_columns, table_schema
from bascule.flight.tickets import OFFSETS_ACTION, OffsetsQuery, ReadTicket

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.arrow.writer import TableWriter

_logger = logging.getLogger(__name__)

SERVERS_DEFAULT: Final = "127.0.0.1:9292"


class FlightConnection:
    def __init__(
        self,
        servers: Servers = SERVERS_DEFAULT,
        *,
        tls: Tls = None,
        token: str | None = None,
        timeout: float = 10.0,
        patience: float = 60.0,
        reach: float | None = None,
        local: bool = True,
    ) -> None:
        """`timeout` is what a question may take, and how long a read waits for its next batch; `patience` how long a server that is
        away, or a partition without leader, is tried again, and `reach` the same until a server has answered for the first time.
        `local` False has even a server on this machine send record batches, where its files would be read."""
        self._servers = FlightServers(servers, tls, token, timeout)
        self._make_writer: Callable[[], TableWriter] = lambda: _writer(self._servers.brokers, tls, token, timeout)
        self._writer: TableWriter | None = None
        self._lock = threading.Lock()
        self._patience = patience
        self._reach = patience if reach is None else reach
        self._is_reached = False
        self._known: list[str] = []
        self._leaders: dict[tuple[str, int], str] = {}
        self._is_local = local and sys.platform == "linux"  # handles come over sockets of its kind
        self._local_names: dict[str, str] = {}
        """By location: what servers are called on their own machine, whichever that is."""

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    def schema(self, stream: str) -> pa.Schema:
        """Of a stream that exists; it is the same for all."""
        self.offsets([stream])
        return table_schema()

    def offsets(
        self,
        streams: Iterable[str] | None = None,
        timestamps: Mapping[str, Mapping[int, int]] | None = None,
    ) -> dict[str, Any]:
        """Of each stream `id`, `subject`, `retention` and `partitions`, and of each partition, by its number, `leader`, `location`,
        `log_start`, `high_watermark` (-1 for none), `log_end`, `leader_epoch`, `last_timestamp` (ns), `size_bytes` and `paused`.

        With `timestamps` (stream → partition → ns) also `timestamp_offset`: the first at or behind that time. None asks for all
        streams; then what is paused, or has no leader that answers, has None for its numbers. Named streams have all of them, or
        Unavailable is raised.
        """
        names = None if streams is None else tuple(dict.fromkeys(streams))
        patience = {True: Patience(self._patience), False: Patience(self._reach)}
        while True:
            try:
                return self._offsets(OffsetsQuery(streams=names, timestamps=timestamps))
            except Unavailable as error:
                self._forget()
                patience[self._is_reached].wait(error)

    def _offsets(self, query: OffsetsQuery) -> dict[str, Any]:
        answer = self._ask_anyone(query)
        self._is_reached = True
        found = {name: _numbered(stream) for name, stream in answer["streams"].items()}
        for location, names in _asked_elsewhere(found, answer["server"]).items():
            try:
                others = self._ask(location, OffsetsQuery(streams=names, timestamps=_some(query.timestamps, names)))
            except Unavailable:
                if query.streams is not None:
                    raise
                continue
            for name, stream in others["streams"].items():
                _merge(found[name], _numbered(stream), others["server"])
        if query.streams is not None:
            _must_be_known(found)
        for name, stream in found.items():
            for number, partition in stream["partitions"].items():
                if partition["location"] is not None:
                    self._leaders[(name, number)] = partition["location"]
        return found

    def _ask_anyone(self, query: OffsetsQuery) -> dict[str, Any]:
        if not self._known:
            self._known = self._servers.find()
        *others, last = self._known
        for location in others:
            try:
                return self._ask(location, query)
            except Unavailable as error:
                _logger.debug("%s does not answer: %s", location, error)
        return self._ask(last, query)

    def _ask(self, location: str, query: OffsetsQuery) -> dict[str, Any]:
        answer = self._servers.act(location, OFFSETS_ACTION, query.encode())
        if self._is_local and answer.get("local"):
            self._local_names[answer["locations"].get(answer["server"], location)] = answer["local"]
        return answer

    def _forget(self) -> None:
        """Servers may have come, gone and moved."""
        self._known = []
        self._leaders.clear()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def read(
        self,
        stream: str,
        partition: int,
        start: int | None = None,
        end: int | None = None,
        columns: Iterable[str] | None = None,
        *,
        stream_id: int | None = None,
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of the offsets `start <= offset < end`, all of them and each once, or an error.

        None for `start` is the start of the log, for `end` the high watermark now. When the leader changes, reading goes on at the
        next one. Raises OffsetBelowStart, OffsetOutOfRange, StreamNotFound, StreamRecreated (with `stream_id`), and Unavailable when
        the partition had no leader for longer than `patience`. Batches without rows are left out.
        """
        if start is None or end is None:
            ends = self._ends(stream, partition)
            start = ends["log_start"] if start is None else start
            end = max(start, ends["high_watermark"] + 1) if end is None else end
        ticket = ReadTicket(
            stream=stream,
            stream_id=stream_id,
            partition=partition,
            start=start,
            end=end,
            columns=check_columns(columns),
            batch_rows=batch_rows or limits.FLIGHT_BATCH_ROWS,
            batch_bytes=batch_bytes or limits.FLIGHT_BATCH_BYTES,
        )
        return self._read(ticket, start, end)

    def _ends(self, stream: str, partition: int) -> dict[str, Any]:
        partitions = self.offsets([stream])[stream]["partitions"]
        if partition not in partitions:
            raise StreamNotFound(f"the stream {stream!r} has no partition {partition}, it has {len(partitions)}")
        found: dict[str, Any] = partitions[partition]
        return found

    def _read(self, ticket: ReadTicket, position: int, end: int) -> Iterator[pa.RecordBatch]:
        patience = Patience(self._patience)
        while position < end:
            try:
                location = self._leader(ticket.stream, ticket.partition)
                for covered, batch in self._nearest(location, _from(ticket, position), end):
                    position = covered
                    patience.begin_anew()
                    if batch.num_rows:
                        yield batch
                if position < end:
                    raise IncompleteRead(
                        f"{ticket.stream}/{ticket.partition}: the read ended at {position} without a word, {end} was asked for"
                    )
            except Unavailable as error:
                self._lost(ticket, error)
                patience.wait(error)

    def _leader(self, stream: str, partition: int) -> str:
        known = self._leaders.get((stream, partition))
        if known is not None:
            return known
        location: str | None = self._ends(stream, partition)["location"]
        if location is None:
            raise Unavailable(
                f"the leader of {stream}/{partition} serves no tables",
                hint="`flight.enabled` must not be false there, and pyarrow must be installed",
            )
        return location

    def _lost(self, ticket: ReadTicket, error: Unavailable) -> None:
        """The partition may have another leader now; who the last one says it is, is asked next."""
        self._leaders.pop((ticket.stream, ticket.partition), None)
        location = getattr(error, "location", None)
        if isinstance(error, NotLeader) and location:
            self._leaders[(ticket.stream, ticket.partition)] = location
        elif not isinstance(error, NotLeader):
            self._known = []

    def _nearest(self, location: str, ticket: ReadTicket, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """From the server's files, if they are on this machine; what cannot be read so is asked for as record batches."""
        name, position = self._local_names.get(location), ticket.start or 0
        if name is not None:
            try:
                for covered, batch in read_local(name, ticket, position, end):
                    position = covered
                    yield covered, batch
            except NoShortCut as reason:
                _logger.debug("%s/%d from offset %d: %s", ticket.stream, ticket.partition, position, reason)
            else:
                return
        yield from self._servers.batches(location, _from(ticket, position))

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def put(
        self, stream: str, batches: pa.Table | Iterable[pa.RecordBatch], *, ack_policy: str = "all"
    ) -> list[dict[str, Any]]:
        """Publish rows: columns `value`, and `key`, `headers` and `partition` where they are wanted. Waits for all acks.

        Of each batch its `rows`, and their `partitions` and `offsets`. Rows go to the brokers' gRPC ports, which `servers` must name.
        Nothing is stored twice: OutcomeUnknown when the connection was lost in between; batches before that one are stored.
        """
        with self._lock:
            if self._writer is None:
                self._writer = self._make_writer()
            writer = self._writer
        return writer.put(stream, batches.to_batches() if hasattr(batches, "to_batches") else batches, ack_policy)

    def close(self) -> None:
        """End all reads; the connection cannot be used again."""
        self._servers.close()
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def _numbered(stream: dict[str, Any]) -> dict[str, Any]:
    """JSON knows names only; partitions have numbers."""
    return {**stream, "partitions": {int(number): one for number, one in stream["partitions"].items()}}


def _is_known(partition: dict[str, Any]) -> bool:
    return partition["log_start"] is not None


def _asked_elsewhere(found: dict[str, Any], server: str) -> dict[str, tuple[str, ...]]:
    """The streams to ask about at each location: leaders answer for their own partitions."""
    wanted: dict[str, list[str]] = {}
    for name, stream in found.items():
        places = {
            one["location"] for one in stream["partitions"].values() if not _is_known(one) and one["leader"] != server
        }
        for location in places - {None}:
            wanted.setdefault(location, []).append(name)
    return {location: tuple(names) for location, names in wanted.items()}


def _merge(into: dict[str, Any], stream: dict[str, Any], server: str) -> None:
    if into["id"] != stream["id"]:
        raise Unavailable("the servers do not agree yet which stream there is", hint="try again in a moment")
    for number, partition in stream["partitions"].items():
        if partition["leader"] == server:
            into["partitions"][number] = partition


def _must_be_known(found: dict[str, Any]) -> None:
    for name, stream in found.items():
        for number, partition in stream["partitions"].items():
            if not _is_known(partition):
                raise Unavailable(
                    f"the end of {name}/{number} is unknown: its leader is {partition['leader'] or 'not elected yet'}"
                )


def _some(
    timestamps: Mapping[str, Mapping[int, int]] | None, names: tuple[str, ...]
) -> Mapping[str, Mapping[int, int]] | None:
    return None if timestamps is None else {name: times for name, times in timestamps.items() if name in names}


def _from(ticket: ReadTicket, position: int) -> ReadTicket:
    return replace(ticket, start=position)


def _writer(brokers: list[str], tls: Tls, token: str | None, timeout: float) -> TableWriter:
    if not brokers:
        raise wrong(
            "servers", "Flight locations alone", "the gRPC address of a broker, such as `127.0.0.1:9292`, to write"
        )
    require()
    from bascule.client.arrow.writer import TableWriter

    return TableWriter(brokers, tls, token, timeout)
