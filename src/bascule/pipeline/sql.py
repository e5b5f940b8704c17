"""SQL over streams and archives: a query that is answered once, or one that runs on and writes a stream or a table.

Every stream whose name occurs in the query is a view of that name. A view over an archive is the archive and, if the stream is there,
what the log has behind it: one table without a gap.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.config.values.duration import MILLISECOND_NS
from bascule.errors import CallerError, CheckpointMismatch, InvalidOption, InvalidQuery, Unavailable
from bascule.lake.archive import Archive
from bascule.lake.delta.place import LakePlace
from bascule.lake.facts import DataFile
from bascule.lake.files import read_file
from bascule.pipeline.brokers import streams_at
from bascule.pipeline.runner import is_connect
from bascule.pipeline.sinks.base import SinkBatch
from bascule.pipeline.sinks.stream import StreamBatches, message_frame, producer_id, written_columns
from bascule.pipeline.sinks.table import TableBatches, write_document
from bascule.pipeline.steps.rows import Rows, quoted
from bascule.spark.errors.failures import from_spark
from bascule.spark.options.schema import TABLE
from bascule.spark.read.native import DATE, scan, table, with_date

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_NOT_NAMES: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NAMES: Final = re.compile(r"`((?:[^`]|``)+)`|([^\W\d]\w*)")
_SHUFFLES: Final = re.compile(
    r"\b(Aggregate|Join|Deduplicate\w*|Window|Sort|Distinct|Repartition\w*|\w+InPandas\w*|\w*Limit|Offset|\w*Exchange)\b"
)
_NAMES_DATE: Final = re.compile(r"(?<!\bAS )\bdate\b(?!\s*['\"(])", re.IGNORECASE)
"""The column, and neither a literal nor a type."""
_COUNT: Final = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_ONLY_SELECT: Final = re.compile(
    r"\s*(SELECT|WITH)\b(?!.*\b(TABLE|NATURAL|PIVOT|UNPIVOT)\b)", re.IGNORECASE | re.DOTALL
)
ID_BYTES: Final = 8
RUN_ID_BYTES: Final = 16
"""Long enough that no run gets the id of another."""

ANSWER_TASKS_MAX: Final = 256
"""Each task is a producer of its own, and a partition remembers 4,096 producers in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlOptions:
    query: str
    connection: Mapping[str, str] = field(default_factory=dict)
    """`servers`, and how they are reached, as the source has it."""
    archives: Mapping[str, str] = field(default_factory=dict)
    """Views over archives: their names and paths."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store that archives are in."""
    values: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of streams whose values are typed: format and schema."""
    watermarks_ns: Mapping[str, int] = field(default_factory=dict)
    """Of streams in a query that runs on: how late rows may come."""
    starting: str = "earliest"

    def __post_init__(self) -> None:
        if not self.query.strip():
            raise InvalidOption("the query is empty", hint='write one such as "SELECT count(*) FROM orders"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous:
    """Where a query that runs on writes to."""

    checkpoint: str
    stream: str | None = None
    path: str | None = None
    output_mode: str = "append"
    trigger_ns: int = 10_000 * MILLISECOND_NS
    create: bool = False


def mentioned(query: str, names: Collection[str]) -> list[str]:
    """Which of these names occur in a query, other than in texts and comments. Case counts, unless only one is meant anyway."""
    by_lower: dict[str, list[str]] = {}
    for name in names:
        by_lower.setdefault(name.lower(), []).append(name)
    found: dict[str, None] = {}
    for match in _NAMES.finditer(_NOT_NAMES.sub(" ", query)):
        word = match[1].replace("``", "`") if match[1] else match[2]
        same = by_lower.get(word.lower(), [])
        if word in same:
            found[word] = None
        elif len(same) == 1:
            found[same[0]] = None
    return list(found)


def needed_columns(query: str) -> tuple[str, ...] | None:
    """The columns of streams that a query may need; None for all of them. Spark does not push columns down to a source in Python,
    and columns that the query does not name would be read in vain."""
    bare = _NOT_NAMES.sub(" ", query)
    if "*" in _COUNT.sub(" ", bare) or "|>" in bare or not _ONLY_SELECT.match(bare):
        return None
    words = {word.lower() for word in re.findall(r"\w+", bare)}
    found = tuple(field.name for field in TABLE if field.name.lower() in words)
    return found or ("offset",)


def streams_there(options: SqlOptions, *, streaming: bool = False) -> tuple[str, ...]:
    """The streams there are. An archive can be asked while no broker is there: then there are none. Raises Unavailable otherwise."""
    try:
        return tuple(streams_at(options.connection))
    except Unavailable:
        if streaming or not mentioned(options.query, options.archives):
            raise
        return ()


class SqlSession:
    """The views of one query."""

    def __init__(self, spark: SparkSession, options: SqlOptions) -> None:
        self._spark = spark
        self._options = options
        self._streams: tuple[str, ...] = ()
        self._is_pruned = True

    @property
    def known(self) -> list[str]:
        return sorted({*self._streams, *self._options.archives})

    # ── views ────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, *, streaming: bool) -> None:
        options = self._options
        self._streams = streams_there(options, streaming=streaming)
        for name in mentioned(options.query, self.known):
            self._view(name, streaming=streaming)
        self._must_be_used("--value", options.values)
        self._must_be_used("--watermark", options.watermarks_ns)

    def _must_be_used(self, option: str, names: Collection[str]) -> None:
        for name in names:
            if name not in mentioned(self._options.query, self.known):
                raise InvalidOption(
                    f"`{option}` names `{name}`, which is no stream of the query",
                    hint=f"there are {', '.join(self.known)}",
                )

    def _view(self, name: str, *, streaming: bool) -> None:
        options = self._options
        path = options.archives.get(name)
        if path is not None and name not in self._streams:
            if streaming:
                raise CallerError(
                    f"the stream `{name}` is not there", hint="a query that runs on needs it; leave out `--continuous`"
                )
            frame = archive_frame(self._spark, LakePlace.of(path, options.storage), name, self._archive_columns())
        else:
            frame = self._stream(name, path, streaming=streaming)
        if streaming and name in options.watermarks_ns:
            frame = frame.withWatermark("timestamp", f"{options.watermarks_ns[name] // MILLISECOND_NS} milliseconds")
        frame.createOrReplaceTempView(quoted(name))

    def _stream(self, name: str, archive: str | None, *, streaming: bool) -> DataFrame:
        options = self._options
        given = {**options.connection, "stream": name}
        if archive is not None:
            Archive(archive, dict(options.storage)).describe()
            given["history"] = archive
            if not streaming and name not in options.values:
                return table(self._spark, columns=self._archive_columns(), storage_options=options.storage, **given)
            if options.storage:
                given["storageOptions"] = json.dumps(dict(options.storage))
        if name in options.values:
            given["valueFormat"], given["valueSchema"] = options.values[name]
        if streaming:
            return self._spark.readStream.format("bascule").options(**given, startingOffsets=options.starting).load()
        reader = self._spark.read.format("bascule").options(**given)
        columns = needed_columns(options.query) if self._is_pruned and name not in options.values else None
        if columns is not None:
            reader = reader.schema(type(TABLE)([TABLE[column] for column in columns]))
        return reader.load()

    def _archive_columns(self) -> list[str]:
        """Of a view over an archive. It has the days by which the archive is partitioned if the query names that column."""
        needed = needed_columns(self._options.query) if self._is_pruned else None
        return [*(needed or TABLE.fieldNames()), *([DATE] if _NAMES_DATE.search(self._options.query) else [])]

    # ── queries ──────────────────────────────────────────────────────────────────────────────────

    def frame(self, *, streaming: bool = False) -> DataFrame:
        """The query over its views, analysed and not run. Raises InvalidQuery."""
        self._is_pruned = self._is_pruned and not streaming
        try:
            self._prepare(streaming=streaming)
            return self._spark.sql(self._options.query)
        except Exception as error:
            if self._is_pruned:  # with all columns Spark says better what is wrong, if it is
                self._is_pruned = False
                return self.frame()
            raise from_spark(error, self.known) from None

    def start(self, target: Continuous, *, once: bool = False) -> StreamingQuery:
        """Run on. Every row of the answer gets to the target once."""
        checkpoint_id = _identity(Path(target.checkpoint), self._options.query, target)
        frame = self.frame(streaming=True)
        if not frame.isStreaming:
            raise InvalidQuery("the query reads no stream, so it cannot run on", hint="leave out `--continuous`")
        writer = self._written(frame, target, checkpoint_id).option(
            "checkpointLocation", str(Path(target.checkpoint) / "spark")
        )
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{target.trigger_ns // MILLISECOND_NS} milliseconds")
        try:
            query: StreamingQuery = writer.outputMode(target.output_mode).start()
            return query
        except Exception as error:
            raise _hinted(from_spark(error, self.known)) from None

    def _written(self, frame: DataFrame, target: Continuous, checkpoint_id: str) -> Any:
        """Through foreachBatch: of what sources in Python write themselves, Spark takes rows that are final and no others."""
        if target.stream is not None:
            missing = "create" if target.create else "fail"
            options = {**self._options.connection, "stream": target.stream, "onMissingStream": missing}
            sink = StreamBatches(f"stream {target.stream}", options, producer_id("sql", target.stream, checkpoint_id))
            sink.check(frame.schema)
            return frame.writeStream.foreachBatch(_StreamFunction(sink, is_shuffled(frame)))
        assert target.path is not None  # a target is a stream or a path
        table = TableBatches(f"table {target.path}", target.path, checkpoint_id)
        table.check(frame.schema)
        if not is_connect(self._spark):  # whose folders are the server's
            table.open(self._spark)
        return frame.writeStream.foreachBatch(_TableFunction(table))


@dataclass(frozen=True, slots=True)
class _StreamFunction:
    """For foreachBatch; pickled by Spark Connect."""

    sink: StreamBatches
    is_shuffled: bool

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = Rows(frame, has_message=False)
        self.sink.publish(
            message_frame(rows) if self.is_shuffled else frame.selectExpr(*written_columns(rows)), batch_id
        )


@dataclass(frozen=True, slots=True)
class _TableFunction:
    table: TableBatches

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.table.open(frame.sparkSession)
        rows = frame.persist()
        try:
            self.table.write(SinkBatch(batch_id, Rows(rows, has_message=False), rows.count()))
        finally:
            rows.unpersist()


def is_shuffled(frame: DataFrame) -> bool:
    """Whether rows come out in another order than they went in."""
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        frame.explain(extended=True)
    return _SHUFFLES.search(plan.getvalue()) is not None


def _hinted(error: Any) -> Any:
    if "watermark" in error.message.lower() and error.hint is None:
        error.hint = (
            "give `--watermark STREAM=10m` and group by `window(timestamp, '1 minute')`, or say `--mode update`"
        )
    return error


def archive_frame(spark: SparkSession, place: LakePlace, name: str, columns: list[str]) -> DataFrame:
    """The rows of the files of an archive; only those of the stream `name` if the archive has it."""
    files = Archive(place).state().in_order()
    streams = {one.stream for one in files}
    mine = tuple(one for one in files if one.stream == name or name not in streams)
    found = scan(spark, place, mine, columns)
    if found is not None:
        return found
    # Spark has no file system for the store; tasks read the files as the source does.
    numbers = spark.range(0, len(mine), 1, max(1, len(mine)))
    return with_date(numbers.mapInArrow(FilesTask(place, mine), TABLE)).select(*columns)


@dataclass(frozen=True, slots=True)
class FilesTask:
    """For mapInArrow on the numbers of files. Pickled, so nothing is open in it."""

    place: LakePlace
    files: tuple[DataFile, ...]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                yield from read_file(self.place, self.files[number])


def write_stream(
    frame: DataFrame, connection: Mapping[str, str], stream: str, *, create: bool, run_id: str | None = None
) -> None:
    """The answer of a query that is run once, published: every row once, whichever tasks Spark runs again.

    A task that runs again has to have its rows in the order they had. Those that come straight from a stream have; what is behind a
    shuffle is in the order in which blocks happened to arrive, so it is kept before the first row is published, and read from there.
    Kept with the executors: where one is lost with what it kept, the query fails and does not guess.
    """
    options = {**connection, "stream": stream, "onMissingStream": "create" if create else "fail"}
    sink = StreamBatches(f"stream {stream}", options, f"sql:{run_id or secrets.token_hex(RUN_ID_BYTES)}")
    sink.check(frame.schema)
    messages = frame.selectExpr(*written_columns(Rows(frame, has_message=False)))
    if is_shuffled(frame):
        messages = messages.localCheckpoint()
    sink.publish(messages.coalesce(ANSWER_TASKS_MAX), 0)


def local_folder(path: str) -> Path:
    """The folder that an answer is written to. Raises InvalidOption for an object store: Spark has no file system for these."""
    place = LakePlace.of(path)
    if place.local is None:
        raise InvalidOption(
            f"`--into-path` is `{path}`, which is no folder",
            hint="write into a folder of this machine, or into a stream",
        )
    return place.local


def write_table(frame: DataFrame, path: str) -> None:
    """The answer of a query that is run once, as Parquet in a new folder."""
    folder = local_folder(path)
    if folder.exists() and any(folder.iterdir()):
        raise CallerError(f"{folder} is not empty", hint="give a new folder")
    frame.write.mode("overwrite").option("compression", "zstd").parquet(str(folder.absolute()))


def _identity(checkpoint: Path, query: str, target: Continuous) -> str:
    """The id of a checkpoint, which is made if it is not there. One of another query is refused: its state is of no use to this one."""
    path = checkpoint / "query.json"
    said = [" ".join(query.split()), target.stream, target.path, target.output_mode]
    digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()
    if not path.exists():
        if checkpoint.exists() and any(checkpoint.iterdir()):
            raise CheckpointMismatch(
                f"{checkpoint} is not empty and no checkpoint of a query", hint="give a new folder"
            )
        checkpoint.mkdir(parents=True, exist_ok=True)
        write_document(path, {"id": secrets.token_hex(ID_BYTES), "digest": digest})
    found = json.loads(path.read_text("utf-8"))
    if found.get("digest") != digest:
        raise CheckpointMismatch(
            f"{checkpoint} is the checkpoint of another query, or of another target",
            hint="give each a checkpoint of its own",
        )
    return str(found["id"])


def cells(frame: DataFrame, rows_max: int) -> tuple[list[str], list[list[Any]], bool]:
    """Names, rows, and whether there are more. Raises what the query raises while it runs."""
    try:
        table = frame.limit(rows_max + 1).toArrow()
    except Exception as error:
        raise from_spark(error) from None
    rows = list(_rows(table))
    return list(table.column_names), rows[:rows_max], len(rows) > rows_max


def _rows(table: pa.Table) -> Iterator[list[Any]]:
    columns = [[plain(cell, column.type) for cell in column.to_pylist()] for column in table.columns]
    for row in zip(*columns, strict=True):
        yield list(row)


def plain(value: Any, kind: pa.DataType) -> Any:
    """A cell for a screen or for JSON."""
    import pyarrow as pa

    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if pa.types.is_map(kind):
        return {str(plain(name, kind.key_type)): plain(item, kind.item_type) for name, item in value}
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [plain(item, kind.value_type) for item in value]
    if hasattr(value, "isoformat"):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)
