"""The questions of the source to brokers. One connection per process and set of options, made when it is first needed.

Readers are built several times, pickled and sent to executors, so a reader holds no connection. Spark reuses its Python workers for
many tasks: the second task of a worker finds the connection of the first here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from bascule.config.values.duration import SECOND_NS
from bascule.errors import StreamNotFound
from bascule.spark.options.positions import ByPartition
from bascule.spark.options.reading import SourceConnection, SourceOptions
from bascule.spark.read.state import PartitionState, Streams, StreamState

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.arrow.reader import FlightConnection
    from bascule.client.blocking import BlockingClient


class Cluster(Protocol):
    """The questions of a source to a cluster."""

    def subjects(self) -> Mapping[str, str]:
        """The names of all streams with their subjects."""

    def streams(self, names: Collection[str]) -> Streams:
        """Streams as they are now; names that do not exist are left out."""

    def offsets_at(self, timestamps_ns: ByPartition) -> Mapping[str, Mapping[int, int | None]]:
        """The first offset of each partition that is not older; None where there is no such record."""

    def read(
        self, stream: str, partition: int, start: int, end: int, *, stream_id: int | None, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        """The records from `start` to before `end`: all of them, or an error."""

    def fetch_cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        """The offset of the last record that was dealt with; None for a cursor that was never set."""

    def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        """Remember the offset of the last record that was dealt with."""

    def close(self) -> None: ...


_connected: dict[tuple[int, SourceConnection], Cluster] = {}


def connect(options: SourceConnection) -> Cluster:
    """The connection of this process. Workers are forked: a child must not use the sockets of its parent."""
    key = os.getpid(), options
    if key not in _connected:
        _connected[key] = FlightCluster(options)
    return _connected[key]


def connect_with_history(options: SourceOptions) -> Cluster:
    """The connection of this process, with an archive in front of the logs if the options name one."""
    live = connect(options.connection)
    if options.history.path is None:
        return live
    from bascule.spark.read.one_stream import OneStream

    return OneStream(live, options.history.place, options)


def disconnect(options: SourceConnection) -> None:
    """Close it; the next `connect` makes another."""
    cluster = _connected.pop((os.getpid(), options), None)
    if cluster is not None:
        cluster.close()


class FlightCluster:
    """A cluster reached through Arrow Flight; cursors, which are small, through gRPC."""

    def __init__(self, options: SourceConnection, flight: FlightConnection | None = None) -> None:
        from bascule.client.arrow.reader import FlightConnection

        self._options = options
        self._flight: FlightConnection = flight or FlightConnection(
            options.servers, **options.credentials, patience=options.patience_ns / SECOND_NS
        )
        self._client: BlockingClient | None = None

    def subjects(self) -> Mapping[str, str]:
        return {name: fields["subject"] for name, fields in self._flight.offsets().items()}

    def streams(self, names: Collection[str]) -> Streams:
        if not names:
            return {}
        try:
            answer = self._flight.offsets(list(names))
        except StreamNotFound:
            there = self.subjects()
            if all(name in there for name in names):
                raise  # it is being created or deleted at this moment
            return self.streams([name for name in names if name in there])
        return {name: stream_state(name, fields) for name, fields in answer.items()}

    def offsets_at(self, timestamps_ns: ByPartition) -> Mapping[str, Mapping[int, int | None]]:
        answer = self._flight.offsets(list(timestamps_ns), timestamps_ns)
        return {
            name: {number: _found_offset(answer[name]["partitions"][number]) for number in asked}
            for name, asked in timestamps_ns.items()
        }

    def read(
        self, stream: str, partition: int, start: int, end: int, *, stream_id: int | None, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        return self._flight.read(stream, partition, start, end, stream_id=stream_id, columns=columns)

    def fetch_cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        return self._grpc().fetch_cursor(cursor, stream, partition)

    def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        self._grpc().set_cursor(cursor, stream, partition, offset)

    def close(self) -> None:
        self._flight.close()
        if self._client is not None:
            self._client.close()

    def _grpc(self) -> BlockingClient:
        if self._client is None:
            from bascule.client import blocking

            self._client = blocking.connect(self._options.servers, **self._options.credentials)
        return self._client


def stream_state(name: str, fields: Mapping[str, Any]) -> StreamState:
    """One stream of the answer to `offsets`."""
    partitions = {number: _partition_state(entry) for number, entry in fields["partitions"].items()}
    return StreamState(
        name=name,
        id=fields["id"],
        subject=fields["subject"],
        partitions=dict(sorted(partitions.items())),
        retention=fields.get("retention") or {},
    )


def _partition_state(entry: Mapping[str, Any]) -> PartitionState:
    return PartitionState(
        log_start_offset=entry["log_start"],
        end_offset=entry["high_watermark"] + 1,
        log_end_offset=entry["log_end"],
        size_bytes=entry["size_bytes"],
        last_timestamp_ns=entry.get("last_timestamp"),
    )


def _found_offset(fields: Mapping[str, Any]) -> int | None:
    """Brokers answer with the end where all records are older than asked for."""
    offset: int | None = fields["timestamp_offset"]
    return None if offset is None or offset > fields["high_watermark"] else offset
