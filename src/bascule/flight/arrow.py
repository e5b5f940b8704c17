"""Imports pyarrow; where it is missing, the error says what to install."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

from bascule.errors import MissingExtra


def is_installed() -> bool:
    """Return whether pyarrow is installed, without importing it: that takes 0.25 s and tens of megabytes."""
    try:
        return importlib.util.find_spec("pyarrow") is not None
    except ImportError:
        return False


def require() -> Any:
    """pyarrow itself."""
    return _load("pyarrow")


def require_flight() -> Any:
    """pyarrow.flight."""
    return _load("pyarrow.flight")


@cache  # called several times for each batch
def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"tables need pyarrow, which cannot be imported: {error}", hint='pip install "bascule[spark]"'
        ) from None
