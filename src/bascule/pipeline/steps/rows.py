"""Rows of a pipeline: a frame, and while each row is one message, that message in a hidden column.

Expressions are SQL texts, not column objects, because those of a classic session and of Spark Connect differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.flight.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGE: Final = "_message"
"""The message that a row was made of, as it was read."""

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
        """The columns without the hidden message."""
        return [name for name in self.frame.columns if name != MESSAGE]

    @property
    def visible(self) -> DataFrame:
        return self.frame.drop(MESSAGE) if self.has_message else self.frame

    def select(self, *expressions: str) -> Rows:
        """These columns and no others; `*` is all there are. The message stays."""
        wanted: list[str] = []
        for expression in expressions:
            wanted += [quoted(name) for name in self.columns] if expression.strip() == "*" else [expression]
        return Rows(self.frame.selectExpr(*wanted, *([MESSAGE] if self.has_message else [])), self.has_message)

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
            "CAST(to_json(struct(*)) AS BINARY) AS value",
            "CAST(map() AS MAP<STRING, BINARY>) AS headers",
            "CAST(NULL AS STRING) AS stream",
            "CAST(NULL AS INT) AS partition",
            "CAST(NULL AS BIGINT) AS offset",
            "CAST(NULL AS TIMESTAMP) AS timestamp",
            *labels,
        )


def with_message(frame: DataFrame) -> Rows:
    """A frame as the source gives it."""
    return Rows(frame.selectExpr("*", f"struct({', '.join(COLUMNS)}) AS {MESSAGE}"))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
