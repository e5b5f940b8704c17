"""One pipeline: a source, steps, sinks. Typed, and checked as far as a file alone can be: no broker is asked, no Spark started.

The reference page and the sample file are made from these declarations.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from bascule.config.values.duration import SECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import Duration, Name
from bascule.pipeline.spec.document import KeyGroup, fill, read_document, variants
from bascule.pipeline.spec.kinds import CronTimes, Folder, TextMap
from bascule.pipeline.spec.restart import RestartSpec
from bascule.pipeline.spec.sinks import SINKS, BrokerConnection, DeadLetters, Sink
from bascule.pipeline.spec.sources import SourceSpec, ValueMode, ValueSpec
from bascule.pipeline.spec.steps import STEPS, Join, Otherwise, Step, keeps_state, word_of
from bascule.pipeline.spec.tables import TABLES, Table
from bascule.spark.options.reading import Servers
from bascule.spark.options.value_options import ValueFormat

SERVERS_DEFAULT: Final = "127.0.0.1:9292"


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
    tables: tuple[Table, ...] = variants("table", TABLES)
    steps: tuple[Step, ...] = variants("step", STEPS)
    sinks: tuple[Sink, ...] = variants("sink", SINKS)
    dlq: DeadLetters | None = field(default=None, metadata={"part": DeadLetters})
    trigger_ns: int = setting(
        "trigger",
        Duration(),
        10 * SECOND_NS,
        meaning="How often a batch is made while it runs; 0 as soon as the last one is done.",
    )
    schedule: str | None = setting(
        "schedule",
        CronTimes(),
        None,
        meaning="Times as in a crontab, in UTC: `*/15 * * * *`. `bascule pipeline run` then processes the existing messages at these "
        "times, and waits in between.",
    )
    restart: RestartSpec = field(default_factory=RestartSpec, metadata={"part": RestartSpec})
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

    folder: str = ""
    """Where the file lies: modules of `python` steps are looked for there."""

    @property
    def spark(self) -> Mapping[str, str]:
        return self.settings or {}

    # ── what follows ─────────────────────────────────────────────────────────────────────────────

    @property
    def value_mode(self) -> ValueMode:
        return self.mode_of(self.source)

    def mode_of(self, source: SourceSpec) -> ValueMode:
        """What becomes of values of a source that cannot be decoded."""
        if source.value.mode is not None:
            return source.value.mode
        return ValueMode.FAILFAST if self.dlq is None else ValueMode.DEAD_LETTER

    def may_reject(self, source: SourceSpec) -> bool:
        """Whether a message of a source may be left out before the first step."""
        is_typed = source.value.format is not None and self.mode_of(source) is ValueMode.DEAD_LETTER
        return is_typed or source.time is not None

    @property
    def rejects(self) -> Otherwise:
        """What becomes of a row that a step cannot use, unless the file says so."""
        return Otherwise.FAIL if self.dlq is None else Otherwise.DEAD_LETTER

    @property
    def streams(self) -> tuple[str, ...]:
        """Those that are named; none if a pattern says which."""
        return self.source.names

    @property
    def stream_join(self) -> Join | None:
        """The step that joins another stream. There is at most one."""
        return next((step for step in self.steps if isinstance(step, Join) and step.stream is not None), None)

    @property
    def inputs(self) -> tuple[SourceSpec, ...]:
        """All streams that are read: the source, and the one that it is joined with."""
        return (self.source,) if self.stream_join is None else (self.source, self.stream_join.source)

    def connection_options(self) -> dict[str, str]:
        return {"servers": self.servers or SERVERS_DEFAULT, **self.connection.options()}

    def source_options(self, source: SourceSpec | None = None) -> dict[str, str]:
        """For `readStream.format("bascule")`. Values are decoded by the pipeline: the archive wants them as they came."""
        return {**self.connection_options(), **(source or self.source).read_options()}

    @property
    def state_words(self) -> str:
        """The steps that keep state, for messages."""
        return (
            " and ".join(f"`{word_of(step)}`" for step in self.steps if keeps_state(step)) or "a step that keeps state"
        )

    @property
    def state_digest(self) -> str:
        """Of what a checkpoint depends on: the state that Spark keeps for a step is of no use to another one."""
        stateful: list[Any] = [asdict(step) for step in self.steps if keeps_state(step)]
        if stateful and self.source.time is not None:
            stateful.append(asdict(self.source.time))
        return hashlib.sha256(json.dumps(stateful, sort_keys=True).encode()).hexdigest()[:16]

    def at(self, servers: str, connection: BrokerConnection) -> PipelineSpec:
        """The same with other brokers."""
        return replace(self, servers=servers, connection=connection)


def load(path: Path | str, environ: Mapping[str, str] | None = None) -> PipelineSpec:
    """The pipeline of a file. Raises InvalidConfig, which names the key, the line, the value and what would be right."""
    from bascule.pipeline.spec.rules import check

    file = Path(path)
    node = read_document(file, os.environ if environ is None else environ)
    spec = fill(PipelineSpec, node, "")
    check(spec, file)
    return replace(_with_descriptors(spec, node.folder), folder=str(node.folder))


def _with_descriptors(spec: PipelineSpec, folder: Path) -> PipelineSpec:
    """A descriptor set is a file too: its path begins where the pipeline's file lies."""
    steps = tuple(
        replace(step, value=_described(step.value, folder)) if isinstance(step, Join) else step for step in spec.steps
    )
    return replace(spec, source=replace(spec.source, value=_described(spec.source.value, folder)), steps=steps)


def _described(value: ValueSpec, folder: Path) -> ValueSpec:
    is_file = value.format is ValueFormat.PROTOBUF and value.schema is not None
    return replace(value, schema=str(folder / (value.schema or ""))) if is_file else value
