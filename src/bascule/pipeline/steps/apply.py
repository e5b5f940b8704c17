"""Steps, applied to rows. All of it is lazy: a step is part of a streaming plan or of a batch, and gives a schema from no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bascule.config.values.duration import MILLISECOND_NS
from bascule.errors import InvalidSchema
from bascule.pipeline.spec.steps import (
    Dedup,
    Expect,
    Join,
    Otherwise,
    Python,
    Select,
    SetKey,
    Sql,
    Step,
    Where,
    Window,
)
from bascule.pipeline.steps.functions import FAILED, called
from bascule.pipeline.steps.joins import joined_with_stream, joined_with_table
from bascule.pipeline.steps.rows import MESSAGE, MESSAGE_PLACE, TIME, Broken, Rows, Sifted, literal, quoted
from bascule.pipeline.steps.windows import aggregated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW: Final = "input"
_DEDUP_TIME: Final = "_dedup_time"
_ALONE: Final = "_alone"

WATERMARK: Final = "spark.watermarkDelayMs"
"""The metadata by which Spark knows a column with a watermark."""


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


def _not_watched(step: Step, outcome: Sifted) -> None:
    del step, outcome


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What steps need besides the rows."""

    folder: str = ""
    """Of the pipeline's file."""
    rejects: Otherwise = Otherwise.FAIL
    """What becomes of rows that a step cannot use, unless it says so."""
    tables: Mapping[str, DataFrame] = field(default_factory=dict)
    stream: Rows | None = None
    """The rows of the stream to join."""
    keep: Callable[[DataFrame], DataFrame] = _as_it_is
    """Keeps the result of a function, so that it is called once for each row of a batch."""
    watch: Callable[[Step, Sifted], None] = _not_watched
    """Told of what each step leaves."""


def apply(steps: Iterable[Step], rows: Rows, around: Surroundings) -> Sifted:
    broken: list[Broken] = []
    for step in steps:
        outcome = apply_step(step, rows, around)
        around.watch(step, outcome)
        rows = outcome.rows
        broken += outcome.broken
    return Sifted(rows, tuple(broken))


def apply_step(step: Step, rows: Rows, around: Surroundings) -> Sifted:
    match step:
        case Where():
            return Sifted(rows.where(step.condition))
        case Select():
            return Sifted(rows.select(*step.columns))
        case SetKey():
            return Sifted(_with_key(step, rows))
        case Sql():
            return Sifted(_queried(step, rows))
        case Dedup():
            return Sifted(_deduplicated(step, rows))
        case Expect():
            return _expected(step, rows)
        case Window():
            return Sifted(aggregated(step, rows))
        case Join():
            return Sifted(_joined(step, rows, around))
        case Python():
            return _computed(step, rows, around)


def _joined(step: Join, rows: Rows, around: Surroundings) -> Rows:
    if step.table is not None:
        return joined_with_table(step, rows, around.tables[step.table])
    assert around.stream is not None  # a pipeline with such a step has two inputs
    return joined_with_stream(step, rows, around.stream)


def _computed(step: Python, rows: Rows, around: Surroundings) -> Sifted:
    found = called(step, rows, around.folder)
    found = Rows(around.keep(found.frame), found.has_message)
    otherwise = step.otherwise or around.rejects
    broken = Broken(step.function, otherwise, found.where(f"{FAILED} IS NOT NULL"), FAILED)
    kept = found if _stays(otherwise) else found.where(f"{FAILED} IS NULL")
    return Sifted(Rows(kept.frame.drop(FAILED), kept.has_message), (broken,))


def _stays(otherwise: Otherwise) -> bool:
    """Of a batch that fails nothing is written at all."""
    return otherwise in (Otherwise.WARN, Otherwise.FAIL)


def _with_key(step: SetKey, rows: Rows) -> Rows:
    kind = rows.frame.selectExpr(f"({step.expression}) AS key").schema["key"].dataType.typeName()
    cast = {"binary": "{}", "string": "{}", "struct": "to_json({})", "map": "to_json({})", "array": "to_json({})"}
    made = cast.get(kind, "CAST({} AS STRING)").format(f"({step.expression})")
    others = [quoted(name) for name in rows.columns if name.lower() != "key"]
    return rows.select(f"{made} AS key", *others)


def _queried(step: Sql, rows: Rows) -> Rows:
    """A query may make one row of many: which message a row is of is not known behind it."""
    frame = rows.visible
    frame.createOrReplaceTempView(VIEW)
    return Rows(frame.sparkSession.sql(step.query), has_message=False)


def _expected(step: Expect, rows: Rows) -> Sifted:
    holds = f"coalesce(({step.rule}), false)"
    reason = literal(f"not: {step.rule}")
    broken = Broken(step.name, step.otherwise, rows.where(f"NOT {holds}"), reason)
    return Sifted(rows if _stays(step.otherwise) else rows.where(holds), (broken,))


def _deduplicated(step: Dedup, rows: Rows) -> Rows:
    """The first row of each key within the time. Rows without a key are all kept: their place is their key."""
    keys = [f"_key{number}" for number in range(len(step.key))]
    named = [f"({expression}) AS {name}" for name, expression in zip(keys, step.key, strict=True)]
    frame = rows.frame.selectExpr("*", *named)
    missing = " OR ".join(f"{name} IS NULL" for name in keys)
    frame = frame.selectExpr("*", f"CASE WHEN {missing} THEN {MESSAGE_PLACE} END AS {_ALONE}")
    if not frame.isStreaming:
        return Rows(frame.dropDuplicates([*keys, _ALONE]).drop(*keys, _ALONE), rows.has_message)
    if not _has_watermark(rows):
        time = TIME if TIME in rows.hidden else f"{MESSAGE}.timestamp"
        within_ms = max(1, step.within_ns // MILLISECOND_NS)
        frame = frame.selectExpr("*", f"{time} AS {_DEDUP_TIME}")
        frame = frame.withWatermark(_DEDUP_TIME, f"{within_ms} milliseconds")
    kept = frame.dropDuplicatesWithinWatermark([*keys, _ALONE])
    return Rows(kept.drop(*keys, _DEDUP_TIME, _ALONE), rows.has_message)


def _has_watermark(rows: Rows) -> bool:
    return TIME in rows.hidden and WATERMARK in rows.frame.schema[TIME].metadata


def check_condition(condition: str, rows: Rows) -> None:
    """Conditions are conditions: Spark takes a text for one as well, and never finds it true."""
    found = rows.frame.selectExpr(f"({condition}) AS rule").schema["rule"].dataType.typeName()
    if found not in ("boolean", "void"):
        raise InvalidSchema(f"`{condition}` is a {found}, no condition", hint="compare it with something")
