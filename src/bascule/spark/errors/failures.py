"""Errors of Spark as ours: one message and the next step, without a stack trace of Java.

An error of ours crosses processes as text that begins with its code. It is found inside the text that Spark has wrapped around it, and
raised again as the same class.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from bascule import errors
from bascule.config.values.given import closest
from bascule.errors import BasculeError, InvalidQuery, MissingExtra, OperatorError, PipelineFailed
from bascule.spark.errors.table_formats import of_table_format

_CODED: Final = re.compile(r"\[([A-Z][A-Z_]+)\] ([^\n]*)(?:\nhint: ([^\n]*))?")
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_OF_DATA: Final = re.compile(r"SQLSTATE: 22\w{3}")
"""Class 22 of SQLSTATE, data exceptions: a text that is not a number, a division by zero."""
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]*python[^"]*)"')
_NO_MODULE: Final = re.compile(r"No module named '((?:bascule|pyspark_bascule|pyarrow|fastavro)(?:\.[\w.]+)?)'")
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w{5}")
_MISSING_TABLE: Final = re.compile(r"table or view (?:`[^`]*`\.)*`([^`]+)`")
_SUGGESTIONS: Final = re.compile(r"Did you mean one of the following\? \[(.*?)\]")


def from_spark(error: BaseException, known: Collection[str] = ()) -> BasculeError:
    """The error as one of ours. `known` are the tables to suggest for a misspelt name."""
    if isinstance(error, BasculeError):
        return error
    said = _text(error)
    found = _ours(said)
    if found is not None:
        return found
    found = _of_executors(said) or of_table_format(said)
    if found is not None:
        return found
    name = type(error).__name__
    if name in ("AnalysisException", "ParseException"):
        return _query_error(error, said, known)
    if _OF_DATA.search(said):
        return InvalidQuery(
            _first_lines(said),
            hint="a row does not fit the query: `try_cast` and similar functions return null instead",
        )
    return PipelineFailed(_first_lines(said) or name, hint=None)


def _of_executors(said: str) -> BasculeError | None:
    """What a cluster lacks that runs our tasks."""
    command = _NO_PROGRAM.search(said)
    if command is not None:
        return OperatorError(
            f"an executor, or the driver, has no Python `{command[1]}`",
            hint="set `spark.pyspark.python` or `PYSPARK_PYTHON` to a name that all machines find in their PATH, such as `python3.11`",
        )
    module = _NO_MODULE.search(said)
    if module is not None:
        return MissingExtra(
            f"an executor cannot import `{module[1]}`",
            hint="pack what executors need with `bascule spark pack`, and give it with `--pack`, or to spark-submit with `--archives`",
        )
    if "PYTHON_VERSION_MISMATCH" in said:
        return OperatorError(
            f"executors run another Python than the driver: {_first_lines(said)}",
            hint="set `spark.pyspark.python` or `PYSPARK_PYTHON` to a Python of the driver's version",
        )
    return None


def _text(error: BaseException) -> str:
    desc = getattr(error, "desc", None)  # str() would append the stack trace of Java
    return str(desc or getattr(error, "_message", None) or error)


def _ours(said: str) -> BasculeError | None:
    """The innermost of our errors in the text, which is the last one."""
    by_code = {kind.code: kind for kind in _kinds(BasculeError)}
    for match in reversed(list(_CODED.finditer(said))):
        kind = by_code.get(match[1])
        if kind is not None and kind not in (BasculeError, errors.CorruptBatch):
            return kind(match[2].strip(), hint=match[3])
    return None


def _kinds(parent: type[BasculeError]) -> Iterator[type[BasculeError]]:
    yield parent
    for child in parent.__subclasses__():
        yield from _kinds(child)


def _query_error(error: Any, said: str, known: Collection[str]) -> BasculeError:
    condition = _condition(error)
    text = _first_lines(said)
    if "TABLE_OR_VIEW_NOT_FOUND" in condition or "TABLE_OR_VIEW_NOT_FOUND" in said:
        missing = _MISSING_TABLE.search(said)
        name = missing[1] if missing else ""
        close = closest(name, known) if name else None
        listed = ", ".join(f"`{one}`" for one in sorted(known)[:10]) or "none"
        hint = (
            f"did you mean `{close}`?" if close else f"there are {listed}; put names with dots or dashes in backquotes"
        )
        return InvalidQuery(f"there is no stream or archive `{name}`", hint=hint)
    suggestions = _SUGGESTIONS.search(said)
    if suggestions is not None:
        text = text.split(" Did you mean")[0]
        return InvalidQuery(text, hint=f"there are {suggestions[1]}")
    is_syntax = type(error).__name__ == "ParseException" or "Syntax error" in text
    return InvalidQuery(text, hint="put names with dots or dashes in backquotes: `my-stream`" if is_syntax else None)


def _condition(error: Any) -> str:
    try:
        return str(error.getCondition() or "")
    except Exception:  # a broken connection to Java has no condition
        return ""


def _first_lines(said: str) -> str:
    """The message without query plans, stack traces and Spark's own codes."""
    lines: list[str] = []
    for line in said.splitlines():
        if re.match(r"\s*(at |== |'?[A-Z]\w+ \[|;|JVM stacktrace|Traceback|File )", line) or (
            lines and not line.strip()
        ):
            break
        if line.strip():
            lines.append(_SQLSTATE.sub("", _CONDITION.sub("", line.strip())).strip())
    return " ".join(line for line in lines if line).rstrip(";").strip()
