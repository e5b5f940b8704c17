"""Streams as tables of Spark: `spark.read.format("bascule")`, `spark.readStream.format("bascule")`.

`session("name")` gives a session that is ready for streams; `register(spark)` makes the format known to one that cannot find it by
itself. Nothing here is imported before it is used, so that `import bascule` needs neither Spark nor Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bascule.spark.sessions import session
    from bascule.spark.source import register

_LAZY: Final = {"register": "bascule.spark.source", "session": "bascule.spark.sessions"}

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'bascule.spark' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
