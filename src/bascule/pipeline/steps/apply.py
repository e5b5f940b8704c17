"""Steps, applied to rows. All of it is lazy: a step is part of a streaming plan or of a batch, and gives a schema from no rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.config.values.duration import MILLISECOND_NS
from bascule.errors import InvalidSchema
from bascule.pipeline.spec.pipeline import PipelineSpec, ValueMode
from bascule.pipeline.spec.steps import Dedup, Expect, Otherwise, Select, SetKey, Sql, Step, Where
from bascule.pipeline.steps.decode import DECODE_RULE, REASON, Decoding
from bascule.pipeline.steps.rows import MESSAGE, Rows, literal, quoted, with_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW: Final = "input"
_TIME: Final = "_time"
_ALONE: Final = "_alone"


@dataclass(frozen=True, slots=True)
class Broken:
    """Rows that broke a rule, and what becomes of them."""

    rule: str
    otherwise: Otherwise
    rows: Rows
    reason: str
    """An SQL expression."""

    def letters(self) -> DataFrame:
        return self.rows.dead_letters(self.rule, self.reason)


@dataclass(frozen=True, slots=True)
class Sifted:
    rows: Rows
    broken: tuple[Broken, ...] = ()


def read(frame: DataFrame, decoding: Decoding | None) -> Rows:
    """What the source gave, its values decoded. Expensive if they are: worth keeping."""
    rows = with_message(frame)
    return rows if decoding is None else decoding.apply(rows)


def sift(spec: PipelineSpec, rows: Rows, decoding: Decoding | None) -> Sifted:
    """Rows whose values were decoded, and those whose were not."""
    if decoding is None:
        return Sifted(rows)
    if spec.value_mode is not ValueMode.DEAD_LETTER:
        return Sifted(Rows(rows.frame.drop(REASON)))
    bad = rows.where(f"{REASON} IS NOT NULL")
    good = rows.where(f"{REASON} IS NULL").frame.drop(REASON, "malformedValue")
    return Sifted(Rows(good), (Broken(DECODE_RULE, Otherwise.DEAD_LETTER, bad, REASON),))


def apply(steps: Iterable[Step], rows: Rows) -> Sifted:
    broken: list[Broken] = []
    for step in steps:
        outcome = apply_step(step, rows)
        rows = outcome.rows
        broken += outcome.broken
    return Sifted(rows, tuple(broken))


def apply_step(step: Step, rows: Rows) -> Sifted:
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
    stays = step.otherwise in (Otherwise.WARN, Otherwise.FAIL)  # of a batch that fails nothing is written at all
    return Sifted(rows if stays else rows.where(holds), (broken,))


def _deduplicated(step: Dedup, rows: Rows) -> Rows:
    """The first row of each key within the time. Rows without a key are all kept: their place is their key."""
    keys = [f"_key{number}" for number in range(len(step.key))]
    named = [f"({expression}) AS {name}" for name, expression in zip(keys, step.key, strict=True)]
    frame = rows.frame.selectExpr("*", *named, f"{MESSAGE}.timestamp AS {_TIME}")
    missing = " OR ".join(f"{name} IS NULL" for name in keys)
    place = f"concat_ws('/', {MESSAGE}.stream, {MESSAGE}.partition, {MESSAGE}.offset)"
    frame = frame.selectExpr("*", f"CASE WHEN {missing} THEN {place} END AS {_ALONE}")
    within_ms = max(1, step.within_ns // MILLISECOND_NS)
    kept = frame.withWatermark(_TIME, f"{within_ms} milliseconds").dropDuplicatesWithinWatermark([*keys, _ALONE])
    return Rows(kept.drop(*keys, _TIME, _ALONE), rows.has_message)


def split_at_dedup(steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], Dedup | None, tuple[Step, ...]]:
    for number, step in enumerate(steps):
        if isinstance(step, Dedup):
            return steps[:number], step, steps[number + 1 :]
    return (), None, steps


def check_rule(step: Expect | Where, rows: Rows) -> None:
    """Conditions are conditions: Spark takes a text for one as well, and never finds it true."""
    condition = step.rule if isinstance(step, Expect) else step.condition
    found = rows.frame.selectExpr(f"({condition}) AS rule").schema["rule"].dataType.typeName()
    if found not in ("boolean", "void"):
        raise InvalidSchema(f"`{condition}` is a {found}, no condition", hint="compare it with something")
