"""Spark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`.

That makes `format("bascule")` work with no call at all. A session for which this import failed would lose all of its data sources, so
nothing here may raise: without Arrow there is no `DefaultSource`, and Spark goes on. In a wheel or a zip file, from which no compiled
module can be imported, it is a source whose only answer is what to do.
"""

from __future__ import annotations

try:
    from bascule.spark.source import BasculeSource as DefaultSource
except (
    ImportError
) as error:  # pyarrow is missing, Spark is too old for streaming sources with limits, or this is a zip file
    if hasattr(globals().get("__loader__"), "archive"):
        from pyspark.sql.datasource import DataSource

        _WHY = str(error)

        class DefaultSource(DataSource):  # type: ignore[no-redef]
            """Refuses every read and write."""

            @classmethod
            def name(cls) -> str:
                return "bascule"

            def schema(self) -> str:
                raise ImportError(_WHY)

        __all__ = ["DefaultSource"]
else:
    __all__ = ["DefaultSource"]
