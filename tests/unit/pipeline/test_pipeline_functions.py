"""Functions of Python in a pipeline, without Spark: found, checked against their annotations, called, and their errors by row."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, IntegerType, StringType

from bascule.errors import InvalidSchema
from bascule.pipeline.spec.steps import Python
from bascule.pipeline.steps.functions import (
    FAILED,
    FunctionColumn,
    check_arguments,
    digest_of,
    load_function,
    result_type,
    signature_of,
)

_numbers = itertools.count()

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc

THRESHOLD = 3

def root(n: int) -> float:
    if n < 0:
        raise ValueError(f"negative: {n}")
    return n ** 0.5

def roots(n: pa.Array) -> pa.Array:
    if n.null_count:
        raise ValueError("null")
    if pc.any(pc.less(n, 0)).as_py():
        raise ValueError("negative")
    return pc.sqrt(pc.cast(n, pa.float64()))

def short(n: pa.Array) -> pa.Array:
    return n.slice(1)

def maybe(text: "str | None", *more: int) -> "str | None":
    return text

def mixed(a: pa.Array, b: int) -> float: ...

def untyped(a): return a
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    name = f"functions_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def column(folder: Path, name: str, *, arrays: bool, kind: Any = None) -> FunctionColumn:
    made = FunctionColumn(name, str(folder), "", 1, "root", kind or pa.float64(), arrays)
    sent: FunctionColumn = pickle.loads(pickle.dumps(made))
    return sent


def called(column: FunctionColumn, values: list[int | None]) -> tuple[list[Any], list[Any]]:
    batch = pa.RecordBatch.from_pydict({"kept": pa.nulls(len(values)), "_argument0": pa.array(values, pa.int64())})
    (found,) = column(iter([batch]))
    assert found.schema.names == ["kept", "root", FAILED]
    return found.column("root").to_pylist(), found.column(FAILED).to_pylist()


def test_a_function_is_called_for_each_row_and_errors_belong_to_their_rows(module: str, tmp_path: Path) -> None:
    found, errors = called(column(tmp_path, f"{module}:root", arrays=False), [4, -1, 9])
    assert found == [2.0, None, 3.0]
    assert errors == [None, "ValueError: negative: -1", None]
    _, errors = called(column(tmp_path, f"{module}:root", arrays=False, kind=pa.int8()), [1, 10**6])
    assert errors[0] is None and errors[1], "a value that does not fit"


def test_the_rows_for_which_a_function_of_arrays_raises_are_found(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(MODULE)
    made = column(tmp_path, "halves:roots", arrays=True)

    @given(st.lists(st.one_of(st.none(), st.integers(-3, 100)), max_size=40))
    def check(values: list[int | None]) -> None:
        found, errors = called(made, values)
        bad = [value is None or value < 0 for value in values]
        assert [error is not None for error in errors] == bad
        assert found == [None if is_bad else (value or 0) ** 0.5 for value, is_bad in zip(values, bad, strict=True)]

    check()
    _, errors = called(column(tmp_path, "halves:short", arrays=True), [1, 2])
    assert errors == ["TypeError: it returned 0 values for 1 rows"] * 2


def test_a_module_that_was_changed_is_imported_again(module: str, tmp_path: Path) -> None:
    name, folder = f"{module}:THRESHOLD", str(tmp_path)
    before = digest_of(f"{module}:root", folder)
    load_function(f"{module}:root", folder, before)
    path = tmp_path / f"{module}.py"
    path.write_text(MODULE.replace("n ** 0.5", "-1.0").replace("THRESHOLD = 3", "THRESHOLD = 30_000"))
    assert load_function(f"{module}:root", folder, before)(4) == 2.0
    assert load_function(f"{module}:root", folder, "another digest")(4) == -1.0
    with pytest.raises(InvalidSchema, match="is a int, no function"):
        load_function(name, folder)


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "message"),
    [
        ("rot", ["n"], None, "did you mean `root`"),
        ("root", [], None, "is not for 0 arguments"),
        ("root", ["n", "n"], None, "is not for 2 arguments"),
        ("root", ["text"], None, "`n` of .* is a `int`, but `text` is a string"),
        ("maybe", ["n"], None, "`text` of .* is a `str`, but `n` is a int"),
        ("maybe", ["text", "text"], None, "`more` of .* is a `int`"),
        ("mixed", ["n", "n"], None, "takes arrays and single values"),
        ("untyped", ["n"], None, "nothing says what"),
        ("roots", ["n"], None, "nothing says what"),
        ("maybe", ["text"], "DOUBLE", "returns `str`, but `type` is `DOUBLE`"),
    ],
)
def test_what_does_not_fit_is_found_before_a_row_is_read(
    module: str, tmp_path: Path, function: str, arguments: list[str], kind: str | None, message: str
) -> None:
    kinds = {"n": IntegerType(), "text": StringType(), "x": DoubleType()}
    step = Python(f"{module}:{function}", tuple(arguments), "found", kind)

    def check() -> None:
        found = signature_of(load_function(step.function, str(tmp_path)), step.function, len(arguments))
        check_arguments(step, found, [kinds[name] for name in arguments])
        result_type(step, found)

    with pytest.raises(InvalidSchema, match=message) as caught:
        check()
    del caught
    fitting = Python(f"{module}:root", ("n",), "found")
    found = signature_of(load_function(fitting.function, str(tmp_path)), fitting.function, 1)
    check_arguments(fitting, found, [IntegerType()])
    assert result_type(fitting, found) == "DOUBLE"


def test_a_module_that_is_not_there_or_does_not_import_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match="`nowhere_at_all` cannot be imported") as caught:
        load_function("nowhere_at_all:f", str(tmp_path))
    assert "install it wherever Spark runs" in str(caught.value)
    (tmp_path / "torn.py").write_text("def f(:\n")
    with pytest.raises(InvalidSchema, match="SyntaxError"):
        load_function("torn:f", str(tmp_path))
