"""Functions of Python as steps: found and checked in the driver, called in tasks with columns of Arrow.

    def score(amount: float, country: str) -> float: ...              called for each row
    def score(amount: pa.Array, country: pa.Array) -> pa.Array: ...   called for thousands of rows at once

A function that raises is called again with halves of its rows, until the rows are found for which it raises.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import hashlib
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bascule.config.values.given import closest
from bascule.errors import InvalidSchema
from bascule.pipeline.spec.steps import Python
from bascule.pipeline.steps.rows import Rows, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

FAILED: Final = "_failed"
"""The column with the error of the function for a row."""

_ARGUMENT: Final = "_argument"
_ERROR_TEXT_MAX: Final = 500

SQL_TYPES: Final = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    str: "STRING",
    bytes: "BINARY",
    datetime.datetime: "TIMESTAMP",
    datetime.date: "DATE",
}
"""What a column is of that holds what an annotation says."""

TAKEN: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("byte", "short", "integer", "long"),
    float: ("float", "double", "byte", "short", "integer", "long"),
    str: ("string",),
    bytes: ("binary",),
    decimal.Decimal: ("decimal",),
    datetime.datetime: ("timestamp", "timestamp_ntz"),
    datetime.date: ("date",),
    dict: ("struct", "map"),
    list: ("array",),
}
"""The columns that a parameter takes."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function says about itself."""

    parameters: tuple[tuple[str, Any], ...]
    result: Any
    takes_arrays: bool


@dataclass(frozen=True, slots=True)
class FunctionColumn:
    """The column that a function makes. Pickled to tasks, which import the function themselves."""

    name: str
    folder: str
    digest: str
    """Of the module's file: a worker that has imported another state of it imports it again."""
    arguments: int
    into: str
    type: Any
    """In Arrow."""
    takes_arrays: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For mapInArrow: the columns without the arguments, the result, and what went wrong."""
        import pyarrow as pa

        function = load_function(self.name, self.folder, self.digest)
        for batch in batches:
            kept = batch.num_columns - self.arguments
            errors: dict[int, str] = {}
            found = self._result(function, batch.columns[kept:], batch.num_rows, 0, errors)
            failed = pa.array([errors.get(row) for row in range(batch.num_rows)], pa.string())
            names = [*batch.schema.names[:kept], self.into, FAILED]
            yield pa.RecordBatch.from_arrays([*batch.columns[:kept], found, failed], names=names)

    def _result(
        self, function: Callable[..., Any], columns: list[Any], rows: int, first: int, errors: dict[int, str]
    ) -> Any:
        import pyarrow as pa

        if not self.takes_arrays:
            return self._by_row(function, columns, rows, errors)
        if rows == 0:
            return pa.nulls(0, self.type)
        try:
            return self._fitting(function(*columns), rows)
        except Exception as error:
            if rows == 1:
                errors[first] = said(error)
                return pa.nulls(1, self.type)
        half = rows // 2
        left = [column.slice(0, half) for column in columns]
        right = [column.slice(half) for column in columns]
        return pa.concat_arrays(
            [
                self._result(function, left, half, first, errors),
                self._result(function, right, rows - half, first + half, errors),
            ]
        )

    def _by_row(self, function: Callable[..., Any], columns: list[Any], rows: int, errors: dict[int, str]) -> Any:
        import pyarrow as pa

        values = [column.to_pylist() for column in columns]
        found: list[Any] = []
        for row in range(rows):
            try:
                result = function(*(column[row] for column in values))
                pa.scalar(result, self.type)  # a value that does not fit is the error of its row
            except Exception as error:
                errors[row] = said(error)
                result = None
            found.append(result)
        return pa.array(found, self.type)

    def _fitting(self, found: Any, rows: int) -> Any:
        import pyarrow as pa

        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        if not isinstance(found, pa.Array):
            raise TypeError(f"it returned a {type(found).__name__}, no array of Arrow")
        if len(found) != rows:
            raise TypeError(f"it returned {len(found)} values for {rows} rows")
        return found if found.type == self.type else found.cast(self.type)


# ── finding it ───────────────────────────────────────────────────────────────────────────────────

_imported: Final[dict[str, str]] = {}
"""The digests of modules that were imported here."""


def load_function(name: str, folder: str, digest: str = "") -> Callable[..., Any]:
    """The function. Raises InvalidSchema if there is none."""
    module_name, _, function_name = name.partition(":")
    module = _imported_module(module_name, folder, digest)
    found = getattr(module, function_name, None)
    if found is None:
        names = [word for word in vars(module) if not word.startswith("_")]
        close = closest(function_name, names)
        raise InvalidSchema(
            f"`{module_name}` has no function `{function_name}`",
            hint=f"did you mean `{close}`?" if close else f"the module is {getattr(module, '__file__', module_name)}",
        )
    if not callable(found):
        raise InvalidSchema(f"`{name}` is a {type(found).__name__}, no function")
    return found  # type: ignore[no-any-return]


def _imported_module(name: str, folder: str, digest: str) -> types.ModuleType:
    with _on_path(folder):
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(name)
            if digest and _imported.get(name, digest) != digest:
                module = importlib.reload(module)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and name.startswith(error.name or " ")
            raise InvalidSchema(
                f"`{name}` cannot be imported: {said(error)}",
                hint=f"put it into {folder}, or install it wherever Spark runs" if missing else "correct the module",
            ) from None
    if digest:
        _imported[name] = digest
    return module


@contextlib.contextmanager
def _on_path(folder: str) -> Iterator[None]:
    if folder in sys.path:
        yield
        return
    sys.path.insert(0, folder)  # and it stays: a module may import others when it is called
    yield


def digest_of(name: str, folder: str) -> str:
    """Of the file of a function's module; empty for a module without a file."""
    module = inspect.getmodule(load_function(name, folder))
    source = sys.modules.get(name.partition(":")[0], module)
    path = getattr(source, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path else ""


def said(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:_ERROR_TEXT_MAX]


# ── checking it ──────────────────────────────────────────────────────────────────────────────────


def signature_of(function: Callable[..., Any], name: str, arguments: int) -> Signature:
    """What a function says about itself. Raises InvalidSchema if it does not take so many arguments."""
    import pyarrow as pa

    try:
        found = inspect.signature(function)
        hints = typing.get_type_hints(function)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidSchema(f"the signature of `{name}` cannot be read: {said(error)}") from None
    try:
        bound = found.bind(*range(arguments))
    except TypeError as error:
        raise InvalidSchema(
            f"`{name}{found}` is not for {arguments} arguments: {error}",
            hint="`with` lists an expression for each parameter",
        ) from None
    parameters: list[tuple[str, Any]] = []
    for parameter, value in bound.arguments.items():
        many = len(value) if isinstance(value, tuple) else 1
        parameters += [(parameter, hints.get(parameter))] * many
    arrays = [
        hint for _, hint in parameters if isinstance(hint, type) and issubclass(hint, (pa.Array, pa.ChunkedArray))
    ]
    if arrays and len(arrays) != len(parameters):
        raise InvalidSchema(f"`{name}{found}` takes arrays and single values", hint="annotate all parameters alike")
    return Signature(tuple(parameters), hints.get("return"), bool(arrays))


def check_arguments(step: Python, signature: Signature, kinds: list[DataType]) -> None:
    """Raises InvalidSchema for a column that a parameter does not take."""
    if signature.takes_arrays:
        return
    for (parameter, hint), expression, kind in zip(signature.parameters, step.arguments, kinds, strict=True):
        wanted = _plain(hint)
        taken = TAKEN.get(wanted) if isinstance(wanted, type) else None
        if taken is not None and kind.typeName() not in (*taken, "void"):
            raise InvalidSchema(
                f"`{parameter}` of `{step.function}` is a `{wanted.__name__}`, but `{expression}` is a {kind.simpleString()}",
                hint=f"convert it in `with`, or change the annotation; {wanted.__name__} takes {', '.join(taken)}",
            )


def result_type(step: Python, signature: Signature) -> str:
    """The type of the result as in SQL. Raises InvalidSchema if nothing says it, or two things say it."""
    wanted = _plain(signature.result)
    by_hint = SQL_TYPES.get(wanted) if isinstance(wanted, type) else None
    if step.type is not None:
        if by_hint is not None and by_hint in ("STRING", "BOOLEAN", "BINARY") and step.type.upper() != by_hint:
            raise InvalidSchema(
                f"`{step.function}` returns `{wanted.__name__}`, but `type` is `{step.type}`",
                hint=f"it would be `{by_hint}`",
            )
        return step.type
    if by_hint is None:
        raise InvalidSchema(
            f"nothing says what `{step.function}` returns",
            hint="set `type`, such as `DOUBLE`, or annotate the function: `-> float`",
        )
    return by_hint


def _plain(hint: Any) -> Any:
    """`float` of `float | None`, `list` of `list[str]`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        others = [one for one in typing.get_args(hint) if one is not type(None)]
        hint = others[0] if len(others) == 1 else None
    return typing.get_origin(hint) or hint


def function_column(
    step: Python, folder: str, kinds: list[DataType], spark: SparkSession
) -> tuple[FunctionColumn, DataType]:
    """The column of a step, checked: the function exists and takes what it is given. Its type, too, as Spark has it."""
    from pyspark.sql.pandas.types import to_arrow_type

    function = load_function(step.function, folder)
    signature = signature_of(function, step.function, len(step.arguments))
    check_arguments(step, signature, kinds)
    declared = spark.createDataFrame([], f"found {result_type(step, signature)}").schema["found"].dataType
    arrow = to_arrow_type(declared, timezone="UTC")
    digest = digest_of(step.function, folder)
    column = FunctionColumn(
        step.function, folder, digest, len(step.arguments), step.into, arrow, signature.takes_arrays
    )
    if signature.takes_arrays:
        _try_without_rows(column, function, kinds)
    return column, declared


def _try_without_rows(column: FunctionColumn, function: Callable[..., Any], kinds: list[DataType]) -> None:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        column._fitting(function(*(pa.nulls(0, to_arrow_type(kind, timezone="UTC")) for kind in kinds)), 0)
    except Exception as error:
        raise InvalidSchema(
            f"`{column.name}` does not work with arrays without rows: {said(error)}",
            hint=f"it must return an array of {column.type}",
        ) from None


def called(step: Python, rows: Rows, folder: str) -> Rows:
    """Rows with the result, and with the error of each row that has none."""
    from pyspark.sql.types import StringType, StructField, StructType

    if step.into.lower() in (name.lower() for name in rows.columns):
        rows = rows.select(*(quoted(name) for name in rows.columns if name.lower() != step.into.lower()))
    given = [f"({expression}) AS {_ARGUMENT}{number}" for number, expression in enumerate(step.arguments)]
    frame = rows.frame.selectExpr("*", *given)
    kept = len(frame.columns) - len(given)
    fields = frame.schema.fields
    column, declared = function_column(step, folder, [field.dataType for field in fields[kept:]], frame.sparkSession)
    tail = [StructField(step.into, declared), StructField(FAILED, StringType())]
    return Rows(frame.mapInArrow(column, StructType([*fields[:kept], *tail])), rows.has_message)
