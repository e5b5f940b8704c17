"""Streams into a table of Delta or Iceberg, each message exactly once, when the format's jar is given.

Every micro-batch is one append, which these formats make visible whole or not at all. The table itself shows what was written before:
its highest offset of each partition is read once when the job starts and followed from then on, and messages that are not above it are
left out. Delta also gets the id of the query and of the batch, and ignores a batch that it has.

One process writes a table: the folder that holds Spark's notes on the query holds the lock.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import CallerError, InvalidOption, MissingExtra, StreamNotFound, StreamRecreated
from bascule.flight.schema import COLUMNS
from bascule.lake.archive import FOLDER, Archive
from bascule.lake.facts import Covered
from bascule.lake.tables import COLUMNS_DDL, DATE, STREAM_ID, TableFormat
from bascule.pipeline.jobs.archive import (
    ArchiveCursors,
    ArchiveOptions,
    must_be_messages,
    must_be_the_driver,
    must_go_on,
    read_stream_ids,
    run_query,
    start_query,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TABLE: Final = re.compile(r"\w+(\.\w+){0,2}")


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """What a batch brought."""

    batch: int
    rows: int


def require_format(spark: SparkSession, table_format: TableFormat) -> None:
    """Raises MissingExtra, naming what to give, when Spark does not have the format's jar."""
    jvm: Any = spark._jvm
    if not table_format.probe:
        return
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(table_format.probe)
    except Exception:
        raise MissingExtra(
            f"Spark {spark.version} has no jar for tables of the format `{table_format.name}`",
            hint=f"give `--packages {table_format.packages(spark.version)}`, VERSION being one that is made for this Spark",
        ) from None


class TableArchive:
    """`options` say which streams and where Spark's notes are; its folder holds no data."""

    def __init__(
        self,
        spark: SparkSession,
        options: ArchiveOptions,
        table: str,
        table_format: TableFormat,
        on_append: Callable[[AppendedBatch], None] = lambda _: None,
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise InvalidOption(
                f"`table` is `{table}`",
                hint="it must be a name such as `orders`, `lake.orders` or `catalog.lake.orders`",
            )
        self._spark = spark
        self._options = options
        self._table = table
        self._format = table_format
        self._on_append = on_append
        self._held = contextlib.ExitStack()
        self._positions: dict[tuple[str, int], int] = {}
        """The next offset of each partition."""
        self._stream_ids: dict[str, int] = {}
        self._cursors = ArchiveCursors(options)
        self.failure: Exception | None = None

    @property
    def checkpoint_path(self) -> Path:
        return self._options.checkpoint_path

    def open(self) -> None:
        """Raises before anything is made: MissingExtra without the jar, StreamNotFound, ArchiveConflict when another one writes."""
        must_be_the_driver(self._spark)
        require_format(self._spark, self._format)
        ids = self._options.stream_ids()
        notes = Archive(self._options.folder)
        if notes.exists:
            raise CallerError(
                f"{notes.path} is an archive of Parquet files",
                hint="give another folder for Spark's notes on the query",
            )
        (notes.path / FOLDER).mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            held.enter_context(notes.writing())
            held.callback(self._cursors.close)
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._table} ({COLUMNS_DDL}) USING {self._format.name} PARTITIONED BY ({DATE})"
            )
            self._read_positions(ids)
            if not any((self._options.checkpoint_path / "offsets").glob("[0-9]*")):
                must_go_on(self._options, self._positions, ids)
            self._held = held.pop_all()

    def close(self) -> None:
        self._held.close()

    def _read_positions(self, ids: dict[str, int]) -> None:
        # Batches are written in sessions of their own, of which this one may have heard nothing: it would answer from what it knows.
        self._spark.catalog.refreshTable(self._table)
        rows = self._spark.sql(
            f"SELECT stream, {STREAM_ID}, `partition`, max(`offset`) FROM {self._table} GROUP BY ALL"
        ).collect()
        self._stream_ids = {}
        for stream, stream_id, partition, last in rows:
            self._must_be_the_same(stream, stream_id, ids.get(stream, stream_id))
            self._must_be_the_same(stream, stream_id, self._stream_ids.setdefault(stream, stream_id))
            self._positions[stream, partition] = last + 1

    def _must_be_the_same(self, stream: str, known: int, found: int) -> None:
        if known != found:
            raise StreamRecreated(
                f"{stream!r} was deleted and created again since the table {self._table} was begun",
                hint="write it into another table: offsets of the former stream are not those of this one",
            )

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def start(self, *, once: bool = False) -> StreamingQuery:
        return start_query(self._spark, self._options, f"archive {self._table}", self._take, once=once)

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self.write(batch, batch_id)
        except Exception as error:
            self.failure = error
            raise

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Append the messages of a batch that the table does not have."""
        must_be_messages(batch)
        noted = self._noted_ids(batch_id)
        for (
            stream,
            stream_id,
        ) in noted.items():  # before anything is left out because the table has its offset: of another stream
            self._must_be_the_same(stream, self._stream_ids.get(stream, stream_id), stream_id)
        rows = self._missing(batch.select(*COLUMNS)).persist()  # it is looked at, then written: the log is read once
        try:
            found = rows.groupBy("stream", "partition").agg({"offset": "max", "*": "count"}).collect()
            if not found:
                return
            ids = self._ids_of({row["stream"] for row in found}, noted)
            self._append(rows, ids, batch_id)
            ends = {(row["stream"], row["partition"]): row["max(offset)"] + 1 for row in found}
            self._positions |= ends
            self._on_append(AppendedBatch(batch_id, sum(row["count(1)"] for row in found)))
            self._cursors.set(tuple(Covered(name, ids[name], number, 0, end) for (name, number), end in ends.items()))
        finally:
            rows.unpersist()

    def _missing(self, batch: DataFrame) -> DataFrame:
        if not self._positions:
            return batch
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

        known = self._spark.createDataFrame(
            [(stream, partition, end) for (stream, partition), end in self._positions.items()],
            "stream STRING, partition INT, following BIGINT",
        )
        joined = batch.join(F.broadcast(known), ["stream", "partition"], "left")
        return joined.where("following IS NULL OR offset >= following").select(*COLUMNS)

    def _noted_ids(self, batch_id: int) -> dict[str, int]:
        return read_stream_ids(self._options.checkpoint_path / "offsets" / str(batch_id))

    def _ids_of(self, streams: set[str], noted: dict[str, int]) -> dict[str, int]:
        asked = {} if streams <= noted.keys() else self._options.stream_ids()
        for stream in streams:
            found = noted.get(stream, asked.get(stream))
            if found is None:
                raise StreamNotFound(f"messages of `{stream}` are to be archived, and there is no such stream any more")
            self._must_be_the_same(stream, self._stream_ids.setdefault(stream, found), found)
        return {stream: self._stream_ids[stream] for stream in streams}

    def _append(self, rows: DataFrame, ids: dict[str, int], batch_id: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

        identity = F.create_map(*(F.lit(part) for item in ids.items() for part in item))[F.col("stream")]
        day = F.expr("date_add(DATE'1970-01-01', CAST(unix_micros(timestamp) DIV 86400000000 AS INT))")
        writer = (
            rows.withColumn(STREAM_ID, identity.cast("bigint"))
            .withColumn(DATE, day)
            .sortWithinPartitions(DATE, "stream", "partition", "offset")
            .write.format(self._format.name)
            .partitionBy(DATE)
            .mode("append")
        )
        query = _query_id(self._options.checkpoint_path)
        if self._format.knows_batches and query is not None:
            # The id is the checkpoint's: with another checkpoint batches are counted from 0, and a number says nothing of rows.
            writer = writer.option("txnAppId", f"bascule:{query}").option("txnVersion", batch_id)
        writer.saveAsTable(self._table)


def _query_id(checkpoint: Path) -> str | None:
    try:
        return str(json.loads((checkpoint / "metadata").read_text("utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_table_archive(job: TableArchive, *, once: bool) -> None:
    """The whole job: returns when the query has ended."""
    job.open()
    try:
        run_query(job, job.checkpoint_path, once=once)
    finally:
        job.close()
