"""Rows of a pipeline: a frame, and hidden columns that every row carries through the steps.

    _message   the message that a row was made of, while there is one
    _time      its event time, with Spark's watermark, if the source has one
    _place     what makes a row the same row in a repeated batch, where that is not its message: after joins and windows

Expressions are SQL texts, not column objects, because those of a classic session and of Spark Connect differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.flight.schema import COLUMNS
from bascule.pipeline.spec.steps import Otherwise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGE: Final = "_message"
"""The message that a row was made of, as it was read."""

TIME: Final = "_time"
"""The event time of a row."""

PLACE: Final = "_place"
"""A text that is unique in a batch, and the same when the batch is repeated."""

HIDDEN: Final = (MESSAGE, TIME, PLACE)

MESSAGE_PLACE: Final = f"concat_ws('/', {MESSAGE}.stream, {MESSAGE}.partition, {MESSAGE}.offset)"

DEAD_LETTER: Final = (
    "key",
    "value",
    "headers",
    "stream",
    "partition",
    "offset",
    "timestamp",
    "rule",
    "reason",
)
"""The columns of what steps reject."""


@dataclass(frozen=True, slots=True)
class Rows:
    frame: DataFrame
    has_message: bool = True

    @property
    def columns(self) -> list[str]:
        """The columns without the hidden ones."""
        return [name for name in self.frame.columns if name not in HIDDEN]

    @property
    def hidden(self) -> list[str]:
        return [name for name in self.frame.columns if name in HIDDEN]

    @property
    def visible(self) -> DataFrame:
        return self.frame.drop(*HIDDEN)

    @property
    def place(self) -> str | None:
        """What makes a row the same row in a repeated batch, as an SQL expression; None if only its content does."""
        if PLACE in self.frame.columns:
            return PLACE
        return MESSAGE_PLACE if self.has_message else None

    def select(self, *expressions: str) -> Rows:
        """These columns and no others; `*` is all there are. Hidden columns stay."""
        wanted: list[str] = []
        for expression in expressions:
            wanted += [quoted(name) for name in self.columns] if expression.strip() == "*" else [expression]
        return Rows(self.frame.selectExpr(*wanted, *self.hidden), self.has_message)

    def where(self, condition: str) -> Rows:
        return Rows(self.frame.where(condition), self.has_message)

    def dead_letters(self, rule: str, reason: str) -> DataFrame:
        """As what they are kept: the message as it came, or the row in JSON where there is no single message any more.
        `reason` is an SQL expression."""
        labels = f"{literal(rule)} AS rule", f"{reason} AS reason"
        if self.has_message:
            return self.frame.selectExpr(*(f"{MESSAGE}.{name} AS {name}" for name in DEAD_LETTER[:-2]), *labels)
        return self.frame.selectExpr(
            "CAST(NULL AS BINARY) AS key",
            f"CAST(to_json(struct({', '.join(quoted(name) for name in self.columns)})) AS BINARY) AS value",
            "CAST(map() AS MAP<STRING, BINARY>) AS headers",
            "CAST(NULL AS STRING) AS stream",
            "CAST(NULL AS INT) AS partition",
            "CAST(NULL AS BIGINT) AS offset",
            "CAST(NULL AS TIMESTAMP) AS timestamp",
            *labels,
        )


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
    """What a step leaves, and what it rejects."""

    rows: Rows
    broken: tuple[Broken, ...] = ()


def with_message(frame: DataFrame) -> Rows:
    """A frame as the source gives it."""
    return Rows(frame.selectExpr("*", f"struct({', '.join(COLUMNS)}) AS {MESSAGE}"))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
