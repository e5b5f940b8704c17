"""What can be done to rows on their way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from bascule.config.values.duration import MILLISECOND_NS
from bascule.config.values.key import setting
from bascule.config.values.kinds import Choice, Duration, Name, Text
from bascule.pipeline.spec.document import KeyGroup
from bascule.pipeline.spec.kinds import Expressions, FunctionName, Identifier, SelectedColumns, TextMap
from bascule.pipeline.spec.sources import EventTime, SourceSpec, ValueSpec
from bascule.spark.options.declaration import StreamName


class JoinKind(StrEnum):
    INNER = "inner"
    LEFT = "left"


class Late(StrEnum):
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


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
        consequence="It sees the rows of one micro-batch at a time: a `GROUP BY` adds up a batch, not the stream. Step `window` "
        "aggregates a stream.",
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


@dataclass(frozen=True, slots=True)
class Window(KeyGroup):
    """`window`: aggregates of a stream by event time, written once when a window is complete"""

    required: ClassVar = frozenset({"aggregates"})

    size_ns: int | None = setting(
        "size", Duration(minimum_ns=MILLISECOND_NS), None, meaning="The length of a window. Give this or `session`."
    )
    every_ns: int | None = setting(
        "every",
        Duration(minimum_ns=MILLISECOND_NS),
        None,
        default_text="`size`",
        meaning="How often a window begins. If it is shorter than `size`, a row is in several windows.",
    )
    session_ns: int | None = setting(
        "session",
        Duration(minimum_ns=MILLISECOND_NS),
        None,
        meaning="A window ends when no row of its group has come for this long.",
    )
    by: tuple[str, ...] = setting(
        "by",
        SelectedColumns(),
        (),
        default_text="–",
        meaning="What rows are grouped by: SQL expressions, or names with one each.",
    )
    aggregates: tuple[str, ...] = setting(
        "aggregates",
        SelectedColumns(),
        (),
        default_text="–",
        meaning="Names with an SQL aggregate each: `{orders: count(*), total: sum(value.amount)}`.",
        consequence="The columns afterwards are `window_start`, `window_end`, those of `by`, and these.",
    )
    late: Late = setting(
        "late",
        Choice(Late),
        Late.DROP,
        meaning="What becomes of rows whose windows are complete. Both count them; `dead-letter` hands them to `dlq` as rule `late`.",
    )

    @property
    def reach_ns(self) -> int:
        """The longest time from a row to the end of a window that it is in."""
        return self.size_ns or self.session_ns or 0


@dataclass(frozen=True, slots=True)
class Join(KeyGroup):
    """`join`: rows of a table of `tables`, or of another stream, beside the rows that match"""

    required: ClassVar = frozenset({"on"})

    table: str | None = setting("table", Identifier(), None, meaning="One of `tables`. Give this or `stream`.")
    stream: str | None = setting("stream", StreamName(), None, meaning="A stream.")
    name: str | None = setting(
        "as",
        Identifier(),
        None,
        default_text="the name of the table or stream",
        meaning="The column that the other row becomes: a struct, whose fields are `customers.name` or `payments.value.amount`.",
    )
    condition: str = setting(
        "on",
        Text(),
        "",
        default_text="–",
        meaning="An SQL condition, with an equality: `value.customer = customers.id`.",
    )
    kind: JoinKind = setting(
        "kind",
        Choice(JoinKind),
        JoinKind.INNER,
        meaning="`left` keeps rows without a match, with null for the other row; those of a stream come out when no match can come "
        "any more.",
    )
    before_ns: int | None = setting(
        "before",
        Duration(),
        None,
        default_text="`0` if `after` is given",
        meaning="How much earlier than the row the one of the other stream may be. A join of streams needs `before` or `after`.",
    )
    after_ns: int | None = setting(
        "after", Duration(), None, default_text="`0` if `before` is given", meaning="How much later it may be."
    )
    value: ValueSpec = field(default_factory=ValueSpec)
    time: EventTime | None = field(default=None, metadata={"part": EventTime})
    starting: str = setting(
        "starting", Text(), "earliest", meaning="Where a pipeline without a checkpoint begins in the other stream."
    )
    more: Mapping[str, str] | None = setting(
        "options", TextMap(), None, meaning="Options of the source for the stream."
    )

    @property
    def target(self) -> str:
        """The column that the other row becomes."""
        return self.name or self.table or self.stream or ""

    @property
    def source(self) -> SourceSpec:
        """The other stream, as a source."""
        return SourceSpec(stream=self.stream, starting=self.starting, value=self.value, time=self.time, more=self.more)


@dataclass(frozen=True, slots=True)
class Python(KeyGroup):
    """`python`: a column from a function of Python"""

    required: ClassVar = frozenset({"function", "into"})

    function: str = setting(
        "function",
        FunctionName(),
        "",
        default_text="–",
        meaning="`module:function`. The module lies beside the pipeline's file, or is installed wherever Spark runs.",
        consequence="It is imported and its types are checked before the pipeline starts. A repeated batch calls it again, so the "
        "same arguments should give the same result.",
    )
    arguments: tuple[str, ...] = setting(
        "with",
        Expressions(),
        (),
        default_text="–",
        meaning="An SQL expression for each parameter: `[value.amount, key]`.",
    )
    into: str = setting("into", Identifier(), "", default_text="–", meaning="The column that the result becomes.")
    type: str | None = setting(
        "type",
        Text(),
        None,
        default_text="what the function's annotation says",
        meaning="The type of the result as in SQL: `DOUBLE`, `ARRAY<STRING>`.",
    )
    otherwise: Otherwise | None = setting(
        "otherwise",
        Choice(Otherwise),
        None,
        default_text="`dead-letter` if there is a `dlq`, else `fail`",
        meaning="What becomes of a row for which it raises: as for `expect`, and with `warn` the column is null.",
    )


Step = Where | Select | SetKey | Sql | Dedup | Expect | Window | Join | Python

STEPS: Final[Mapping[str, type[KeyGroup]]] = {
    "where": Where,
    "select": Select,
    "key": SetKey,
    "sql": Sql,
    "dedup": Dedup,
    "expect": Expect,
    "window": Window,
    "join": Join,
    "python": Python,
}


def word_of(step: Step) -> str:
    """What a step is called in the file."""
    return next(word for word, kind in STEPS.items() if isinstance(step, kind))


def keeps_state(step: Step) -> bool:
    """Whether Spark keeps state for a step, so that it is part of the streaming plan."""
    return isinstance(step, (Dedup, Window)) or (isinstance(step, Join) and step.stream is not None)


def split_at_state(steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps of the streaming plan, which end with the last one that keeps state, and those that are done batch by batch."""
    ends = [number for number, step in enumerate(steps, start=1) if keeps_state(step)]
    end = ends[-1] if ends else 0
    return steps[:end], steps[end:]


def before_state(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps before the first one that keeps state, which a batch can repeat for its own messages. None if none keeps state."""
    first = next((number for number, step in enumerate(steps) if keeps_state(step)), 0)
    return steps[:first]
