"""A look at the executors before a job starts: a small task of Spark reports whether they can run ours.

The function of the task is made from text, so that Spark sends its code: a function of this package would be sent as its name, which
an executor without the package cannot import.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import bascule
from bascule.errors import BasculeError, MissingExtra, OperatorError
from bascule.spark.errors.failures import from_spark
from bascule.spark.executors.pack import this_platform, this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_MAX: Final = 64
PACK_HINT: Final = "pack what executors need with `bascule spark pack`, and give it with `--pack`, or to spark-submit with `--archives`"

_LOOK: Final = """
def look(_):
    import os, platform, socket, sys, sysconfig
    found = {"host": socket.gethostname(), "executable": sys.executable, "bascule": None, "error": None}
    found["python"] = "%s-%d.%d" % (sys.implementation.name, *sys.version_info[:2])
    found["platform"] = sysconfig.get_platform()
    try:
        import bascule
        found["bascule"] = bascule.__version__
        import bascule.kernels.records.records, bascule.spark.source, pyarrow
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
    yield found
"""


@dataclass(frozen=True, slots=True)
class ExecutorPython:
    """The Python of an executor, and the error with which it imports the package."""

    host: str
    executable: str
    python: str
    platform: str
    bascule: str | None
    error: str | None


def look(spark: SparkSession) -> list[ExecutorPython]:
    """Each Python that a task of the look ran in. Raises the error of a cluster that runs none."""
    context = spark.sparkContext
    tasks = max(1, min(TASKS_MAX, context.defaultParallelism))
    code: dict[str, Any] = {"__name__": "__main__"}
    exec(_LOOK, code)
    try:
        rows = context.parallelize(range(tasks), tasks).mapPartitions(code["look"]).collect()
    except Exception as error:
        raise from_spark(error) from None
    found = {ExecutorPython(**row) for row in rows}
    return sorted(found, key=lambda one: (one.host, one.executable))


def must_fit(found: Collection[ExecutorPython]) -> None:
    """Raises the first thing that keeps an executor from running our tasks."""
    for one in found:
        error = unfit(one)
        if error is not None:
            raise error


def unfit(one: ExecutorPython) -> BasculeError | None:
    """Why an executor cannot run our tasks; None if it can."""
    place = f"the executor on {one.host} (Python {one.executable})"
    if one.bascule is None:
        return MissingExtra(f"{place} has no package `bascule`: {one.error}", hint=PACK_HINT)
    if one.error is not None and one.platform != this_platform():
        return OperatorError(
            f"{place} is {one.platform}, and the package is for {this_platform()}: {one.error}",
            hint="run `bascule spark pack` on a machine like the executors'",
        )
    if one.error is not None:
        return OperatorError(f"{place} cannot import what it needs: {one.error}", hint=PACK_HINT)
    if one.python != this_python():
        return OperatorError(
            f"{place} is {one.python}, and this driver is {this_python()}",
            hint="set `spark.pyspark.python` or `PYSPARK_PYTHON` to a Python of the driver's version",
        )
    if one.bascule != bascule.__version__:
        return OperatorError(
            f"{place} has Bascule {one.bascule}, and this driver has {bascule.__version__}", hint=PACK_HINT
        )
    return None
