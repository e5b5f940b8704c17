"""The plan of a pipeline's query, and the rows of one of its batches: messages, what the steps leave, what they reject.

Steps up to the last one that keeps state are in the streaming plan. The rest is done batch by batch. A batch of a plan with such steps
has three columns: a message (`_raw`) with the number of its input (`_input`), or a row that the plan has made (`_row`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sinks import OTHERWISE, ArchiveSink, Sink, StreamSink
from bascule.pipeline.spec.sources import SourceSpec
from bascule.pipeline.spec.steps import (
    Dedup,
    Expect,
    Otherwise,
    Python,
    Sql,
    Step,
    Window,
    before_state,
    keeps_state,
    split_at_state,
    word_of,
)
from bascule.pipeline.steps.apply import Surroundings, apply
from bascule.pipeline.steps.inputs import Input
from bascule.pipeline.steps.rows import MESSAGE, Broken, Rows, Sifted
from bascule.pipeline.steps.windows import late_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RAW: Final = "_raw"
ROW: Final = "_row"
INPUT: Final = "_input"


def plain_archive(spec: PipelineSpec) -> bool:
    """Whether a pipeline only archives what it reads."""
    is_alone = len(spec.sinks) == 1 and isinstance(spec.sinks[0], ArchiveSink)
    return is_alone and not spec.steps and spec.source.value.format is None and spec.source.time is None


def needs_messages(spec: PipelineSpec) -> bool:
    """Whether a batch has to hold the messages that its plan has read: for archives, dead letters, and counts."""
    planned, _ = split_at_state(spec.steps)
    return (
        any(spec.may_reject(source) for source in spec.inputs)
        or any(isinstance(sink, ArchiveSink) for sink in spec.sinks)
        or any(
            isinstance(step, (Expect, Python)) or (keeps_state(step) and not isinstance(step, Dedup))
            for step in planned
        )
    )


def counts_late_rows(spec: PipelineSpec) -> bool:
    """Whether batches count late rows themselves, because Spark counts them after it has added up groups."""
    return isinstance(next((step for step in spec.steps if keeps_state(step)), None), Window)


def surroundings(spec: PipelineSpec, tables: Mapping[str, DataFrame], stream: Rows | None = None) -> Surroundings:
    return Surroundings(spec.folder, spec.rejects, tables, stream)


def planned(
    spec: PipelineSpec,
    read: Callable[[SourceSpec], DataFrame],
    inputs: tuple[Input, ...],
    tables: Mapping[str, DataFrame],
) -> DataFrame:
    """What the batches of the query hold: messages, unless a step has to see all of the stream."""
    steps, _ = split_at_state(spec.steps)
    messages = [read(one.source) for one in inputs]
    if not steps:
        return messages[0]
    sifted = [one.sift(one.read(frame)).rows for one, frame in zip(inputs, messages, strict=True)]
    other = sifted[1] if len(sifted) > 1 else None
    rows = apply(steps, sifted[0], surroundings(spec, tables, other)).rows
    if not needs_messages(spec):
        return rows.frame
    raw = [frame.selectExpr(f"struct(*) AS {RAW}", f"{number} AS {INPUT}") for number, frame in enumerate(messages)]
    raw.append(rows.frame.selectExpr(f"struct(*) AS {ROW}"))
    return functools.reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), raw)


@dataclass(slots=True)
class BatchCounts:
    read: int = 0
    rows: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    """By rule."""
    sinks: dict[int, int] = field(default_factory=dict)
    """Rows for each sink, by its number."""
    steps: dict[str, dict[str, float]] = field(default_factory=dict)


class BatchRows:
    """A batch as the sinks get it. What several of them need is computed once and kept until all are done."""

    def __init__(
        self,
        spec: PipelineSpec,
        frame: DataFrame,
        inputs: tuple[Input, ...],
        tables: Mapping[str, DataFrame],
        kept: ExitStack,
        watermark_ms: int | None = None,
    ) -> None:
        self._spec = spec
        self._inputs = inputs
        self._tables = tables
        self._kept = kept
        self._watermark_ms = watermark_ms
        self._after_steps: dict[str, Rows] = {}
        self._of_step: dict[str, Broken] = {}
        self._all_read: DataFrame | None = None
        """The messages of all inputs."""
        self._before_steps: Rows | None = None
        self.broken: tuple[Broken, ...] = ()
        self.messages: DataFrame | None = None
        """Those of the source, as they were read."""
        steps, after = split_at_state(spec.steps)
        if not steps:
            rows = self._from_messages(frame)
        elif needs_messages(spec):
            rows = self._from_both(frame, steps)
        else:
            rows = Rows(self._keep(frame))
        first = len(steps)
        if self._all_read is None:
            self._all_read = self.messages if self.messages is not None else rows.frame
        outcome = self._apply(after, rows, first)
        self.broken = (*self.broken, *outcome.broken)
        is_queried = any(isinstance(step, Sql) for step in after)  # a query is run once: all sinks get the same rows
        kept_frame = self._keep(outcome.rows.frame) if is_queried else outcome.rows.frame
        self.rows = Rows(kept_frame, outcome.rows.has_message)
        self._keyless()

    # ── what the batch holds ─────────────────────────────────────────────────────────────────────

    def _from_messages(self, frame: DataFrame) -> Rows:
        (source,) = self._inputs
        is_typed = source.decoding is not None
        base = self._keep(source.read(frame).frame if is_typed else frame)
        self.messages = base.selectExpr(f"{MESSAGE}.*") if is_typed else base
        outcome = source.sift(Rows(base) if is_typed else source.read(base))
        self.broken, self._before_steps = outcome.broken, outcome.rows
        return outcome.rows

    def _from_both(self, frame: DataFrame, steps: tuple[Step, ...]) -> Rows:
        base = self._keep(frame)
        raw = self._all_read = base.where(f"{RAW} IS NOT NULL")
        sifted: list[Sifted] = []
        for one in self._inputs:
            messages = raw.where(f"{INPUT} = {one.number}").selectExpr(f"{RAW}.*")
            if one.number == 0:
                self.messages = messages
            rows = one.read(messages)
            sifted.append(one.sift(Rows(self._keep(rows.frame)) if one.decoding is not None else rows))
            self.broken = (*self.broken, *sifted[-1].broken)
        self._before_steps = sifted[0].rows
        before = self._apply(before_state(self._spec.steps), sifted[0].rows, 0)
        self.broken = (*self.broken, *before.broken)
        first = steps[len(before_state(self._spec.steps))]
        if isinstance(first, Window) and self._watermark_ms is not None:
            self.broken = (*self.broken, late_rows(first, before.rows, self._watermark_ms))
        made = base.where(f"{ROW} IS NOT NULL").selectExpr(f"{ROW}.*")
        rows = Rows(made, has_message=MESSAGE in made.columns)
        self._after_steps[_label(len(steps), steps[-1])] = rows
        return rows

    def _apply(self, steps: tuple[Step, ...], rows: Rows, first: int) -> Sifted:
        numbers = iter(range(first + 1, first + 1 + len(steps)))

        def watch(step: Step, outcome: Sifted) -> None:
            label = _label(next(numbers), step)
            self._after_steps[label] = outcome.rows
            for one in outcome.broken:
                self._of_step[label] = one

        around = replace(surroundings(self._spec, self._tables), keep=self._keep, watch=watch)
        return apply(steps, rows, around)

    def _keep(self, frame: DataFrame) -> DataFrame:
        found = frame.persist()
        self._kept.callback(found.unpersist)
        return found

    # ── routes ───────────────────────────────────────────────────────────────────────────────────

    def _keyless(self) -> None:
        """Rows without a key cannot be written to a compacted stream."""
        for sink in self._spec.sinks:
            if isinstance(sink, StreamSink) and sink.compact:
                rows = self._taken(sink).where("key IS NULL")
                reason = f"'a row of the compacted stream {sink.stream} has no key'"
                self.broken = (*self.broken, Broken(f"{sink.stream}.key", self._spec.rejects, rows, reason))

    def routed(self, sink: Sink) -> Rows:
        """The rows that a sink gets."""
        rows = self._taken(sink)
        return rows.where("key IS NOT NULL") if isinstance(sink, StreamSink) and sink.compact else rows

    def _taken(self, sink: Sink) -> Rows:
        if isinstance(sink, ArchiveSink) or sink.when is None:
            return self.rows
        return self.rows.where(route(self._spec, sink.when))

    # ── counting ─────────────────────────────────────────────────────────────────────────────────

    def counts(self, *, with_steps: bool = False) -> BatchCounts:
        """Of messages, rows, rows that broke each rule, rows of each sink, and rows after each step: in one go."""
        began = time.monotonic()
        assert self._all_read is not None  # set by the constructor
        counted: dict[tuple[str, str], DataFrame] = {("read", ""): self._all_read, ("rows", ""): self.rows.frame}
        for one in self.broken:
            counted["rule", one.rule] = one.rows.frame
        for number, sink in enumerate(self._spec.sinks):
            if self._is_routed(sink):
                counted["sink", str(number)] = self.routed(sink).frame
        if with_steps:
            if self._before_steps is not None:
                counted["step", ""] = self._before_steps.frame
            for label, rows in self._after_steps.items():
                counted["step", label] = rows.frame
        found = _counted(counted)
        counts = BatchCounts(found.pop(("read", "")), found.pop(("rows", "")))
        counts.broken = {name: count for (kind, name), count in found.items() if kind == "rule"}
        sinks = {int(name): count for (kind, name), count in found.items() if kind == "sink"}
        counts.sinks = {number: sinks.get(number, counts.rows) for number in range(len(self._spec.sinks))}
        if with_steps:
            by_step = {name: count for (kind, name), count in found.items() if kind == "step"}
            counts.steps = self._steps(by_step, counts, time.monotonic() - began)
        return counts

    def _is_routed(self, sink: Sink) -> bool:
        return not isinstance(sink, ArchiveSink) and (
            sink.when is not None or (isinstance(sink, StreamSink) and sink.compact)
        )

    def _steps(self, by_step: Mapping[str, int], counts: BatchCounts, seconds: float) -> dict[str, dict[str, float]]:
        """Rows into and out of each step. The steps of a batch are one job of Spark, so their time is one number."""
        found: dict[str, dict[str, float]] = {}
        rows_in = by_step.get("", counts.read)
        for number, step in enumerate(self._spec.steps, start=1):
            label = _label(number, step)
            if label not in by_step:
                continue
            broken = self._of_step.get(label)
            dead = broken is not None and broken.otherwise is Otherwise.DEAD_LETTER
            letters = counts.broken[broken.rule] if broken is not None and dead else 0
            found[label] = {"in": rows_in, "out": by_step[label], "dead_letters": letters}
            rows_in = by_step[label]
        found["steps"] = {"in": counts.read, "out": counts.rows, "seconds": round(seconds, 3)}
        return found


def route(spec: PipelineSpec, when: str) -> str:
    """The condition of a sink, never null. `otherwise` is the negation of all others."""
    if when != OTHERWISE:
        return f"coalesce(({when}), false)"
    others = [sink.when for sink in spec.sinks if not isinstance(sink, ArchiveSink)]
    taken = " OR ".join(route(spec, other) for other in others if other is not None and other != OTHERWISE)
    return f"NOT ({taken})"


def _label(number: int, step: Step) -> str:
    """`2 where`: steps have no names of their own."""
    return f"{number} {word_of(step)}"


def _counted(frames: Mapping[tuple[str, str], DataFrame]) -> dict[tuple[str, str], int]:
    labels = list(frames)
    marked = [frame.selectExpr(f"{number} AS what") for number, frame in enumerate(frames.values())]
    union = functools.reduce(lambda left, right: left.union(right), marked)
    found = {row["what"]: row["count"] for row in union.groupBy("what").count().collect()}
    return {label: int(found.get(number, 0)) for number, label in enumerate(labels)}
