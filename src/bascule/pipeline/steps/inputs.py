"""The streams that a pipeline reads: decoded values, event times, and what is rejected on the way.

A pipeline has one input, or two if it joins streams. The streaming plan and each batch prepare an input in the same way, so that a
batch finds the rows again that its plan has rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.config.values.duration import MILLISECOND_NS
from bascule.errors import InvalidSchema
from bascule.pipeline.spec.pipeline import PipelineSpec
from bascule.pipeline.spec.sources import Missing, SourceSpec, ValueMode
from bascule.pipeline.spec.steps import Otherwise
from bascule.pipeline.steps.decode import DECODE_RULE, REASON, Decoding
from bascule.pipeline.steps.rows import MESSAGE, TIME, Broken, Rows, Sifted, literal, with_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_TIME: Final = "event_time"
TIME_RULE: Final = "event-time"

_AS_TIMESTAMP: Final = {
    "timestamp": "{}",
    "timestamp_ntz": "CAST({} AS TIMESTAMP)",
    "date": "CAST({} AS TIMESTAMP)",
    "string": "try_cast({} AS TIMESTAMP)",
}
_REJECTED: Final = {
    Missing.DROP: Otherwise.DROP,
    Missing.DEAD_LETTER: Otherwise.DEAD_LETTER,
    Missing.FAIL: Otherwise.FAIL,
}


@dataclass(frozen=True, slots=True)
class Input:
    """One stream of a pipeline. `number` is 0 for the source, 1 for the stream that it is joined with."""

    spec: PipelineSpec
    number: int
    decoding: Decoding | None

    @classmethod
    def all_of(cls, spec: PipelineSpec, spark: SparkSession) -> tuple[Input, ...]:
        return tuple(cls(spec, number, Decoding.of(spec, spark, one)) for number, one in enumerate(spec.inputs))

    @property
    def source(self) -> SourceSpec:
        return self.spec.inputs[self.number]

    def read(self, frame: DataFrame) -> Rows:
        """What the source gave, its values decoded. Expensive if they are: worth keeping."""
        rows = with_message(frame)
        return rows if self.decoding is None else self.decoding.apply(rows)

    def sift(self, rows: Rows) -> Sifted:
        """Rows whose values were decoded and that have a time, and those that are rejected."""
        decoded = self._decoded(rows)
        timed = self._timed(decoded.rows)
        return Sifted(timed.rows, (*decoded.broken, *timed.broken))

    def _decoded(self, rows: Rows) -> Sifted:
        if self.decoding is None:
            return Sifted(rows)
        if self.spec.mode_of(self.source) is not ValueMode.DEAD_LETTER:
            return Sifted(Rows(rows.frame.drop(REASON)))
        bad = rows.where(f"{REASON} IS NOT NULL")
        good = rows.where(f"{REASON} IS NULL").frame.drop(REASON, "malformedValue")
        return Sifted(Rows(good), (Broken(self._rule(DECODE_RULE), Otherwise.DEAD_LETTER, bad, REASON),))

    def _timed(self, rows: Rows) -> Sifted:
        time = self.source.time
        if time is None:
            return Sifted(rows)
        found = self._time_expression(rows)
        if time.missing is Missing.MESSAGE:
            found = f"coalesce({found}, {MESSAGE}.timestamp)"
        frame = rows.frame.selectExpr("*", f"{found} AS {EVENT_TIME}", f"{found} AS {TIME}")
        if time.watermark_ns is not None:
            frame = frame.withWatermark(TIME, f"{time.watermark_ns // MILLISECOND_NS} milliseconds")
        timed = Rows(frame, rows.has_message)
        if time.missing is Missing.MESSAGE:
            return Sifted(timed)
        otherwise = self.spec.rejects if time.missing is None else _REJECTED[time.missing]
        reason = literal(f"no time in: {time.expression}")
        bad = Broken(self._rule(TIME_RULE), otherwise, timed.where(f"{TIME} IS NULL"), reason)
        return Sifted(timed.where(f"{TIME} IS NOT NULL"), (bad,))

    def _time_expression(self, rows: Rows) -> str:
        assert self.source.time is not None  # asked by `_timed`
        expression = self.source.time.expression
        kind = rows.frame.selectExpr(f"({expression}) AS found").schema["found"].dataType.typeName()
        if kind not in _AS_TIMESTAMP:
            raise InvalidSchema(
                f"`{expression}` is a {kind}, no time",
                hint=f"convert it: `timestamp_millis({expression})`, or `timestamp_seconds` or `timestamp_micros`",
            )
        return _AS_TIMESTAMP[kind].format(f"({expression})")

    def _rule(self, name: str) -> str:
        """Rules of the second stream have its name."""
        return name if self.number == 0 else f"{self.source.stream}.{name}"
