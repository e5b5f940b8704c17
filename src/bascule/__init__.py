"""Durable, replicated, ordered streams attached to NATS subjects.

The public face. Errors are reached as `bascule.errors`; everything heavy (YAML, cryptography, compression, Arrow, Spark)
is an extra and imported by whoever needs it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from bascule import errors
from bascule.errors import BasculeError, CallerError, OperatorError, OutcomeUnknown, StateError, Unavailable

try:
    __version__ = version("bascule")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

__all__ = [
    "BasculeError",
    "CallerError",
    "OperatorError",
    "OutcomeUnknown",
    "StateError",
    "Unavailable",
    "__version__",
    "errors",
]
