"""One pipeline: a source, steps, sinks. Typed, and checked as far as a file alone can be: no broker is asked, no Spark started.

The reference page and the sample file are made from these declarations.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final

from bascule.config.values.duration import SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import Choice, Duration, Name, Text
from bascule.errors import BasculeError, InvalidConfig, InvalidOption
from bascule.pipeline.spec.document import KeyGroup, fill, read_document, variants
from bascule.pipeline.spec.kinds import Folder, LakePath, StreamNames, TextMap
from bascule.pipeline.spec.sinks import SINKS, BrokerConnection, DeadLetters, Sink, StreamSink
from bascule.pipeline.spec.steps import STEPS, Dedup, Expect, Otherwise, Sql, Step
from bascule.spark.options.declaration import STREAMING, Pattern, StreamName
from bascule.spark.options.reading import Servers, SubjectPattern, ValueFormat, source_options

SERVERS_DEFAULT: Final = "127.0.0.1:9292"


class ValueMode(StrEnum):
    FAILFAST = "failfast"
    PERMISSIVE = "permissive"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class ValueSpec(KeyGroup):
    """What values hold"""

    format: ValueFormat | None = setting(
        "format", Choice(ValueFormat), None, meaning="The column `value` is a struct then. Without it, it is bytes."
    )
    schema: str | None = setting(
        "schema",
        Text(),
        None,
        meaning="For `json` columns as in SQL: `id BIGINT, tags ARRAY<STRING>`; for `avro` a record's schema in JSON; for `protobuf` "
        "the path of a descriptor set.",
    )
    message: str | None = setting(
        "message", Text(), None, meaning="For `protobuf` the full name of the message: `shop.Order`."
    )
    mode: ValueMode | None = setting(
        "mode",
        Choice(ValueMode),
        None,
        default_text="`dead-letter` if there is a `dlq`, else `failfast`",
        meaning="What becomes of a message whose value is something else: `failfast` ends the pipeline and names it, `permissive` has "
        "`value` null and the bytes in the column `malformedValue`, `dead-letter` hands it to `dlq`.",
    )


@dataclass(frozen=True, slots=True)
class SourceSpec(KeyGroup):
    """Where rows come from"""

    stream: str | None = setting("stream", StreamName(), None, meaning="One stream.")
    streams: tuple[str, ...] | None = setting("streams", StreamNames(), None, meaning="Several.")
    pattern: str | None = setting(
        "pattern", Pattern(), None, meaning="A regular expression that the whole name of a stream has to match."
    )
    subject: str | None = setting(
        "subject", SubjectPattern(), None, meaning="A NATS subject with wildcards: all streams whose subject it covers."
    )
    starting: str = setting(
        "starting",
        Text(),
        "earliest",
        meaning="Where a pipeline without a checkpoint begins: whatever option `startingOffsets` of the source takes.",
    )
    history: str | None = setting(
        "history", LakePath(), None, meaning="An archive of the stream: what the log has no longer is read from there."
    )
    storage: Mapping[str, str] | None = setting(
        "storage_options",
        TextMap(),
        None,
        meaning="Options of the object store of `history`, beside those of the environment.",
        is_secret=True,
    )
    on_data_loss: str | None = setting(
        "on_data_loss", Text(), None, default_text="`fail`", meaning="What option `onDataLoss` of the source takes."
    )
    value: ValueSpec = field(default_factory=ValueSpec)
    more: Mapping[str, str] | None = setting(
        "options",
        TextMap(),
        None,
        meaning="More options of the source, such as `maxBytesPerTrigger: 64MiB`. They are in [Spark options](spark-options.md).",
    )

    @property
    def options(self) -> Mapping[str, str]:
        return self.more or {}


@dataclass(frozen=True, slots=True)
class PipelineSpec(KeyGroup):
    """The pipeline"""

    required: ClassVar = frozenset({"name", "source", "sinks", "checkpoint"})

    name: str = setting(
        "name", Name(), "", default_text="–", meaning="What it is called: in reports, dead letters and to brokers."
    )
    servers: str | None = setting(
        "servers",
        Servers(),
        None,
        default_text="those of the command's context, else `127.0.0.1:9292`",
        meaning="Addresses of brokers, with commas in between.",
    )
    connection: BrokerConnection = field(default_factory=BrokerConnection)
    source: SourceSpec = field(default_factory=SourceSpec)
    steps: tuple[Step, ...] = variants("step", STEPS)
    sinks: tuple[Sink, ...] = variants("sink", SINKS)
    dlq: DeadLetters | None = field(default=None, metadata={"part": DeadLetters})
    trigger_ns: int = setting(
        "trigger",
        Duration(),
        10 * SECOND_NS,
        meaning="How often a batch is made while it runs; 0 as soon as the last one is done.",
    )
    checkpoint: str = setting(
        "checkpoint",
        Folder(),
        "",
        default_text="–",
        meaning="A folder of its own, where the pipeline keeps its place.",
        consequence="Without it the pipeline begins anew; tables that it has written refuse that then.",
    )
    settings: Mapping[str, str] | None = setting(
        "spark", TextMap(), None, meaning="Settings of Spark: `spark.driver.memory: 4g`."
    )

    @property
    def spark(self) -> Mapping[str, str]:
        return self.settings or {}

    # ── what follows ─────────────────────────────────────────────────────────────────────────────

    @property
    def value_mode(self) -> ValueMode:
        if self.source.value.mode is not None:
            return self.source.value.mode
        return ValueMode.FAILFAST if self.dlq is None else ValueMode.DEAD_LETTER

    @property
    def streams(self) -> tuple[str, ...]:
        """Those that are named; none if a pattern says which."""
        return (self.source.stream,) if self.source.stream is not None else self.source.streams or ()

    def connection_options(self) -> dict[str, str]:
        return {"servers": self.servers or SERVERS_DEFAULT, **self.connection.options()}

    def source_options(self) -> dict[str, str]:
        """For `readStream.format("bascule")`. Values are decoded by the pipeline: the archive wants them as they came."""
        source = self.source
        said = {
            "subscribe": ",".join(self.streams) or None,
            "subscribePattern": source.pattern,
            "subjectPattern": source.subject,
            "startingOffsets": None if _says_start(source.options) else source.starting,
            "history": source.history,
            "storageOptions": None if source.storage is None else json.dumps(dict(source.storage)),
            "onDataLoss": source.on_data_loss,
        }
        given = {name: value for name, value in said.items() if value is not None}
        return {**self.connection_options(), **given, **source.options}

    def value_options(self) -> dict[str, str]:
        value = self.source.value
        given = {"valueFormat": value.format, "valueSchema": value.schema, "valueMessage": value.message}
        return {name: str(text) for name, text in given.items() if text is not None}

    @property
    def state_digest(self) -> str:
        """Of what a checkpoint depends on: the state that `dedup` keeps is of no use to another key."""
        stateful = [asdict(step) for step in self.steps if isinstance(step, Dedup)]
        return hashlib.sha256(json.dumps(stateful, sort_keys=True).encode()).hexdigest()[:16]

    def at(self, servers: str, connection: BrokerConnection) -> PipelineSpec:
        """The same with other brokers."""
        return replace(self, servers=servers, connection=connection)


def load(path: Path | str, environ: Mapping[str, str] | None = None) -> PipelineSpec:
    """The pipeline of a file. Raises InvalidConfig, which names the key, the line, the value and what would be right."""
    file = Path(path)
    node = read_document(file, os.environ if environ is None else environ)
    spec = fill(PipelineSpec, node, "")
    _check(spec, file)
    return _with_descriptors(spec, node.folder)


def _with_descriptors(spec: PipelineSpec, folder: Path) -> PipelineSpec:
    """A descriptor set is a file too: its path begins where the pipeline's file lies."""
    value = spec.source.value
    if value.format is not ValueFormat.PROTOBUF or value.schema is None:
        return spec
    return replace(spec, source=replace(spec.source, value=replace(value, schema=str(folder / value.schema))))


def _says_start(options: Mapping[str, str]) -> bool:
    names = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}
    return any(name.lower() in names for name in options)


# ── what a single key cannot know ────────────────────────────────────────────────────────────────


def _check(spec: PipelineSpec, file: Path) -> None:
    _check_source(spec, file)
    _check_steps(spec, file)
    _check_sinks(spec, file)
    _check_dlq(spec, file)
    for name in spec.spark:
        if not name.startswith("spark."):
            raise _wrong(
                f"`spark.{name}` in {file} is no setting of Spark",
                "they begin with `spark.`, such as `spark.driver.memory`",
            )
    if (spec.connection.tls_cert is None) != (spec.connection.tls_key is None):
        raise _wrong(f"one of `connection.tls_cert` and `connection.tls_key` is missing in {file}", "give both or none")


def _check_source(spec: PipelineSpec, file: Path) -> None:
    source = spec.source
    said = {"stream": source.stream, "streams": source.streams, "pattern": source.pattern, "subject": source.subject}
    found = [name for name, value in said.items() if value is not None]
    if len(found) != 1:
        what = "nothing says" if not found else " and ".join(f"`{name}`" for name in found) + " both say"
        raise _wrong(
            f"`source` in {file}: {what} which streams to read",
            "set one of `stream`, `streams`, `pattern` and `subject`",
        )
    reserved = {
        "servers",
        "subscribe",
        "stream",
        "subscribepattern",
        "subjectpattern",
        "assign",
        "path",
        "history",
        "ondataloss",
    }
    for name in source.options:
        if name.lower() in reserved or name.lower().startswith(("value", "tls", "token")):
            raise _wrong(
                f"`source.options.{name}` in {file} has a key of its own", "see `servers`, `connection` and `source`"
            )
    if source.value.format is None and any((source.value.schema, source.value.message, source.value.mode)):
        raise _wrong(
            f"`source.value` in {file} has no `format`", "set it to `json`, `avro` or `protobuf`, or leave `value` out"
        )
    try:
        source_options({**spec.source_options(), **spec.value_options()}, STREAMING)
    except InvalidOption as error:
        raise _wrong(f"`source` in {file}: {error.message}", error.hint or "") from None


def _check_steps(spec: PipelineSpec, file: Path) -> None:
    names: set[str] = set()
    dedups = [number for number, step in enumerate(spec.steps) if isinstance(step, Dedup)]
    queries = [number for number, step in enumerate(spec.steps) if isinstance(step, Sql)]
    if len(dedups) > 1:
        raise _wrong(
            f"`steps[{dedups[1] + 1}].dedup` in {file} is the second one",
            "there can be one: put all of its key into it",
        )
    if dedups and queries and queries[0] < dedups[0]:
        raise _wrong(
            f"`steps[{dedups[0] + 1}].dedup` in {file} stands behind a `sql`, which sees one batch at a time",
            "put `dedup` before it",
        )
    for number, step in enumerate(spec.steps, start=1):
        if not isinstance(step, Expect):
            continue
        if step.name in names:
            raise _wrong(
                f"`steps[{number}].expect.name` in {file} is `{step.name}`, as that of another", "name each rule once"
            )
        names.add(step.name)
        if step.otherwise is Otherwise.DEAD_LETTER and spec.dlq is None:
            raise _wrong(
                f"`steps[{number}].expect.otherwise` in {file} is `dead-letter`, but there is no `dlq`",
                "add `dlq: {stream: …}`",
            )


def _check_sinks(spec: PipelineSpec, file: Path) -> None:
    if not spec.sinks:
        raise _wrong(f"`sinks` in {file} is empty", "name one at least, `console` to look at rows")
    targets = [sink.target for sink in spec.sinks]
    for number, target in enumerate(targets, start=1):
        if target in targets[: number - 1]:
            raise _wrong(f"`sinks[{number}]` in {file} is `{target}`, which another sink writes", "write each once")
    for number, sink in enumerate(spec.sinks, start=1):
        if isinstance(sink, StreamSink) and sink.stream in spec.streams:
            raise _wrong(
                f"`sinks[{number}].stream` in {file} is `{sink.stream}`, which the pipeline reads",
                "write another stream",
            )
        if isinstance(sink, StreamSink) and any(name.lower() == "maxbytesperpartition" for name in spec.source.options):
            raise _wrong(
                f"`source.options.maxBytesPerPartition` in {file} cuts a batch that comes again in other places than before",
                "a pipeline that writes a stream takes `maxRecordsPerPartition`",
            )


def _check_dlq(spec: PipelineSpec, file: Path) -> None:
    if spec.dlq is None:
        if spec.source.value.mode is ValueMode.DEAD_LETTER:
            raise _wrong(
                f"`source.value.mode` in {file} is `dead-letter`, but there is no `dlq`", "add `dlq: {stream: …}`"
            )
        return
    if (spec.dlq.stream is None) == (spec.dlq.path is None):
        raise _wrong(
            f"`dlq` in {file} has {'both' if spec.dlq.path else 'none'} of `stream` and `path`", "give one of them"
        )
    taken = [*spec.streams, *(sink.stream for sink in spec.sinks if isinstance(sink, StreamSink))]
    if spec.dlq.stream in taken:
        raise _wrong(
            f"`dlq.stream` in {file} is `{spec.dlq.stream}`, which the pipeline reads or writes", "name another stream"
        )


def _wrong(message: str, hint: str) -> BasculeError:
    return InvalidConfig(message, hint=hint)


def document_of(spec: PipelineSpec) -> dict[str, Any]:
    """For a checkpoint to remember, without secrets."""
    return {"name": spec.name, "state": spec.state_digest}
