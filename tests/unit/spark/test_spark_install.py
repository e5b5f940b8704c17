"""What is there without the extra: `import bascule` works, and whoever wants Spark is told what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(program: str, *missing: str) -> str:
    """Run a program in a Python that lacks some packages."""
    without = "".join(f"sys.modules[{name!r}] = None\n" for name in missing)
    command = [sys.executable, "-W", "error", "-c", f"import sys\n{without}{program}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_a_package_that_is_missing_is_named_with_what_to_install(missing: str) -> None:
    program = """
import bascule.spark
from bascule.errors import OperatorError
try:
    bascule.spark.register
except OperatorError as error:
    print(error)
"""
    said = run(program, missing)
    assert f"`{missing}`" in said and 'pip install "bascule[spark]"' in said


def test_spark_finds_the_data_source_by_its_search() -> None:
    """Spark looks through the folders of `sys.path` for modules named `pyspark_…`; an import hook alone is not found."""
    program = "import pkgutil; print('pyspark_bascule' in {found.name for found in pkgutil.iter_modules()})"
    assert run(program) == "True\n"


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_sessions_that_only_look_for_data_sources_are_not_disturbed(missing: str) -> None:
    """Spark imports every `pyspark_…` module: one that raised would take all of a session's sources with it."""
    assert run("import pyspark_bascule; print(hasattr(pyspark_bascule, 'DefaultSource'))", missing) == "False\n"


def test_options_offsets_and_plans_need_neither_spark_nor_arrow() -> None:
    program = "import bascule.spark.options.reading, bascule.spark.read.offsets, bascule.spark.read.plan, bascule.spark.read.advance"
    assert run(program, "pyspark", "pyarrow") == ""
