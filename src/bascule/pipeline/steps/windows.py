"""Aggregates by event time, as Spark's own stateful operators; and which rows come too late for them."""

from __future__ import annotations

from typing import Final

from bascule.config.values.duration import MILLISECOND_NS
from bascule.pipeline.spec.steps import Late, Otherwise, Window
from bascule.pipeline.steps.joins import asked
from bascule.pipeline.steps.rows import PLACE, TIME, Broken, Rows, quoted

START: Final = "window_start"
END: Final = "window_end"
LATE_RULE: Final = "late"

_MICROSECOND_NS: Final = 1_000


def aggregated(step: Window, rows: Rows) -> Rows:
    """One row for each window and group. In a stream they come when the watermark passes the end of the window."""
    word, window = _window(step)
    columns = (f"{word}.start AS {START}", f"{word}.end AS {END}", *step.by, *step.aggregates)
    groups = (window, *(str(number) for number in range(3, 3 + len(step.by))))
    frame = asked(f"SELECT {', '.join(columns)} FROM {{rows}} GROUP BY {', '.join(groups)}", rows=rows.frame)
    names = [START, *frame.columns[2 : 2 + len(step.by)]]
    place = f"to_json(struct({', '.join(quoted(name) for name in names)})) AS {PLACE}"
    return Rows(frame.selectExpr("*", place), has_message=False)


def _window(step: Window) -> tuple[str, str]:
    """The name that Spark gives the window, and the function that makes it."""
    if step.session_ns is not None:
        return "session_window", f"session_window({TIME}, '{_milliseconds(step.session_ns)}')"
    every = "" if step.every_ns is None else f", '{_milliseconds(step.every_ns)}'"
    return "window", f"window({TIME}, '{_milliseconds(step.size_ns)}'{every})"


def _milliseconds(nanoseconds: int | None) -> str:
    return f"{(nanoseconds or 0) // MILLISECOND_NS} milliseconds"


def late_rows(step: Window, rows: Rows, watermark_ms: int) -> Broken:
    """The rows that Spark drops, because all windows that they are in end at the watermark or before it.

    Spark counts late rows itself, but after it has added up those of a group.
    """
    otherwise = Otherwise.DEAD_LETTER if step.late is Late.DEAD_LETTER else Otherwise.DROP
    reason = f"concat('its windows were complete; the watermark was ', timestamp_millis({watermark_ms}))"
    return Broken(LATE_RULE, otherwise, rows.where(f"{_last_end(step)} <= {watermark_ms * 1_000}"), reason)


def _last_end(step: Window) -> str:
    """The end of the last window that a row is in, in microseconds."""
    micros = f"unix_micros({TIME})"
    if step.session_ns is not None:
        return f"{micros} + {step.session_ns // _MICROSECOND_NS}"
    every_ns = step.every_ns or step.size_ns or 0
    return f"{micros} - pmod({micros}, {every_ns // _MICROSECOND_NS}) + {(step.size_ns or 0) // _MICROSECOND_NS}"
