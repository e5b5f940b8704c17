"""Whether a pipeline would run: looked at before anything runs, and before anything is made.

First what brokers and folders can tell, then what needs a Spark: values, steps, columns. Each look returns what it found or raises what
is wrong; `run` stops at the first, `check` shows them all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError, CallerError, InvalidSchema, MalformedValue, StorageError, StreamNotFound
from bascule.lake.archive import Archive
from bascule.pipeline.batches import make_sink
from bascule.pipeline.brokers import streams_at
from bascule.pipeline.checkpoint import PipelineCheckpoint
from bascule.pipeline.sinks.latest import placed
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import (
    OTHERWISE,
    ArchiveSink,
    ConsoleSink,
    DeadLetters,
    LatestSink,
    RoutedSink,
    StreamSink,
    TableSink,
)
from bascule.pipeline.spec.sources import SourceSpec, ValueMode
from bascule.pipeline.spec.steps import Dedup, Expect, Join, Step, Where, Window, split_at_state
from bascule.pipeline.spec.tables import Table
from bascule.pipeline.steps.apply import apply_step, check_condition
from bascule.pipeline.steps.batch_rows import planned, surroundings
from bascule.pipeline.steps.decode import Decoding
from bascule.pipeline.steps.inputs import Input
from bascule.pipeline.steps.rows import Rows
from bascule.pipeline.steps.tables import table_frame
from bascule.spark.errors.failures import from_spark
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.options.schema import TABLE
from bascule.spark.read import cluster
from bascule.spark.read.resolve import require, select
from bascule.spark.read.state import Streams
from bascule.spark.values.decoding import ValueColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_MESSAGES: Final = 20
SAMPLE_PARTITIONS_MAX: Final = 16
_ADDS: Final = re.compile(
    r"\b(sum|avg|mean|std\w*|var\w*|covar\w*|corr|regr_\w+|skewness|kurtosis)\s*\(", re.IGNORECASE
)
"""Aggregates whose last digit depends on the order of rows."""

UNKNOWN_ID: Final = "0" * 16


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    text: str = ""
    error: BasculeError | None = None
    is_warning: bool = False


Look = Callable[[], str]


class Warned(Exception):
    """A finding that is reported and does not keep the pipeline from running."""


def look_around(spec: PipelineSpec) -> Iterator[Finding]:
    """Brokers, streams, folders: no Spark is needed."""
    looks: list[tuple[str, Look]] = [
        ("brokers", lambda: _brokers(spec)),
        *(("source", lambda source=source: _source(spec, source)) for source in spec.inputs),
        *(("sink", lambda sink=sink: _target(spec, sink)) for sink in spec.sinks),
        ("checkpoint", lambda: _checkpoint(spec)),
    ]
    if (letters := spec.dlq) is not None:
        looks.append(("dlq", lambda: _dead_letters(spec, letters)))
    for name, look in looks:
        finding = _found(name, look)
        yield finding
        if finding.error is not None and name == "brokers":
            return


def look_with_spark(spec: PipelineSpec, spark: SparkSession) -> Iterator[Finding]:
    """Values, steps, and the columns that sinks need; what hangs on something that is wrong is not looked at."""
    looking = _Schemas(spec, spark)
    for name, look in looking.looks():
        finding = _found(name, look)
        yield finding
        if finding.error is not None:
            return


def must_run(findings: Iterator[Finding]) -> list[str]:
    """Raises the first thing that is wrong. Returns warnings."""
    warnings = []
    for finding in findings:
        if finding.error is not None:
            raise finding.error
        if finding.is_warning:
            warnings.append(f"{finding.name}: {finding.text}")
    return warnings


def _found(name: str, look: Look) -> Finding:
    try:
        return Finding(name, look())
    except Warned as warning:
        return Finding(name, str(warning), is_warning=True)
    except BasculeError as error:
        return Finding(name, error.message, error)
    except Exception as error:
        ours = from_spark(error)
        return Finding(name, ours.message, ours)


# ── brokers and folders ──────────────────────────────────────────────────────────────────────────


def _brokers(spec: PipelineSpec) -> str:
    connection = spec.connection_options()
    return f"{connection['servers']}: {len(streams_at(connection))} streams"


def _streams(spec: PipelineSpec, source: SourceSpec | None = None) -> Streams:
    options = source_options(spec.source_options(source), STREAMING)
    return require(options.streams, select(options.streams, cluster.connect(options.connection)))


def _source(spec: PipelineSpec, source: SourceSpec) -> str:
    found = _streams(spec, source)
    if not found:
        raise Warned(f"no stream matches `{source.pattern or source.subject}` yet")
    names = ", ".join(sorted(found)[:5]) + (" …" if len(found) > 5 else "")
    partitions = sum(len(stream.partitions) for stream in found.values())
    return f"{names}: {partitions} partitions"


def _there(spec: PipelineSpec, stream: str) -> bool:
    options = source_options(spec.source_options(), STREAMING)
    return stream in cluster.connect(options.connection).subjects()


def _target(spec: PipelineSpec, sink: object) -> str:
    match sink:
        case StreamSink():
            found = _stream(spec, sink.stream, sink.create)
            if sink.compact and found.endswith("there"):
                _must_compact(spec, sink.stream)
            return found
        case ArchiveSink():
            archive = Archive(sink.path, dict(sink.storage or {}))
            if archive.exists:
                archive.describe()
                return f"archive {sink.path}, which is there"
            if archive.place.local is None:
                return f"archive {sink.path}, which will be created"
            return f"archive {sink.path}, {_folder(Path(sink.path))}"
        case LatestSink() | TableSink():
            marked = (Path(sink.path) / "_bascule").is_dir()
            return f"{sink.target}, {_writable(Path(sink.path)) if marked else _folder(Path(sink.path))}"
    return "console"


def _stream(spec: PipelineSpec, stream: str, create: bool) -> str:
    if _there(spec, stream):
        return f"stream {stream}, which is there"
    if not create:
        raise StreamNotFound(
            f"there is no stream `{stream}` to write to",
            hint=f"create it with `bascule stream create {stream}`, or say `create: true`",
        )
    return f"stream {stream}, which will be created"


def _must_compact(spec: PipelineSpec, stream: str) -> None:
    from bascule.client import blocking

    options = source_options(spec.source_options(), STREAMING).connection
    with blocking.connect(options.servers, **options.credentials) as client:
        found = client.fetch_metadata([stream]).streams.get(stream)
    if found is not None and found.settings is not None and not found.settings.compact:
        raise CallerError(
            f"stream `{stream}` keeps all messages, but the sink says `compact: true`",
            hint="write another stream, or leave `compact` out",
        )


def _dead_letters(spec: PipelineSpec, letters: DeadLetters) -> str:
    if letters.stream is not None:
        return _stream(spec, letters.stream, letters.create)
    path = Path(letters.path or "")
    return f"table {path}, {_writable(path) if (path / '_bascule').is_dir() else _folder(path)}"


def _checkpoint(spec: PipelineSpec) -> str:
    checkpoint = PipelineCheckpoint.of(spec)
    if checkpoint.exists:
        checkpoint.check(spec)
        _writable(checkpoint.path)
        return f"{checkpoint.path}: goes on"
    return f"{checkpoint.path}: begins, {_folder(checkpoint.path)}"


def _folder(path: Path) -> str:
    """A folder that is still to be made, or empty."""
    if path.exists():
        if not path.is_dir():
            raise CallerError(f"{path} is a file", hint="give a folder")
        if any(path.iterdir()):
            raise CallerError(
                f"{path} is not empty, and not what the pipeline would make there", hint="give a new folder"
            )
        return _writable(path)
    above = next((parent for parent in path.parents if parent.exists()), Path("/"))
    _writable(above)
    return "which will be made"


def _writable(path: Path) -> str:
    if not os.access(path, os.W_OK | os.X_OK):
        raise StorageError(f"{path} cannot be written", hint="change its permissions, or give another folder")
    return "which is there"


# ── values, steps, columns ───────────────────────────────────────────────────────────────────────


class _Schemas:
    def __init__(self, spec: PipelineSpec, spark: SparkSession) -> None:
        self._spec = spec
        self._spark = spark
        self._empty = spark.createDataFrame([], TABLE)
        self._inputs: list[Input] = []
        self._tables: dict[str, DataFrame] = {}
        self._sifted: list[Rows] = []
        self._rows = Input(spec, 0, None).read(self._empty)

    def looks(self) -> Iterator[tuple[str, Look]]:
        for table in self._spec.tables:
            yield f"table {table.name}", lambda table=table: self._table(table)  # type: ignore[misc]
        for number, source in enumerate(self._spec.inputs):
            name = "value" if number == 0 else f"value of {source.stream}"
            yield name, lambda number=number: self._value(number)  # type: ignore[misc]
        for number, step in enumerate(self._spec.steps, start=1):
            yield f"steps[{number}]", lambda step=step: self._step(step)  # type: ignore[misc]
        if split_at_state(self._spec.steps)[0]:
            yield "streaming", self._streaming
        for number, sink in enumerate(self._spec.sinks, start=1):
            if not isinstance(sink, ArchiveSink):
                yield f"sinks[{number}]", lambda sink=sink: self._sink(sink)  # type: ignore[misc]

    def _table(self, table: Table) -> str:
        found = self._tables[table.name] = table_frame(self._spark, table)
        return ", ".join(f"{name} {kind}" for name, kind in found.dtypes)

    def _value(self, number: int) -> str:
        spec = self._spec
        source = spec.inputs[number]
        made = Input(spec, number, Decoding.of(spec, self._spark, source))
        self._inputs.append(made)
        self._sifted.append(made.sift(made.read(self._empty)).rows)
        self._rows = self._sifted[0]
        if made.decoding is None:
            return "bytes"
        return self._sampled(made.decoding, source)

    def _sampled(self, decoding: Decoding, source: SourceSpec) -> str:
        import pyarrow as pa

        sample = list(_sample(self._spec, source))
        values = pa.array([value for _, value in sample], pa.binary())
        _, reasons = ValueColumn(decoding.reader, decoding.declared).decode(values)
        if not reasons:
            return f"{decoding.reader.options.format}; {len(sample)} of the newest messages were decoded"
        row = min(reasons)
        said = f"{len(reasons)} of the {len(sample)} newest messages cannot be decoded, such as {sample[row][0]}: {reasons[row]}"
        if self._spec.mode_of(source) is ValueMode.FAILFAST:
            raise MalformedValue(said, hint="correct `source.value.schema`, or set `source.value.mode`")
        raise Warned(said)

    def _step(self, step: Step) -> str:
        other = self._sifted[1] if len(self._sifted) > 1 else None
        before = self._rows
        try:
            if isinstance(step, (Expect, Where)):
                check_condition(step.rule if isinstance(step, Expect) else step.condition, before)
            if isinstance(step, Dedup):
                before.frame.selectExpr(*step.key)
            else:
                self._rows = apply_step(step, before, surroundings(self._spec, self._tables, other)).rows
                self._rows.frame.schema  # noqa: B018 - Spark Connect finds errors when it is asked for something
        except BasculeError:
            raise
        except Exception as error:
            joined = [step.target] if isinstance(step, Join) else []
            found = from_spark(error, [*before.columns, *joined])
            found.hint = found.hint or "its columns are " + ", ".join(f"`{name}`" for name in before.columns)
            raise found from None
        if isinstance(step, Window):
            self._must_be_exact(step)
        return _shown(self._rows)

    def _must_be_exact(self, step: Window) -> None:
        """A sum of doubles depends on the order of its rows, which is not the same when a batch is repeated."""
        kinds = dict(self._rows.visible.dtypes[2 + len(step.by) :])
        summed = [
            name
            for (name, kind), text in zip(kinds.items(), step.aggregates, strict=False)
            if kind in ("double", "float") and _ADDS.search(text)
        ]
        if summed and any(isinstance(sink, StreamSink) for sink in self._spec.sinks):
            raise Warned(
                f"`{summed[0]}` is a {kinds[summed[0]]}: a sum of doubles may differ in its last digit when a batch is repeated "
                "after a crash, and the pipeline stops then; cast to DECIMAL before you add"
            )

    def _streaming(self) -> str:
        """Whether Spark can run the steps that keep state one after the other; Spark Connect tells when the query starts."""
        from bascule.pipeline.runner import is_connect

        if is_connect(self._spark):
            return "checked when it starts"

        def read(source: SourceSpec) -> DataFrame:
            return self._spark.readStream.format("bascule").options(**self._spec.source_options(source)).load()

        frame = planned(self._spec, read, tuple(self._inputs), self._tables)
        sql = self._spark.sparkContext._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        append = sql.streaming.OutputMode.Append()
        sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
            frame._jdf.queryExecution().analyzed(), append
        )
        return self._spec.state_words

    def _sink(self, sink: RoutedSink) -> str:
        if sink.when is not None and sink.when != OTHERWISE:
            check_condition(sink.when, self._rows)
        if isinstance(sink, StreamSink) and sink.compact and "key" not in self._rows.columns:
            raise InvalidSchema(
                f"the compacted stream `{sink.stream}` needs a column `key`", hint="add a step `key: <expression>`"
            )
        if isinstance(sink, LatestSink):
            frame = placed(self._rows)
            if sink.key not in frame.columns:
                frame.selectExpr(sink.key)
        elif not isinstance(sink, ConsoleSink):
            made = make_sink(self._spec, sink, PipelineCheckpoint.of(self._spec), UNKNOWN_ID)
            made.check(self._rows.visible.schema)
        return _shown(self._rows)


def _shown(rows: Rows) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in rows.visible.dtypes)


def _sample(spec: PipelineSpec, source: SourceSpec) -> Iterator[tuple[str, bytes]]:
    """The newest messages of some partitions."""
    options = source_options(spec.source_options(source), STREAMING)
    connection = cluster.connect(options.connection)
    partitions = [(name, number) for name, stream in _streams(spec, source).items() for number in stream.partitions]
    for name, number in partitions[:SAMPLE_PARTITIONS_MAX]:
        stream = connection.streams([name])[name]
        state = stream.partitions[number]
        start = max(state.log_start_offset, state.end_offset - SAMPLE_MESSAGES)
        if start >= state.end_offset:
            continue
        for batch in connection.read(
            name, number, start, state.end_offset, stream_id=stream.id, columns=("offset", "value")
        ):
            for row in batch.to_pylist():
                if row["value"] is not None:
                    yield f"`{name}`/{number} at offset {row['offset']}", row["value"]
