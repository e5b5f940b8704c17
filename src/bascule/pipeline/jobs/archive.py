"""The archive job: a stream, continuously or once, into Parquet files, each message exactly once.

Every micro-batch is written by Spark's tasks and then becomes part of the archive with one commit. A batch that comes again, because
the driver died between the commit and Spark's own note of it, finds its offsets in the archive and writes nothing. A batch that died
before its commit left files that nobody knows; the next start removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import CallerError, StreamRecreated
from bascule.lake.files import FILE_BYTES_DEFAULT, STATS_DDL, WriteTask
from bascule.lake.manifest import FOLDER, Archive, ArchiveState, Commit, Covered, DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bascule.flight.reader import FlightConnection

TRIGGER_SECONDS_DEFAULT: Final = 10.0
PATIENCE_SECONDS: Final = 10.0
"""How long a job that starts waits for brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    streams: tuple[str, ...]
    path: str
    servers: str = "127.0.0.1:9292"
    file_bytes: int = FILE_BYTES_DEFAULT
    compression: str = "zstd"
    trigger_seconds: float = TRIGGER_SECONDS_DEFAULT
    source: dict[str, str] = field(default_factory=dict)
    """More options of the source: limits, TLS, what happens on a loss."""

    def tables(self) -> FlightConnection:
        """A connection with what the source is given."""
        from bascule.client.options import TlsOptions
        from bascule.flight.reader import FlightConnection

        given = self.source
        tls: bool | TlsOptions = given.get("tls") == "true"
        if tls and any(name in given for name in ("tlsCa", "tlsCert")):
            tls = TlsOptions(ca=given.get("tlsCa"), cert=given.get("tlsCert"), key=given.get("tlsKey"))
        return FlightConnection(self.servers, tls=tls or None, token=given.get("token"), patience=PATIENCE_SECONDS)

    def stream_ids(self) -> dict[str, int]:
        """Of the streams there are. Raises StreamNotFound for one that is not, Unavailable when no broker answers."""
        with self.tables() as tables:
            return {name: int(stream["id"]) for name, stream in tables.offsets(self.streams).items()}


class ArchiveJob:
    """Lives in the driver. Between `open` and `close` nobody else writes the archive."""

    def __init__(
        self, spark: SparkSession, options: ArchiveOptions, on_commit: Callable[[Commit], None] = lambda _: None
    ) -> None:
        if not options.streams:
            raise CallerError("no stream is named to be archived", hint="name at least one")
        self._spark = spark
        self._options = options
        self._on_commit = on_commit
        self.archive = Archive(options.path)
        self._writing = self.archive.writing()
        self._state = ArchiveState()
        self._stream_ids: dict[str, int] = {}

    def open(self) -> None:
        self._stream_ids = self._options.stream_ids()  # before anything is made: a misspelt stream leaves no folder
        self.archive.create(list(self._options.streams))
        self._writing.__enter__()
        try:
            self.archive.remove_leftovers()
            self._state = self.archive.state()
            self._must_be_the_same_streams()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._writing.__exit__(None, None, None)

    def _must_be_the_same_streams(self) -> None:
        for stream, stream_id, _ in self._state.next_offsets:
            if self._stream_ids.get(stream, stream_id) != stream_id:
                raise StreamRecreated(
                    f"{stream!r} was deleted and created again since {self.archive.path} was begun",
                    hint="archive it into another folder: offsets of the former stream are not those of this one",
                )

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def start(self, *, once: bool = False) -> StreamingQuery:
        """Begin; with `once` it ends when everything is archived that was there at the start."""
        options = self._options
        reader = self._spark.readStream.format("bascule").option("servers", options.servers)
        reader = reader.option("subscribe", ",".join(options.streams)).option("startingOffsets", "earliest")
        for name, value in options.source.items():
            reader = reader.option(name, value)
        writer = (
            reader.load()
            .writeStream.queryName(f"archive {', '.join(options.streams)}")
            .option("checkpointLocation", str(self.archive.path / FOLDER / "checkpoint"))
            .foreachBatch(self._write)
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{options.trigger_seconds:g} seconds").start()

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        options = self._options
        task = WriteTask(
            str(self.archive.path.resolve()),
            self._stream_ids,
            {(stream, partition): end for (stream, _, partition), end in self._state.next_offsets.items()},
            options.file_bytes,
            options.compression,
        )
        rows = batch.mapInArrow(task, STATS_DDL).collect()
        files = tuple(sorted((DataFile(**row.asDict()) for row in rows), key=lambda one: one.path))
        if files:
            self._commit(files, batch_id)

    def _commit(self, files: tuple[DataFile, ...], batch_id: int) -> None:
        commit = Commit(
            self._state.number + 1,
            "append",
            time.time_ns(),
            str(self._options.path),
            batch_id,
            files,
            (),
            _covered(files),
        )
        self.archive.commit(commit)
        self._state.apply(commit)
        self._on_commit(commit)


def _covered(files: tuple[DataFile, ...]) -> tuple[Covered, ...]:
    found: dict[tuple[str, int, int], list[int]] = {}
    for one in files:
        ends = found.setdefault((one.stream, one.stream_id, one.partition), [one.first_offset, one.last_offset])
        ends[0], ends[1] = min(ends[0], one.first_offset), max(ends[1], one.last_offset)
    return tuple(Covered(*key, start, last + 1) for key, (start, last) in sorted(found.items()))


def run_archive(spark: SparkSession, options: ArchiveOptions, *, once: bool, **callbacks: Any) -> ArchiveState:
    """The whole job: returns when the query has ended, with the archive as it is then."""
    job = ArchiveJob(spark, options, **callbacks)
    job.open()
    try:
        query = job.start(once=once)
        try:
            query.awaitTermination()
        finally:
            query.stop()
    finally:
        job.close()
    return job.archive.state()
