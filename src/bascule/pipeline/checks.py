"""Whether a pipeline would run: looked at before anything runs, and before anything is made.

First what brokers and folders can tell, then what needs a Spark: values, steps, columns. Each look returns what it found or raises what
is wrong; `run` stops at the first, `check` shows them all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bascule.errors import BasculeError, CallerError, MalformedValue, StorageError, StreamNotFound
from bascule.lake.archive import Archive
from bascule.pipeline.batches import make_sink
from bascule.pipeline.brokers import streams_at
from bascule.pipeline.checkpoint import PipelineCheckpoint
from bascule.pipeline.sinks.latest import placed
from bascule.pipeline.spec.pipeline import PipelineSpec, ValueMode
from bascule.pipeline.spec.sinks import ArchiveSink, DeadLetters, LatestSink, StreamSink, TableSink
from bascule.pipeline.spec.steps import Dedup, Expect, Step, Where
from bascule.pipeline.steps.apply import apply_step, check_rule, read, sift
from bascule.pipeline.steps.decode import Decoding
from bascule.pipeline.steps.rows import Rows
from bascule.spark.errors.failures import from_spark
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.options.schema import TABLE
from bascule.spark.read import cluster
from bascule.spark.read.resolve import require, select
from bascule.spark.read.state import Streams
from bascule.spark.values.decoding import ValueColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_MESSAGES: Final = 20
SAMPLE_PARTITIONS_MAX: Final = 16
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
        ("source", lambda: _source(spec)),
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


def _streams(spec: PipelineSpec) -> Streams:
    options = source_options(spec.source_options(), STREAMING)
    return require(options.streams, select(options.streams, cluster.connect(options.connection)))


def _source(spec: PipelineSpec) -> str:
    found = _streams(spec)
    if not found:
        raise Warned(f"no stream matches `{spec.source.pattern or spec.source.subject}` yet")
    names = ", ".join(sorted(found)[:5]) + (" …" if len(found) > 5 else "")
    partitions = sum(len(stream.partitions) for stream in found.values())
    return f"{names}: {partitions} partitions"


def _there(spec: PipelineSpec, stream: str) -> bool:
    options = source_options(spec.source_options(), STREAMING)
    return stream in cluster.connect(options.connection).subjects()


def _target(spec: PipelineSpec, sink: object) -> str:
    match sink:
        case StreamSink():
            return _stream(spec, sink.stream, sink.create)
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
        self._decoding: Decoding | None = None
        self._empty = spark.createDataFrame([], TABLE)
        self._rows = read(self._empty, None)

    def looks(self) -> Iterator[tuple[str, Look]]:
        yield "value", self._value
        for number, step in enumerate(self._spec.steps, start=1):
            yield f"steps[{number}]", lambda step=step: self._step(step)  # type: ignore[misc]
        for number, sink in enumerate(self._spec.sinks, start=1):
            if not isinstance(sink, ArchiveSink):
                yield f"sinks[{number}]", lambda sink=sink: self._sink(sink)  # type: ignore[misc]

    def _value(self) -> str:
        spec = self._spec
        self._decoding = Decoding.of(spec, self._spark)
        self._rows = sift(spec, read(self._empty, self._decoding), self._decoding).rows
        if self._decoding is None:
            return "bytes"
        return self._sampled(self._decoding)

    def _sampled(self, decoding: Decoding) -> str:
        import pyarrow as pa

        sample = list(_sample(self._spec))
        values = pa.array([value for _, value in sample], pa.binary())
        _, reasons = ValueColumn(decoding.reader, decoding.declared).decode(values)
        if not reasons:
            return f"{decoding.reader.options.format}; {len(sample)} of the newest messages were decoded"
        row = min(reasons)
        said = f"{len(reasons)} of the {len(sample)} newest messages cannot be decoded, such as {sample[row][0]}: {reasons[row]}"
        if self._spec.value_mode is ValueMode.FAILFAST:
            raise MalformedValue(said, hint="correct `source.value.schema`, or set `source.value.mode`")
        raise Warned(said)

    def _step(self, step: Step) -> str:
        try:
            if isinstance(step, (Expect, Where)):
                check_rule(step, self._rows)
            if isinstance(step, Dedup):
                self._rows.frame.selectExpr(*step.key)
            else:
                self._rows = apply_step(step, self._rows).rows
        except BasculeError:
            raise
        except Exception as error:
            found = from_spark(error, self._rows.columns)
            found.hint = found.hint or "its columns are " + ", ".join(f"`{name}`" for name in self._rows.columns)
            raise found from None
        return _shown(self._rows)

    def _sink(self, sink: LatestSink | StreamSink | TableSink) -> str:
        if isinstance(sink, LatestSink):
            frame = placed(self._rows)
            if sink.key not in frame.columns:
                frame.selectExpr(sink.key)
            return _shown(self._rows)
        made = make_sink(self._spec, sink, PipelineCheckpoint.of(self._spec), UNKNOWN_ID)
        made.check(self._rows.visible.schema)
        return _shown(self._rows)


def _shown(rows: Rows) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in rows.visible.dtypes)


def _sample(spec: PipelineSpec) -> Iterator[tuple[str, bytes]]:
    """The newest messages of some partitions."""
    options = source_options(spec.source_options(), STREAMING)
    connection = cluster.connect(options.connection)
    partitions = [(name, number) for name, stream in _streams(spec).items() for number in stream.partitions]
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
