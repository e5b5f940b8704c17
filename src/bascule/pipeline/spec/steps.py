"""What can be done to rows on their way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from bascule.config.values.duration import MILLISECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import Choice, Duration, Name, Text
from bascule.pipeline.spec.document import KeyGroup
from bascule.pipeline.spec.kinds import Expressions, SelectedColumns


class Otherwise(StrEnum):
    DROP = "drop"
    WARN = "warn"
    DEAD_LETTER = "dead-letter"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Where(KeyGroup):
    """`where`: keep the rows for which a condition is true"""

    short: ClassVar = "condition"
    required: ClassVar = frozenset({"condition"})

    condition: str = setting(
        "condition", Text(), "", default_text="–", meaning="An SQL condition: `value.amount > 100`."
    )


@dataclass(frozen=True, slots=True)
class Select(KeyGroup):
    """`select`: these columns and no others"""

    short: ClassVar = "columns"
    required: ClassVar = frozenset({"columns"})

    columns: tuple[str, ...] = setting(
        "columns",
        SelectedColumns(),
        (),
        default_text="–",
        meaning="SQL expressions: a list such as `[key, value.id, value.amount * 2 AS double]`, or names with an expression each.",
    )


@dataclass(frozen=True, slots=True)
class SetKey(KeyGroup):
    """`key`: the column `key`, from which the partition of a stream and the row of a latest table follow"""

    short: ClassVar = "expression"
    required: ClassVar = frozenset({"expression"})

    expression: str = setting(
        "expression", Text(), "", default_text="–", meaning="An SQL expression: `value.customer`. Numbers become text."
    )


@dataclass(frozen=True, slots=True)
class Sql(KeyGroup):
    """`sql`: a query over the rows"""

    short: ClassVar = "query"
    required: ClassVar = frozenset({"query"})

    query: str = setting(
        "query",
        Text(),
        "",
        default_text="–",
        meaning="A `SELECT … FROM input`.",
        consequence="It sees the rows of one micro-batch at a time: a `GROUP BY` adds up a batch, not the stream. "
        "`bascule pipeline sql --continuous` runs queries over streams.",
    )


@dataclass(frozen=True, slots=True)
class Dedup(KeyGroup):
    """`dedup`: drop rows whose key came before"""

    required: ClassVar = frozenset({"key", "within"})

    key: tuple[str, ...] = setting(
        "key",
        Expressions(),
        (),
        default_text="–",
        meaning="SQL expressions; rows for which all are equal are the same. A row for which one is null is kept.",
    )
    within_ns: int = setting(
        "within",
        Duration(minimum_ns=MILLISECOND_NS),
        0,
        default_text="–",
        meaning="How far apart the times of two messages may be that are the same.",
        consequence="Spark remembers keys that long, and drops rows that are older than the newest one by more than that: they are "
        "counted as late. Allow for how uneven partitions are read while a pipeline catches up.",
    )


@dataclass(frozen=True, slots=True)
class Expect(KeyGroup):
    """`expect`: a rule that rows should keep"""

    required: ClassVar = frozenset({"name", "rule"})

    name: str = setting(
        "name", Name(), "", default_text="–", meaning="What the rule is called in reports and dead letters."
    )
    rule: str = setting(
        "rule", Text(), "", default_text="–", meaning="An SQL condition. A row for which it is null has broken it."
    )
    otherwise: Otherwise = setting(
        "otherwise",
        Choice(Otherwise),
        Otherwise.WARN,
        meaning="What becomes of a row that breaks it: `warn` counts it and lets it pass, `drop` counts it and drops it, `dead-letter` "
        "hands it to `dlq`, `fail` ends the pipeline before anything of the batch is written.",
    )


Step = Where | Select | SetKey | Sql | Dedup | Expect

STEPS: Final[Mapping[str, type[KeyGroup]]] = {
    "where": Where,
    "select": Select,
    "key": SetKey,
    "sql": Sql,
    "dedup": Dedup,
    "expect": Expect,
}
