"""Spark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`.

That makes `format("bascule")` work with no call at all. A session for which this import failed would lose all of its data sources, so
nothing here may raise: without Arrow there is no `DefaultSource`, and Spark goes on.
"""

from __future__ import annotations

try:
    from bascule.spark.source import BasculeSource as DefaultSource
except ImportError:  # pyarrow is missing, or Spark is too old for streaming sources with limits
    pass
else:
    __all__ = ["DefaultSource"]
