"""Some messages on their way through a pipeline: the rows after every step, and what each rule did to them. Nothing is written.

The rows are a batch that is complete: a window comes out although later rows may belong to it, and a stream is joined with its newest
messages only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import ArchiveSink
from bascule.pipeline.spec.sources import SourceSpec
from bascule.pipeline.spec.steps import Join, Otherwise, word_of
from bascule.pipeline.sql import cells
from bascule.pipeline.steps.apply import apply_step
from bascule.pipeline.steps.batch_rows import route, surroundings
from bascule.pipeline.steps.inputs import Input
from bascule.pipeline.steps.rows import MESSAGE, Broken, Rows, Sifted, quoted
from bascule.pipeline.steps.tables import table_frame
from bascule.spark.errors.failures import from_spark
from bascule.spark.options.declaration import STREAMING
from bascule.spark.options.reading import source_options
from bascule.spark.options.schema import TABLE
from bascule.spark.read import cluster
from bascule.spark.read.resolve import require, select

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

JOINED_MESSAGES: Final = 1_000
"""The newest messages of a stream that rows are joined with."""

SHOWN_ROWS_MAX: Final = 100
"""Rows after a step that are shown at most: joins can make many of few."""

_FATES: Final = {
    Otherwise.DROP: "dropped",
    Otherwise.WARN: "kept",
    Otherwise.DEAD_LETTER: "dead letter",
    Otherwise.FAIL: "the batch fails",
}


@dataclass(slots=True)
class Judgement:
    """What a rule did to one row."""

    rule: str
    fate: str
    row: str
    reason: str


@dataclass(slots=True)
class Stage:
    """The rows after a step."""

    name: str
    columns: list[str]
    rows: list[list[Any]]
    has_more: bool = False
    judged: list[Judgement] = field(default_factory=list)


def preview(spark: SparkSession, spec: PipelineSpec, rows_max: int) -> Iterator[Stage]:
    """The stages of the newest messages: as they were read, after each step, and of each sink with a condition."""
    with ExitStack() as kept:

        def keep(frame: DataFrame) -> DataFrame:
            found = frame.persist()
            kept.callback(found.unpersist)
            return found

        inputs = Input.all_of(spec, spark)
        counts = (rows_max, JOINED_MESSAGES)
        sifted: list[Sifted] = []
        for one, count in zip(inputs, counts, strict=False):
            messages = spark.createDataFrame(newest(spec, one.source, count), TABLE)
            sifted.append(one.sift(Rows(keep(one.read(messages).frame))))
        yield _stage("source", sifted[0])
        used = {step.table for step in spec.steps if isinstance(step, Join)}
        tables = {table.name: table_frame(spark, table) for table in spec.tables if table.name in used}
        around = surroundings(spec, tables, sifted[1].rows if len(sifted) > 1 else None)
        rows = sifted[0].rows
        for number, step in enumerate(spec.steps, start=1):
            try:
                outcome = apply_step(step, rows, replace(around, keep=keep))
                rows = Rows(keep(outcome.rows.frame), outcome.rows.has_message)
                yield _stage(f"{number} {word_of(step)}", Sifted(rows, outcome.broken))
            except Exception as error:
                raise from_spark(error, rows.columns) from None
        for sink in spec.sinks:
            if not isinstance(sink, ArchiveSink) and sink.when is not None:
                yield _stage(sink.target, Sifted(rows.where(route(spec, sink.when))))


def newest(spec: PipelineSpec, source: SourceSpec, count: int) -> pa.Table:
    """The newest messages of the streams of a source, in the order of their times."""
    import pyarrow as pa

    from bascule.flight.schema import table_schema

    options = source_options(spec.source_options(source), STREAMING)
    connection = cluster.connect(options.connection)
    found = [pa.table({name: [] for name in table_schema().names}, schema=table_schema())]
    for name, stream in require(options.streams, select(options.streams, connection)).items():
        for number, state in stream.partitions.items():
            start = max(state.log_start_offset, state.end_offset - count)
            if start < state.end_offset:
                columns = tuple(table_schema().names)
                ranges = connection.read(name, number, start, state.end_offset, stream_id=stream.id, columns=columns)
                found += [pa.Table.from_batches([batch]).select(list(columns)).cast(table_schema()) for batch in ranges]
    order = [("timestamp", "ascending"), ("stream", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    table = pa.concat_tables(found).sort_by(order)
    return table.slice(max(0, table.num_rows - count))


def _stage(name: str, outcome: Sifted) -> Stage:
    columns, rows, has_more = cells(outcome.rows.visible, SHOWN_ROWS_MAX)
    return Stage(name, columns, rows, has_more, [said for one in outcome.broken for said in _judged(one)])


def _judged(broken: Broken) -> Iterator[Judgement]:
    rows = broken.rows
    place = f"concat({MESSAGE}.stream, '/', {MESSAGE}.partition, ' at ', {MESSAGE}.offset)"
    if not rows.has_message:
        place = f"to_json(struct({', '.join(quoted(name) for name in rows.columns)}))"
    _, found, _ = cells(rows.frame.selectExpr(f"{place} AS place", f"{broken.reason} AS reason"), SHOWN_ROWS_MAX)
    for where, reason in found:
        yield Judgement(broken.rule, _FATES[broken.otherwise], str(where), str(reason))
