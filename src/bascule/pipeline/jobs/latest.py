"""The latest message of each key, continuously or once, as Parquet: what a fully compacted log would hold, as a table.

Every micro-batch is cut into buckets by the hash of its keys. Tasks merge each bucket with what the table has of it and write it anew;
then one snapshot replaces the last one. See lake/latest/table.py for the table and lake/latest/merge.py for what is newest.

`LatestTable.write` is what a query's foreachBatch calls, this job's own or any other's whose rows say which message they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import CallerError, InvalidOption, InvalidSchema, StreamNotFound
from bascule.lake.archive import FOLDER
from bascule.lake.latest.bucket import BUCKET, OUTCOME_DDL, decoded
from bascule.lake.latest.merge import DELETED, ORDER
from bascule.lake.latest.table import BUCKETS_DEFAULT, KEEP_SECONDS_DEFAULT, LatestStore, TableSnapshot
from bascule.lake.latest.writer import LatestWriter
from bascule.pipeline.jobs.archive import COMPRESSIONS, ArchiveOptions, read_stream_ids

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER_SECONDS_DEFAULT: Final = 10.0
KEY_COLUMN: Final = "latestKey"
"""The column that holds the key when it is an expression and no column of its own."""
KEY_TYPES: Final = (
    "binary",
    "string",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "boolean",
    "date",
    "timestamp",
    "decimal",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestOptions:
    path: str
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    """In place of names: a regular expression for them."""
    subject: str | None = None
    """In place of names: a NATS subject with wildcards."""
    servers: str = "127.0.0.1:9292"
    key: str = "key"
    """A column, or an expression of SQL over the columns."""
    deleted: str | None = None
    """An expression that is true for messages that delete their key; without it, those without a value."""
    buckets: int = BUCKETS_DEFAULT
    """Of a table that is made now. One that is there keeps its number."""
    keep_seconds: float = KEEP_SECONDS_DEFAULT
    """How long a snapshot that was replaced can still be read."""
    null_keys: str = "keep"
    """What becomes of messages without a key: `keep`, `skip`, or `fail`."""
    compression: str = "zstd"
    trigger_seconds: float = TRIGGER_SECONDS_DEFAULT
    source: dict[str, str] = field(default_factory=dict)
    """More options of the source: typed values, limits, TLS, what happens on a loss."""
    checkpoint: str | None = None
    """Of the query whose batches are written; without it, in the table."""

    def __post_init__(self) -> None:
        if self.selection().place.local is None:  # which streams, checked
            raise InvalidOption(
                f"`path` is `{self.path}`",
                hint="it must be a folder: tables of the latest messages are not in object stores",
            )
        self.writer()
        if not self.key.strip():
            raise InvalidOption("`key` is empty", hint="it must be a column such as `key`, or an expression of SQL")
        if self.compression not in COMPRESSIONS:
            raise InvalidOption(
                f"`compression` is `{self.compression}`", hint=f"it must be one of {', '.join(COMPRESSIONS)}"
            )

    @property
    def folder(self) -> Path:
        return Path(self.path.removeprefix("file://"))

    @property
    def checkpoint_path(self) -> Path:
        return self.folder / FOLDER / "checkpoint" if self.checkpoint is None else Path(self.checkpoint)

    def selection(self) -> ArchiveOptions:
        """The streams, and how brokers are reached."""
        return ArchiveOptions(
            path=self.path,
            streams=self.streams,
            pattern=self.pattern,
            subject=self.subject,
            servers=self.servers,
            trigger_seconds=self.trigger_seconds,
            source=self.source,
        )

    def writer(self) -> LatestWriter:
        return LatestWriter(
            str(self.folder),
            buckets=self.buckets,
            keep_seconds=self.keep_seconds,
            null_keys=self.null_keys,
            compression=self.compression,
        )


class LatestTable:
    """Lives in the driver. Holds the table's lock between `open` and `close`."""

    def __init__(
        self, spark: SparkSession, options: LatestOptions, on_commit: Callable[[TableSnapshot], None] = lambda _: None
    ) -> None:
        self._spark = spark
        self._options = options
        self._on_commit = on_commit
        self._writer = options.writer()
        self._stream_ids: dict[str, int] = {}

    @property
    def snapshot(self) -> TableSnapshot:
        """The newest that this one has made or found."""
        return self._writer.snapshot

    def open(self) -> None:
        options = self._options
        self._stream_ids = (
            options.selection().stream_ids()
        )  # before anything is made: a misspelt stream leaves no folder
        self._writer.open(options.streams, options.key, options.deleted)
        try:
            self._writer.must_be_the_same(self._stream_ids)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._writer.close()

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def start(self, *, once: bool = False) -> StreamingQuery:
        """Begin; with `once` it ends when everything is in the table that was in the streams at the start."""
        if type(self._spark).__module__.startswith("pyspark.sql.connect"):
            raise CallerError(
                "the table is written by the driver of Spark, and with Spark Connect that is another process",
                hint="use `local[*]`, or a cluster's master such as `spark://…`",
            )
        options = self._options
        named = ", ".join(options.streams) or options.pattern or options.subject
        writer = (
            self._messages()
            .writeStream.queryName(f"latest {named}")
            .option("checkpointLocation", str(options.checkpoint_path))
            .foreachBatch(self.write)
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{options.trigger_seconds:g} seconds").start()

    def _messages(self) -> DataFrame:
        source = self._options.selection().source_options()
        return self._spark.readStream.format("bascule").options(**source).load()

    def check(self) -> None:
        """Raises for a key, or an expression, that this job's rows do not have. Nothing is made yet."""
        self._keyed(self._messages())

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Merge the messages of a batch into the table. A batch that was merged before changes nothing.

        Rows need the columns `stream`, `partition`, `offset`, `timestamp` and `leaderEpoch` of the messages they come from; all other
        columns are kept as they are. Messages of one partition have to come in batches in their order, as the source gives them.
        """
        from bascule.spark.options.schema import arrow_schema

        rows, key = self._keyed(batch)
        schema = arrow_schema(rows.drop(DELETED, BUCKET).schema)
        task = self._writer.task(schema, key)

        def merge(group: tuple[Any, ...], some: pa.Table) -> pa.Table:
            """Spark counts the arguments of a plain function, and of nothing else."""
            return task(group, some)

        found = rows.groupBy(BUCKET).applyInArrow(merge, OUTCOME_DDL).collect()
        merged = [decoded(row["outcome"]) for row in found]
        streams = {stream for one in merged for stream in one.ends}
        if streams:
            made = self._writer.commit(merged, batch_id, self._ids_of(streams, batch_id), schema)
            if made is not None:
                self._on_commit(made)

    def _keyed(self, batch: DataFrame) -> tuple[DataFrame, str]:
        """The rows with the columns that tasks need, and the name of the one with the key."""
        from pyspark.sql import functions as f

        _must_have_order(batch)
        name = self._options.key
        if name not in batch.columns:
            batch, name = _with(batch, KEY_COLUMN, "key", name), KEY_COLUMN
        kind = batch.schema[name].dataType.simpleString()
        if kind.partition("(")[0] not in KEY_TYPES:
            raise InvalidSchema(
                f"the key `{self._options.key}` is {kind[:60]}", hint=f"it must be one of {', '.join(KEY_TYPES)}"
            )
        key = f.col(f"`{name}`")
        place = f.xxhash64("stream", "partition", "offset")
        bucket = f.pmod(f.when(key.isNull(), place).otherwise(f.xxhash64(key)), f.lit(self._writer.buckets))
        deleted = f"coalesce(cast({self._options.deleted or _without_value(batch)} as boolean), false)"
        return _with(batch, DELETED, "deleted", deleted).withColumn(BUCKET, bucket.cast("int")), name

    def _ids_of(self, streams: set[str], batch_id: int) -> dict[str, int]:
        """Which streams of these names the batch was read from: Spark's note on the batch says it, else brokers are asked."""
        found = {**self._stream_ids, **read_stream_ids(self._options.checkpoint_path / "offsets" / str(batch_id))}
        if streams - found.keys():
            found = {**self._options.selection().stream_ids(), **found}
        for stream in streams:
            if stream not in found:
                raise StreamNotFound(f"messages of `{stream}` are to be kept, and there is no such stream any more")
        return {stream: found[stream] for stream in streams}


def _with(batch: DataFrame, column: str, option: str, expression: str) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    try:
        return batch.withColumn(column, f.expr(expression))
    except (AnalysisException, ParseException) as error:
        said = str(error).strip().splitlines()[0]
        raise InvalidOption(
            f"`{option}` is `{expression}`: {said}", hint=f"it must be SQL over {', '.join(batch.columns)}"
        ) from None


def _without_value(batch: DataFrame) -> str:
    """When a message deletes its key. A value that could not be decoded is null too, and deletes nothing."""
    if "value" not in batch.columns:
        return "false"
    return "value IS NULL" + (" AND malformedValue IS NULL" if "malformedValue" in batch.columns else "")


def _must_have_order(batch: DataFrame) -> None:
    missing = [name for name in ORDER if name not in batch.columns]
    if missing:
        raise InvalidSchema(
            f"the rows have no column `{missing[0]}`, which tells the newest message of a key",
            hint=f"keep the columns {', '.join(ORDER)}",
        )


def run_latest(spark: SparkSession, options: LatestOptions, *, once: bool, **callbacks: Any) -> TableSnapshot:
    """The whole job: returns when the query has ended, with the table as it is then."""
    table = LatestTable(spark, options, **callbacks)
    options.selection().stream_ids()
    table.check()
    table.open()
    try:
        query = table.start(once=once)
        try:
            query.awaitTermination()
        finally:
            query.stop()
    finally:
        table.close()
    return table.snapshot


def latest_frame(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """The table as it is now, for Spark to read."""
    store = LatestStore(path)
    snapshot = store.snapshot()
    files = [str(store.path / one) for one in snapshot.data_files]
    if files:
        return spark.read.parquet(*files)
    if not snapshot.number:
        raise CallerError(f"{store.path} has no snapshot yet", hint="the first one comes with the first message")
    return spark.createDataFrame(snapshot.arrow_schema().empty_table())
