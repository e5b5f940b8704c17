"""A cluster for the Spark source that lives in memory: streams of records that a test appends, removes and creates again."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from bascule.errors import OffsetBelowStart, StreamNotFound, StreamRecreated
from bascule.flight.schema import schema_of
from bascule.spark.options.positions import ByPartition
from bascule.spark.read.state import PartitionState, Streams, StreamState

RECORD_BYTES = 100


@dataclass
class MemoryPartition:
    log_start: int = 0
    values: list[bytes] = field(default_factory=list)
    """From offset 0 on, removed ones too."""

    uncommitted: int = 0

    @property
    def end(self) -> int:
        return len(self.values) - self.uncommitted


@dataclass
class MemoryStream:
    id: int
    subject: str
    partitions: list[MemoryPartition]
    retention: dict[str, int] = field(default_factory=dict)


class MemoryCluster:
    """Implements `bascule.spark.read.cluster.Cluster`. The timestamp of offset n is n seconds after 1970."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self.there: dict[str, MemoryStream] = {}
        self.cursors: dict[tuple[str, str, int], int] = {}
        self.calls = 0

    def create(self, name: str, partitions: int = 1, *, subject: str | None = None, records: int = 0) -> None:
        self.there[name] = MemoryStream(
            next(self._ids), subject or name, [MemoryPartition() for _ in range(partitions)]
        )
        for number in range(partitions):
            self.append(name, records, number)

    def append(self, name: str, count: int, partition: int = 0) -> None:
        values = self.there[name].partitions[partition].values
        values.extend(f"{name}/{partition}/{len(values) + number}".encode() for number in range(count))

    def remove_below(self, name: str, offset: int, partition: int = 0) -> None:
        self.there[name].partitions[partition].log_start = offset

    # ── what the source asks ─────────────────────────────────────────────────────────────────────

    def subjects(self) -> Mapping[str, str]:
        return {name: stream.subject for name, stream in self.there.items()}

    def streams(self, names: Collection[str]) -> Streams:
        self.calls += 1
        return {name: self._state(name) for name in names if name in self.there}

    def offsets_at(self, timestamps_ns: ByPartition) -> Mapping[str, Mapping[int, int | None]]:
        return {
            name: {number: self._at(name, number, moment_ns) for number, moment_ns in moments.items()}
            for name, moments in timestamps_ns.items()
        }

    def read(
        self, stream: str, partition: int, start: int, end: int, *, stream_id: int | None, columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        found = self.there.get(stream)
        if found is None:
            raise StreamNotFound(f"there is no stream {stream!r}")
        if stream_id not in (None, found.id):
            raise StreamRecreated("another one")
        log = found.partitions[partition]
        if start < log.log_start:
            error = OffsetBelowStart("gone")
            error.log_start_offset = log.log_start
            raise error
        assert end <= log.end, "a read beyond the high watermark"
        rows = [self._row(stream, partition, offset, log) for offset in range(start, end)]
        yield pa.RecordBatch.from_pylist(
            [{name: row[name] for name in columns} for row in rows], schema=schema_of(columns)
        )

    def fetch_cursor(self, cursor: str, stream: str, partition: int) -> int | None:
        return self.cursors.get((cursor, stream, partition))

    def set_cursor(self, cursor: str, stream: str, partition: int, offset: int) -> None:
        self.cursors[cursor, stream, partition] = offset

    def close(self) -> None: ...

    def _state(self, name: str) -> StreamState:
        stream = self.there[name]
        partitions = {
            number: PartitionState(
                log_start_offset=log.log_start,
                end_offset=log.end,
                log_end_offset=len(log.values),
                size_bytes=(len(log.values) - log.log_start) * RECORD_BYTES,
            )
            for number, log in enumerate(stream.partitions)
        }
        return StreamState(
            name=name, id=stream.id, subject=stream.subject, partitions=partitions, retention=stream.retention
        )

    def _at(self, name: str, number: int, moment_ns: int) -> int | None:
        log = self.there[name].partitions[number]
        first = max(log.log_start, -(-moment_ns // 1_000_000_000))
        return first if first < log.end else None

    def _row(self, stream: str, partition: int, offset: int, log: MemoryPartition) -> dict[str, object]:
        return {
            "key": None,
            "value": log.values[offset],
            "stream": stream,
            "partition": partition,
            "offset": offset,
            "timestamp": offset * 1_000_000,
            "subject": self.there[stream].subject,
            "replySubject": None,
            "headers": {},
            "leaderEpoch": 1,
        }
