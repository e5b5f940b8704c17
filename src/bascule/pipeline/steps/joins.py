"""Joins with tables and with streams. The other row becomes one column, a struct, so that no two columns have the same name.

Joins are SQL texts, because conditions are texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bascule.config.values.duration import SECOND_NS
from bascule.errors import InvalidSchema
from bascule.pipeline.spec.steps import Join, JoinKind
from bascule.pipeline.steps.rows import PLACE, TIME, Rows, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OTHER_TIME: Final = "_other_time"


def asked(query: str, **frames: DataFrame) -> DataFrame:
    """The result of a query whose `{name}`s are frames. Other braces are those of SQL."""
    text = query.replace("{", "{{").replace("}", "}}")
    for name in frames:
        text = text.replace(f"{{{{{name}}}}}", f"{{{name}}}")
    session: Any = next(iter(frames.values())).sparkSession
    found: DataFrame = session.sql(text, **frames)
    return found


def joined_with_table(step: Join, rows: Rows, table: DataFrame) -> Rows:
    """Rows beside those of a table. A row that matches several rows of the table occurs once for each."""
    _must_be_free(step, rows)
    name = quoted(step.target)
    other = table.selectExpr(f"struct(*) AS {name}")
    frame = asked(
        f"SELECT * FROM {{left}} {_kind(step)} JOIN {{right}} ON ({step.condition})", left=rows.frame, right=other
    )
    return _placed(Rows(frame, rows.has_message), rows, f"to_json({name})")


def joined_with_stream(step: Join, rows: Rows, other: Rows) -> Rows:
    """Rows beside those of another stream whose time is near theirs."""
    _must_be_free(step, rows)
    name = quoted(step.target)
    fields = ", ".join(quoted(column) for column in other.columns)
    right = other.frame.selectExpr(f"struct({fields}) AS {name}", f"{TIME} AS {OTHER_TIME}")
    near = (
        f"{OTHER_TIME} >= {TIME} - {_interval(step.before_ns)} AND {OTHER_TIME} <= {TIME} + {_interval(step.after_ns)}"
    )
    query = f"SELECT * FROM {{left}} {_kind(step)} JOIN {{right}} ON ({step.condition}) AND {near}"
    frame = asked(query, left=rows.frame, right=right).drop(OTHER_TIME)
    theirs = f"{name}.stream, {name}.partition, {name}.offset"
    return _placed(Rows(frame, rows.has_message), rows, theirs)


def _must_be_free(step: Join, rows: Rows) -> None:
    if step.target.lower() in (name.lower() for name in rows.columns):
        raise InvalidSchema(
            f"there is a column `{step.target}` already", hint="name the column of the other row with `as`"
        )


def _kind(step: Join) -> str:
    return "LEFT" if step.kind is JoinKind.LEFT else "INNER"


def _interval(nanoseconds: int | None) -> str:
    return f"INTERVAL '{(nanoseconds or 0) / SECOND_NS:.3f}' SECOND"


def _placed(joined: Rows, before: Rows, theirs: str) -> Rows:
    """The place of a row before the join does not tell it from the other rows that it has become."""
    place = before.place
    if place is None:
        return joined
    others = [name for name in joined.frame.columns if name != PLACE]
    return Rows(
        joined.frame.selectExpr(*map(quoted, others), f"concat_ws('/', {place}, {theirs}) AS {PLACE}"),
        joined.has_message,
    )
